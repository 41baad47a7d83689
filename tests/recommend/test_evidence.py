"""The evidence: own runs first, the batch that fits a GPU, latency, measured scaling, unlisted devices."""

from __future__ import annotations

import math
import re

import msgspec
import pytest

from gpubench import rank
from gpubench.findings import UNFOUNDED
from gpubench.models import (
    Estimate,
    Execution,
    Finding,
    FindingKind,
    Launch,
    MemoryFormat,
    ParallelMode,
    Precision,
    Round,
    TaskKind,
)
from gpubench.predict.answers import Predictions, as_records
from gpubench.predict.estimate import estimate as predict_all
from gpubench.predict.estimate import estimate_at_largest_batch
from gpubench.predict.memory import need_of
from gpubench.predict.question import Question, Refusal, case_for
from gpubench.profile import load_profiles, profile_of
from gpubench.profile.memory import MOST_BATCH
from gpubench.recommend.evidence import (
    LATENCY_BATCHES,
    Runs,
    device_key,
    gather,
    mean_power_w,
    measured_by_the_user,
    slow_latency_s,
)
from gpubench.recommend.lines import basis_text
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import Scaling, measured_efficiency, scaling_of
from gpubench.record.store import reference_runs, write_run
from gpubench.sections.prediction import LAYOUT, answered
from gpubench.specs import load_specs
from gpubench.units import UNKNOWN

from .builders import A100, H100, L4, T4, estimate, measurement, run_of, said

RTX4090 = "nvidia-geforce-rtx-4090-24gb"
MI300X = "amd-mi300x-192gb"
NOTHING = Runs((), ())


def question_of(**changes) -> Question:
    return Question(**{"profile": profile_of("vgg16")} | changes)


def case_on(key, **changes):
    return case_for(question_of(**changes), load_specs()[key])


def test_own_runs_come_before_shipped_and_shipped_before_predicted():
    case = case_on(H100)
    own = run_of(H100, measurement(case, 2000))
    shipped = [run_of(key, measurement(case_on(key), 1000)) for key in (H100, A100)]
    request = RankRequest(workloads=("vgg16",))
    answers = gather(request, [H100, A100, L4], Runs((own,), tuple(shipped))).answers["vgg16"]
    assert [answers[key].basis for key in (H100, A100, L4)] == ["measured", "reference", "predicted"]
    assert answers[H100].samples_per_s == pytest.approx(2000)


def test_several_gpus_with_gradients_in_buckets_may_not_fit_although_one_does():
    """`gpubench memory vgg16 --batch-size 360 --count 8` does not fit on 24 GB, but does on one GPU."""
    request = RankRequest(workloads=("vgg16",), batch_size=360, samples=1e6)
    found = gather(request, [RTX4090, H100], NOTHING)
    alone = found.answers["vgg16"]
    assert alone[RTX4090].fits_memory
    reason = found.why_no_room("vgg16", load_specs()[RTX4090], 8, alone[RTX4090])
    assert "batch 360 on" in reason
    assert found.why_no_room("vgg16", load_specs()[H100], 8, alone[H100]) is None
    largest = msgspec.structs.replace(request, batch_size="max")
    found = gather(largest, [RTX4090], NOTHING)
    one = found.answers["vgg16"][RTX4090]
    assert found.why_no_room("vgg16", load_specs()[RTX4090], 8, one) is None, (
        "a slightly smaller batch is nearly as good"
    )
    case = msgspec.structs.replace(alone[RTX4090].case, gpu_count=8, parallel_mode=ParallelMode.DDP)
    rows = (measurement(alone[RTX4090].case, 80), measurement(case, 600))
    found = gather(request, [RTX4090], Runs((run_of(RTX4090, *rows),), ()))
    one = found.answers["vgg16"][RTX4090]
    assert found.why_no_room("vgg16", load_specs()[RTX4090], 8, one) is None, "it ran there"
    told = found.scaler("vgg16", load_specs()[RTX4090], 8, one).fits[0]
    assert (told.fits, told.ran) == (True, True)
    assert "it ran here" in told.text()
    need = need_of(question_of(batch_size=360), case, load_specs()[RTX4090], ())
    assert told.need.device == need.device, "each of eight GPUs also holds gradients in buckets"


def test_a_model_of_blocks_is_sharded_if_ddp_does_not_fit():
    request = RankRequest(workloads=("transformer",), batch_size=17, samples=1e6)
    found = gather(request, [RTX4090], NOTHING)
    asked = "transformer", load_specs()[RTX4090], 8, found.answers["transformer"][RTX4090]
    assert found.why_no_room(*asked) is None
    shared = found.scaler(*asked)
    assert (shared.mode, shared.fits[0].fits) == (ParallelMode.FSDP, True)
    scaled = msgspec.structs.replace(request, precision="amp-fp16")
    found = gather(scaled, [RTX4090], NOTHING)
    asked = *asked[:3], found.answers["transformer"][RTX4090]
    assert " 8 GPUs" in found.why_no_room(*asked), "FSDP ranks do not agree on a gradient scale"


def test_a_measurement_on_the_cpu_anchors_no_gpu_and_is_used_only_there():
    case = msgspec.structs.replace(
        case_on(H100), execution=Execution.EAGER, batch_size=1, memory_format=MemoryFormat.CONTIGUOUS
    )
    runs = Runs((run_of(None, measurement(case, 3.0), backend="cpu"),), ())
    answers = gather(RankRequest(workloads=("vgg16",)), [H100], runs).answers["vgg16"]
    assert answers["cpu"].basis == "measured"
    assert answers["cpu"].case.execution is Execution.EAGER
    without = gather(RankRequest(workloads=("vgg16",)), [H100], NOTHING).answers["vgg16"]
    assert answers[H100] == without[H100]
    assert not set(answers[H100].evidence) & {run.run_id for run in runs.own}


def test_a_host_bound_row_of_an_unknown_device_names_its_cpu():
    row = msgspec.structs.replace(
        measurement(case_on(H100), 100.0),
        findings=(Finding(kind=FindingKind.HOST_BOUND, value=1.5, limit=1.1),),
    )
    run = run_of("a-card-of-no-table", row)
    run = msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, cpu="Some CPU"))
    (found,) = measured_by_the_user(question_of(), [run], load_specs()).values()
    assert found.host_cpu == "Some CPU"
    calm = msgspec.structs.replace(run, measurements=(measurement(case_on(H100), 100.0),))
    (found,) = measured_by_the_user(question_of(), [calm], load_specs()).values()
    assert found.host_cpu is None


@pytest.mark.parametrize("kind", sorted(UNFOUNDED))
def test_an_unfounded_row_is_not_used_for_a_device_or_a_job_on_several_gpus(kind):
    case = case_on(H100)
    four = msgspec.structs.replace(case, gpu_count=4)
    flawed = msgspec.structs.replace(measurement(four, 7200), findings=(Finding(kind=kind),))
    assert measured_efficiency([run_of(H100, measurement(case, 2000), flawed)], case, H100, 4) is None
    alone = msgspec.structs.replace(measurement(case, 9), findings=(Finding(kind=kind),))
    run = run_of("npu-of-mine", alone, backend="mps")
    assert measured_by_the_user(question_of(), [run], load_specs()) == {}


def test_the_nearest_case_of_an_unknown_device_is_used():
    near = case_on(H100)
    far = msgspec.structs.replace(near, precision=Precision.FP32, execution=Execution.EAGER)
    other = msgspec.structs.replace(near, task=TaskKind.INFER)
    run = run_of(
        "npu-of-mine", measurement(far, 5), measurement(near, 9), measurement(other, 90), backend="mps"
    )
    found = measured_by_the_user(question_of(), [run], load_specs())
    assert found["npu-of-mine"].samples_per_s == pytest.approx(9)
    assert measured_by_the_user(question_of(precision=Precision.TF32), [run], load_specs()) == {}


def test_an_amd_card_ranks_by_its_measurement_or_else_by_a_prediction():
    request = RankRequest(workloads=("vgg16",))
    assert gather(request, [MI300X], NOTHING).answers["vgg16"][MI300X].basis == "predicted"
    case = msgspec.structs.replace(case_on(H100))
    runs = Runs((run_of(MI300X, measurement(case, 1500), backend="rocm"),), ())
    answer = gather(request, [MI300X], runs).answers["vgg16"][MI300X]
    assert answer.basis == "measured"
    assert answer.samples_per_s == pytest.approx(1500)


def test_each_card_has_its_own_largest_batch():
    answers = gather(RankRequest(workloads=("vgg16",), batch_size="max"), [H100, T4], NOTHING).answers[
        "vgg16"
    ]
    batches = {key: answers[key].case.batch_size for key in (H100, T4)}
    assert batches[H100] > batches[T4] > 64
    for answer in answers.values():
        assert answer.fits_memory
        assert answer.case.batch_size == answer.largest_batch


def test_a_largest_batch_found_on_the_card_is_kept_and_a_fixed_one_is_not():
    found = msgspec.structs.replace(case_on(H100), batch_size=777)
    searched = msgspec.structs.replace(measurement(found, 4000), batch_choice="largest")
    fixed = measurement(msgspec.structs.replace(case_on(MI300X), batch_size=64), 1500)
    runs = Runs(
        (run_of(H100, searched, measurement(case_on(H100), 3000)), run_of(MI300X, fixed, backend="rocm")), ()
    )
    request = RankRequest(workloads=("vgg16",), batch_size="max")
    answers = gather(request, [H100, MI300X], runs).answers["vgg16"]
    assert (answers[H100].case.batch_size, answers[H100].basis) == (777, "measured")
    assert answers[MI300X].basis == "predicted"


def test_an_answer_says_how_its_batch_was_chosen():
    found = msgspec.structs.replace(case_on(H100), batch_size=1777)
    searched = msgspec.structs.replace(measurement(found, 4000), batch_choice="largest")
    runs = Runs((run_of(H100, searched),), ())
    largest = estimate_at_largest_batch(question_of(), [load_specs()[k] for k in (H100, T4)], own=runs.own)
    cases = [row[2] for row in answered(Predictions(largest))[0].rows]
    assert cases[0].split("\n")[0].endswith("batch 1,777")
    assert cases[0].endswith(f" {runs.own[0].run_id}")
    assert cases[1].split("\n")[0].endswith(f"batch {largest[T4].case.batch_size:,}")
    assert cases[1].endswith("memory model")
    assert [row["batch_choice"] for row in as_records(largest)["estimates"]] == ["largest", "largest"]
    fixed = predict_all(question_of(), [load_specs()[T4]])
    assert answered(Predictions(fixed))[0].rows[0][2].endswith("batch 64")
    assert as_records(fixed)["estimates"][0]["batch_choice"] == "fixed"


def test_an_answer_says_how_its_step_fits():
    """It uses the words of ``gpubench memory``, or a dash if nothing is known."""
    told = predict_all(question_of(), [load_specs()[T4]])
    (column,) = (n for n, each in enumerate(answered(Predictions(told))[0].columns) if each.title == "Memory")
    (row,) = answered(Predictions(told))[0].rows
    assert re.fullmatch(r"fits \(needs [\d.]+ to [\d.]+ of 16 GiB\)", row[column])
    unknown = {T4: msgspec.structs.replace(told[T4], memory_text=None)}
    assert answered(Predictions(unknown))[0].rows[0][column] == UNKNOWN


def test_a_prediction_names_the_layout_of_its_images():
    specs = [load_specs()[T4]]
    for workload, precision, is_said in (
        ("vgg16", "amp", True),
        ("vgg16", "fp32", False),
        ("bert_base", "amp", False),
    ):
        question = Question(profile=load_profiles()[workload], precision=precision)
        bullets = answered(Predictions(predict_all(question, specs)))[1].items
        assert (LAYOUT in bullets) is is_said


def test_a_gpu_of_unknown_memory_has_no_largest_batch():
    spec = msgspec.structs.replace(load_specs()[H100], memory_bytes=None)
    question = Question(profile=load_profiles()["vgg16"])
    answer = estimate_at_largest_batch(question, [spec])[H100]
    assert isinstance(answer, Refusal)
    assert "memory is not" in answer.reason


def featherweight():
    cnn = load_profiles()["cnn"]
    thin = msgspec.structs.replace(cnn.train[0], bytes_per_sample=16)
    return msgspec.structs.replace(
        cnn, sample_shape=(4,), saved_bytes_per_sample=16, train=(thin,), memory=()
    )


def test_the_largest_batch_is_capped_like_that_of_a_run():
    answer = estimate_at_largest_batch(Question(profile=featherweight()), [load_specs()[H100]])[H100]
    assert isinstance(answer, Estimate)
    assert answer.case.batch_size == answer.largest_batch == MOST_BATCH


def test_a_batch_beyond_the_ceiling_that_fits_is_not_refused():
    question = Question(profile=featherweight(), batch_size=2 * MOST_BATCH)
    assert isinstance(predict_all(question, [load_specs()[H100]])[H100], Estimate)


def test_a_batch_too_large_names_the_largest_that_fits():
    request = RankRequest(workloads=("vgg16",), batch_size=4096)
    answer = gather(request, [T4], NOTHING).answers["vgg16"][T4]
    assert isinstance(answer, Refusal)
    assert "largest batch" in answer.reason


def test_a_latency_limit_selects_the_batch_with_the_most_throughput_within_it():
    def at(limit_ms):
        request = RankRequest(workloads=("vgg16",), task="infer", max_latency_ms=limit_ms)
        return gather(request, [H100], NOTHING).answers["vgg16"][H100]

    tight, loose = at(1.5), at(50)
    assert slow_latency_s(tight) <= 0.0015
    assert slow_latency_s(loose) <= 0.050
    assert tight.case.batch_size < loose.case.batch_size
    assert {tight.case.batch_size, loose.case.batch_size} <= set(LATENCY_BATCHES)
    assert tight.samples_per_s < loose.samples_per_s
    assert tight.case.task is TaskKind.INFER
    impossible = at(0.01)
    assert isinstance(impossible, Refusal)
    assert "above 0.01 ms" in impossible.reason


def test_concurrent_jobs_use_their_measured_slowdown():
    """Four jobs at 1,800/s each; one alone runs at 2,000/s: 0.9. Without a run of as many jobs it is 1."""
    case = case_on(H100)
    at_once = msgspec.structs.replace(case, gpu_count=4, parallel_mode=ParallelMode.INDEPENDENT)
    runs = (run_of(H100, measurement(case, 2000), measurement(at_once, 7200)),)
    evidence = gather(RankRequest(workloads=("vgg16",)), [H100], Runs(runs, ()))
    alone = evidence.answers["vgg16"][H100]
    spec = load_specs()[H100]
    assert evidence.independent("vgg16", spec, 4, alone).efficiency == pytest.approx(0.9)
    assert evidence.independent("vgg16", spec, 8, alone) == Scaling(
        1.0, 1.0, 1.0, "independent jobs", mode=ParallelMode.INDEPENDENT
    )
    assert measured_efficiency(runs, case, H100, 4) is None  # they are not a data-parallel job


def test_scaling_is_measured_if_runs_contain_it():
    """Four GPUs at 7,200/s; one runs at 2,000/s: 7,200 / (4 x 2,000) = 0.9."""
    case = case_on(H100)
    four = msgspec.structs.replace(case, gpu_count=4)
    runs = [run_of(H100, measurement(case, 2000), measurement(four, 7200))]
    found = measured_efficiency(runs, case, H100, 4)
    assert found.efficiency == pytest.approx(0.9)
    width_95 = math.hypot(*(each.relative_half_width for each in runs[0].measurements))
    assert found.high / found.efficiency - 1 == pytest.approx(1.645 / 1.96 * width_95, rel=1e-3)
    assert found.efficiency / found.low == pytest.approx(found.high / found.efficiency)
    assert found.basis == "measured"
    one_round = [
        msgspec.structs.replace(
            each, launches=(msgspec.structs.replace(each.launches[0], rounds=each.launches[0].rounds[:1]),)
        )
        for each in runs[0].measurements
    ]
    unknown = measured_efficiency([run_of(H100, *one_round)], case, H100, 4)
    assert unknown.low < unknown.efficiency < unknown.high
    assert measured_efficiency(runs, case, H100, 8) is None
    assert measured_efficiency(runs, case, A100, 4) is None
    wonder = [run_of(H100, measurement(case, 2000), measurement(four, 9000))]
    assert measured_efficiency(wonder, case, H100, 4) is None

    eager, graph = (msgspec.structs.replace(case, execution=e) for e in (Execution.EAGER, Execution.GRAPH))
    eager_four = msgspec.structs.replace(eager, gpu_count=4)
    bound = msgspec.structs.replace(
        measurement(eager, 2000), findings=(Finding(kind=FindingKind.HOST_BOUND, value=1.5, limit=1.1),)
    )
    free, held = (
        [run_of(H100, one, measurement(eager_four, 7200))] for one in (measurement(eager, 2000), bound)
    )
    assert measured_efficiency(free, graph, H100, 4).efficiency == pytest.approx(0.9)
    assert measured_efficiency(held, graph, H100, 4) is None  # the host's efficiency is not the graph's
    assert measured_efficiency(held, eager, H100, 4).efficiency == pytest.approx(0.9)

    evidence = gather(RankRequest(workloads=("vgg16",)), [H100], Runs(tuple(runs), ()))
    assert evidence.independent is None
    alone = evidence.answers["vgg16"][H100]
    assert isinstance(alone, Estimate)
    spec = load_specs()[H100]
    scalings = {
        n: scaling_of(spec, n, {"vgg16": alone}, scaler=evidence.scaler, shares={}) for n in (1, 4, 8)
    }
    assert [scalings[n].basis for n in (1, 4, 8)] == ["single GPU", "measured", "modeled"]
    assert scalings[4].efficiency == pytest.approx(0.9)
    assert 0.3 < scalings[8].efficiency < 1
    assert scalings[8].low < scalings[8].high


def test_power_is_the_median_of_what_runs_measured():
    """300 J in 1 s and 1,000 J in 2 s are 300 and 500 W; their median is 400 W."""
    case = case_on(H100)
    first = measurement(case, 2000, energy_j=300.0, energy_region_s=1.0)
    second = measurement(case, 2000, energy_j=1000.0, energy_region_s=2.0)
    assert mean_power_w(Runs((run_of(H100, first, second),), ())) == {H100: 400}


def test_a_users_run_comes_before_the_shipped_one(tmp_path):
    options = {"workload": "vgg16", "gpu": ("h100 sxm", "l4"), "results": tmp_path, "draws": 200}
    (tmp_path / "runs").mkdir()
    before = rank(**options)
    assert {row.offer.gpu_key: row.estimate.basis for row in before.rows} == {
        H100: "reference",
        L4: "predicted",
    }
    write_run(tmp_path, run_of(H100, measurement(case_on(H100), 2500)))
    after = rank(**options)
    bases = {row.offer.gpu_key: row.estimate.basis for row in after.rows}
    assert bases == {H100: "measured", L4: "predicted"}
    widths = [
        next(r.samples_per_s.high / r.samples_per_s.low for r in some.rows if r.offer.gpu_key == L4)
        for some in (before, after)
    ]
    assert widths[1] < widths[0]
    assert next(r for r in after.rows if r.offer.gpu_key == L4).estimate.anchored


def test_a_users_run_predicts_a_rented_card_to_5_percent_at_best(tmp_path):
    """Processes on one card agree to 0.1 %; another card of the same model, in another host, does not."""
    rounds = tuple(Round(steps=10, wall_s=2.133 * share) for share in (0.9999, 1.0, 1.0001) * 8)
    row = msgspec.structs.replace(measurement(case_on(H100), 300), launches=(Launch(index=0, rounds=rounds),))
    write_run(tmp_path, run_of(H100, row))
    ranking = rank("vgg16", gpu="h100 sxm", results=tmp_path, draws=200)
    alone = [r for r in ranking.rows if r.offer.gpu_count == 1]
    assert alone
    for rented in alone:
        assert rented.estimate.basis == "measured"
        assert rented.samples_per_s.low <= rented.samples_per_s.value / 1.05
        assert rented.samples_per_s.high >= rented.samples_per_s.value * 1.05


def test_cpu_that_finishes_the_job_soon_means_no_gpu_is_needed(tmp_path):
    case = msgspec.structs.replace(case_on(H100), execution=Execution.EAGER, batch_size=1)
    measured = msgspec.structs.replace(measurement(case, 3.0), cpu_threads=6)
    write_run(tmp_path, run_of(None, measured, backend="cpu"))
    options = {"workload": "vgg16", "results": tmp_path, "draws": 100, "limit": 1}
    assert "on your own CPU, so no GPU is needed." in rank(samples=5000, **options).verdict
    assert "Your own CPU would take " in said(rank(samples=5e6, **options))
    assert rank(**options).rows[0].estimate.batch_choice == "fixed"
    rows = rank(have=("cpu, 800 USD, 65 W",), buy=True, **options | {"limit": None}).rows
    assert "cpu" in {row.offer.gpu_key for row in rows}


def test_a_measured_gpu_that_no_table_has_is_an_answer_by_its_name(tmp_path):
    run = run_of(None, measurement(case_on(T4), 30.0))
    device = msgspec.structs.replace(run.device, name="NVIDIA GeForce RTX 3060 Laptop GPU")
    write_run(tmp_path, msgspec.structs.replace(run, device=device))
    options = {"workload": "vgg16", "results": tmp_path, "draws": 100}
    rows = rank(have=("RTX 3060 Laptop, 75 W",), **options).rows
    (mine,) = (row for row in rows if row.offer.provider == "own")
    assert mine.estimate.basis == "measured"
    assert mine.samples_per_s.value == pytest.approx(30.0)
    several = rank(have=("2x RTX 3060 Laptop, 75 W",), **options)
    assert "own" not in {row.offer.provider for row in several.rows}
    assert "how fast 2 of these share one job is unknown" in said(several)
    other_work = rank("resnet50", have=("RTX 3060 Laptop, 75 W",), results=tmp_path, draws=50)
    assert "none of your runs measured this work on it" in said(other_work)
    one_each = rank(have=("2x RTX 3060 Laptop, 75 W",), jobs="independent", **options).rows
    assert max(row.samples_per_s.value for row in one_each if row.offer.provider == "own") == pytest.approx(
        60.0
    )
    slice_of_it = msgspec.structs.replace(run, device=msgspec.structs.replace(device, mig_enabled=True))
    assert not measured_by_the_user(question_of(), [slice_of_it], ()), "a slice is not the whole GPU"


def test_shipped_reference_run_is_not_described_as_run_here():
    (answer,) = estimates_of_vgg16((), reference_runs())
    assert answer.basis == "reference"
    assert "it ran in a reference run" in answer.memory_text
    (own,) = estimates_of_vgg16(reference_runs(), ())
    assert own.basis == "measured"
    assert "it ran here" in own.memory_text


def estimates_of_vgg16(own, reference):
    question = Question(profile=load_profiles()["vgg16"], execution=Execution.GRAPH)
    return predict_all(question, [load_specs()[H100]], own=own, reference=reference).values()


def test_estimate_without_memory_facts_has_no_fit_verdict():
    assert estimate(H100, 1.0).fits_memory is None


def test_an_added_run_is_said_to_be_another_persons_and_not_measured_here(tmp_path):
    runs = [msgspec.structs.replace(run, added_from="shared by ann") for run in reference_runs()]
    (added,) = estimates_of_vgg16(runs, ())
    assert added.basis == "measured"
    assert "measured in an added run (shared by ann, NVIDIA H100" in added.method
    assert "it ran in an added run" in added.memory_text
    for run in runs:
        write_run(tmp_path, run)
    ranking = rank("vgg16", gpu=H100, results=tmp_path, draws=100)
    assert "Measured in added runs, not here: H100 SXM5 80GB (shared by ann, NVIDIA H100" in said(ranking)
    alone = next(row for row in ranking.rows if row.offer.gpu_count == 1)
    assert basis_text(alone) == "measured, added run"


@pytest.mark.parametrize(("backend", "key"), [("cpu", None), ("mps", "npu-of-mine")])
def test_the_processor_of_an_added_run_is_not_the_users(backend, key):
    run = run_of("npu-of-mine", measurement(case_on(T4), 5.0), backend=backend)
    added = msgspec.structs.replace(run, added_from="shared by ann")
    assert device_key(added) == key
    found = measured_by_the_user(question_of(), [added], load_specs())
    assert [each.method.partition(" (")[0] for each in found.values()] == ["measured in an added run"] * bool(
        key
    )
