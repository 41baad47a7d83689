"""A job too large for one GPU ranks on the smallest number of GPUs that fits it sharded (FSDP)."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.models import Execution, ParallelMode
from gpubench.predict.estimate import estimate as predict_all
from gpubench.predict.estimate import predict
from gpubench.predict.memory import fit_of, need_of
from gpubench.predict.model import exchange_of, scaling
from gpubench.predict.question import Refusal, case_for, question_of, readings_of
from gpubench.predict.request import PredictRequest
from gpubench.profile import profile_of
from gpubench.recommend import trial
from gpubench.recommend.evidence import MOST_SHARING, Runs, gather
from gpubench.recommend.rank import check
from gpubench.recommend.request import RankRequest
from gpubench.sections.answer import fits_words
from gpubench.sections.answer import offers as offers_table
from gpubench.sections.data import ReportData
from gpubench.specs import load_specs

from .builders import H100, RTX5090, TODAY, judge, measurement, offer, run_of

H200, L40S = "nvidia-h200-sxm-141gb", "nvidia-l40s-48gb"
NAME = "llama_8b_fsdp"
QUESTION = question_of(profile_of(NAME), None)
ONE_EACH = msgspec.structs.replace(QUESTION, batch_size=1)
NOTHING = Runs((), ())


def request(**changes) -> RankRequest:
    return check(RankRequest(**{"workloads": (NAME,), "draws": 200} | changes))


def ranking_of(offers, runs=NOTHING, **changes):
    asked = request(**changes)
    return judge(asked, list(offers), lambda keys: gather(asked, keys, runs), today=TODAY)


def offers_of(key: str, *counts: int):
    return [offer(key, 2.0 * n, gpu_count=n, instance=f"{key}-{n}") for n in counts]


def test_fewest_gpus_follow_from_the_memory_model():
    specs = [load_specs()[key] for key in (RTX5090, L40S)]
    found = predict_all(ONE_EACH, specs, most_sharing=MOST_SHARING)
    for spec in specs:
        answer = found[spec.key]
        case = case_for(ONE_EACH, spec)
        readings = readings_of(ONE_EACH, (), ())

        def fits(gpu_count, spec=spec, case=case, readings=readings):
            shared = msgspec.structs.replace(case, gpu_count=gpu_count, parallel_mode=ParallelMode.FSDP)
            return fit_of(ONE_EACH, shared, spec, readings).fits

        assert answer.fewest_gpus > 1
        assert fits(answer.fewest_gpus)
        assert answer.fewest_gpus == 2 or not fits(answer.fewest_gpus - 1)
        assert answer.fits_memory
    assert found[L40S].fewest_gpus < found[RTX5090].fewest_gpus
    alone = predict_all(ONE_EACH, specs)
    assert all(isinstance(answer, Refusal) for answer in alone.values())


def test_a_batch_too_large_for_any_number_of_gpus_names_one_that_fits():
    asked = question_of(profile_of(NAME, {"checkpointing": "selective"}), None, batch_size=3)
    answer = predict_all(asked, [load_specs()[L40S]], most_sharing=MOST_SHARING)[L40S]
    assert "largest batch 1 each" in answer.reason


def test_single_gpus_and_sharded_jobs_are_in_one_ranking():
    ranking = ranking_of([*offers_of(H200, 1, 8), *offers_of(H100, 1, 3, 8)], checkpointing="selective")
    rows = {(row.offer.gpu_key, row.offer.gpu_count): row for row in ranking.rows}
    assert set(rows) == {(H200, 1), (H200, 8), (H100, 3), (H100, 8)}
    assert (rows[H200, 1].estimate.fewest_gpus, rows[H100, 3].estimate.fewest_gpus) == (1, 3)
    modes = {at: row.parallel_mode for at, row in rows.items()}
    assert modes == {
        (H200, 1): ParallelMode.SINGLE,
        (H200, 8): ParallelMode.DDP,
        (H100, 3): ParallelMode.FSDP,
        (H100, 8): ParallelMode.FSDP,
    }
    for at, row in rows.items():
        how = "fits with FSDP (needs " if modes[at] is ParallelMode.FSDP else "fits (needs "
        assert row.estimate.memory_text.startswith(how)
    (too_few,) = ranking.excluded
    assert "needs 3 with FSDP" in too_few.reason
    shown = offers_table(ReportData(ranking=ranking, today=TODAY), ranking, ranking.rows, "")
    at = [column.title for column in shown.columns].index("Memory")
    assert {row[at] for row in shown.rows} == {"fits on 1", "needs 3 with FSDP"}


def test_with_more_gpus_each_needs_less_memory_and_estimates_are_per_gpu():
    two, eight = sorted(ranking_of(offers_of(H100, 2, 8)).rows, key=lambda row: row.offer.gpu_count)
    assert eight.estimate.device_bytes.value < two.estimate.device_bytes.value
    assert two.estimate.samples_per_s == eight.estimate.samples_per_s
    assert two.samples_per_s.value < 2 * two.estimate.samples_per_s


def test_the_memory_of_a_row_is_that_of_each_of_its_own_gpus():
    """Under DDP each of eight GPUs has a second copy of the gradients, in buckets, plus communication memory."""
    rows = ranking_of(offers_of(H100, 1, 8), workloads=("bert_base",), batch_size=32).rows
    one, eight = sorted(rows, key=lambda row: row.offer.gpu_count)
    assert eight.parallel_mode is ParallelMode.DDP
    trained = 4 * profile_of("bert_base").trainable_parameters
    question = question_of(profile_of("bert_base"), None, batch_size=32)
    eager = msgspec.structs.replace(one.estimate.case, execution=Execution.EAGER)  # as several GPUs run
    on_one = need_of(question, eager, load_specs()[H100], ()).device.value
    assert eight.estimate.device_bytes.value - on_one > trained
    assert eight.estimate.memory_text != one.estimate.memory_text
    alone = msgspec.structs.replace(one.estimate.case, gpu_count=8, parallel_mode=ParallelMode.DDP)
    assert eight.estimate.memory_text == fit_of(question, alone, load_specs()[H100], ()).text()


def test_a_ranking_without_need_for_fsdp_does_not_mention_it():
    ranking = ranking_of(offers_of(H200, 1, 8))
    shown = offers_table(ReportData(ranking=ranking, today=TODAY), ranking, ranking.rows, "")
    assert "Memory" not in [column.title for column in shown.columns]
    assert not any("FSDP" in note for note in ranking.said("note"))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("vgg16", {"batch_size": 2**19}), (NAME, {"jobs": "independent", "checkpointing": "selective"})],
)
def test_an_unshardable_model_is_refused(name, changes):
    answers = gather(request(workloads=(name,), **changes), [H100], NOTHING).answers[name]
    assert isinstance(answers[H100], Refusal)


def test_the_largest_batch_is_one_if_not_even_one_sample_fits_on_one_gpu():
    answers = gather(request(batch_size="max"), [L40S, H200], NOTHING).answers[NAME]
    assert answers[L40S].case.batch_size == 1
    assert answers[L40S].fewest_gpus > 1
    assert answers[H200].fewest_gpus == 1


def test_a_job_measured_on_several_gpus_counts_as_measured_there():
    spec = load_specs()[H100]
    case = msgspec.structs.replace(
        case_for(QUESTION, spec), gpu_count=2, parallel_mode=ParallelMode.FSDP, execution=Execution.EAGER
    )
    runs = Runs((run_of(H100, measurement(case, 1.5)),), ())
    (row,) = ranking_of(offers_of(H100, 2), runs).rows
    assert row.samples_per_s.value == pytest.approx(1.5)
    assert row.scaling_basis == "measured"


def test_a_task_file_measures_the_job_as_it_is_ranked():
    (row,) = ranking_of(offers_of(H100, 2)).rows
    run = trial.run_of(msgspec.convert(row.flat(), trial.Row), request(), {NAME: NAME}, minutes=10)
    assert (run.gpus, run.jobs) == (2, "fsdp")


def test_weight_gathering_is_slow_on_pcie_and_hidden_on_nvlink():
    slow, fast = load_specs()[RTX5090], load_specs()[H100]
    rate = 0.1
    on_pcie, _, _ = scaling(QUESTION, slow, 8, rate, sharded=True)
    on_nvlink, low, _ = scaling(QUESTION, fast, 8, rate, sharded=True)
    assert on_pcie < on_nvlink
    assert on_nvlink > 0.9
    assert low < scaling(QUESTION, fast, 8, rate)[1]


def test_bytes_gathered_are_two_copies_of_the_weights_and_one_of_the_gradients():
    """8.03 G parameters in bfloat16 are 16.06 GB; FSDP moves three times that, as an all-reduce of 1.5 times does."""
    found = exchange_of(QUESTION, load_specs()[H100], 1.0, sharded=True)
    assert found.gradient_bytes == pytest.approx(1.5 * 2 * 8_030_261_248)


def test_a_job_of_eight_is_ranked_by_its_own_recipe_and_states_it():
    """From 8 GPUs on, checkpointing is selective instead of full: more memory, and less work per sample."""
    ranking = ranking_of(offers_of(H200, 1, 4, 8))
    one, four, eight = sorted(ranking.rows, key=lambda row: row.offer.gpu_count)
    spec = load_specs()[H200]
    for row, how in ((one, "full"), (four, "full"), (eight, "selective")):
        count = row.offer.gpu_count
        profile = profile_of(NAME, {"checkpointing": how})
        question = question_of(profile, None)
        case = profile.shared_by(case_for(question, spec), count, row.parallel_mode)
        assert case.checkpointing == how
        assert row.estimate.memory_text == fit_of(question, case, spec, ()).text()
        (alone,) = predict_all(question, [spec]).values()
        efficiency, _, _ = scaling(question, spec, count, alone.samples_per_s)
        each = alone.samples_per_s * efficiency
        assert row.samples_per_s.value == pytest.approx(count * each)
        if count > 1:  # the gain from the recipe counts as speed, not as scaling efficiency
            assert row.scaling_efficiency == pytest.approx(efficiency)
            assert row.scaling_efficiency < 1
    assert any("selective from 8 GPUs" in note for note in ranking.said("note"))
    (predicted,) = predict(PredictRequest(workload=NAME, gpus=(H200,))).values()
    assert predicted.case == one.estimate.case
    told = ranking_of(offers_of(H200, 1, 8), checkpointing="full")
    assert not any("selective" in note for note in told.said("note"))


def test_a_job_that_fits_on_six_with_full_checkpointing_may_not_fit_on_eight_with_selective():
    """Six GPUs of 32 GB have larger shares of the states than eight, but 9 GiB less of activations."""
    ranking = ranking_of(offers_of(RTX5090, 6, 8), batch_size=2)
    assert {row.offer.gpu_count for row in ranking.rows} == {6}
    (fallen,) = ranking.excluded
    assert "with selective checkpointing" in fallen.reason
    assert "each of 8 GPUs" in fallen.reason
    assert fallen.reason.endswith("`--recipe checkpointing=full` needs less")
    told = ranking_of(offers_of(RTX5090, 6, 8), batch_size=2, checkpointing="full")
    assert {row.offer.gpu_count for row in told.rows} == {6, 8}


@pytest.mark.parametrize(
    ("gpu_count", "words"), [(1, "fits in eager steps, maybe not in a CUDA graph of "), (8, "fits (needs ")]
)
def test_a_card_that_only_fits_eager_steps_is_ranked_and_labeled(gpu_count, words):
    """Several cards run eager steps anyway."""
    ranking = ranking_of(offers_of(RTX5090, gpu_count), workloads=("transformer",), batch_size=22)
    assert fits_words(ranking.first).startswith(words)
