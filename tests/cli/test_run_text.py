"""The closing lines of a run: which work is meant, and no loss where nothing was trained."""

from __future__ import annotations

import msgspec

from gpubench.cli.run_text import closing, latencies
from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Execution,
    Launch,
    Measurement,
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
    one, several = closing(run_of(*both(TaskKind.INFER, 1), *both(TaskKind.INFER, 64)))
    assert "the throughput of fp32 on cnn (inference, batch 1)" in one
    assert "the throughput of fp32 on cnn (inference, batch 64)" in several


def test_the_latency_of_a_searched_batch_says_so() -> None:
    searched = msgspec.structs.replace(
        measured(TaskKind.INFER, Precision.FP32, 4096, 0.2, passes=100), batch_choice="largest"
    )
    (line,) = latencies(run_of(searched))
    assert line.startswith("cnn infer fp32 eager batch 4,096, the largest that fits: one pass")


def test_a_forward_pass_has_no_loss_after_so_many_steps() -> None:
    (trained,) = closing(run_of(*both(TaskKind.TRAIN, 64)))
    (passed,) = closing(run_of(*both(TaskKind.INFER, 64)))
    assert "on cnn (batch 64), " in trained
    assert "its loss after 4 steps differs by 0 %" in trained
    assert "loss" not in passed


def test_too_few_passes_are_said_where_a_quantile_is_missing() -> None:
    (enough,) = latencies(run_of(measured(TaskKind.INFER, Precision.FP32, 1, 0.002, passes=100)))
    (few,) = latencies(run_of(measured(TaskKind.INFER, Precision.FP32, 1, 0.002, passes=57)))
    assert enough.endswith("95 % of them under 2.00 ms, 99 % under 2.00 ms")
    assert few.endswith("99 % unknown: 57 passes came in, and that takes 100")
