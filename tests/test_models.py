"""The file format: every recorded type survives JSON, and unknown stays null."""

from __future__ import annotations

import msgspec
import pytest

from gpubench import models
from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Execution,
    Finding,
    FindingKind,
    Launch,
    Measurement,
    Precision,
    Round,
    Run,
    Status,
    TaskKind,
    TelemetrySample,
)
from gpubench.record.run_check import check_run


def make_case(**changes) -> Case:
    fields = {
        "workload": "cnn",
        "workload_version": 1,
        "task": TaskKind.TRAIN,
        "precision": Precision.FP32,
        "execution": Execution.EAGER,
        "memory_format": None,
        "batch_size": 64,
        "sample_unit": "image",
    }
    return Case(**(fields | changes))


def make_measurement(
    walls: tuple[tuple[float, ...], ...] = ((1.0, 1.1, 0.9),), steps: int = 10
) -> Measurement:
    launches = tuple(
        Launch(index=i, rounds=tuple(Round(steps=steps, wall_s=w) for w in launch))
        for i, launch in enumerate(walls)
    )
    return Measurement(case=make_case(), status=Status.OK, launches=launches, flops_per_sample=1e6)


def one_launch(*rounds: Round, case: Case | None = None, **fields) -> Measurement:
    """Return the measurement of a case with a single launch."""
    launch = Launch(index=0, rounds=rounds)
    return Measurement(case=case or make_case(), status=Status.OK, launches=(launch,), **fields)


def test_a_run_survives_json_and_unknown_stays_null():
    device = DeviceProfile(backend="cpu", unavailable={"power_limit_w": "not reported"})
    run = msgspec.structs.replace(run_of(make_measurement()), device=device)
    data = msgspec.json.encode(run)
    assert msgspec.json.decode(data, type=Run) == run
    assert msgspec.json.decode(data)["device"]["power_limit_w"] is None


def test_throughput_times_step_time_is_the_batch_size():
    m = make_measurement()
    assert m.samples_per_s * m.step_time_s == pytest.approx(m.case.batch_size)
    assert m.samples_per_s_low < m.samples_per_s < m.samples_per_s_high


@pytest.mark.parametrize(("slow_s", "has_high"), [(1.2, True), (3.0, False)])
def test_a_throughput_has_no_upper_end_if_its_step_time_may_be_almost_zero(slow_s, has_high):
    """A card had "220,000 (110,000 to 44,000,000) images/s"; only at least 110,000 was certain."""
    m = make_measurement(walls=((1.0, slow_s, 1.0, slow_s, 1.0, slow_s),))
    assert 0 < m.relative_half_width < 1
    assert (m.samples_per_s_low is not None, m.samples_per_s_high is not None) == (True, has_high)


def test_several_gpus_are_compared_with_the_peak_of_all_of_them():
    """One step a second of batch 2 on each of 4 GPUs: 8 samples of 10 FLOP, against 4 times 100 FLOP/s."""
    rates = {"flops_per_sample": 10.0, "peak_flops_per_s": 100.0, "gemm_flops_per_s": 50.0}
    m = one_launch(Round(steps=1, wall_s=1.0), case=make_case(batch_size=2, gpu_count=4), **rates)
    assert (m.samples_per_s, m.mfu, m.mfu_of_gemm) == (8.0, 0.2, 0.4)


def test_tokens_per_second_are_tokens_per_sample_times_the_throughput():
    """Eight sequences of 2,048 tokens in half a second: 32,768 tokens a second; unknown stays unknown."""
    m = one_launch(Round(steps=1, wall_s=0.5), case=make_case(batch_size=8), tokens_per_sample=2048)
    assert m.tokens_per_s == 32_768
    assert msgspec.structs.replace(m, tokens_per_sample=None).tokens_per_s is None
    assert msgspec.structs.replace(m, launches=()).tokens_per_s is None


def test_hfu_counts_recomputation_and_mfu_does_not():
    """Eight samples a second of 13 FLOP, 10 of which are the model's own, against 400 FLOP/s."""
    rates = {"flops_per_sample": 10.0, "hardware_flops_per_sample": 13.0, "peak_flops_per_s": 400.0}
    m = one_launch(Round(steps=1, wall_s=1.0), case=make_case(batch_size=8), **rates)
    assert (m.mfu, m.hfu) == (0.2, pytest.approx(0.26))
    assert msgspec.structs.replace(m, hardware_flops_per_sample=None).hfu is None
    assert msgspec.structs.replace(m, peak_flops_per_s=None).hfu is None
    generation = make_case(batch_size=8, task=TaskKind.INFER, prompt_tokens=16, new_tokens=1000)
    generated = msgspec.structs.replace(m, case=generation)
    assert generated.samples_per_s == 8.0
    assert (generated.achieved_flops_per_s, generated.mfu, generated.hfu) == (None, None, None)


def test_the_wider_of_the_two_intervals_counts():
    """Two launches at 0.10 and 0.12 s a step, each without spread: t(0.975, 1) x 0.01 over the mean of 0.11."""
    m = make_measurement(((1.0, 1.0, 1.0), (1.2, 1.2, 1.2)))
    assert m.relative_half_width == pytest.approx(12.7062 * 0.01 / 0.11, rel=1e-5)


def test_an_interval_of_one_launch_covers_one_process():
    one, two = ((1.0, 1.0, 1.0),), ((1.0, 1.0, 1.0), (1.2, 1.2, 1.2))
    assert make_measurement(one).within_one_process
    assert not make_measurement(two).within_one_process
    assert not Measurement(case=make_case(), status=Status.FAILED, reason="x").within_one_process


def run_of(*rows: Measurement, backend: str = "cuda") -> Run:
    return Run(
        run_id="20261120t000000z-abc",
        started_at="2026-11-20T00:00:00Z",
        budget="default",
        seed=0,
        device=DeviceProfile(backend=backend),
        environment=Environment(gpubench="0", python="3.11", os="linux"),
        measurements=rows,
    )


PROVEN = {"matmul": 5e-7, "conv": 3e-7}


def nine_rounds(wall_s: float) -> tuple[Round, ...]:
    return tuple(Round(steps=1, wall_s=wall_s, loss=2 - 0.1 * number) for number in range(9))


@pytest.mark.parametrize(
    ("own", "other", "unproven"),
    [
        ({}, None, True),
        ({"control_errors": {"matmul": 3e-4, "conv": 3e-4}}, None, False),
        ({"control_errors": {"matmul": 3e-4}}, None, True),
        ({}, (Precision.TF32, 0.65, None), False),
        ({}, (Precision.TF32, 0.7, None), True),
        ({}, (Precision.AMP_BF16, 0.32, None), False),
        ({}, (Precision.AMP_FP16, 0.35, None), True),
        ({}, (Precision.BF16, 0.1, None), True),
        ({"reference_error": 2e-7}, (Precision.TF32, 0.9, 3e-6), False),
        ({"reference_error": 6.9e-8}, (Precision.TF32, 0.9, 6.9e-8), True),
        ({}, (Precision.TF32, 0.9, 3e-6), True),
        ({"reference_error": 0.0}, (Precision.AMP_BF16, 0.9, 1e-3), True),
    ],
)
def test_an_fp32_row_of_a_device_with_tf32_needs_a_control_or_a_run_that_shows_it(own, other, unproven):
    def row(precision, wall_s, **fields):
        launch = Launch(index=0, rounds=nine_rounds(wall_s), precision_errors=PROVEN, **fields)
        layout = None if precision is Precision.FP32 else "channels_last"
        case = make_case(precision=precision, memory_format=layout)
        return Measurement(case=case, status=Status.OK, launches=(launch,))

    rows = [row(Precision.FP32, 1.0, **own)]
    if other is not None:
        rows.append(row(*other[:2], reference_error=other[2]))
    for capability, expected in (((9, 0), unproven), ((7, 5), False), (None, False)):
        device = DeviceProfile(backend="cuda", compute_capability=capability)
        run = msgspec.structs.replace(run_of(*rows), device=device)
        (found, *_) = msgspec.json.decode(msgspec.json.encode(run), type=Run).measurements
        assert [f.kind for f in found.findings] == [FindingKind.PRECISION_UNPROVEN] * expected
        again = [issue.kind for issue in check_run(run).issues if issue.case == found.case]
        assert (FindingKind.PRECISION_UNPROVEN in again) == expected


def test_an_fp32_row_without_any_proof_is_unproven_however_slow_it_is():
    bare = one_launch(*nine_rounds(1.0))
    fast = Launch(index=0, rounds=nine_rounds(0.1), precision_errors=PROVEN)
    tf32 = Measurement(case=make_case(precision=Precision.TF32), status=Status.OK, launches=(fast,))
    device = DeviceProfile(backend="cuda", compute_capability=(9, 0))
    run = msgspec.structs.replace(run_of(bare, tf32), device=device)
    assert [each.kind for each in run.measurements[0].findings] == [FindingKind.PRECISION_UNPROVEN]
    assert [issue.kind for issue in check_run(run).issues if issue.case == bare.case].count(
        FindingKind.PRECISION_UNPROVEN
    ) == 1


def test_disturbed_row_proves_no_precision():
    launch = Launch(index=0, rounds=nine_rounds(1.0), precision_errors=PROVEN)
    slow = Measurement(
        case=make_case(),
        status=Status.OK,
        launches=(launch,),
        findings=(Finding(kind=FindingKind.HOST_BUSY),),
    )
    fast = msgspec.structs.replace(launch, rounds=nine_rounds(0.1))
    tf32 = msgspec.structs.replace(slow, case=make_case(precision=Precision.TF32), launches=(fast,))
    device = DeviceProfile(backend="cuda", compute_capability=(9, 0))
    run = msgspec.structs.replace(run_of(slow, tf32), device=device)
    assert run.measurements[0].findings[-1].kind is FindingKind.PRECISION_UNPROVEN


def test_the_estimate_is_the_mean_of_all_launches():
    m = make_measurement(((1.0, 1.0), (1.2, 1.2), (1.7, 1.7)))
    assert m.step_time_s == pytest.approx(0.13)
    eight = make_measurement(((1.0, 1.0),) * 7 + ((1.8, 1.8),))
    assert eight.step_time_s == pytest.approx(0.11)


def test_from_five_launches_on_the_interval_uses_only_launch_means():
    """Rounds of 1 and 1.2 s in each launch, with equal means: the width is that of the means."""
    restless = tuple((1.0 + shift, 1.2 + shift) * 6 for shift in (0.0, 0.002, 0.004, 0.006, 0.008))
    five, four = make_measurement(restless), make_measurement(restless[:4])
    assert five.relative_half_width == five.between_launches < 0.01
    assert four.relative_half_width == pytest.approx(four.within_launches[1], rel=0.01)
    assert four.relative_half_width > 0.03


def test_launch_spread_of_a_case_uses_the_other_cases_of_the_run():
    """One case alone takes 4.303 standard errors, one among similar cases fewer; the raw data stay unchanged."""
    three = ((1.0, 1.0), (1.01, 1.01), (1.02, 1.02))
    alone = make_measurement(three)
    others = [msgspec.structs.replace(alone, case=make_case(batch_size=n)) for n in (1, 2)]
    run = run_of(alone, *others)
    assert run.measurements == (alone, *others)
    assert run.measurements[0].relative_half_width < 0.7 * alone.relative_half_width
    assert run_of(alone, others[0]).measurements[0].relative_half_width == alone.relative_half_width
    again = msgspec.json.decode(msgspec.json.encode(run), type=Run)
    assert again.measurements[0].relative_half_width == run.measurements[0].relative_half_width
    fewer = msgspec.structs.replace(again, measurements=again.measurements[:2])
    assert fewer.measurements[0].relative_half_width == alone.relative_half_width


def test_one_launch_gets_the_usual_difference_between_processes_on_a_gpu_and_none_on_a_cpu():
    row = make_measurement(((1.0, 1.001, 1.0, 1.001) * 3,))
    (gpu,), (cpu,) = run_of(row).measurements, run_of(row, backend="cpu").measurements
    assert gpu.relative_half_width == pytest.approx((row.relative_half_width**2 + 0.00588**2) ** 0.5)
    assert cpu.relative_half_width == row.relative_half_width
    assert [part.half_width for part in cpu.ledger][1] is None
    bound = msgspec.structs.replace(row, findings=(models.Finding(kind=models.FindingKind.HOST_BOUND),))
    assert run_of(bound).measurements[0].relative_half_width == pytest.approx(1.96 * 0.07, rel=1e-3)


def test_the_ledger_lists_every_source_of_a_figures_error():
    three = ((1.0, 1.0), (1.01, 1.01), (1.02, 1.02))
    rows = [msgspec.structs.replace(make_measurement(three), case=make_case(batch_size=n)) for n in (1, 2, 3)]
    parts = {part.name: part for part in run_of(*rows).measurements[0].ledger}
    assert list(parts) == ["within process", "process", "heat", "host", "card"]
    assert (parts["within process"].n, parts["process"].n, parts["host"].n) == (6, 3, 39)
    assert parts["process"].half_width == run_of(*rows).measurements[0].between_launches
    assert parts["process"].source.endswith("moderated by those of 3 cases (Smyth 2004)")
    assert parts["heat"].half_width is None
    assert all(part.source for part in parts.values())
    assert Measurement(case=make_case(), status=Status.FAILED, reason="x").ledger == ()


def test_an_excluded_round_is_stored_and_does_not_count():
    rounds = (Round(steps=1, wall_s=9.0, left_out="drift"), Round(steps=1, wall_s=1.0))
    m = one_launch(*rounds, case=make_case(batch_size=2))
    assert m.samples_per_s == 2.0
    assert len(m.launches[0].rounds) == 2


def test_without_rounds_nothing_is_claimed():
    m = Measurement(case=make_case(), status=Status.FAILED, reason="x")
    assert (m.samples_per_s, m.samples_per_s_low, m.joules_per_sample, m.mfu) == (None,) * 4


def test_unknown_telemetry_fields_are_omitted_and_read_back_as_none():
    sample = TelemetrySample(t_s=1.5, power_w=650.0)
    assert msgspec.json.encode(sample) == b'{"power_w":650.0,"t_s":1.5}'
    assert msgspec.json.decode(b'{"t_s":1.5}', type=TelemetrySample).power_w is None
    assert msgspec.json.encode(Round(steps=1, wall_s=2.0)) == b'{"steps":1,"wall_s":2.0}'


def test_cases_are_hashable_and_equal_by_value():
    assert len({make_case(), make_case(), make_case(batch_size=1)}) == 2


def test_every_record_is_frozen():
    for name in models.__all__:
        kind = getattr(models, name)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert kind.__struct_config__.frozen, name


@pytest.mark.parametrize(
    ("backend", "torch_type"),
    [("cuda", "cuda"), ("rocm", "cuda"), ("mps", "mps"), ("cpu", "cpu"), ("xpu", "xpu")],
)
def test_backend_maps_to_its_torch_device_type(backend, torch_type):
    device = DeviceProfile(backend=backend)
    assert (device.torch_type, device.is_nvidia) == (torch_type, backend == "cuda")
    assert device.is_torch_cuda == (backend in {"cuda", "rocm"})
