"""Checks in the measuring process that gpubench's rounds and graphs agree with hand-written code.

The results are raw readings, which ``cuda_check`` judges.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch
from torch import Tensor, nn

from gpubench.folders import traceback_of
from gpubench.measure import guards
from gpubench.measure.case import WorkerContext
from gpubench.measure.guards import prepare
from gpubench.measure.launch import failure, sampling, shifted
from gpubench.measure.loop import Loop
from gpubench.measure.messages import Prove, Proven
from gpubench.measure.step import AUTOCAST_TYPES, Hardware, Work, copied, move, switches_for
from gpubench.models import Blocks, ClockProof, GraphProof, LoadProof, Precision, PrecisionProof, Status
from gpubench.units import Seconds
from gpubench.workload import Task, Workload, seeded

# --- the same training step written by hand ---------------------------------------------------------------


def step_by_hand(work: Work, *, in_graph: bool = False) -> Callable[[int], None]:
    """Return a training step written as in a tutorial; its argument is the number of the step.

    Args:
        work: The work, with the weights that the step trains.
        in_graph: Whether the step will be captured; autocast must then not cache weights from outside it.
    """
    model, optimizer, scaler = work.model, work.optimizer, work.scaler
    assert optimizer is not None  # the hand-written step is for training only
    dtype, device = AUTOCAST_TYPES.get(work.case.precision), work.device.type

    def step(index: int) -> None:
        inputs, targets = work.batches[index % len(work.batches)]
        optimizer.zero_grad(set_to_none=True)
        if dtype is None:
            loss = work.loss(model(inputs), targets)
        else:
            with torch.autocast(device, dtype=dtype, cache_enabled=not in_graph):
                loss = work.loss(model(inputs), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step


def bare_loop(step: Callable[[int], object], hardware: Hardware, steps: int) -> Seconds:
    """Return the wall time of this many steps or replays, timed as a user would time them [s]."""
    wait = torch.cuda.synchronize if hardware.is_cuda else hardware.clock().synchronize
    wait()
    began_s = time.perf_counter()
    for index in range(steps):
        step(index)
    wait()
    return time.perf_counter() - began_s


def bare_graph(work: Work) -> Callable[[], None]:
    """Capture one training step in a CUDA graph as in a tutorial; return its replay.

    The graph has one batch and its own memory, and trains the same weights. Anything that gpubench adds to a
    replay, or leaves out of the captured step, changes the ratio of the two times.
    """
    step = step_by_hand(work, in_graph=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(0)
    torch.cuda.current_stream().wait_stream(side)
    work.model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(0)
    return graph.replay


def in_fours(first: Callable[[], Seconds], second: Callable[[], Seconds], fours: int) -> Blocks:
    """Run two kinds of blocks in the order first, second, second, first: a steady drift affects both equally.

    Args:
        first: Runs one block and returns its seconds per step.
        second: The same for the other kind.
        fours: Number of repetitions of that order.
    """
    first_s, second_s = [], []
    for _ in range(fours):
        first_s.append(first())
        second_s += [second(), second()]
        first_s.append(first())
    return Blocks(first_s=tuple(first_s), second_s=tuple(second_s))


# --- a model that waits for the device, which no CUDA graph can capture -----------------------------------


WIDTH = 64


class Waiting(nn.Module):
    """A linear layer that reads a number on the host, and computes its output with it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Divide the output by one plus the magnitude of its largest value.

        Shapes:
            x: (N, 64) float32; result: (N, 64).
        """
        out: Tensor = self.layer(x)
        return out / (1.0 + abs(out.detach().max().item()))


def build(batch_size: int, seed: int) -> Task:
    """Build the model with random rows as inputs, and zeros as the targets of a regression.

    Shapes:
        inputs: (N, 64) float32; targets: (N, 64) float32.
    """
    with seeded(seed):
        return Task(
            model=Waiting(),
            batches=tuple((torch.randn(batch_size, WIDTH), torch.zeros(batch_size, WIDTH)) for _ in range(2)),
            loss=nn.functional.mse_loss,
            optimizer=partial(torch.optim.SGD, lr=0.01),
        )


WORKLOAD = Workload(
    name="waiting",
    version=1,
    sample_unit="row",
    sample_shape=(WIDTH,),
    batches=(8,),
    is_image=False,
    source="gpubench",
    build=build,
)

WARM_S = 1.0
"""Warm-up time between the first steps, in which cuDNN tries its algorithms, and the first block [s]."""


def prove(order: Prove, context: WorkerContext) -> Proven:
    """Carry out one proof; as in a measurement, a failure becomes a status."""
    try:
        with switches_for(order.case.precision) as switches:
            match order.what:
                case "precision":
                    precision = order.case.precision
                    control = context.control.errors if precision is Precision.FP32 else {}
                    proof = PrecisionProof(
                        precision=precision,
                        switches=switches,
                        errors=_finite(context.errors_of(precision, recurrent=True)),
                        control_errors=_finite(control),
                    )
                    proven = Proven(precision=proof)
                case "clock":
                    proven = Proven(clock=_clock(order, context))
                case "graph":
                    proven = Proven(graph=_graph(order, context))
                case "load":
                    proven = Proven(load=_load(order, context))
    except Exception as error:  # noqa: BLE001 - a driver raises many kinds of errors; each is a result here
        status, reason = failure(error, order.case.batch_size, context.current_phase)
        return Proven(status=status, reason=reason, spent=True, traceback=traceback_of(error))
    return msgspec.structs.replace(proven, spent=context.is_spent(Status.OK))


def _finite(errors: dict[str, float]) -> dict[str, float | None]:
    return {name: error if math.isfinite(error) else None for name, error in errors.items()}


def _clock(order: Prove, context: WorkerContext) -> ClockProof:
    """Time the same steps by gpubench's rounds, by a hand-written loop, and by device events."""
    work, loop, steps = _running(order, context)
    hardware, by_hand = context.hardware, step_by_hand(work)

    def by_rounds() -> Seconds:
        return loop.round(steps).wall_s / steps

    def by_events() -> Seconds:
        times = guards.event_times(loop.advance, steps)
        return sum(times) / len(times)

    return ClockProof(
        case=order.case,
        by_hand=in_fours(by_rounds, lambda: bare_loop(by_hand, hardware, steps) / steps, order.fours),
        events=in_fours(by_rounds, by_events, order.fours),
        issue_s=guards.host_issue_times(loop.advance, hardware.clock())[::2],
    )


def _graph(order: Prove, context: WorkerContext) -> GraphProof:
    # Time gpubench's replays, and those of a graph captured by hand.
    work, loop, steps = _running(order, context)
    replay = bare_graph(work)
    return GraphProof(
        case=order.case,
        by_hand=in_fours(
            lambda: loop.round(steps).wall_s / steps,
            lambda: bare_loop(lambda _: replay(), context.hardware, steps) / steps,
            order.fours,
        ),
    )


def _load(order: Prove, context: WorkerContext) -> LoadProof:
    """Run steps without a pause, with telemetry, then measure what that telemetry costs."""
    _, loop, steps = _running(order, context)
    telemetry, clock = context.telemetry, loop.clock
    with sampling(telemetry, clock.now_s) as drain:
        _run_for(loop, steps, order.settle_s)
        began_s, before = clock.now_s(), telemetry.energy_j()
        _run_for(loop, steps, order.load_s - order.settle_s)
        region_s, after = clock.now_s() - began_s, telemetry.energy_j()
        samples = shifted(drain(), began_s)
        source = telemetry.source

    def sampled() -> Seconds:
        with sampling(telemetry, clock.now_s):
            return loop.round(steps).wall_s / steps

    is_read = source not in {"none", "hung"}
    blocks = in_fours(sampled, lambda: loop.round(steps).wall_s / steps, order.fours) if is_read else Blocks()
    return LoadProof(
        case=order.case,
        telemetry_source=source,
        samples=samples,
        region_s=region_s,
        energy_edges_j=(before, after),
        sampled=blocks,
    )


def _running(order: Prove, context: WorkerContext) -> tuple[Work, Loop, int]:
    """Build the case, prepare and warm up its steps; return the work, its loop, and the steps per block."""
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
    _run_for(loop, 1, WARM_S)
    loop.round(loop.steps_for(order.block_s, loop.step_s))
    context.phase("timed")
    return work, loop, loop.steps_for(order.block_s, loop.step_s)


def _run_for(loop: Loop, steps: int, seconds: Seconds) -> None:
    # Run rounds for this many seconds; each has at least this many steps.
    end_s = loop.clock.now_s() + seconds
    while loop.clock.now_s() < end_s:
        loop.round(steps)
