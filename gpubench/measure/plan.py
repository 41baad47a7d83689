"""From a request to the cases to measure, their order, and what it will take; nothing is measured here."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import msgspec

from gpubench import precisions
from gpubench.errors import MisuseError
from gpubench.measure import capability
from gpubench.measure.budget import Budget, budget_of
from gpubench.measure.meeting import parse_endpoint
from gpubench.measure.quality_goals import GOALS
from gpubench.measure.request import MicroWish, RunRequest
from gpubench.models import (
    BatchChoice,
    Case,
    DeviceProfile,
    Execution,
    Framework,
    Measurement,
    MemoryFormat,
    ParallelMode,
    Precision,
    Status,
    TaskKind,
    WorkloadProfile,
)
from gpubench.options import check_fields, spelled
from gpubench.precisions import forcing_tf32
from gpubench.probe.select import check_form
from gpubench.shared_options import CLASSIC
from gpubench.units import Seconds, plain
from gpubench.workload import is_own

CPU_STEP_FLOPS = 300e9
"""A CPU of two cores does about 150 GFLOP/s: a step of more than this takes seconds, so batch 1 it is."""
CPU_MATH_VARIABLES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")


RESUME_TAKES = frozenset(
    {"device", "time_limit", "allow_shared", "allow_throttled", "resume", "results", "rdzv_endpoint"}
)
"""What may be said beside ``resume``; every other option is the run's own, and would be ignored."""


class PlannedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case, where its workload is found, and what it computes; ``operators`` are those of one step."""

    reference: str
    case: Case
    flops_per_sample: float | None = None
    hardware_flops_per_sample: float | None = None
    tokens_per_sample: int | None = None
    parameter_count: int | None = None
    operators: int | None = None
    batch_choice: BatchChoice | None = "fixed"
    convolves: bool | None = None


class Group(NamedTuple):
    """What shares a process, or as many as it has GPUs: launch, strict fp32 or not, GPUs, framework, threads.

    ``strict`` is the process that nothing but strict fp32 runs in, with TF32 turned off for its whole life.
    Of a CPU ``threads`` are those that compute; 0 is all that the process has.
    """

    launch: int
    strict: bool
    gpu_count: int = 1
    framework: Framework = Framework.TORCH
    threads: int = 0


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One case in one launch; ``shares`` says that strict fp32 has no process of its own."""

    launch: int
    planned: PlannedCase
    shares: bool = False

    @property
    def group(self) -> Group:
        """The process that this unit is measured in."""
        case = self.planned.case
        strict = case.precision is Precision.FP32 and not self.shares
        return Group(self.launch, strict, case.gpu_count, case.framework, case.threads)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be measured, in order, and what cannot be; ``peers`` are the GPUs beside the first.

    ``done`` are the cases and launches that an earlier part of the run has measured, ``quality`` those that
    are trained to a stated quality.
    """

    budget: Budget
    seed: int
    cases: tuple[PlannedCase, ...]
    unsupported: tuple[Measurement, ...] = ()
    time_limit_s: Seconds | None = None
    on_cpu: bool = False
    micro: MicroWish = "none"
    allow_throttled: bool = False
    peers: tuple[DeviceProfile, ...] = ()
    done: frozenset[tuple[Case, int]] = frozenset()
    quality: tuple[PlannedCase, ...] = ()

    def shares(self, framework: Framework = Framework.TORCH) -> bool:
        """Whether strict fp32 runs in the process of the other precisions: torch in haste.

        Another process costs 10 s on a cloud machine, a tenth of ``--quick``. The switches of torch are set
        for each case, read back, and proven against float64 before and after its rounds, in either process.
        """
        return self.budget.in_haste and self.micro != "only" and framework is Framework.TORCH

    def strict_groups(self) -> tuple[bool, ...]:
        """The kinds of arithmetic that this plan needs: strict fp32, the other precisions, or both."""
        if self.micro == "only":
            return (True, False)
        return tuple(sorted({planned.case.precision is Precision.FP32 for planned in self.cases}))

    @property
    def needs_torch(self) -> bool:
        """Whether anything of it runs in torch itself."""
        return self.micro == "only" or any(p.case.framework is Framework.TORCH for p in self.cases)

    def micro_groups(self) -> tuple[bool, ...]:
        """The kinds of arithmetic whose micro-benchmarks are left: not those that came to their cases."""
        done = {case.precision is Precision.FP32 for case, _ in self.done}
        wanted = self.micro != "none" and self.needs_torch
        return tuple(g for g in self.strict_groups() if g not in done) if wanted else ()

    def units(self) -> tuple[Unit, ...]:
        """Every case of every launch that is left, in the order of measuring, shuffled by the seed.

        Launches are interleaved, so that heat and drift hit all cases alike. Strict fp32 has a process of
        its own, but in haste; the executions of one case follow each other, compile last of all.
        """
        every = (unit for launch in range(self.budget.launches) for unit in self._launch(launch))
        return tuple(unit for unit in every if (unit.planned.case, unit.launch) not in self.done)

    def _launch(self, launch: int) -> Iterator[Unit]:
        order = random.Random(f"{self.seed}/{launch}")  # noqa: S311 - an order, no secret
        groups: dict[Group, list[Unit]] = {}
        for planned in self.cases:
            shares = self.shares(planned.case.framework)
            unit = Unit(launch=launch, planned=planned, shares=shares)
            groups.setdefault(unit.group, []).append(unit)
        processes = [groups[group] for group in sorted(groups)]
        order.shuffle(processes)
        for units in processes:
            blocks: dict[object, list[Unit]] = {}
            for unit in units:
                case = unit.planned.case
                block = (unit.planned.reference, case.precision, case.batch_size)
                blocks.setdefault(block, []).append(unit)
            shuffled = list(blocks.values())
            order.shuffle(shuffled)
            in_order = [unit for block in shuffled for unit in block]
            yield from sorted(in_order, key=lambda u: u.planned.case.execution is Execution.COMPILE)


def plan(
    request: RunRequest,
    device: DeviceProfile,
    profiles: Mapping[str, WorkloadProfile],
    peers: tuple[DeviceProfile, ...] = (),
) -> Plan:
    """Make the plan of a request on a device.

    Args:
        request: What was asked.
        device: Where.
        profiles: The profile of every workload of the request, by the reference that names it.
        peers: The GPUs of this machine that work beside the first; each case is then measured on one GPU and
            on all, so that what the others add is known from one run.

    Raises:
        MisuseError: If nothing of what was asked can be measured, or the request contradicts itself.
    """
    on_cpu = device.is_cpu
    if request.micro == "only":
        return only_micro(request, on_cpu=on_cpu)
    if request.to_quality:
        return _to_quality(request, device, profiles)
    for profile in (profiles[name] for name in request.workloads if name in profiles):
        if not profile.is_run:
            raise MisuseError(
                f"{profile.name} is not run on one GPU, nor built on one host: ask `gpubench memory "
                f"{profile.name}` and `gpubench rank --workload {profile.name}`"
            )
    if not device.runs_steps:
        raise MisuseError(
            f"{plain(device.name or 'this device')} is reached through OpenCL, which runs no workload: add "
            "--micro-only"
        )
    budget = budget_of(request.budget, on_cpu=on_cpu)
    cases, unsupported = [], []
    for planned, reason in _every_case(request, (device, *peers), profiles, budget):
        if reason is None:
            cases.append(planned)
        else:
            unsupported.append(Measurement(case=planned.case, status=Status.UNSUPPORTED, reason=reason))
    if not any(planned.case.gpu_count == request.gpu_count for planned in cases):
        refused = (m.reason or "" for m in unsupported if m.case.gpu_count == request.gpu_count)
        where = "here" if request.gpu_count == 1 else f"on {request.gpu_count} GPUs at once"
        raise MisuseError(f"nothing of this can be measured {where}: {'; '.join(dict.fromkeys(refused))}")
    made = Plan(
        budget=budget,
        seed=request.seed,
        cases=tuple(cases),
        unsupported=tuple(unsupported),
        time_limit_s=request.time_limit_s,
        on_cpu=on_cpu,
        micro=request.micro,
        allow_throttled=request.allow_throttled,
        peers=peers,
    )
    refuse_forced_precision(made)
    return made


def _to_quality(request: RunRequest, device: DeviceProfile, profiles: Mapping[str, WorkloadProfile]) -> Plan:
    """Make the plan of trainings to a stated quality: eager, at the batch of the goal."""
    goal_batch = next(iter(GOALS.values())).batch_size
    as_cases = msgspec.structs.replace(
        request, to_quality=False, executions=(Execution.EAGER,), batch_size=goal_batch, micro="none"
    )
    made = plan(as_cases, device, profiles)
    return msgspec.structs.replace(made, cases=(), quality=made.cases)


def _every_case(
    request: RunRequest,
    devices: Sequence[DeviceProfile],
    profiles: Mapping[str, WorkloadProfile],
    budget: Budget,
) -> Iterator[tuple[PlannedCase, str | None]]:
    """Give every case of a request, and why it cannot be measured here (None where it can).

    Of several GPUs the first is measured alone too; a job of unequal ones does what all of them can.
    """
    device = devices[0]
    on_cpu, publish = device.is_cpu, budget.name == "publish"
    placed = [
        (framework, count, execution)
        for framework in dict.fromkeys(map(Framework, request.frameworks))
        for count in dict.fromkeys((1, request.gpu_count))
        for execution in capability.executions_of(
            framework,
            tuple(execution for execution in Execution if execution in request.executions),
            capability.default_executions(device, publish=publish, gpu_count=count),
        )
    ]
    threads = (*_fewer_threads(device), 0) if request.thread_scaling else (0,)
    for reference in request.workloads:
        profile = profiles[reference]
        precisions = resolve_precisions(request.precisions or profile.precisions, devices)
        task = task_of(request, profile)
        batches = batches_of(request, profile, task, on_cpu=on_cpu)
        wanted = product(precisions, placed, batches, threads)
        for precision, (framework, count, execution), batch, used in wanted:
            case = Case(
                workload=profile.name,
                workload_version=profile.version,
                task=task,
                precision=precision,
                execution=execution,
                memory_format=_layout(profile, precision, framework),
                batch_size=_batch_of_each(batch, count) if request.strong else batch,
                sample_unit=profile.sample_unit,
                gpu_count=count,
                framework=framework,
                parallel_mode=_mode(request, profile, task) if count > 1 else ParallelMode.SINGLE,
                node_count=request.nnodes if count > 1 else 1,
                threads=used,
                **profile.recipe.at(precision).fields,
            )
            reason = (
                profile.why_not_at(precision)
                or _why_no_precision(precision, devices[:1] if count == 1 else devices)
                or capability.why_no_execution(execution, device, count)
                or capability.why_not_for_task(case)
                or _why_not_together(profile, case)
                or capability.why_no_framework(case, device, is_own=is_own(reference))
            )
            yield planned_case(reference, profile.at_precision(precision), case), reason


def _mode(request: RunRequest, profile: WorkloadProfile, task: TaskKind) -> ParallelMode:
    """How the GPUs work together: as asked for, else as the workload is made for."""
    if request.jobs is not None:
        return ParallelMode(request.jobs)
    return profile.parallel_mode if task is TaskKind.TRAIN else ParallelMode.DDP


def _why_no_precision(precision: Precision, devices: Sequence[DeviceProfile]) -> str | None:
    """Say why one of the devices does not have a precision, and which where they are of several kinds."""
    for device in devices:
        if reason := capability.why_no_precision(precision, device):
            which = plain(device.name or device.backend, 60)
            return reason if device == devices[0] else f"{which}: {reason}"
    return None


def _fewer_threads(device: DeviceProfile) -> tuple[int, ...]:
    """1, 2, 4 ... below the threads that a process of its own would compute with.

    Raises:
        MisuseError: If there is but one, or the device is no CPU.
    """
    if not device.is_cpu:
        name = plain(device.name or device.backend)
        raise MisuseError(f"--thread-scaling is of a CPU, and this device is {name}: add --device cpu")
    told = os.environ.get("OMP_NUM_THREADS", "")
    most = int(told) if told.isdecimal() and len(told) < 6 else device.core_count or 1
    if most < 2:
        why = f"OMP_NUM_THREADS={told}" if told else "this process has one core"
        raise MisuseError(f"--thread-scaling needs two threads or more, and {why}")
    return tuple(2**power for power in range(most.bit_length()) if 2**power < most)


def _layout(profile: WorkloadProfile, precision: Precision, framework: Framework) -> MemoryFormat | None:
    """The layout of images: Keras has its channels last, whatever the precision."""
    if framework is Framework.TORCH or not profile.is_image:
        return profile.memory_format_at(precision)
    return MemoryFormat.CHANNELS_LAST


def only_micro(request: RunRequest, *, on_cpu: bool) -> Plan:
    """Make the plan of micro-benchmarks and nothing else, in one launch."""
    budget = budget_of(request.budget, on_cpu=on_cpu)
    made = Plan(
        budget=msgspec.structs.replace(budget, launches=1),
        seed=request.seed,
        cases=(),
        time_limit_s=request.time_limit_s,
        on_cpu=on_cpu,
        micro="only",
    )
    refuse_forced_precision(made)
    return made


def check_request(request: RunRequest, known: Sequence[str]) -> RunRequest:
    """Refuse what no device could do, and expand ``all``; before any device is touched.

    Raises:
        MisuseError: For an unknown precision or execution, an impossible number or workload list.
    """
    check_fields(request)
    check_form(request.device.strip())
    _check_resume(request)
    _check_what(request)
    if request.to_quality:
        return _check_quality(request)
    names = dict.fromkeys(n for w in request.workloads for n in (known if w == "all" else (w,)))
    if not names:
        raise MisuseError(f"no workload named: choose from all, {', '.join(known)}")
    return msgspec.structs.replace(request, workloads=tuple(names))


def _check_resume(request: RunRequest) -> None:
    """A run goes on with its own cases and budget: an option for others would be ignored, so refuse it."""
    if request.resume is None:
        return
    for name in request.asked:
        if name not in RESUME_TAKES and not (name == "workload" and request.own == request.workloads):
            what = "workloads by name" if name == "workload" else spelled(name)
            raise MisuseError(
                f"--resume goes on with the cases, budget and seed of its run: leave out {what} (models of "
                "your own are named again with --workload)"
            )


def _check_quality(request: RunRequest) -> RunRequest:
    """Leave the workloads that have a goal, and refuse what a training to it has not."""
    wanted = tuple(GOALS) if request.workloads == CLASSIC else tuple(dict.fromkeys(request.workloads))
    if without := [name for name in wanted if name not in GOALS]:
        raise MisuseError(
            f"{plain(without[0], 80)} has no stated quality: --to-quality trains {' and '.join(GOALS)}"
        )
    others = {
        "--task": request.task != "train",
        "--batch-size": request.batch_size is not None,
        "--execution": bool(request.executions),
        "--framework": request.frameworks != (Framework.TORCH,),
        "--gpus": request.gpu_count > 1,
        "--micro-only": request.micro == "only",
        "--thread-scaling": request.thread_scaling,
        "--resume": request.resume is not None,
    }
    if option := _first_asked(others):
        raise MisuseError(
            f"--to-quality trains eagerly in torch on one device, at a batch of its own: leave out {option}"
        )
    return msgspec.structs.replace(request, workloads=wanted)


def _first_asked(asked: Mapping[str, bool]) -> str | None:
    return next((what for what, is_asked in asked.items() if is_asked), None)


def _check_what(request: RunRequest) -> None:
    of_cases = request.precisions or request.executions or request.batch_size
    if request.micro == "only" and (of_cases or request.workloads != CLASSIC):
        raise MisuseError("--micro-only measures no workload: leave out workloads and their options")
    several = request.gpu_count > 1
    others = [name for name in request.frameworks if name != Framework.TORCH]
    of_torch = {
        "--micro-only": request.micro == "only",
        "--batch-size max": request.batch_size == "max",
        f"a job of {request.gpu_count} GPUs": several,
        "--thread-scaling": request.thread_scaling,
    }
    if others and (what := _first_asked(of_torch)):
        raise MisuseError(f"{what} is done in torch alone: leave out --framework {others[0]}")
    alone = {
        "--batch-size max": "give it without --gpus, or --gpus with a batch",
        "--micro-only": "all-reduce by size is timed beside a workload, as by "
        f"gpubench run cnn --gpus {request.gpu_count}",
    }
    if several and (what := next((each for each in alone if of_torch[each]), None)):
        raise MisuseError(f"{what} is of one GPU: {alone[what]}")
    of_one = {"--gpus": several, "--batch-size max": request.batch_size == "max"}
    if request.thread_scaling and (option := _first_asked(of_one)):
        raise MisuseError(f"--thread-scaling times given batches on one CPU: leave out {option}")
    if request.thread_scaling and request.micro == "only":
        raise MisuseError("--micro-only measures no workload: leave out --thread-scaling")
    if not several and (request.strong or request.jobs not in {None, "ddp"}) and request.resume is None:
        option = "--strong" if request.strong else f"--jobs {request.jobs}"
        raise MisuseError(f"{option} is of several GPUs: give --gpus N too")
    if request.strong and (request.jobs == "independent" or request.task == "infer"):
        other = "--jobs independent" if request.jobs == "independent" else "--task infer"
        raise MisuseError(f"--strong shares out the batch of one training job: leave out {other}")
    if (request.nnodes > 1) != (request.rdzv_endpoint is not None) and request.resume is None:
        missing = "--rdzv-endpoint HOST:PORT" if request.nnodes > 1 else "--nnodes N"
        raise MisuseError(f"a job of several machines needs --nnodes and --rdzv-endpoint: give {missing}")
    if request.rdzv_endpoint is not None:
        parse_endpoint(request.rdzv_endpoint)


def resolve_precisions(names: Sequence[str], devices: Sequence[DeviceProfile]) -> tuple[Precision, ...]:
    """Precisions by name, ``amp`` resolved; none named means those that all of the devices have."""
    if not names:
        return capability.default_precisions(*devices)
    wanted = (capability.best_amp(*devices) if name == precisions.AMP else Precision(name) for name in names)
    return tuple(dict.fromkeys(wanted))


def task_of(request: RunRequest, profile: WorkloadProfile) -> TaskKind:
    """Return the task asked for, or inference of what is never trained, as an input pipeline.

    Raises:
        MisuseError: If inference is asked of what is trained alone.
    """
    if TaskKind.TRAIN in profile.tasks:
        return profile.task_for(request.task)
    return profile.tasks[0]


def batches_of(
    request: RunRequest, profile: WorkloadProfile, task: TaskKind, *, on_cpu: bool
) -> tuple[int, ...]:
    """Return the batch to measure; for inference also a batch of 1, whose latency is the other question."""
    batch = batch_of(request, profile, on_cpu=on_cpu)
    both = task is TaskKind.INFER and request.batch_size is None and TaskKind.TRAIN in profile.tasks
    return tuple(dict.fromkeys((1, batch))) if both else (batch,)


def batch_of(request: RunRequest, profile: WorkloadProfile, *, on_cpu: bool) -> int:
    """The batch asked for; else the main one; on a CPU the small one, or 1 where a step takes seconds.

    For ``max`` it is where the search begins.
    """
    if isinstance(request.batch_size, int):
        return request.batch_size
    if request.batch_size == "max":
        return profile.batches[-1]
    if not on_cpu:
        return profile.main_batch
    small = profile.batches[0]
    return small if small * profile.train_flops_per_sample <= CPU_STEP_FLOPS else 1


def _batch_of_each(batch: int, gpu_count: int) -> int:
    """Share one batch out over the GPUs of a job.

    Raises:
        MisuseError: If it cannot be shared out evenly.
    """
    each, rest = divmod(batch, gpu_count)
    if rest:
        raise MisuseError(
            f"--strong shares the batch out: {batch} samples over {gpu_count} GPUs do not come out even; "
            f"give a --batch-size that {gpu_count} divides"
        )
    return each


def _why_not_together(profile: WorkloadProfile, case: Case) -> str | None:
    if case.gpu_count == 1:
        return None
    if TaskKind.TRAIN not in profile.tasks:
        return "what is never trained is no data-parallel job"
    if case.parallel_mode is ParallelMode.FSDP and profile.blocks is None:
        return (
            f"fsdp shards a model block by block, and {case.workload} has no repeated block: use --jobs ddp"
        )
    return capability.why_no_sharding(case)


def refuse_forced_precision(made: Plan) -> None:
    """Refuse a plan with a strict fp32 process while a variable forces a lower precision on it.

    Every plan that is measured passes here: that of a run, of a run gone on with, and of micro-benchmarks
    alone.

    Raises:
        MisuseError: Naming the variable.
    """
    if True not in made.strict_groups():
        return
    on_cpu = made.on_cpu
    forced = [] if on_cpu else forcing_tf32(os.environ)
    forced += [v for v in CPU_MATH_VARIABLES if on_cpu and os.environ.get(v, "STRICT").upper() != "STRICT"]
    if forced:
        raise MisuseError(
            f"fp32 was asked for while {forced[0]}={plain(os.environ[forced[0]])} forces a lower precision: "
            f"unset {forced[0]}"
        )


def _parameters(profile: WorkloadProfile, case: Case) -> int:
    if case.framework is Framework.TORCH:
        return profile.parameters
    return profile.parameters - capability.fewer_parameters().get(case.workload, 0)


def planned_case(
    reference: str, profile: WorkloadProfile, case: Case, batch_choice: BatchChoice | None = "fixed"
) -> PlannedCase:
    """Return a case with what its workload's profile says of it."""
    train = case.task is TaskKind.TRAIN
    return PlannedCase(
        reference=reference,
        case=case,
        # 0 where nothing of it is counted, as in a model without products: unknown, then
        flops_per_sample=(profile.train_flops_per_sample if train else profile.forward_flops_per_sample)
        or None,
        hardware_flops_per_sample=(
            profile.hardware_flops_per_sample if train else profile.forward_flops_per_sample
        )
        or None,
        tokens_per_sample=None if case.new_tokens else profile.tokens_per_sample,
        parameter_count=_parameters(profile, case),
        operators=sum(operator.count for operator in (profile.train if train else profile.infer)),
        batch_choice=batch_choice,
        convolves=profile.convolves(case.task),
    )
