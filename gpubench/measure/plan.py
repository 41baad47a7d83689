"""Plans a run: the cases of a request, their order, and the time they may take. Nothing is measured here.

Contradictory options are refused before any device is used.
"""

from __future__ import annotations

import gzip
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, read_bytes
from gpubench.folders import package_path
from gpubench.groups import grouped
from gpubench.measure import capability
from gpubench.measure.budget import Budget, budget_of
from gpubench.measure.request import MicroChoice, RunRequest, SuiteName
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
from gpubench.models.run import Metric
from gpubench.options import asked_recipe, named, options_of
from gpubench.precisions import AMP, forcing_fewer_bits, forcing_tf32
from gpubench.probe.select import check_form
from gpubench.units import Seconds, plain
from gpubench.user_model import SMALL_BATCH, is_own

# --- the goals of ``--to-quality`` ------------------------------------------------------------------------


SEEDS = 5
EVALUATE_EVERY = 10
"""Steps between two evaluations on the held-out samples; also the resolution of the step count."""
HELD_OUT = 5
"""Every fifth sample is held out."""
# The synthetic text: size of its vocabulary, its length, its seed, and the words that predict the next one.
WORDS, TEXT_TOKENS, TEXT_SEED = 100, 20_000, 0
CONTEXT_TOKENS = 20

Arrays = tuple[Any, Any]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's data, and its target on held-out samples: a minimum accuracy or a maximum loss."""

    metric: Metric
    target: float
    learning_rate: float
    samples: Callable[[], Arrays]
    data_sha256: str
    batch_size: int = 64
    most_steps: int = 1000

    def is_met_by(self, quality: float) -> bool:
        """Return whether a quality reaches the target; NaN never does."""
        return quality >= self.target if self.metric == "accuracy" else quality <= self.target


@cache
def digits() -> Arrays:
    """Return the digits data set as images and labels.

    Shapes:
        images: (1797, 8, 8) uint8, 0 to 16; labels: (1797,) uint8.
    Source:
        The UCI repository (Alpaydin and Kaynak 1998, doi 10.24432/C50P49, CC BY 4.0), also ``load_digits`` of
        scikit-learn.
    """
    import numpy as np

    table = gzip.decompress(read_bytes(package_path("data/digits.csv.gz"), TABLE_BYTES)).decode("ascii")
    rows = np.array([line.split(",") for line in table.split()], dtype=np.uint8)
    return np.ascontiguousarray(rows[:, :-1].reshape(-1, 8, 8)), np.ascontiguousarray(rows[:, -1])


@cache
def text() -> Arrays:
    """Return windows of a synthetic text, and the word after each.

    The text is drawn from a Markov chain of 100 words. Each word has four possible followers, of which some
    may be equal, with probabilities 0.7, 0.1, 0.1 and 0.1; the best possible loss is about 0.92 nats.

    Shapes:
        windows: (n, 20) uint8; words: (n,) uint8.
    """
    import numpy as np

    draw = random.Random(TEXT_SEED)  # noqa: S311 - a text, not a secret; random() is the same in every Python
    followers = [[int(draw.random() * WORDS) for _ in range(4)] for _ in range(WORDS)]
    words = [0]
    for _ in range(TEXT_TOKENS - 1):
        choice = max(0, int(draw.random() * 10) - 6)  # 0 in 70 % of draws; 1, 2 and 3 in 10 % each
        words.append(followers[words[-1]][choice])
    tokens = np.array(words, dtype=np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, CONTEXT_TOKENS + 1)
    return np.array(windows[:, :-1]), np.array(windows[:, -1])


GOALS = {
    "cnn": Goal(
        metric="accuracy",
        target=0.95,
        learning_rate=1e-3,
        samples=digits,
        data_sha256="87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826",
    ),
    "lstm": Goal(
        metric="loss",
        target=1.2,
        learning_rate=5e-3,
        samples=text,
        data_sha256="19d62ff2c9a6137baaa56c0ff1888f9b781b3b1ed85bff46698a21db3c22aa31",
    ),
}

# A larger step takes over two seconds on a CPU with two cores (about 150 GFLOP/s), so the batch is 1.
CPU_STEP_FLOPS = 300e9

_BOTH = (Precision.FP32, AMP)
SUITES: Mapping[SuiteName, Mapping[str, tuple[str, ...]]] = {
    "default": {"cnn": _BOTH, "lstm": _BOTH, "vgg16": _BOTH, "resnet50": (AMP,)},
    "modern": dict.fromkeys(("resnet50", "vit_b16", "bert_base", "llama_1b"), (AMP,)),
}
_EXECUTIONS: Mapping[SuiteName, tuple[str, ...]] = {
    "default": (),
    "modern": (Execution.EAGER, Execution.COMPILE),
}
# Without --suite, this workload runs only on GPUs and only in torch: its step is too slow on a CPU, and there
# is no Keras model of it.
_ONLY_ON_GPUS = "resnet50"


class PlannedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case, the reference of its workload, and figures from the workload's profile."""

    reference: str
    case: Case
    flops_per_sample: float | None = None
    hardware_flops_per_sample: float | None = None
    tokens_per_sample: int | None = None
    parameter_count: int | None = None
    batch_choice: BatchChoice | None = "fixed"
    convolves: bool | None = None


class Group(NamedTuple):
    """The settings of a process, or of a job with one process per GPU.

    ``threads`` is the number of CPU threads to use; 0 means all. ``memory_share`` is the share of the
    device's memory that the process may use, 0 to 1; None means all.
    """

    launch: int
    gpu_count: int = 1
    framework: Framework = Framework.TORCH
    threads: int = 0
    memory_share: float | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One case in one launch."""

    launch: int
    planned: PlannedCase

    @property
    def group(self) -> Group:
        """The process in which this unit is measured."""
        case = self.planned.case
        return Group(self.launch, case.gpu_count, case.framework, case.threads)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The cases to measure in order, and those that cannot be measured.

    ``peers`` are the GPUs that work together with the first in a multi-GPU job.
    ``done`` has the cases and launches that an earlier part of the run measured; ``has_micro`` is whether
    that part also ran the micro-benchmarks. ``quality`` has the cases that are trained to a quality target.
    ``falls_back`` is whether a case is measured eagerly if no CUDA graph can capture it.
    """

    budget: Budget
    seed: int
    cases: tuple[PlannedCase, ...]
    unsupported: tuple[Measurement, ...] = ()
    time_limit_s: Seconds | None = None
    on_cpu: bool = False
    micro: MicroChoice = "none"
    allow_throttled: bool = False
    peers: tuple[DeviceProfile, ...] = ()
    done: frozenset[tuple[Case, int]] = frozenset()
    has_micro: bool = False
    quality: tuple[PlannedCase, ...] = ()
    falls_back: bool = False

    @property
    def micro_left(self) -> bool:
        """Whether the micro-benchmarks must still run; the first torch process runs them."""
        in_torch = any(p.case.framework is Framework.TORCH for p in self.cases)
        return self.micro == "only" or (self.micro == "also" and in_torch and not self.has_micro)

    def most_s(self) -> Seconds:
        """Return the longest time for the remaining warm-ups and rounds [s]; slow steps may take longer."""
        rounds_s = len(self.units()) * (self.budget.warmup_most_s + self.budget.timed_s)
        return min(rounds_s, self.time_limit_s or math.inf)

    def units(self) -> tuple[Unit, ...]:
        """Return every remaining case of every launch in measuring order, shuffled by the seed.

        Each launch measures every case once, in new processes, so heat and drift affect all cases equally.
        The executions of one case follow each other, except compile, which comes last in its process. In the
        first launch, each process begins with the AMP case that has the most arithmetic, so the first figure
        is meaningful.
        """
        every = (unit for launch in range(self.budget.launches) for unit in self._launch(launch))
        return tuple(unit for unit in every if (unit.planned.case, unit.launch) not in self.done)

    def _launch(self, launch: int) -> Iterator[Unit]:
        # Yield the units of one launch, one process after another; a block is a case in all its executions.
        order = random.Random(f"{self.seed}/{launch}")  # noqa: S311 - an order, not a secret
        every = [Unit(launch=launch, planned=planned) for planned in self.cases]
        groups = grouped((unit.group, unit) for unit in every)
        processes = [groups[group] for group in sorted(groups)]
        order.shuffle(processes)
        for units in processes:
            blocks = grouped(
                ((unit.planned.reference, unit.planned.case.precision, unit.planned.case.batch_size), unit)
                for unit in units
            )
            shuffled = list(blocks.values())
            order.shuffle(shuffled)
            if launch == 0:
                opening = max(shuffled, key=lambda block: _amp_flops(block[0]))
                shuffled.sort(key=lambda block: block is not opening)
            yield from sorted(
                (unit for block in shuffled for unit in block),
                key=lambda unit: unit.planned.case.execution is Execution.COMPILE,
            )


def _amp_flops(unit: Unit) -> float:
    # Arithmetic of a step at AMP; 0 at any other precision.
    planned = unit.planned
    return planned.case.precision.is_amp * planned.case.batch_size * (planned.flops_per_sample or 0.0)


def plan(
    request: RunRequest,
    device: DeviceProfile,
    profiles: Mapping[str, WorkloadProfile],
    peers: tuple[DeviceProfile, ...] = (),
) -> Plan:
    """Plan a request on a device; with micro-benchmarks only, the plan has one launch and no cases.

    Args:
        request: The request.
        device: The device to measure.
        profiles: The profile of every workload of the request, by reference.
        peers: The GPUs of this machine that work together with the first. Each case is then measured on one
            GPU and on all of them, so one run shows the gain from the others.

    Raises:
        MisuseError: If nothing in the request can be measured, or the request contradicts itself.
    """
    if request.to_quality:  # run eagerly, at the goal's batch
        trained = msgspec.structs.replace(
            request,
            to_quality=False,
            executions=(Execution.EAGER,),
            batch_size=next(iter(GOALS.values())).batch_size,
            micro="none",
        )
        made = plan(trained, device, profiles)
        return msgspec.structs.replace(made, cases=(), quality=made.cases)
    budget = budget_of(request.budget, on_cpu=device.is_cpu)
    made = Plan(
        budget=msgspec.structs.replace(budget, launches=1) if request.micro == "only" else budget,
        seed=request.seed,
        cases=(),
        time_limit_s=request.time_limit_s,
        on_cpu=device.is_cpu,
        micro=request.micro,
        allow_throttled="throttled" in request.allow,
        peers=peers,
        falls_back=not asked_executions(request) and budget.name != "publish",
    )
    if request.micro != "only":
        _refuse_unrunnable(request, device, profiles)
        every = list(_every_case(request, (device, *peers), profiles, budget))
        unsupported = tuple(
            Measurement(case=planned.case, status=Status.UNSUPPORTED, reason=reason)
            for planned, reason in every
            if reason is not None
        )
        cases = tuple(planned for planned, reason in every if reason is None)
        if not any(planned.case.gpu_count == request.gpu_count for planned in cases):
            refused = (m.reason or "" for m in unsupported if m.case.gpu_count == request.gpu_count)
            where = "here" if request.gpu_count == 1 else f"on {request.gpu_count} GPUs at once"
            raise MisuseError(
                f"nothing in this request can be measured {where}: {'; '.join(dict.fromkeys(refused))}"
            )
        made = msgspec.structs.replace(made, cases=cases, unsupported=unsupported)
    refuse_forced_precision(made)
    return made


def _refuse_unrunnable(
    request: RunRequest, device: DeviceProfile, profiles: Mapping[str, WorkloadProfile]
) -> None:
    # Refuse a workload that is known only by its shape, and a device that runs no workloads.
    for profile in (profiles[name] for name in request.workloads if name in profiles):
        if not profile.is_run:
            raise MisuseError(
                f"{profile.name} is known only by its shape and cannot be run: use "
                f"`gpubench rank {profile.name}` or `gpubench memory {profile.name}`, or run a model from "
                "its config, hf:PATH/config.json"
            )
    if not device.runs_steps:
        raise MisuseError(
            f"{plain(device.name or 'this device')} is used through OpenCL, which cannot run workloads: add "
            "--micro only"
        )


def _every_case(
    request: RunRequest,
    devices: Sequence[DeviceProfile],
    profiles: Mapping[str, WorkloadProfile],
    budget: Budget,
) -> Iterator[tuple[PlannedCase, str | None]]:
    # Yield every case of a request, and why it cannot be measured here; None if it can.
    # With several GPUs, the first is also measured alone, and ``amp`` is a precision that all support.
    frameworks = dict.fromkeys(map(Framework, request.frameworks))
    asked = tuple(execution for execution in Execution if execution in asked_executions(request))
    settings = [
        (framework, count, execution)
        for framework, count in product(frameworks, dict.fromkeys((1, request.gpu_count)))
        for execution in asked
        or capability.default_executions(
            framework, devices[0], publish=budget.name == "publish", gpu_count=count
        )
    ]
    thread_counts = (*_fewer_threads(devices[0]), 0) if request.thread_scaling else (0,)
    for reference, asked_precisions in precisions_by_workload(request, on_cpu=devices[0].is_cpu).items():
        profile = profiles[reference]
        is_trainable = TaskKind.TRAIN in profile.tasks
        # a workload that cannot be trained, such as an input pipeline, has only one task
        task = profile.task_for(request.task) if is_trainable else profile.tasks[0]
        mode = profile.parallel_mode if task is TaskKind.TRAIN else ParallelMode.DDP
        wanted = product(
            resolve_precisions(asked_precisions or profile.precisions, devices),
            settings,
            batches_of(request, profile, task, on_cpu=devices[0].is_cpu),
            thread_counts,
        )
        for precision, (framework, count, execution), batch, threads in wanted:
            case = Case(
                workload=profile.name,
                workload_version=profile.version,
                task=task,
                precision=precision,
                execution=execution,
                memory_format=profile.memory_format_at(precision)
                if framework is Framework.TORCH or not profile.is_image
                else MemoryFormat.CHANNELS_LAST,  # Keras supports it at every precision
                batch_size=_batch_of_each(batch, count) if request.strong else batch,
                sample_unit=profile.sample_unit,
                gpu_count=count,
                framework=framework,
                parallel_mode=ParallelMode(request.jobs or mode) if count > 1 else ParallelMode.SINGLE,
                node_count=request.nnodes if count > 1 else 1,
                threads=threads,
                **profile.recipe.at(precision).fields,
            )
            planned = planned_case(reference, profile.at_precision(precision), case)
            yield planned, _why_not(planned, profile, devices)


def _why_not(planned: PlannedCase, profile: WorkloadProfile, devices: Sequence[DeviceProfile]) -> str | None:
    # Return why a case cannot be measured on the number of devices that it needs; None if it can.
    case, first = planned.case, devices[0]
    if reason := profile.why_not_at(case.precision):
        return reason
    if (
        case.task is TaskKind.TRAIN
        and not first.is_cpu
        and (reason := profile.why_not_trained_at(case.precision))
    ):
        return reason
    for device in devices[: case.gpu_count]:
        if reason := capability.why_no_precision(case.precision, device):
            return reason if device == first else f"{plain(device.name or device.backend, 60)}: {reason}"
    return (
        capability.why_no_execution(case.execution, first, case.gpu_count)
        or capability.why_not_for_task(case)
        or capability.why_not_together(case, profile)
        or capability.why_no_framework(case, first, is_own=is_own(planned.reference))
    )


def _fewer_threads(device: DeviceProfile) -> tuple[int, ...]:
    """Return the powers of 2 below the number of threads that the process would use: 1, 2, 4 ...

    Raises:
        MisuseError: If there is only one thread, or the device is not a CPU.
    """
    if not device.is_cpu:
        name = plain(device.name or device.backend)
        raise MisuseError(f"--thread-scaling is for a CPU, but this device is {name}: add --device cpu")
    variable = os.environ.get("OMP_NUM_THREADS", "")
    is_number = variable.isdecimal() and len(variable) < 6  # a longer number is a mistake
    most = int(variable) if is_number else device.core_count or 1
    if most < 2:
        why = f"OMP_NUM_THREADS={variable}" if variable else "this process has one core"
        raise MisuseError(f"--thread-scaling needs two threads or more, but {why}")
    return tuple(2**power for power in range(most.bit_length()) if 2**power < most)


def references(request: RunRequest) -> tuple[str, ...]:
    """Return the requested workloads, or those of the suite."""
    return request.workloads or tuple(SUITES[request.suite or "default"])


def precisions_by_workload(request: RunRequest, *, on_cpu: bool) -> dict[str, tuple[str, ...]]:
    """Return the precisions of each workload, by reference; an empty tuple means the defaults."""
    if request.workloads:
        return dict.fromkeys(request.workloads, request.precisions)
    rows = dict(SUITES[request.suite or "default"])
    if request.suite is None and (on_cpu or request.frameworks != (Framework.TORCH,)):
        del rows[_ONLY_ON_GPUS]
    return {name: request.precisions or usual for name, usual in rows.items()}


def asked_executions(request: RunRequest) -> tuple[str, ...]:
    """Return the requested executions, or those of the suite; empty means the device's defaults."""
    if request.executions or request.workloads:
        return request.executions
    return _EXECUTIONS[request.suite or "default"]


def resolve_precisions(names: Sequence[str], devices: Sequence[DeviceProfile]) -> tuple[Precision, ...]:
    """Return precisions by name, ``amp`` resolved; without names, fp32 and the best AMP of all devices."""
    amp = capability.best_amp(*devices)
    if names:
        return tuple(dict.fromkeys(amp if name == AMP else Precision(name) for name in names))
    has_amp = all(capability.why_no_precision(amp, device) is None for device in devices)
    return (Precision.FP32, amp) if has_amp else (Precision.FP32,)


def batches_of(
    request: RunRequest, profile: WorkloadProfile, task: TaskKind, *, on_cpu: bool
) -> tuple[int, ...]:
    """Return the batches to measure.

    Inference of a trainable workload also gets a batch of 1, to measure latency, unless a batch is given.
    """
    batch = batch_of(request, profile, on_cpu=on_cpu)
    also_one = task is TaskKind.INFER and request.batch_size is None and TaskKind.TRAIN in profile.tasks
    return tuple(dict.fromkeys((1, batch))) if also_one else (batch,)


def batch_of(request: RunRequest, profile: WorkloadProfile, *, on_cpu: bool) -> int:
    """Return the requested batch, else the main batch; on a CPU the smallest, or 1 if a step takes seconds.

    On a CPU, a user's own model gets at least ``SMALL_BATCH`` samples if possible, because batch norm over
    one value rejects a batch of 1. For ``max``, the result is a placeholder, which ``with_largest_batches``
    replaces.
    """
    if isinstance(request.batch_size, int):
        return request.batch_size
    if request.batch_size == "max":
        return profile.batches[-1]
    if not on_cpu:
        return profile.main_batch
    least = SMALL_BATCH if is_own(profile.name) else 1
    small = next((each for each in profile.batches if each >= least), profile.batches[0])
    if small * profile.train_flops_per_sample <= CPU_STEP_FLOPS:
        return small
    return min(small, least)


def _batch_of_each(batch: int, gpu_count: int) -> int:
    """Split one batch over the GPUs of a job.

    Raises:
        MisuseError: If it cannot be split evenly.
    """
    each, rest = divmod(batch, gpu_count)
    if rest:
        raise MisuseError(
            f"--strong splits the batch over the GPUs, but {batch} is not a multiple of {gpu_count}; "
            "give a --batch-size that is"
        )
    return each


def refuse_forced_precision(made: Plan) -> None:
    """Refuse a plan with strict fp32 if an environment variable forces a lower precision.

    ``--micro only`` also runs strict fp32.

    Raises:
        MisuseError: Naming the variable.
    """
    if made.micro != "only" and not any(p.case.precision is Precision.FP32 for p in made.cases):
        return
    forced = forcing_fewer_bits(os.environ) if made.on_cpu else forcing_tf32(os.environ)
    if forced:
        raise MisuseError(
            f"fp32 was requested, but {forced[0]}={plain(os.environ[forced[0]])} forces a lower precision: "
            f"unset {forced[0]}"
        )


def planned_case(
    reference: str, profile: WorkloadProfile, case: Case, batch_choice: BatchChoice | None = "fixed"
) -> PlannedCase:
    """Return a case with the figures of its workload's profile."""
    train, in_torch = case.task is TaskKind.TRAIN, case.framework is Framework.TORCH
    fewer = 0 if in_torch else capability.fewer_parameters().get(case.workload, 0)
    return PlannedCase(
        reference=reference,
        case=case,
        # a count of 0, as for a model without products, means unknown
        flops_per_sample=(profile.train_flops_per_sample if train else profile.forward_flops_per_sample)
        or None,
        hardware_flops_per_sample=(
            profile.hardware_flops_per_sample if train else profile.forward_flops_per_sample
        )
        or None,
        tokens_per_sample=None if case.new_tokens else profile.tokens_per_sample,
        parameter_count=profile.parameters - fewer,
        batch_choice=batch_choice,
        convolves=profile.convolves(case.task),
    )


# --- invalid requests -------------------------------------------------------------------------------------


# Options allowed with ``resume``; all others come from the resumed run.
RESUME_TAKES = frozenset({"device", "time_limit", "allow", "resume", "results"})


def check_request(request: RunRequest, known: Sequence[str]) -> RunRequest:
    """Reject requests that are invalid on every device, and expand ``all``, before any device is used.

    Raises:
        MisuseError: For an invalid device name, options that exclude each other, or ``to_quality`` with a
            workload that has no quality target.
    """
    check_form(request.device.strip())
    if request.resume is not None:
        _check_resume(request)
    for applies, others, why in _conflicts(request):
        if applies and (other := next((option for option, is_asked in others.items() if is_asked), None)):
            raise MisuseError(why.format(other))
    wanted = tuple(GOALS) if request.to_quality and not _names_workloads(request) else request.workloads
    if request.to_quality and (without := [name for name in wanted if name not in GOALS]):
        raise MisuseError(
            f"{plain(without[0], 80)} has no quality target: --to-quality trains {' and '.join(GOALS)}"
        )
    names = dict.fromkeys(n for w in wanted for n in (known if w == "all" else (w,)))
    return msgspec.structs.replace(request, workloads=tuple(names))


def _names_workloads(request: RunRequest) -> bool:
    return "workload" in request.asked or bool(request.workloads)


def _check_resume(request: RunRequest) -> None:
    # Reject options for cases and budget with ``resume``, because a resumed run has its own.
    asked = {each.name: named(each) for each in options_of(type(request))}
    for name in request.asked:
        if name not in RESUME_TAKES and not (name == "workload" and request.own == request.workloads):
            what = "workloads by name" if name == "workload" else asked[name]
            raise MisuseError(
                f"--resume continues with the cases, budget and seed of its run: leave out {what} (but "
                "repeat --workload for your own models)"
            )


def _conflicts(request: RunRequest) -> Iterator[tuple[bool, dict[str, bool], str]]:
    # Yield incompatible options: whether a rule applies, which options break it, and the message.
    several, is_micro = request.gpu_count > 1, request.micro == "only"
    largest = {"--batch-size max": request.batch_size == "max"}
    micro, threads = {"`--micro only`": is_micro}, {"--thread-scaling": request.thread_scaling}
    gpus, other_jobs = {"--gpus": several}, request.jobs not in {None, "ddp"}
    has_case_options = (
        request.precisions or request.executions or request.batch_size or request.task != "train"
    )
    needs_workloads = has_case_options or asked_recipe(request) or _names_workloads(request) or request.suite
    no_workload = "`--micro only` runs no workload: leave out {}"
    yield is_micro, {"workloads and their options": bool(needs_workloads)}, no_workload
    for keras in (name for name in request.frameworks if name != Framework.TORCH):
        yield (
            True,
            micro | largest | {f"a job of {request.gpu_count} GPUs": several} | threads,
            f"{{}} works only in torch: leave out --framework {keras}",
        )
    yield several, largest, "{} is for one GPU: leave out --gpus, or give a batch"
    instead = f"gpubench run cnn --gpus {request.gpu_count}"
    yield several, micro, f"{{}} is for one GPU; all-reduce is timed along with a workload: {instead}"
    yield (
        request.suite is not None,
        {"the workloads": _names_workloads(request)},
        ("--suite measures its own workloads: leave out {}, or --suite"),
    )
    yield (
        request.thread_scaling,
        gpus | largest,
        "--thread-scaling needs fixed batch sizes on one CPU: leave out {}",
    )
    yield is_micro, threads, no_workload
    yield (
        not several and request.resume is None,
        {"--strong": request.strong, f"--jobs {request.jobs}": other_jobs},
        "{} is for several GPUs: add --gpus N",
    )
    yield (
        request.strong,
        {"--jobs independent": request.jobs == "independent", "--task infer": request.task == "infer"},
        "--strong splits the batch of one training job: leave out {}",
    )
    yield (
        request.to_quality,
        {
            "--task": request.task != "train",
            "--batch-size": request.batch_size is not None,
            "--execution": bool(request.executions),
            "--framework": request.frameworks != (Framework.TORCH,),
            "--suite": request.suite is not None,
            **gpus,
            **micro,
            **threads,
            "--resume": request.resume is not None,
        },
        "--to-quality trains eagerly in torch on one device, with its own batch: leave out {}",
    )
