"""Measure one case in the child: build, check, prepare, warm up, time, and look a second time."""

from __future__ import annotations

import copy
import math
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from gpubench.measure import busy, by_hand, energy, guards, preflight
from gpubench.measure.budget import Budget, within
from gpubench.measure.clock import Clock
from gpubench.measure.execution import Advance, NotPreparedError, prepare
from gpubench.measure.hardware import Hardware
from gpubench.measure.loop import Loop, OutOfTimeError, Report, Series, StoppedError, time_rounds, warm_up
from gpubench.measure.messages import ByHand, ByHandDone, CaseDone, MeasureCase
from gpubench.measure.precision import probe_errors, read_switches, switches_for, worse
from gpubench.measure.quantize import NotQuantizedError
from gpubench.measure.sampler import Sampler, Telemetry, shifted
from gpubench.measure.sharing import place_model, share
from gpubench.measure.step import Work, built, is_fused, move, to_the_device
from gpubench.measure.team import Team
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Finding,
    FindingKind,
    Launch,
    ParallelMode,
    Precision,
    Recipe,
    Status,
    Switches,
    TaskKind,
)
from gpubench.profile.log import TRACEBACK_CHARACTERS
from gpubench.units import Seconds, Watts
from gpubench.workload import Task, lacks_memory, one_line

CURVE_SHARE = 0.4
"""The steps whose losses are kept one by one take at most this share of the longest warm-up."""
MOST_GAPS = 8192
"""Of the times between tokens that are kept: eight times what a 99th percentile rests on."""
STEPS_BEFORE_PEAK = 2
"""The first steps may take extra memory while cuDNN tries its algorithms; they are not the peak."""


@dataclass
class WorkerContext:
    """What the child keeps from case to case, and how it talks to its parent.

    Attributes:
        phase: Announces a phase; the parent holds each to a deadline.
        report: Hands over one round, with how sure the figure is by then and what the device last said.
        stopped: Whether the parent has asked to stop.
        team: The other processes of a data-parallel job; None where one GPU works alone.
        tasks: Tasks as built, on the CPU; each case works on a copy, so that all start alike.
        expected: First loss of the latest task in float32 on the CPU, where a language model takes seconds.
    """

    hardware: Hardware
    budget: Budget
    seed: int
    telemetry: Telemetry
    profile: DeviceProfile
    phase: Callable[[str], None]
    report: Report
    stopped: Callable[[], bool]
    team: Team | None = None
    tasks: dict[tuple[str, int, Recipe], Task] = field(default_factory=dict)
    expected: tuple[weakref.ref[Task], TaskKind, float] | None = None

    def task(self, reference: str, case: Case) -> Task:
        """Return the task as built; only the latest workload is kept, because VGG16 takes half a gigabyte."""
        key = (reference, case.batch_size, case.recipe)
        if key not in self.tasks:
            self.tasks.clear()
            self.tasks[key] = built(reference, case, self.seed)
        return self.tasks[key]

    def expected_loss(self, task: Task, case: Case) -> float:
        """Return the first loss of a task on the CPU, computed once for all its precisions and executions."""
        known = self.expected
        if known is None or known[0]() is not task or known[1] is not case.task:
            known = self.expected = (weakref.ref(task), case.task, guards.expected_loss(task, case))
        return known[2]

    def clock(self) -> Clock:
        """Return the clock of the rounds: it waits for every process of the job."""
        return self.hardware.clock() if self.team is None else self.team.clock()

    def once(self, advance: Advance) -> Advance:
        """Return the function that issues single steps, outside of any round."""
        return advance if self.team is None else self.team.once(advance)

    def power_limit_w(self) -> Watts | None:
        """Return the most that all GPUs of the job may draw together [W]."""
        limit = self.profile.power_limit_w
        return limit if limit is None or self.team is None else limit * self.team.size


@dataclass
class LaunchRecorder:
    """What is known of a case so far; a Launch is made of it however the case ends."""

    index: int
    series: Series = field(default_factory=Series)
    switches: Switches | None = None
    precision_errors: dict[str, float | None] = field(default_factory=dict)
    cold_s: dict[str, float] = field(default_factory=dict)
    batch_count: int | None = None
    loss_curve: list[float] = field(default_factory=list)
    peak_memory_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    reference_error: float | None = None
    graph_error: float | None = None
    fused: bool | None = None
    parameters_moved: bool | None = None
    memory_errors: int | None = None
    event_s: tuple[float, ...] = ()
    host_issue_s: tuple[float, ...] = ()
    gpu_busy: float | None = None
    latency_s: tuple[float, ...] = ()
    tokens_at_s: tuple[tuple[float, ...], ...] = ()
    energy: energy.Energy = field(default_factory=energy.Energy)
    energy_edges_j: tuple[float, ...] = ()
    held_clocks_s: dict[str, float | None] = field(default_factory=dict)
    telemetry_source: str | None = None
    stopped: bool = False
    unequal: str | None = None

    @contextmanager
    def timing(self, name: str | None) -> Iterator[None]:
        """Note a cold cost, apart from the steps; None where there is none."""
        start = time.perf_counter()
        yield
        if name is not None:
            self.cold_s[name] = time.perf_counter() - start

    def launch(self) -> Launch:
        """Return the record of this launch."""
        series = self.series
        return Launch(
            index=self.index,
            switches=self.switches,
            precision_errors=self.precision_errors,
            warmup=tuple(series.warmup),
            rounds=tuple(series.timed),
            event_s=self.event_s,
            host_issue_s=self.host_issue_s,
            fused=self.fused,
            telemetry=shifted(series.telemetry, series.began_s) if series.began_s is not None else (),
            telemetry_source=self.telemetry_source,
            energy_j=self.energy.joules,
            energy_source=self.energy.source,
            energy_edges_j=self.energy_edges_j,
            energy_region_s=self.region_s() if self.energy.joules is not None else None,
            held_clocks_s=self.held_clocks_s,
            peak_memory_bytes=self.peak_memory_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            gpu_busy=self.gpu_busy,
            latency_s=self.latency_s,
            first_token_s=tuple(times[0] for times in self.tokens_at_s),
            per_token_s=tuple((times[-1] - times[0]) / (len(times) - 1) for times in self.tokens_at_s),
            token_gap_s=tuple(b - a for times in self.tokens_at_s for a, b in pairwise(times))[:MOST_GAPS],
            skipped_steps=skipped_steps(series.scales) if series.scales else None,
            timed_steps=sum(r.steps for r in series.timed) or None,
            reference_error=self.reference_error,
            graph_error=self.graph_error,
            parameters_moved=self.parameters_moved,
            memory_errors=self.memory_errors,
            batch_count=self.batch_count,
            loss_curve=tuple(self.loss_curve),
            cold_s={name: round(value, 4) for name, value in self.cold_s.items()},
            stopped=self.stopped,
            findings=(*series.findings, *self._own_findings()),
        )

    def _own_findings(self) -> Iterator[Finding]:
        """What the numbers of the record cannot say: a distance without end is null in the file."""
        if self.energy.finding is not None:
            yield self.energy.finding
        if self.unequal is not None:
            yield Finding(kind=FindingKind.UNEQUAL_GPUS, value=self.unequal)
        if math.inf in {self.reference_error, self.graph_error}:
            yield Finding(kind=FindingKind.LOSS_DIFFERS, value="not finite, unlike the reference")

    def region_s(self) -> Seconds:
        """Length of the timed region [s]."""
        if self.series.began_s is None or self.series.ended_s is None:
            return 0.0
        return self.series.ended_s - self.series.began_s


def measure_case(order: MeasureCase, context: WorkerContext) -> CaseDone:
    """Measure one case; a failure of the work becomes a status, and what was seen stays.

    An exception of the model's own code is one of the ways in which a case ends: it is answered here,
    once, and never reaches the next case.
    """
    seen = LaunchRecorder(index=order.launch)
    deadline_s = time.perf_counter() + order.time_s if order.time_s is not None else float("inf")
    status, reason, trace = Status.OK, None, None
    try:
        with switches_for(order.case.precision) as seen.switches:
            _measure(order, context, seen, deadline_s)
    except OutOfTimeError:
        status, reason = Status.TIMEOUT, _out_of_time(seen)
    except StoppedError:
        if len(seen.series.timed) < 2:
            status, reason = Status.INTERRUPTED, "stopped before two rounds were in"
    except (NotPreparedError, NotQuantizedError) as error:
        status, reason = Status.UNSUPPORTED, str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the model is its author's code: it may raise anything
        if context.team is not None:
            context.team.leave_the_word(error)
        status, reason = failure(error, order.case.batch_size)
        trace = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]
    seen.stopped = context.stopped()
    if lost := context.telemetry.fault:
        status, reason = Status.FAILED, preflight.describe_fault(lost)
    return CaseDone(
        status=status,
        reason=reason,
        launch=seen.launch(),
        lost=lost is not None,
        spent=is_spent(status, context),
        traceback=trace,
    )


def is_spent(status: Status, context: WorkerContext) -> bool:
    """Hand memory back after a case; whether this process must not measure another.

    After a failure torch's allocator may believe that a capture goes on, and an error of CUDA may stick: then
    nothing works but a new process. A case that ran out of time ended between two steps and leaves no such
    trace, except in a job of several processes, of which the others may be in the middle of a step.
    """
    if status is not Status.OK and (status is not Status.TIMEOUT or context.team is not None):
        return True
    try:
        context.hardware.release()
    except RuntimeError:
        return True
    return False


def failure(error: BaseException, batch_size: int) -> tuple[Status, str]:
    """Status and reason of an exception: type, words, and the line of the user's code that it came from."""
    if lacks_memory(error):
        return Status.OUT_OF_MEMORY, f"batch {batch_size}: {one_line(error)}"
    return Status.FAILED, one_line(error)


def compare_by_hand(order: ByHand, context: WorkerContext) -> ByHandDone:
    """Hold the harness, or its telemetry, against a loop by hand, in blocks of ``by_hand.BLOCK_S``."""
    case = order.case
    with switches_for(case.precision):
        task = built(order.reference, case, context.seed)
        work = move(task, case, context.hardware.device)
        once = by_hand.bare_loop(work, context.hardware, by_hand.WARM_STEPS)
        steps = max(len(work.batches), round(by_hand.BLOCK_S * by_hand.WARM_STEPS / once))
        if order.sampler:
            ratios = by_hand.sampled_over_plain(
                work, context.hardware, context.telemetry, pairs=by_hand.PAIRS, steps=steps
            )
        else:
            ratios = by_hand.harness_over_bare(work, context.hardware, pairs=by_hand.PAIRS, steps=steps)
    ratio, low, high = by_hand.median_interval(ratios)
    context.hardware.release()
    return ByHandDone(ratio=ratio, low=low, high=high)


def skipped_steps(scales: list[float]) -> int:
    """Count the steps that the gradient scaler skipped: each halves its scale."""
    skipped = 0
    for before, after in pairwise(scales):
        while after < before * 0.75:
            skipped += 1
            before /= 2  # noqa: PLW2901 - walked down to the scale that was read
    return skipped


def _measure(order: MeasureCase, context: WorkerContext, seen: LaunchRecorder, deadline_s: Seconds) -> None:
    began_s = time.perf_counter()

    def budget(round_s: Seconds = 0.0) -> Budget:
        if order.aim_s is None:
            return context.budget
        return within(context.budget, began_s + order.aim_s - time.perf_counter(), round_s)

    work, before = _build(order, context, seen, deadline_s)
    loop = Loop(
        advance=_first_steps(work, context, seen, deadline_s),
        edge_loss=work.edge_loss,
        clock=context.clock(),
        batches=len(work.batches),
        deadline_s=deadline_s,
        stopped=context.stopped,
        report=context.report,
        heap=lambda: context.hardware.heap(work.scaler.get_scale() if work.scaler is not None else None),
        announce=None if context.team is None else context.team.announce_steps,
    )
    reserved = _wants_latency(work, context)
    try:
        _time(loop, work, context, seen, budget, reserve_latency=reserved)
    finally:
        seen.tokens_at_s = tuple(work.tokens_at_s)
        if before and seen.series.began_s is not None:
            seen.parameters_moved = guards.has_moved(work.model, before)
    if context.team is None:
        _look_again(loop, work, context, seen)


def try_steps(order: MeasureCase, context: WorkerContext, steps: int, seen: LaunchRecorder) -> None:
    """Go the way of a measurement with a few steps for its rounds: it needs as much memory.

    The checks at its end need some too, and may find none on a device that the step has filled.
    """
    work, before = _build(order, context, seen, math.inf)
    advance = _first_steps(work, context, seen, math.inf)
    for index in range(steps):
        work.edge_loss(advance(index), index)
    _prove_again(seen, context.hardware)
    if before:
        seen.parameters_moved = guards.has_moved(work.model, before)


def _build(
    order: MeasureCase, context: WorkerContext, seen: LaunchRecorder, deadline_s: Seconds
) -> tuple[Work, list[torch.Tensor]]:
    """Return the work on its device, its arithmetic checked, and the fingerprint of what it trains."""
    task, work = _copy(order, context, seen)
    _in_time(deadline_s)
    context.phase("check")
    seen.precision_errors = {**probe_errors(context.hardware.device)}
    is_reference = context.hardware.is_cpu and order.case.precision is Precision.FP32
    if not is_reference:
        expected = context.expected_loss(task, order.case)
        if context.team is not None and order.case.parallel_mode is ParallelMode.FSDP:
            context.team.announce_look()  # each has a part of the model: one alone would wait for the others
        seen.reference_error = guards.reference_error(work, task, expected)
    _in_time(deadline_s)
    if context.team is not None:
        work = share(work)
    seen.fused = is_fused(work.optimizer)
    return work, guards.fingerprint(work.model) if order.case.task is TaskKind.TRAIN else []


def _copy(order: MeasureCase, context: WorkerContext, seen: LaunchRecorder) -> tuple[Task, Work]:
    """Return the task as built, on the CPU, and a copy of it on the device."""
    context.phase("build")
    with seen.timing("build"):
        if context.team is not None:
            context.team.announce(order)
            seen.unequal = context.team.unequal
        task = context.task(order.reference, order.case)
        seen.batch_count = len(task.batches)
        copied = Task(
            model=copy.deepcopy(task.model),
            batches=task.batches,
            loss=task.loss,
            optimizer=task.optimizer,
            new_tokens=task.new_tokens,
        )
        place = to_the_device if context.team is None else place_model
        return task, move(copied, order.case, context.hardware.device, place)


def _time(
    loop: Loop,
    work: Work,
    context: WorkerContext,
    seen: LaunchRecorder,
    budget: Callable[[Seconds], Budget],
    *,
    reserve_latency: bool,
) -> None:
    """Warm up and time the rounds, with what the device says at both edges and in between."""
    telemetry, series = context.telemetry, seen.series
    errors = telemetry.ecc_uncorrected()
    with Sampler(telemetry, loop.clock.now_s) as sampler:
        loop.samples = sampler.drain
        context.phase("warm-up")
        warm_up(loop, budget(0.0), series)
        context.phase("timed")
        work.tokens_at_s.clear()
        held_s, joules = telemetry.held_clocks_s(), sampler.energy_j()
        reserved_s = busy.latency_time_s(loop.step_s, loop.left_s()) if reserve_latency else 0.0
        try:
            loop.deadline_s -= reserved_s
            time_rounds(loop, budget(loop.step_s * series.steps_per_round), series)
        finally:
            loop.deadline_s += reserved_s
            _read_energy(seen, (joules, sampler.energy_j()), context.power_limit_w())
            seen.held_clocks_s = _differences(held_s, telemetry.held_clocks_s())
            seen.telemetry_source = sampler.source
            seen.memory_errors = _difference(errors, telemetry.ecc_uncorrected())
            _prove_again(seen, context.hardware)


def _first_steps(work: Work, context: WorkerContext, seen: LaunchRecorder, deadline_s: Seconds) -> Advance:
    """Run the first steps from the seed, keep their losses, then prepare the execution and check it."""
    hardware, execution = context.hardware, work.case.execution
    context.phase("first steps")
    step = context.once(work.step)
    torch.manual_seed(context.seed)
    with seen.timing("first_step"):
        seen.loss_curve.append(work.edge_loss(step(0), 0))
    began_s = time.perf_counter()
    for index in range(1, max(context.budget.curve_steps, STEPS_BEFORE_PEAK)):
        _in_time(deadline_s)
        enough = time.perf_counter() - began_s > CURVE_SHARE * context.budget.warmup_most_s
        if enough and index >= STEPS_BEFORE_PEAK:
            break
        seen.loss_curve.append(work.edge_loss(step(index), index))
    hardware.reset_peak_memory()
    context.phase(execution.facts.preparation or "first steps")
    _in_time(deadline_s)
    with seen.timing(execution.facts.preparation):
        advance = prepare(work)
        work.edge_loss(context.once(advance)(0), 0)
    seen.peak_reserved_bytes = hardware.peak_reserved_bytes()
    seen.peak_memory_bytes = hardware.peak_memory_bytes()
    if execution is not Execution.EAGER:
        seen.graph_error = guards.graph_error(work, advance)
    return advance


def _prove_again(seen: LaunchRecorder, hardware: Hardware) -> None:
    """Look at the precision once more: code of the model's own may have set a switch meanwhile."""
    seen.precision_errors = worse(seen.precision_errors, probe_errors(hardware.device))
    seen.switches = read_switches()


def _read_energy(
    seen: LaunchRecorder, edges: tuple[float | None, float | None], power_limit_w: Watts | None
) -> None:
    series = seen.series
    if series.began_s is None:
        return
    seen.energy_edges_j = tuple(edge for edge in edges if edge is not None)
    seen.energy = energy.energy_of(
        seen.region_s(), edges, shifted(series.telemetry, series.began_s), power_limit_w
    )


def _wants_latency(work: Work, context: WorkerContext) -> bool:
    """Whether single passes are timed: an inference of one sample on one device; tokens are timed anyway."""
    if work.new_tokens:
        return False
    return work.case.task is TaskKind.INFER and work.case.batch_size == 1 and context.team is None


def _look_again(loop: Loop, work: Work, context: WorkerContext, seen: LaunchRecorder) -> None:
    """Read what would disturb the timed rounds: latency, device events, issue time, kernel time.

    Latency is what a row at batch 1 is measured for, so time was kept back for it; the rest is left out where
    time is short, and in haste but for eager rows: who sets the pace is asked of them alone.
    """
    if _wants_latency(work, context) and not context.stopped():
        context.phase("second look")
        seen.latency_s = busy.latencies(loop.advance, loop.clock, min(busy.LATENCY_MOST_S, loop.left_s()))
    timed = seen.series.timed
    step_s = sum(r.wall_s for r in timed) / sum(r.steps for r in timed)
    enough = busy.PASSES * seen.series.steps_per_round * step_s
    if context.stopped() or loop.left_s() < enough + busy.LEAST_LEFT_S:
        return
    hurried = context.budget.case_s is not None and work.case.execution is not Execution.EAGER
    if not context.hardware.is_cuda or hurried:
        return
    context.phase("second look")
    seen.event_s = busy.event_times(loop.advance, seen.series.steps_per_round)
    seen.host_issue_s = busy.host_issue_times(loop.advance, loop.clock)
    seen.gpu_busy = busy.busy_share(loop.advance, loop.clock)


def _difference(before: int | None, after: int | None) -> int | None:
    """Only a counter that moves means anything: lifetime counts above zero are no fault."""
    return None if before is None or after is None else after - before


def _differences(before: dict[str, float], after: dict[str, float]) -> dict[str, float | None]:
    """The same for several counters; one that went back was reset and tells nothing."""
    moved = {name: round(after[name] - before[name], 6) for name in before if name in after}
    return {name: value for name, value in moved.items() if value >= 0}


def _in_time(deadline_s: Seconds) -> None:
    if time.perf_counter() >= deadline_s:
        raise OutOfTimeError


def _out_of_time(seen: LaunchRecorder) -> str:
    rounds = len(seen.series.timed)
    return (
        f"the time given to this case ended after {rounds} timed rounds"
        if rounds
        else ("the time given to this case ended before its timed rounds")
    )
