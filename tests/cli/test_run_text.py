"""The output of a run names the work and the doubts, and shows no loss if nothing was trained."""

from __future__ import annotations

import msgspec
import pytest
from command import here

from gpubench.blocks.parts import Bullets, Paragraph, Table
from gpubench.cli.progress import outcome
from gpubench.findings import describe
from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Execution,
    Finding,
    FindingKind,
    Launch,
    Measurement,
    MicroResult,
    Precision,
    Round,
    Run,
    Status,
    TaskKind,
)
from gpubench.sections import device
from gpubench.sections import measured as of_cases
from gpubench.sections.data import brief, of_run, unexplained
from gpubench.session import session
from gpubench.units import UNKNOWN


def measured(
    task: TaskKind, precision: Precision, batch_size: int, step_s: float, passes: int = 0
) -> Measurement:
    case = Case(
        workload="cnn", workload_version=1, task=task, precision=precision, execution=Execution.EAGER,
        memory_format=None, batch_size=batch_size, sample_unit="image",
    )  # fmt: skip
    launch = Launch(
        index=0,
        rounds=tuple(Round(steps=10, wall_s=10 * step_s * wobble) for wobble in (0.99, 1.0, 1.01)),
        loss_curve=(2.0, 1.9, 1.8, 1.7, 1.6),
        latency_s=(step_s,) * passes,
    )
    return Measurement(case=case, status=Status.OK, launches=(launch,))


def run_of(*measurements: Measurement) -> Run:
    return Run(
        run_id="20261120t000000z-abcd1234", started_at="2026-11-20T00:00:00Z", budget="quick", seed=0,
        device=DeviceProfile(backend="cpu"), environment=Environment(gpubench="0", python="3", os="linux"),
        measurements=measurements,
    )  # fmt: skip


def both(task: TaskKind, batch_size: int) -> tuple[Measurement, Measurement]:
    return (
        measured(task, Precision.FP32, batch_size, 0.2),
        measured(task, Precision.AMP_BF16, batch_size, 0.1),
    )


def said(run: Run, key: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return the sentences of a section in its brief form, and the rows of its table by column."""
    told = next((getattr(each, key) for each in (of_cases, device) if hasattr(each, key)), None)
    shown = brief(of_run(run), key) if told is None else unexplained(told(of_run(run)))
    parts = [getattr(part, "twin", part) for part in shown]
    rows = [
        dict(zip((column.title for column in part.columns), row, strict=True))
        for part in parts
        if isinstance(part, Table)
        for row in part.rows
    ]
    sentences = [part.text for part in parts if isinstance(part, Paragraph)]
    return sentences + [item for part in parts if isinstance(part, Bullets) for item in part.items], rows


def test_each_effect_of_amp_states_its_batch() -> None:
    sentences, rows = said(run_of(*both(TaskKind.TRAIN, 1), *both(TaskKind.TRAIN, 64)), "amp")
    assert [(row["Baseline"], row["Case"].partition(" batch ")[2]) for row in rows] == [
        ("fp32 (IEEE, TF32 off)", "1"),
        ("fp32 (IEEE, TF32 off)", "64"),
    ]
    assert "amp-bf16 against fp32 on cnn, eager, batch 1" in sentences[0]


def test_the_latency_of_a_searched_batch_says_so() -> None:
    searched = msgspec.structs.replace(
        measured(TaskKind.INFER, Precision.FP32, 4096, 0.2, passes=100), batch_choice="largest"
    )
    _, (row,) = said(run_of(searched), "throughput")
    assert "batch 4,096, " in row["Case"]


def test_inference_has_no_final_loss_in_the_amp_table() -> None:
    _, (trained,) = said(run_of(*both(TaskKind.TRAIN, 64)), "amp")
    _, (passed,) = said(run_of(*both(TaskKind.INFER, 64)), "amp")
    (loss,) = (title for title in trained if title.startswith("Loss"))
    assert "5 steps" in trained[loss]
    assert passed[loss] == UNKNOWN


def test_too_few_passes_are_reported_in_place_of_a_missing_quantile() -> None:
    _, (enough,) = said(run_of(measured(TaskKind.INFER, Precision.FP32, 1, 0.002, passes=100)), "latency")
    _, (few,) = said(run_of(measured(TaskKind.INFER, Precision.FP32, 1, 0.002, passes=57)), "latency")
    assert (enough["p95"], enough["p99"]) == ("2.00 ms", "2.00 ms")
    assert few["p99"] == f"{UNKNOWN}\n57 of 100 passes"


def noisy(measurement: Measurement, value: float) -> Measurement:
    finding = Finding(kind=FindingKind.NOISY, value=value, limit=0.05)
    return msgspec.structs.replace(measurement, findings=(finding,))


def test_ratios_of_one_launch_say_so_once() -> None:
    pairs = (*both(TaskKind.TRAIN, 64), *both(TaskKind.INFER, 64))
    sentences, _ = said(run_of(*pairs), "amp")
    assert sentences[0].count("single launch") == 1
    twice = [
        msgspec.structs.replace(m, launches=(*m.launches, msgspec.structs.replace(m.launches[0], index=1)))
        for m in pairs
    ]
    assert "single launch" not in said(run_of(*twice), "amp")[0][0]


def test_a_ratio_lists_the_findings_of_both_rows_and_the_run() -> None:
    fp32, amp = both(TaskKind.TRAIN, 64)
    assert said(run_of(fp32, amp), "amp")[1][0]["Findings"] == "none"
    one = Finding(kind=FindingKind.ONE_BATCH, value=1, limit=4)
    run = run_of(noisy(fp32, 0.08), msgspec.structs.replace(amp, findings=(one,)))
    shared = Finding(kind=FindingKind.SHARED_GPU, value="1 other process")
    run = msgspec.structs.replace(run, findings=(shared,))
    assert said(run, "amp")[1][0]["Findings"] == "NOISY, SHARED_GPU"


def test_a_doubt_names_the_case_with_the_worst_value_in_per_cent() -> None:
    fp32, amp = both(TaskKind.TRAIN, 64)
    shared = Finding(kind=FindingKind.SHARED_GPU, value="7 % busy", limit=0.05)
    run = msgspec.structs.replace(run_of(noisy(fp32, 0.081), noisy(amp, 0.23)), findings=(shared,))
    (whole, worst), _ = said(run, "method")
    assert "(7 % busy, limit 5.0 %)" in whole
    assert f"(worst of 2: {amp.label}: 23 %, limit 5.0 %)" in worst
    (alone,), _ = said(run_of(noisy(fp32, 0.081), amp), "method")
    assert f"({fp32.label}: 8.1 %, limit 5.0 %)" in alone


def test_a_failure_is_named_with_its_reason() -> None:
    fp32, amp = both(TaskKind.TRAIN, 64)
    broken = Measurement(case=amp.case, status=Status.INVALID, reason="the loss is not finite")
    _, (row,) = said(run_of(fp32, broken), "method")
    assert (row["Status"], "not finite" in row["Reason"]) == ("invalid", True)


def test_a_micro_benchmark_with_a_finding_has_a_mark() -> None:
    wide = Finding(kind=FindingKind.NOT_CONVERGED, value=0.3, limit=0.02)
    result = MicroResult(
        name="gemm", precision="fp32", size="64", value=1.0, low=None, high=None, unit="FLOP/s", n=9,
        findings=(wide,),
    )  # fmt: skip
    run = msgspec.structs.replace(run_of(), micro=(result,))
    assert said(run, "micro")[1][0]["Findings"] == "NOT_CONVERGED"
    assert "(gemm fp32 64: 30 %, limit 2.0 %)" in said(run, "method")[0][0]


def test_an_interval_of_one_launch_is_labeled_as_of_one_process() -> None:
    fp32, amp = both(TaskKind.TRAIN, 64)
    rounds = tuple(msgspec.structs.replace(each, wall_s=each.wall_s / 2) for each in amp.launches[0].rounds)
    again = msgspec.structs.replace(amp.launches[0], index=1, rounds=rounds)
    twice = msgspec.structs.replace(amp, launches=(*amp.launches, again))
    _, rows = said(run_of(fp32, twice), "throughput")
    assert ["from one process" in row["Throughput, 95 % interval"] for row in rows] == [True, False]
    assert outcome(amp, 0).endswith(" images/s, from one process")
    assert outcome(twice, 1).endswith(" images/s")
    assert " (launch 2: 1,280): 85" in outcome(twice, 1), "first the figure of this launch, then that of both"


def test_one_thread_is_singular() -> None:
    run = run_of()
    run = msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, cpu_threads=1))
    assert said(run, "device")[0][0].endswith("1 thread")


def test_finding_advice_never_suggests_a_fixed_wait_or_an_option_already_given() -> None:
    words = {kind: describe(Finding(kind=kind)) for kind in FindingKind}
    for kind in (FindingKind.NOT_STEADY, FindingKind.NOT_CONVERGED, FindingKind.DRIFTING):
        assert "pass --publish without --time-limit, or close" in words[kind]
    assert not any("--allow shared" in text or "more time" in text for text in words.values())
    assert words[FindingKind.LAUNCHES_MISSING].count("--resume RUN") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "is a folder"), ("none/page.html", "create it first"), ("page.doc", "a report is")],
)
def test_report_path_is_checked_before_the_run_is_prepared(monkeypatch, tmp_path, name, words):
    monkeypatch.setattr(session, "prepare", lambda *_: pytest.fail("the search for batches may take minutes"))
    done = here("run", "--quick", "--report", tmp_path / name)
    assert done.returncode == 2
    assert words in done.stderr
