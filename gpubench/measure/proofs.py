"""What the harness relies on, held against something that shares no code with it, in the measuring process.

Raw readings only: what they mean is judged by whoever reads them.
"""

from __future__ import annotations

import math

import msgspec

from gpubench.folders import traceback_of
from gpubench.measure import busy, by_hand
from gpubench.measure.case import WorkerContext
from gpubench.measure.execution import prepare
from gpubench.measure.launch import failure
from gpubench.measure.loop import Loop
from gpubench.measure.messages import Prove, Proven
from gpubench.measure.precision import switches_for
from gpubench.measure.step import Work, copied, move
from gpubench.measure.telemetry import Sampler, shifted
from gpubench.models import Blocks, ClockProof, GraphProof, LoadProof, Precision, PrecisionProof, Status
from gpubench.units import Seconds

WARM_S = 1.0
"""Steps run this long before the first block, beside the first ones, in which cuDNN tries its algorithms."""


def prove(order: Prove, context: WorkerContext) -> Proven:
    """Carry out one proof; a failure becomes a status, as in a measurement."""
    try:
        with switches_for(order.case.precision) as switches:
            match order.what:
                case "precision":
                    precision = order.case.precision
                    errors = context.errors_of(precision, recurrent=True)
                    control = context.control().errors if precision is Precision.FP32 else {}
                    proof = PrecisionProof(
                        precision=precision,
                        switches=switches,
                        errors=_finite(errors),
                        control_errors=_finite(control),
                    )
                    proven = Proven(precision=proof)
                case "clock":
                    proven = Proven(clock=_clock(order, context))
                case "graph":
                    proven = Proven(graph=_graph(order, context))
                case "load":
                    proven = Proven(load=_load(order, context))
    except Exception as error:  # noqa: BLE001 - a driver may say no in many kinds; each is an answer here
        status, reason = failure(error, order.case.batch_size, context.at)
        return Proven(status=status, reason=reason, spent=True, traceback=traceback_of(error))
    return msgspec.structs.replace(proven, spent=context.is_spent(Status.OK))


def _finite(errors: dict[str, float]) -> dict[str, float | None]:
    return {name: error if math.isfinite(error) else None for name, error in errors.items()}


def _clock(order: Prove, context: WorkerContext) -> ClockProof:
    """Rounds of the harness beside a loop by hand, and beside device events, of the same steps."""
    work, loop, steps = _running(order, context)
    hardware = context.hardware

    def harness() -> Seconds:
        return loop.round(steps).wall_s / steps

    def bare() -> Seconds:
        return by_hand.bare_loop(work, hardware, steps) / steps

    def events() -> Seconds:
        times = busy.event_times(loop.advance, steps)
        return sum(times) / len(times)

    return ClockProof(
        case=order.case,
        by_hand=by_hand.in_fours(harness, bare, order.fours),
        events=by_hand.in_fours(harness, events, order.fours),
        issue_s=busy.host_issue_times(loop.advance, hardware.clock())[::2],
    )


def _graph(order: Prove, context: WorkerContext) -> GraphProof:
    """Replays of the harness beside replays of a graph captured by hand."""
    work, loop, steps = _running(order, context)
    replay = by_hand.bare_graph(work)
    blocks = by_hand.in_fours(
        lambda: loop.round(steps).wall_s / steps,
        lambda: by_hand.bare_replays(replay, steps) / steps,
        order.fours,
    )
    return GraphProof(case=order.case, by_hand=blocks)


def _load(order: Prove, context: WorkerContext) -> LoadProof:
    """Steps without a pause, with telemetry beside them; then the cost of that telemetry."""
    _, loop, steps = _running(order, context)
    telemetry, clock = context.telemetry, loop.clock
    with Sampler(telemetry, clock.now_s) as sampler:
        _for(loop, steps, order.settle_s)
        began_s, before = clock.now_s(), telemetry.energy_j()
        _for(loop, steps, order.load_s - order.settle_s)
        region_s, after = clock.now_s() - began_s, telemetry.energy_j()
        samples = shifted(sampler.drain(), began_s)
        source = telemetry.source

    def sampled() -> Seconds:
        with Sampler(telemetry, clock.now_s):
            return loop.round(steps).wall_s / steps

    read = source not in {"none", "hung"}
    plain = by_hand.in_fours(sampled, lambda: loop.round(steps).wall_s / steps, order.fours) if read else None
    return LoadProof(
        case=order.case,
        telemetry_source=source,
        samples=samples,
        region_s=region_s,
        energy_edges_j=(before, after),
        sampled=plain or Blocks(),
    )


def _running(order: Prove, context: WorkerContext) -> tuple[Work, Loop, int]:
    """Build the case, prepare and warm its steps; return the work, its loop, and the steps of one block."""
    context.phase("build")
    task = context.task(order.reference, order.case)
    work = move(copied(task), order.case, context.hardware.device)
    context.phase("first steps")
    work.edge_loss(work.step(0), 0)
    context.phase(work.case.execution.facts.preparation or "first steps")
    loop = Loop(
        advance=prepare(work),
        edge_loss=work.edge_loss,
        clock=context.hardware.clock(),
        batches=len(work.batches),
        stopped=context.stopped,
    )
    context.phase("warm-up")
    loop.round(1)
    _for(loop, 1, WARM_S)
    steps = loop.steps_for(order.block_s, loop.step_s)
    loop.round(steps)
    context.phase("timed")
    return work, loop, loop.steps_for(order.block_s, loop.step_s)


def _for(loop: Loop, steps: int, seconds: Seconds) -> None:
    """Run rounds for so long; each is at least so many steps."""
    end_s = loop.clock.now_s() + seconds
    while loop.clock.now_s() < end_s:
        loop.round(steps)
