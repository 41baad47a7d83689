"""Measures a case in torch: builds, checks and prepares it, and checks it again after its rounds.

Also trains a workload to a quality target, and tries whether a batch fits in memory.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from gpubench.compiler import uncompiled
from gpubench.foreign_code import one_line
from gpubench.measure import guards
from gpubench.measure.budget import LATENCY_MOST_S
from gpubench.measure.capability import NotHereError
from gpubench.measure.guards import Advance, prepare
from gpubench.measure.launch import (
    Bench,
    Job,
    LaunchRecorder,
    check_deadline,
    conduct,
    energy_of,
    note_losses,
    time_job,
    worse,
)
from gpubench.measure.loop import Clock, Loop
from gpubench.measure.messages import CaseDone, MeasureCase, QualityDone, TrainToQuality, TryBatch
from gpubench.measure.plan import EVALUATE_EVERY, GOALS, HELD_OUT, Goal
from gpubench.measure.step import (
    CONTROL_SCALES,
    Control,
    Hardware,
    Work,
    built,
    control_on,
    copied,
    errors_on,
    is_fused,
    move,
    read_switches,
    seed_all,
    switches_for,
)
from gpubench.measure.team import ReferencePass, Team, place_model, share
from gpubench.models import (
    Case,
    Checkpointing,
    Execution,
    Finding,
    FindingKind,
    Launch,
    MemoryFormat,
    ParallelMode,
    Precision,
    Recipe,
    Status,
    TaskKind,
)
from gpubench.models.run import SeedRun
from gpubench.units import Seconds, Watts, format_bytes
from gpubench.workload import Task

# --- training to a quality target, from one seed ----------------------------------------------------------


def train_to_quality(order: TrainToQuality, context: WorkerContext) -> QualityDone:
    """Train from one seed until the goal or step limit is reached; an error is returned as the reason."""
    try:
        with switches_for(order.case.precision):
            run = _train(order, context)
    except Exception as error:  # noqa: BLE001 - any error in a training is reported in its row
        return QualityDone(reason=one_line(error))
    finally:
        context.hardware.release()
    return QualityDone(reason="stopped on request") if run is None else QualityDone(run=run)


def _train(order: TrainToQuality, context: WorkerContext) -> SeedRun | None:
    goal = GOALS[order.case.workload]
    context.phase("build")
    task, held_out = _task(order, goal)
    work = move(task, order.case, context.hardware.device)
    inputs, targets = (part.to(context.hardware.device) for part in held_out)
    clock, telemetry = context.clock(), context.telemetry
    steps, train_s, quality = 0, 0.0, math.nan

    def train() -> None:
        for index in range(steps, steps + EVALUATE_EVERY):
            work.step(index)

    began_s, began_j = clock.now_s(), telemetry.energy_j()
    while steps < goal.most_steps:
        if context.stopped():
            return None
        context.phase("timed")
        train_s += clock.time(train)
        steps += EVALUATE_EVERY
        quality = _quality(work, goal, inputs, targets)
        if goal.is_met_by(quality):
            break
    edges_j = (began_j, telemetry.energy_j())
    return SeedRun(
        seed=order.seed,
        reached=goal.is_met_by(quality),
        steps=steps,
        train_s=train_s,
        quality=quality if math.isfinite(quality) else None,
        energy_j=energy_of(clock.now_s() - began_s, edges_j, (), context.power_limit_w()).joules,
    )


def _task(order: TrainToQuality, goal: Goal) -> tuple[Task, tuple[Tensor, Tensor]]:
    """Return a task that trains the workload's model on its goal's data, and the held-out samples.

    The seed determines the order of the data. Images of 8 x 8 are scaled to values from 0 to 1, enlarged
    threefold and padded to 28 x 28; tokens are integers.
    """
    task = built(order.case.workload, order.case, order.seed)
    inputs, targets = map(torch.from_numpy, goal.samples())
    if inputs.dim() == 2:
        samples = inputs.long()
    else:
        enlarged = (inputs.float() / 16).repeat_interleave(3, 1).repeat_interleave(3, 2)
        samples = torch.nn.functional.pad(enlarged, (2, 2, 2, 2))[:, None]
    labels = targets.long()
    held_out = torch.arange(len(samples)) % HELD_OUT == 0
    kept = torch.nonzero(~held_out).flatten()
    shuffled = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(order.seed))]
    # The last batch is left out unless it is full.
    parts = (part for part in shuffled.split(goal.batch_size) if len(part) == goal.batch_size)
    batches = tuple((samples[part], labels[part]) for part in parts)
    trained = dataclasses.replace(
        task, batches=batches, optimizer=partial(torch.optim.Adam, lr=goal.learning_rate)
    )
    return trained, (samples[held_out], labels[held_out])


def _quality(work: Work, goal: Goal, inputs: Tensor, targets: Tensor) -> float:
    with torch.no_grad(), work.autocast():
        outputs: Any = work.model(inputs)
        if goal.metric == "accuracy":
            return float((outputs.argmax(-1) == targets).float().mean())
        return float(work.loss(outputs, targets))


# The first steps may take extra memory while cuDNN tries its algorithms; the peak excludes them.
STEPS_BEFORE_PEAK = 2
# Steps of a trial after the first steps, which create the optimizer's state.
TRIED_STEPS = 4


@dataclass(kw_only=True)
class WorkerContext(Bench):
    """What the torch child process keeps from case to case.

    Attributes:
        team: The other processes of a data-parallel job; None if one GPU works alone.
        tasks: Tasks as built, on the CPU; each case works on a copy, so all start from the same state.
        expected: The latest task's results on the CPU, kept because a language model takes seconds to run.
    """

    hardware: Hardware
    team: Team | None = None
    tasks: dict[tuple[str, int, Recipe], Task] = field(default_factory=dict)
    expected: tuple[weakref.ref[Task], TaskKind, guards.Expected] | None = None

    def task(self, reference: str, case: Case) -> Task:
        """Return the task as built; only the latest stays in memory, because VGG16 takes half a gigabyte."""
        key = (reference, case.batch_size, case.recipe)
        if key not in self.tasks:
            self.tasks.clear()
            self.tasks[key] = built(reference, case, self.seed)
        return self.tasks[key]

    def expected_of(self, task: Task, case: Case) -> guards.Expected:
        """Return a task's results on the CPU, computed once for all its precisions and executions."""
        known = self.expected
        if known is None or known[0]() is not task or known[1] is not case.task:
            known = self.expected = (weakref.ref(task), case.task, guards.expected_of(task, case))
        return known[2]

    @cached_property
    def control(self) -> Control:
        """The control, which shows that the proof of strict fp32 can fail on this device."""
        has_tf32 = self.profile.has_tf32 and not self.hardware.is_cpu
        return control_on(self.hardware.device) if has_tf32 else Control()

    def errors_of(self, precision: Precision, *, recurrent: bool) -> dict[str, float]:
        """Return the errors that prove a precision; for strict fp32, at the scale that reveals TF32."""
        scale = self.control.scale if precision is Precision.FP32 else CONTROL_SCALES[0]
        return errors_on(self.hardware.device, precision, recurrent=recurrent, scale=scale)

    def clock(self) -> Clock:
        """Return the clock of the rounds: it waits for every process of the job."""
        return self.hardware.clock() if self.team is None else self.team.clock()

    def once(self, advance: Advance) -> Advance:
        """Return the function that issues single steps, outside of any round."""
        return advance if self.team is None else self.team.once(advance)

    def power_limit_w(self) -> Watts | None:
        """Return the total power limit of all GPUs of the job [W]; None if unknown."""
        limit = self.profile.power_limit_w
        return limit if limit is None or self.team is None else limit * self.team.size

    def is_spent(self, status: Status) -> bool:
        """Return whether this process must not measure another case; if it may, release its memory.

        After a failure, torch's allocator may still assume that a capture is in progress, or a CUDA error may
        persist: then only a new process helps. A case that ran out of time ended between two steps and leaves
        a clean process, unless other processes of the job may be in the middle of a step.
        """
        if not (status is Status.OK or (status is Status.TIMEOUT and self.team is None)):
            return True
        try:
            self.hardware.release()
        except RuntimeError:
            return True
        return False


def measure_case(order: MeasureCase, context: WorkerContext) -> CaseDone:
    """Measure one case in torch; see ``launch.conduct`` for how it may end."""

    def measure(recorder: LaunchRecorder, deadline_s: Seconds) -> None:
        time_job(context, recorder, deadline_s, _job(order, context, recorder, deadline_s))

    return _conduct(order, context, measure)


def try_batch(order: TryBatch, context: WorkerContext) -> CaseDone:
    """Run a few steps of a case to see whether its batch fits; its rounds would need no more memory.

    The checks after the rounds are included: they also need memory, and the step may have left too little.
    The launch contains what a measurement knows before its first timed round: errors, switches, peak memory.
    """
    measured = MeasureCase(reference=order.reference, case=order.case, launch=0)

    def try_steps(recorder: LaunchRecorder, deadline_s: Seconds) -> None:
        work, before = _build(measured, context, recorder, deadline_s)
        advance = _first_steps(work, context, recorder, deadline_s)
        for index in range(TRIED_STEPS):
            work.edge_loss(advance(index), index)
        _prove_again(recorder, work, context)
        if recorder.spilled_bytes:
            raise torch.cuda.OutOfMemoryError(
                f"out of memory: {format_bytes(recorder.spilled_bytes)} spilled into the host's memory"
            )
        if before:
            recorder.note(parameters_moved=guards.has_moved(work.model, before))

    return _conduct(measured, context, try_steps)


def _conduct(
    order: MeasureCase, context: WorkerContext, measure: Callable[[LaunchRecorder, Seconds], None]
) -> CaseDone:
    recorder = LaunchRecorder(launch=Launch(index=order.launch))

    def under_switches(deadline_s: Seconds) -> None:
        compiling = nullcontext() if order.case.execution is Execution.COMPILE else uncompiled()
        with compiling, switches_for(order.case.precision) as switches:
            recorder.note(switches=switches)
            measure(recorder, deadline_s)

    return conduct(order, context, recorder, under_switches)


def _job(order: MeasureCase, context: WorkerContext, recorder: LaunchRecorder, deadline_s: Seconds) -> Job:
    work, before = _build(order, context, recorder, deadline_s)
    return Job(
        loop=partial(
            Loop,
            advance=_first_steps(work, context, recorder, deadline_s),
            edge_loss=work.edge_loss,
            clock=context.clock(),
            batches=len(work.batches),
            is_async=not context.hardware.is_cpu,
            step_state=lambda: context.hardware.step_state(
                work.scaler.get_scale() if work.scaler is not None else None
            ),
            announce=None if context.team is None else context.team.announce_steps,
        ),
        prove_again=lambda: _prove_again(recorder, work, context),
        has_moved=lambda: guards.has_moved(work.model, before) if before else None,
        look_again=None if context.team else lambda loop: _look_again(loop, work, context, recorder),
        reserve_s=guards.latency_time_s if _wants_latency(work, context) else lambda *_: 0.0,
        tokens_at_s=work.tokens_at_s,
    )


def _build(
    order: MeasureCase, context: WorkerContext, recorder: LaunchRecorder, deadline_s: Seconds
) -> tuple[Work, list[torch.Tensor]]:
    """Build the work on its device, check its arithmetic, and return it with a fingerprint of its weights.

    The task as built stays on the CPU; the work is a copy of it. The fingerprint is empty for inference.

    Raises:
        NotHereError: If this torch lacks what the case needs, or a CUDA graph cannot run the model.
    """
    selective = order.case.checkpointing is Checkpointing.SELECTIVE
    if selective and not hasattr(torch.utils.checkpoint, "CheckpointPolicy"):
        raise NotHereError(
            f"selective checkpointing needs torch 2.5 or newer, but this is {torch.__version__}: "
            "use full checkpointing, or none"
        )
    context.phase("build")
    with recorder.timing("build"):
        if context.team is not None:
            context.team.announce(order)
            recorder.add_finding(FindingKind.UNEQUAL_GPUS, context.team.unequal)
        task = context.task(order.reference, order.case)
        recorder.note(batch_count=len(task.batches))

        def make() -> Work:
            copy = copied(task, lambda: built(order.reference, order.case, context.seed))
            return move(copy, order.case, context.hardware.device, place_model)

        work = make()
    check_deadline(deadline_s)
    context.phase("check")
    _prove(recorder, work, context)
    if not (context.hardware.is_cpu and order.case.precision is Precision.FP32):  # the reference itself
        _compare_with_cpu(recorder, work, task, context)
        if task.again is not None and order.case.parallel_mode is not ParallelMode.FSDP:
            del work  # the check may have changed the model's state
            work = make()
    check_deadline(deadline_s)
    if context.team is not None:
        work = share(work)
        if getattr(work.model, "find_unused_parameters", False):
            recorder.findings.append(Finding(kind=FindingKind.UNUSED_PARAMETERS))
    recorder.note(fused=is_fused(work.optimizer))
    return work, guards.fingerprint(work.model) if order.case.task is TaskKind.TRAIN else []


def _compare_with_cpu(recorder: LaunchRecorder, work: Work, task: Task, context: WorkerContext) -> None:
    # Record the errors of the first loss and outputs relative to the CPU's. Raise NotHereError for a CUDA
    # graph of a model that carries tensors from step to step without updating them in place.
    expected = context.expected_of(task, work.case)
    recorder.draws, recorder.carries = expected.draws, expected.carries
    recorder.add_finding(FindingKind.NO_REFERENCE, expected.unchecked)
    if expected.rebinds and work.case.execution is Execution.GRAPH:
        raise NotHereError(
            "the model carries tensors from step to step and creates new ones in each, but a CUDA graph "
            "keeps using the tensors that it captured: update them in place, for example with copy_"
        )
    if context.team and expected.unchecked is None and work.case.parallel_mode is ParallelMode.FSDP:
        context.team.announce(ReferencePass())  # the other processes have the other shards
    errors = guards.reference_errors(work, task, expected)
    recorder.note(reference_error=errors.loss, output_error=errors.outputs)


def _first_steps(
    work: Work, context: WorkerContext, recorder: LaunchRecorder, deadline_s: Seconds
) -> Advance:
    """Seed, run the first steps and record their losses, then prepare the execution and check it."""
    hardware, execution = context.hardware, work.case.execution
    context.phase("first steps")
    step = context.once(work.step)

    def loss_of(index: int) -> float:
        return work.edge_loss(step(index), index)

    seed_all(context.seed)
    with recorder.timing("first_step"):
        recorder.loss_curve.append(loss_of(0))
    note_losses(loss_of, context, recorder, deadline_s, first=1, least=STEPS_BEFORE_PEAK)
    hardware.drop_workspaces()  # a graph runs on its own stream, which has its own workspace
    hardware.drop_cache()  # cuDNN's trials took all free memory, but no step needs that much
    hardware.call("reset_peak_memory_stats")
    context.phase(execution.facts.preparation or "first steps")
    check_deadline(deadline_s)
    seed_all(context.seed)  # if a capture freezes random numbers, they are the same each time
    with recorder.timing(execution.facts.preparation):
        advance = prepare(work)
        work.edge_loss(context.once(advance)(0), 0)
    reserved = hardware.call("max_memory_reserved")
    recorder.note(peak_memory_bytes=hardware.call("max_memory_allocated"), peak_reserved_bytes=reserved)
    recorder.spilled_bytes = max(0, (reserved or 0) - (hardware.memory_bytes() or math.inf))
    if execution is not Execution.EAGER:
        recorder.note(
            graph_error=guards.graph_error(work, advance, draws=recorder.draws, carries=recorder.carries)
        )
        hardware.drop_cache()  # the check's memory is not part of the step's
    return advance


def _errors(work: Work, context: WorkerContext) -> dict[str, float]:
    # Return the errors that prove a precision; under strict fp32, recurrent layers have their own switch.
    strict = work.case.precision is Precision.FP32
    recurrent = strict and any(isinstance(module, torch.nn.RNNBase) for module in work.model.modules())
    return context.errors_of(work.case.precision, recurrent=recurrent)


def _prove(recorder: LaunchRecorder, work: Work, context: WorkerContext) -> None:
    # Record the errors that prove the precision and, for strict fp32, the errors of the control.
    errors = _errors(work, context)
    recorder.note(precision_errors=errors)
    if work.case.precision is Precision.FP32:
        control = context.control.errors
        recorder.note(control_errors={name: control[name] for name in errors if name in control})
    elif work.case.memory_format is MemoryFormat.CONTIGUOUS:
        recorder.findings.append(Finding(kind=FindingKind.CONTIGUOUS))


def _prove_again(recorder: LaunchRecorder, work: Work, context: WorkerContext) -> None:
    # Check the precision again: the model's own code may have set a switch during the rounds.
    recorder.note(
        precision_errors=worse(recorder.launch.precision_errors, _errors(work, context)),
        switches=read_switches(),
    )


def _wants_latency(work: Work, context: WorkerContext) -> bool:
    # Single passes are timed for inference of one sample on one device; tokens are timed anyway.
    is_single = work.case.task is TaskKind.INFER and work.case.batch_size == 1
    return is_single and not work.new_tokens and context.team is None


def _look_again(loop: Loop, work: Work, context: WorkerContext, recorder: LaunchRecorder) -> None:
    """Take the readings that would disturb the timed rounds: latency, device events, issue time, kernel time.

    Latency is the purpose of a row at batch 1, so time is reserved for it. The other readings need CUDA, are
    taken in the first launch only, and are skipped if time is short. A quick budget takes them only for eager
    rows, because only these are checked for being host-bound.
    """
    if _wants_latency(work, context) and not context.stopped():
        context.phase("second look")
        most_s = min(LATENCY_MOST_S, loop.left_s())
        recorder.note(latency_s=guards.latencies(loop.advance, loop.clock, most_s))
    timed = recorder.series.timed
    step_s = sum(r.wall_s for r in timed) / sum(r.steps for r in timed)
    needed_s = guards.READINGS_ROUNDS * recorder.series.steps_per_round * step_s + guards.PROFILER_S
    if context.stopped() or loop.left_s() < needed_s:
        return
    is_skipped = context.budget.in_haste and work.case.execution is not Execution.EAGER
    if not context.hardware.is_cuda or is_skipped or recorder.launch.index > 0:
        return
    context.phase("second look")
    recorder.note(event_s=guards.event_times(loop.advance, recorder.series.steps_per_round))
    recorder.note(host_issue_s=guards.host_issue_times(loop.advance, loop.clock))
    recorder.note(gpu_busy=guards.busy_share(loop.advance, loop.clock))
