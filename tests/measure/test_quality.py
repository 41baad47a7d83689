"""Time to quality: the data, the training, the refusals, and the result if the quality is not reached."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import time

import msgspec
import pytest
from builders import case_of, context_of, run_of

from gpubench import run
from gpubench.errors import MisuseError
from gpubench.measure.plan import GOALS, WORDS, check_request, digits, plan, text
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Precision, Run
from gpubench.models.run import SeedRun, TimeToQuality
from gpubench.profile import load_profiles
from gpubench.record.run_check import check_run
from gpubench.record.run_file import broken_rule
from gpubench.record.store import read_run
from gpubench.sections.data import of_run
from gpubench.sections.measured import quality

CPU = DeviceProfile(backend="cpu", name="a processor", core_count=2)


def _row(*steps: int, precision: Precision = Precision.FP32, unreached: int = 0) -> TimeToQuality:
    runs = tuple(
        SeedRun(seed=seed, reached=seed >= unreached, steps=count, train_s=count * 0.01, quality=1.1)
        for seed, count in enumerate(steps)
    )
    return TimeToQuality(
        case=case_of("lstm", precision=precision),
        metric="loss",
        target=1.2,
        most_steps=1000,
        data_sha256="0" * 64,
        runs=runs,
    )


def test_the_samples_match_the_stated_goal() -> None:
    images, labels = digits()
    assert (images.shape, images.max(), sorted(set(labels.tolist()))) == ((1797, 8, 8), 16, list(range(10)))
    windows, words = text()
    assert windows.shape[1] == 20
    assert words.max() < WORDS
    for goal in GOALS.values():
        inputs, targets = goal.samples()
        assert hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest() == goal.data_sha256


def _trained(monkeypatch: pytest.MonkeyPatch, seed: int = 0, **goal: object) -> SeedRun:
    """Train the LSTM in this process, as the measuring child does."""
    from gpubench.measure import case
    from gpubench.measure.budget import QUICK
    from gpubench.measure.messages import TrainToQuality
    from gpubench.probe.probe import open_telemetry

    monkeypatch.setitem(GOALS, "lstm", msgspec.structs.replace(GOALS["lstm"], **goal))
    with open_telemetry(CPU) as telemetry:
        context = context_of(CPU, budget=QUICK, telemetry=telemetry)
        done = case.train_to_quality(TrainToQuality(case=case_of("lstm"), seed=seed), context)
    assert done.run is not None, done.reason
    return done.run


def test_training_ends_at_the_first_evaluation_that_reaches_the_quality(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = _trained(monkeypatch, target=3.5)
    assert run.reached
    assert 0 < run.steps < 100
    assert run.quality is not None
    assert run.quality <= 3.5
    assert run.train_s > 0
    assert _trained(monkeypatch, target=3.5).steps == run.steps, "a seed does not fix the training"


def test_a_quality_that_is_not_reached_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _trained(monkeypatch, target=0.0, most_steps=20)
    assert (run.reached, run.steps) == (False, 20)
    row = _row(140, 130, 1000, unreached=1)
    assert (row.steps.value, row.train_s.value, row.steps_over(_row(1, 2, 3)).value) == (None, None, None)
    (cells,) = _table(row).rows
    assert any("by 1 of 3 seeds" in cell for cell in cells)
    assert cells[3:] == ("—",) * 4


def test_a_training_without_a_figure_is_a_problem_of_its_run() -> None:
    late = msgspec.structs.replace(_row(), reason="the run reached its time limit")
    run = msgspec.structs.replace(_run_to(late, _row(140, 1000, unreached=1)), finished_at=None)
    texts = [issue.text for issue in check_run(run).issues if issue.weight == "problem"]
    assert texts == [
        "the run was cut off; it cannot be resumed: start a new one",
        "the target quality was not reached: the run reached its time limit",
        "the target quality was not reached: a seed took all its steps and did not reach it",
    ]
    assert (check_run(run).cases, run.case_count, run.measured_count) == (2, 1, 0)
    sound = msgspec.structs.replace(_run_to(_row(140, 150)), finished_at="2026-01-01T00:01:00Z")
    assert check_run(sound).trustworthy
    assert (sound.case_count, sound.measured_count, sound.workload_names) == (1, 1, ["lstm"])


def _run_to(*rows: TimeToQuality, **changes: object) -> Run:
    return run_of(budget="quick", device=CPU, quality=rows, **changes)


def _table(*rows: TimeToQuality):
    return quality(of_run(_run_to(*rows)))[1]


def test_figures_have_their_interval_over_seeds_and_precisions_are_paired_by_seed() -> None:
    fp32, amp = _row(100, 120, 140), _row(110, 132, 154, precision=Precision.AMP_BF16)
    assert fp32.steps.value == pytest.approx(120)
    assert fp32.steps.high == pytest.approx(120 + 4.3027 * 20 / math.sqrt(3), rel=1e-4)
    ratio = amp.steps_over(fp32)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.1, 1.1, 1.1))
    cells = _table(fp32, amp).rows
    assert cells[0][-1] == "—"
    assert cells[1][-1].startswith("1.1")


def test_a_plan_to_a_quality_is_eager_at_the_batch_of_the_goal_and_measures_nothing_else() -> None:
    request = check_request(RunRequest(to_quality=True, precisions=("fp32",)), ["cnn"])
    made = plan(request, CPU, {name: load_profiles()[name] for name in request.workloads})
    assert (made.cases, made.micro_left) == ((), False)
    assert {(p.case.workload, p.case.precision.value, p.case.batch_size) for p in made.quality} == {
        ("cnn", "fp32", 64),
        ("lstm", "fp32", 64),
    }


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"workloads": ("vgg16",)}, "vgg16 has no quality target"),
        ({"asked": ("workload", "to_quality"), "workloads": ("cnn", "vgg16")}, "vgg16 has no quality target"),
        ({"batch_size": 8}, "--batch-size"),
        ({"task": "infer"}, "--task"),
        ({"executions": ("graph",)}, "--execution"),
        ({"frameworks": ("keras-jax",)}, "--framework"),
        ({"gpus": 2}, "--gpus"),
        ({"micro": "only"}, "--micro only"),
        ({"suite": "modern"}, "--suite"),
    ],
)
def test_options_that_training_to_a_quality_lacks_are_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(MisuseError, match=named):
        check_request(RunRequest(to_quality=True, **given), ["cnn", "lstm", "vgg16"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"steps": 2000}, "2000 steps"), ({"train_s": -1.0}, "train_s"), ({"quality": None}, "without a value")],
)
def test_an_impossible_training_is_not_a_valid_record(wrong: dict[str, object], said: str) -> None:
    sound = _row(100, 120)
    assert broken_rule(_run_to(sound)) is None
    first = msgspec.structs.replace(sound.runs[0], **wrong)
    assert said in (broken_rule(_run_to(msgspec.structs.replace(sound, runs=(first,)))) or "")
    assert "the same seed twice" in (
        broken_rule(_run_to(msgspec.structs.replace(sound, runs=sound.runs * 2))) or ""
    )


@pytest.mark.slow
def test_a_run_to_a_quality_is_stored_and_never_resumed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = run(to_quality=True, workload="lstm", precision="fp32", device="cpu", results=tmp_path, seed=3)
    (row,) = made.quality
    assert row.is_reached
    assert [each.seed for each in row.runs] == [3, 4, 5, 6, 7]
    assert (made.measurements, made.micro) == ((), ())
    assert made.environment.torch is not None
    assert read_run(next(tmp_path.glob("runs/*/*.json"))) == made
    with pytest.raises(MisuseError, match="cannot be resumed"):
        run(resume=made.run_id, results=tmp_path)


@pytest.mark.timing
def test_the_digits_are_trained_at_every_precision_in_a_minute_on_two_cores(tmp_path) -> None:
    """The whole command, including its start and five seeds of each precision."""
    command = [sys.executable, "-m", "gpubench", "run", "cnn", "--to-quality", "--device", "cpu", "--json"]
    began_s = time.perf_counter()
    done = subprocess.run([*command, "--results", str(tmp_path)], capture_output=True, text=True, check=True)
    took_s = time.perf_counter() - began_s
    rows = msgspec.json.decode(done.stdout)["quality"]
    assert {row["case"]["precision"] for row in rows} >= {"fp32", "amp-bf16"}
    assert all(run["reached"] for row in rows for run in row["runs"])
    assert took_s < 60, "on two cores of an idle machine"
