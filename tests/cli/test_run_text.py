"""The closing lines of a run: which work is meant, and no loss where nothing was trained."""

from __future__ import annotations

import msgspec

from gpubench.cli.progress import outcome
from gpubench.cli.run_text import closing, device_line, doubts, latencies, micro_table, table
from gpubench.cli.tables import console_for_tables
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
        loss_curve=(2.0, 1.9, 1.8, 1.7),
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


def test_each_sentence_says_of_which_task_and_batch_it_speaks() -> None:
    one, several, _ = closing(run_of(*both(TaskKind.INFER, 1), *both(TaskKind.INFER, 64)))
    assert "the throughput of fp32 on cnn (inference, batch 1)" in one
    assert "the throughput of fp32 on cnn (inference, batch 64)" in several


def test_the_latency_of_a_searched_batch_says_so() -> None:
    searched = msgspec.structs.replace(
        measured(TaskKind.INFER, Precision.FP32, 4096, 0.2, passes=100), batch_choice="largest"
    )
    (line,) = latencies(run_of(searched))
    assert line.startswith("cnn infer fp32 eager batch 4,096, the largest that fits: one pass")


def test_a_forward_pass_has_no_loss_after_so_many_steps() -> None:
    trained, _ = closing(run_of(*both(TaskKind.TRAIN, 64)))
    passed, _ = closing(run_of(*both(TaskKind.INFER, 64)))
    assert "on cnn (batch 64), " in trained
    assert "its loss after 4 steps differs by 0 %" in trained
    assert "loss" not in passed


def test_too_few_passes_are_said_where_a_quantile_is_missing() -> None:
    (enough,) = latencies(run_of(measured(TaskKind.INFER, Precision.FP32, 1, 0.002, passes=100)))
    (few,) = latencies(run_of(measured(TaskKind.INFER, Precision.FP32, 1, 0.002, passes=57)))
    assert enough.endswith("95 % of them under 2.00 ms, 99 % under 2.00 ms")
    assert few.endswith("99 % unknown: 57 passes came in, and that takes 100")


def noisy(measurement: Measurement, value: float) -> Measurement:
    finding = Finding(kind=FindingKind.NOISY, value=value, limit=0.05)
    return msgspec.structs.replace(measurement, findings=(finding,))


def test_a_ratio_of_one_launch_is_said_to_rest_on_it_once() -> None:
    pairs = (*both(TaskKind.TRAIN, 64), *both(TaskKind.INFER, 64))
    *sentences, last = closing(run_of(*pairs))
    assert len(sentences) == 2
    assert last.startswith("these ratios rest on one launch")
    twice = [
        msgspec.structs.replace(m, launches=(*m.launches, msgspec.structs.replace(m.launches[0], index=1)))
        for m in pairs
    ]
    assert len(closing(run_of(*twice))) == 2


def test_a_ratio_names_what_speaks_against_either_row_or_the_run() -> None:
    fp32, amp = both(TaskKind.TRAIN, 64)
    assert "doubted" not in closing(run_of(fp32, amp))[0]
    one = Finding(kind=FindingKind.ONE_BATCH, value=1, limit=4)
    run = run_of(noisy(fp32, 0.08), msgspec.structs.replace(amp, findings=(one,)))
    shared = Finding(kind=FindingKind.SHARED_GPU, value="1 other process")
    run = msgspec.structs.replace(run, findings=(shared,))
    assert closing(run)[0].endswith("; to be doubted: NOISY, SHARED_GPU")


def test_a_doubt_names_the_case_with_the_worst_value_in_per_cent() -> None:
    fp32, amp = both(TaskKind.TRAIN, 64)
    shared = Finding(kind=FindingKind.SHARED_GPU, value="7 % busy", limit=0.05)
    run = msgspec.structs.replace(run_of(noisy(fp32, 0.081), noisy(amp, 0.23)), findings=(shared,))
    whole, worst = doubts(run)
    assert "(7 % busy, limit 5.0 %)" in whole
    assert f"(worst of 2: {amp.label}: 23 %, limit 5.0 %)" in worst
    (alone,) = doubts(run_of(noisy(fp32, 0.081), amp))
    assert f"({fp32.label}: 8.1 %, limit 5.0 %)" in alone


def test_a_micro_benchmark_with_a_finding_has_a_mark() -> None:
    wide = Finding(kind=FindingKind.NOT_CONVERGED, value=0.3, limit=0.02)
    result = MicroResult(
        name="gemm", precision="fp32", size="64", value=1.0, low=None, high=None, unit="FLOP/s", n=9,
        findings=(wide,),
    )  # fmt: skip
    run = msgspec.structs.replace(run_of(), micro=(result,))
    made = micro_table(run, console_for_tables())
    assert str(next(iter(made.columns[-1].cells))) == "NOT_CONVERGED"
    assert "(gemm fp32 64: 30 %, limit 2.0 %)" in doubts(run)[0]


def test_an_interval_of_one_launch_is_called_one_within_a_process_in_table_and_progress() -> None:
    fp32, amp = both(TaskKind.TRAIN, 64)
    again = msgspec.structs.replace(amp.launches[0], index=1)
    twice = msgspec.structs.replace(amp, launches=(*amp.launches, again))
    for rows, words in (((fp32, amp), "95 %, within one process"), ((fp32, twice), "95 %")):
        assert str(table(run_of(*rows), console_for_tables()).columns[1].header) == f"samples/s ({words})"
    assert outcome(amp, 0).endswith(" images/s, within one process")
    assert outcome(twice, 1).endswith(" images/s")


def test_one_thread_is_one_thread() -> None:
    run = run_of()
    run = msgspec.structs.replace(run, environment=msgspec.structs.replace(run.environment, cpu_threads=1))
    assert device_line(run).endswith("1 thread")


def test_no_advice_is_to_wait_for_a_fixed_time_or_to_pass_what_was_passed() -> None:
    words = {kind: describe(Finding(kind=kind)) for kind in FindingKind}
    for kind in (FindingKind.NOT_STEADY, FindingKind.NOT_CONVERGED, FindingKind.DRIFTING):
        assert "leave out --quick and --time-limit, on a CPU pass --publish" in words[kind]
    assert not any("--allow-shared" in text or "more time" in text for text in words.values())
    assert words[FindingKind.LAUNCHES_MISSING].count("--resume RUN") == 1
