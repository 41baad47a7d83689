"""The child that measures in Keras: a case is built, checked and prepared; the rounds are those of all.

It speaks as ``worker`` does, and has one backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from gpubench.measure import keras_steps, messages
from gpubench.measure.budget import CURVE_SHARE
from gpubench.measure.capability import NotHereError, versions
from gpubench.measure.keras_build import Build, build_of, check_backend
from gpubench.measure.keras_steps import Steps, check_gpu
from gpubench.measure.launch import (
    Bench,
    Job,
    LaunchRecorder,
    conduct,
    in_time,
    largest_difference,
    relative_difference,
    time_job,
    worse,
)
from gpubench.measure.loop import CallLoop
from gpubench.measure.messages import CaseDone, MeasureCase
from gpubench.models import Case, Execution, Framework, Precision, Status
from gpubench.parent import ParentChannel
from gpubench.probe.telemetry import open_telemetry
from gpubench.units import Seconds
from gpubench.workload import KerasTask

CHECKED_STEPS = 2
"""Of an execution, held against eager ones: the second loss depends on the update of the first."""


@dataclass(kw_only=True)
class KerasBench(Bench):
    """What the child of a Keras backend keeps from case to case."""

    framework: Framework

    def is_spent(self, status: Status) -> bool:
        """Let go of a case; whether this process must not measure another."""
        keras_steps.release(self.framework)
        return super().is_spent(status)


def measure_case(order: MeasureCase, bench: KerasBench) -> CaseDone:
    """Measure one case in Keras; see ``launch.conduct`` for how it may end."""
    seen = LaunchRecorder(index=order.launch)
    case, framework = order.case, bench.framework

    def measure(deadline_s: Seconds) -> None:
        place = keras_steps.on_device(framework, is_cpu=bench.profile.is_cpu)
        with (
            place,
            keras_steps.policy_of(case.precision),
            keras_steps.switches_of(framework, case.precision) as seen.switches,
        ):
            time_job(order, bench, seen, deadline_s, lambda: _job(order, bench, seen, deadline_s))

    return conduct(order, bench, seen, measure)


def _job(order: MeasureCase, bench: KerasBench, seen: LaunchRecorder, deadline_s: Seconds) -> Job:
    case, build = order.case, build_of(order.reference, bench.framework)
    bench.phase("build")
    with seen.timing("build"):
        task = keras_steps.built(build, case, bench.seed)
        steps = Steps(case.workload, task, bench.framework)
        seen.batch_count = len(steps.batches)
    in_time(deadline_s)
    bench.phase("check")
    seen.precision_errors = keras_steps.product_errors()
    if not (bench.profile.is_cpu and case.precision is Precision.FP32):
        seen.reference_error = _reference_error(order, bench, build, task)
    before = steps.fingerprint()

    def prove_again() -> None:  # code of the model's own may have set a switch meanwhile
        seen.precision_errors = worse(seen.precision_errors, keras_steps.product_errors())

    in_time(deadline_s)
    return Job(
        advance=_first_steps(case, bench, seen, steps, deadline_s),
        edge_loss=steps.edge_loss,
        batches=len(steps.batches),
        prove_again=prove_again,
        has_moved=lambda: any((a != b).any() for a, b in zip(steps.fingerprint(), before, strict=True)),
        loop=CallLoop,
    )


def _first_steps(
    case: Case, bench: KerasBench, seen: LaunchRecorder, steps: Steps, deadline_s: Seconds
) -> Callable[[int], object]:
    """Prepare the execution, hold it against eager steps, and keep the losses of its first steps.

    Raises:
        NotHereError: If it is jax's LSTM of cuDNN, which Keras takes on a GPU whatever the type.
    """
    execution = case.execution
    bench.phase(execution.facts.preparation or "first steps")
    advance = steps.advance(execution)
    start = steps.values()
    with seen.timing(execution.facts.preparation or "first_step"):
        try:
            _losses(steps, advance, 1)  # a backend compiles in its first step
        except ValueError as error:
            if steps.framework is Framework.KERAS_JAX and "Unknown output type" in str(error):
                raise NotHereError(f"jax has cuDNN's recurrent layers in float32 alone ({error})") from error
            raise
    steps.restore(start)
    if execution is not Execution.EAGER:
        bench.phase("check")
        in_time(deadline_s)
        prepared = _losses(steps, advance, CHECKED_STEPS)
        steps.restore(start)
        eager = _losses(steps, steps.advance(Execution.EAGER), CHECKED_STEPS)
        steps.restore(start)
        seen.graph_error = largest_difference(prepared, eager)
    del start
    bench.phase("first steps")
    began_s = time.perf_counter()
    for index in range(max(bench.budget.curve_steps, 1)):
        in_time(deadline_s)
        if time.perf_counter() - began_s > CURVE_SHARE * bench.budget.warmup_most_s:
            break
        seen.loss_curve.append(steps.edge_loss(advance(index), index))
    return advance


def _losses(steps: Steps, advance: Callable[[int], object], count: int) -> list[float]:
    return [steps.edge_loss(advance(index), index) for index in range(count)]


def _reference_error(order: MeasureCase, bench: KerasBench, build: Build, task: KerasTask) -> float | None:
    """Hold the first loss against the same model in float32 on the CPU, from the same weights."""
    found = keras_steps.first_loss(task)
    place: AbstractContextManager[object] = keras_steps.on_device(bench.framework, is_cpu=True)
    weights = task.model.get_weights()
    with (
        place,
        keras_steps.policy_of(Precision.FP32),
        keras_steps.switches_of(bench.framework, Precision.FP32),
    ):
        again = keras_steps.built(build, order.case, bench.seed, Precision.FP32)
        again.model.set_weights(weights)
        expected = keras_steps.first_loss(again)
    return relative_difference(found, expected)


def open_bench(setup: messages.Setup, line: ParentChannel, began_s: float) -> KerasBench:
    """Say what this process computes with, and return what it measures on.

    Args:
        setup: The first message.
        line: To the parent.
        began_s: When the import of the framework began, on ``time.perf_counter`` [s].
    """
    check_backend(setup.framework)
    findings = check_gpu(setup.device, setup.framework)
    telemetry = open_telemetry(setup.device)
    line.send(
        messages.Ready(
            cold_s={"import": time.perf_counter() - began_s},
            findings=findings,
            packages=versions(setup.framework),
        )
    )
    return KerasBench.serving(setup, line, telemetry, framework=setup.framework)


def serve(command: messages.Command, bench: KerasBench, line: ParentChannel) -> None:
    """Carry out one command and report its end."""
    if not isinstance(command, messages.MeasureCase):
        raise TypeError(f"no such command in Keras: {type(command).__name__}")
    line.send(messages.scrubbed(measure_case(command, bench)))
