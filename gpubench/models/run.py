"""One run: what was measured, on which device, and under which settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from gpubench import heat, stats
from gpubench.findings import DOUBTFUL, Finding, FindingKind
from gpubench.interval import Interval
from gpubench.models.case import AtLeastOne, Case, Positive
from gpubench.models.measurement import BatchChoice, Measurement, Status
from gpubench.models.record import PROTOCOL, Record, headed, html_table, shown, views
from gpubench.precisions import Precision
from gpubench.units import count, plain

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

RUN_VERSION = 2
"""Schema version of a run.

Since version 2, a case states a non-default framework, weight type or token count.
"""


# --- what it ran on --------------------------------------------------------------------------------------


class DeviceProfile(Record, frozen=True, kw_only=True):
    """A device as its driver describes it. A field that cannot be read is None; ``unavailable`` says why.

    Only ``probe`` shows ``uuid``. A stored run has ``device_id``, a salted hash, instead.

    Attributes:
        index: Position in the driver's order (PCI order), as ``probe`` lists it.
        core_count: Physical cores of a CPU that this process may use.
        unified_memory: Whether the device shares the machine's memory, which is then ``memory_bytes``.
        l2_bytes: From the specification table, because NVML does not report it.
        tensor_core_precisions: Formats that the tensor cores support; for a CPU, the
            reduced-precision formats that it has instructions for ("bf16", "fp16", "int8").
        pcie_generation, pcie_width: The maximum that card and slot both support.
    """

    backend: str
    vendor: str | None = None
    name: str | None = None
    gpu_key: str | None = None
    uuid: str | None = None
    device_id: str | None = None
    index: int | None = None
    pci_bus_id: str | None = None
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    cuda_core_count: int | None = None
    core_count: int | None = None
    memory_bytes: int | None = None
    unified_memory: bool | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    l2_bytes: int | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_max_hz: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlink_count: int | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    ecc_enabled: bool | None = None
    mig_enabled: bool | None = None
    virtualization: str | None = None
    tensor_core_precisions: tuple[str, ...] | None = None
    unavailable: dict[str, str] = {}

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the host's processor."""
        return self.backend == "cpu"

    @property
    def is_nvidia(self) -> bool:
        """Whether it is a GPU that runs CUDA."""
        return self.backend == "cuda"

    @property
    def has_tf32(self) -> bool:
        """Whether it is an NVIDIA GPU with TF32 tensor cores."""
        return self.is_nvidia and Precision.TF32.within(self.compute_capability)

    @property
    def torch_type(self) -> str:
        """The device type in torch; AMD GPUs have the same type as NVIDIA GPUs."""
        return "cuda" if self.backend == "rocm" else self.backend

    @property
    def is_torch_cuda(self) -> bool:
        """Whether it is a ``cuda`` device in torch, with graphs and device events."""
        return self.torch_type == "cuda"

    @property
    def runs_steps(self) -> bool:
        """Whether a framework can train on it; through OpenCL only micro-benchmarks run."""
        return self.backend != "opencl"


class Environment(Record, frozen=True, kw_only=True):
    """The software and host of a run.

    Attributes:
        packages: Versions of other frameworks, and of their backends.
    """

    gpubench: str
    python: str
    os: str
    cpu: str | None = None
    cpu_count: int | None = None
    cpu_threads: int | None = None
    ram_bytes: int | None = None
    git_commit: str | None = None
    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    container: str | None = None
    cpu_governor: str | None = None
    cudnn_benchmark: bool | None = None
    variables: dict[str, str] = {}
    packages: dict[str, str] = {}


class Settings(Record, frozen=True, kw_only=True):
    """The options of a run other than its cases, budget name and seed.

    Attributes:
        time_limit_s: Limit of the entire run; None for no limit [s].
        gpus: GPUs of one data-parallel job.
        batch_choice: Whether batches are fixed or the largest that fit.
        micro: Whether micro-benchmarks were run too (``also``), alone (``only``) or not at all (``none``).
        budget: Every value of the budget that is set, by name.
        falls_back: Whether a case that no CUDA graph can capture is measured eagerly instead.
    """

    time_limit_s: float | None = None
    allow_shared: bool = False
    allow_throttled: bool = False
    gpus: int = 1
    batch_choice: BatchChoice | None = None
    micro: str = "none"
    budget: dict[str, float | str | bool] = {}
    falls_back: bool = False


class StartState(Record, frozen=True, kw_only=True):
    """The state of the device just before the run.

    Attributes:
        idle_power_w: Power draw, if nothing else was using the device [W].
        pcie_generation, pcie_width: State of the link then; an idle link may run below its maximum.
    """

    temperature_c: float | None = None
    idle_power_w: float | None = None
    persistence_mode: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


# --- measurements other than cases ---------------------------------------------------------------------


class MicroResult(Record, frozen=True, kw_only=True):
    """One micro-benchmark with its 95 % interval: GEMM, copy, transfer, kernel launch or all-reduce.

    ``value`` is ``work * repeats`` divided by the median time of the repetitions that count; without ``work``
    it is that median divided by ``repeats``.

    Attributes:
        n: Number of repetitions that count.
        left_out: Number of earlier repetitions left out by the drift guard.
        work: FLOP or bytes of one call; None if the time itself is the result.
        repeats: Calls per repetition.
        times_s: Time of each repetition in order, including those left out, if stored [s].
        mean_power_w, sm_clock_min_hz, clock_event_reasons: Telemetry during the repetitions.
    """

    name: str
    precision: str | None
    size: str
    value: Positive
    low: float | None
    high: float | None
    unit: str
    n: int
    left_out: int = 0
    work: float | None = None
    repeats: int = 1
    times_s: tuple[Positive, ...] = ()
    mean_power_w: float | None = None
    sm_clock_min_hz: float | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def interval(self) -> Interval:
        """The value with its 95 % interval, in ``unit``."""
        return Interval(self.value, self.low, self.high)


Metric = Literal["accuracy", "loss"]


class SeedRun(Record, frozen=True, kw_only=True):
    """One training run from one seed.

    Attributes:
        reached: Whether the model reached the target quality on the held-out samples.
        steps: Steps until it first did, or all steps if it never did.
        train_s: Time of the steps, without evaluations on the held-out samples [s].
        quality: The last evaluated quality; None if it was not a number.
        energy_j: Energy of the device from the first step to the last evaluation; None if unknown [J].
    """

    seed: int
    reached: bool
    steps: AtLeastOne
    train_s: Positive
    quality: float | None
    energy_j: Positive | None = None


class TimeToQuality(Record, frozen=True, kw_only=True):
    """The steps, time and energy to a target quality at one precision.

    Attributes:
        case: Workload, precision and batch of the training, which runs eagerly.
        metric, target: The quality on held-out samples: at least this accuracy, or at most this loss.
        most_steps: Maximum steps per seed.
        data_sha256: Hash of the samples, including the held-out ones.
        runs: One training run per seed.
        reason: Why there are fewer training runs than requested; None if all finished.
    """

    case: Case
    metric: Metric
    target: float
    most_steps: int
    data_sha256: str
    runs: tuple[SeedRun, ...] = ()
    reason: str | None = None

    @property
    def is_reached(self) -> bool:
        """Whether every seed reached the quality; otherwise there are no figures."""
        return self.reason is None and bool(self.runs) and all(run.reached for run in self.runs)

    @property
    def steps(self) -> Interval:
        """Mean number of steps with its interval over seeds; unknown if a seed did not reach the quality."""
        return self._over_seeds([run.steps for run in self.runs])

    @property
    def train_s(self) -> Interval:
        """Mean training time with its interval over seeds [s]."""
        return self._over_seeds([run.train_s for run in self.runs])

    @property
    def energy_j(self) -> Interval:
        """Mean energy with its interval over seeds; unknown if any value is unknown [J]."""
        known = [run.energy_j for run in self.runs if run.energy_j is not None]
        return self._over_seeds(known) if len(known) == len(self.runs) else Interval(None)

    def steps_over(self, other: TimeToQuality) -> Interval:
        """Return the ratio of the steps to those of another precision, paired by seed."""
        theirs = {run.seed: run.steps for run in other.runs}
        if not (self.is_reached and other.is_reached) or theirs.keys() != {run.seed for run in self.runs}:
            return Interval(None)
        logs = [math.log(run.steps / theirs[run.seed]) for run in self.runs]
        return stats.mean_interval(logs).each(math.exp)

    def _over_seeds(self, values: list[float]) -> Interval:
        return stats.mean_interval(values) if self.is_reached else Interval(None)


# --- checks and estimates that use all rows of a run ----------------------------------------------------

# Largest ratio of the speeds of the same work in two memory layouts; it was 1.46 for VGG16 with AMP on an
# H200.
LAYOUT_FACTOR = 1.5
# Largest factor by which a TF32 step is slower than one at this precision: TF32 has half the rate of AMP and
# moves twice the bytes.
_TF32_OVER = {Precision.TF32: 1.0} | {each: 2.0 for each in Precision if each.is_amp}
# If the loss error under TF32 exceeds that of the fp32 row by this factor, the fp32 row did not use TF32.
LOSS_FACTOR = 10.0
# Largest relative difference between float32 losses that rounding alone explains.
LOSS_ROUNDING = 1e-7


def uncontrolled(row: Measurement, rows: Sequence[Measurement]) -> tuple[Finding, ...]:
    """Return a finding if nothing proves that an fp32 row ran without TF32.

    A row is unproven if one of its launches has no proof. A proof needs a control: the error of the same
    operators under TF32. Older versions stored none, so only the same case at another precision in the same
    run can prove their rows.

    Args:
        row: A row measured on a device with TF32.
        rows: All rows of its run.
    """
    timed = [launch for launch in row.launches if launch.rounds]
    # The operators that have no control in some launch.
    names = {name for launch in timed for name in launch.precision_errors.keys() - launch.control_errors}
    if row.case.precision is not Precision.FP32 or row.step_time_s is None:
        return ()
    if not all(launch.precision_errors for launch in timed):
        return (Finding(kind=FindingKind.PRECISION_UNPROVEN),)
    if not names or any(_shows_fp32(row, other) for other in rows):
        return ()
    return (Finding(kind=FindingKind.PRECISION_UNPROVEN, value=f"no control for {', '.join(sorted(names))}"),)


def _shows_fp32(row: Measurement, other: Measurement) -> bool:
    # Whether an fp32 row is slower than the same case at another precision by more than TF32 could explain,
    # or whether the loss error of that case under TF32 is many times that of the fp32 row.
    precision, layout = other.case.precision, row.case.memory_format
    twin = msgspec.structs.replace(other.case, precision=Precision.FP32, memory_format=layout)
    if row.step_time_s is None or other.step_time_s is None or twin != row.case:
        return False
    doubtful = DOUBTFUL - {FindingKind.PRECISION_UNPROVEN}
    most_s = LAYOUT_FACTOR * _TF32_OVER.get(precision, math.inf) * other.step_time_s
    if row.step_time_s > most_s and doubtful.isdisjoint(finding.kind for finding in row.findings):
        return True
    if precision is not Precision.TF32 or row.loss_error is None or other.loss_error is None:
        return False
    return other.loss_error > LOSS_FACTOR * max(row.loss_error, LOSS_ROUNDING)


def with_run_estimates(
    measurements: Iterable[Measurement], *, on_gpu: bool, has_tf32: bool
) -> tuple[Measurement, ...]:
    """Return the rows of a run with the run's estimates of the launch spread and of slowdown from heat.

    A row does not store these estimates, because they are derived from the launches of all rows. On a device
    with TF32 a row also gets the finding that ``uncontrolled`` returns.
    """
    rows = tuple(measurements)
    means = [each for row in rows if len(each := row.launch_step_times_s) > 1]
    variances = [stats.variance_of(each) / fmean(each) ** 2 for each in means]
    prior = stats.prior_of(variances, [len(each) - 1 for each in means])
    estimates = {
        "prior_of_run": prior,
        "cases_of_prior": len(means),
        "on_gpu": on_gpu,
        "slowing": heat.slowing_of([row.moments for row in rows]),
    }
    return tuple(_with_estimates(row, estimates, uncontrolled(row, rows) if has_tf32 else ()) for row in rows)


def _with_estimates(row: Measurement, estimates: dict[str, Any], findings: Iterable[Finding]) -> Measurement:
    new = tuple(each for each in findings if each not in row.findings)
    if not new and estimates.items() <= row.__dict__.items():
        return row
    twin = msgspec.structs.replace(row, findings=(*row.findings, *new)) if new else copy(row)
    twin.__dict__.update(row.__dict__ | estimates)
    return twin


# --- the run ---------------------------------------------------------------------------------------------


_ROWS = msgspec.Meta(max_length=10_000)


class Run(Record, frozen=True, kw_only=True):
    """One file: one device, one environment, and all cases of the run.

    ``planned`` and ``launch_count`` say what the run should measure, so that it can be resumed.

    Attributes:
        finished_at: When the run ended or was stopped; None while it is running or if it was killed.
        interrupted: Whether it was stopped before everything was measured.
        quality: Training to a target quality, if requested; the file then has no cases.
        added_from: Who shared it, or the file that it was added from; None for a run of this results folder.
    """

    schema_version: int = RUN_VERSION
    protocol: str = PROTOCOL
    run_id: str
    started_at: str
    finished_at: str | None = None
    interrupted: bool = False
    budget: str
    seed: int
    planned: tuple[Case, ...] = ()
    launch_count: int | None = None
    settings: Settings | None = None
    device: DeviceProfile
    start: StartState | None = None
    environment: Environment
    micro: tuple[MicroResult, ...] = ()
    measurements: Annotated[tuple[Measurement, ...], _ROWS] = ()
    quality: Annotated[tuple[TimeToQuality, ...], _ROWS] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    added_from: str | None = None

    def __post_init__(self) -> None:
        """Give each row the run's estimates of the spread between launches and of the slowdown from heat."""
        device = self.device
        rows = with_run_estimates(self.measurements, on_gpu=not device.is_cpu, has_tf32=device.has_tf32)
        msgspec.structs.force_setattr(self, "measurements", rows)

    def __repr__(self) -> str:
        """Return ID, device, start and the first cases with their throughput."""
        device = shown(self.device.name or self.device.gpu_key or self.device.backend, 80)
        head = (
            f"<Run {shown(self.run_id, 80)} on {device}, {shown(self.started_at)}: "
            f"{count(len(self.measurements), 'measurement')}"
        )
        lines = [f"  {shown(each.label, 100)}: {_rate(each)}" for each in self.measurements]
        return headed(head, lines, len(lines), _CASES_IN_REPR)

    def _repr_html_(self) -> str:
        title = f"Run {self.run_id} on {self.device.name or self.device.gpu_key or self.device.backend}"
        rows = [(each.label, _rate(each)) for each in self.measurements]
        return html_table(title, ("case", "throughput (95 %)"), rows)

    @property
    def origin(self) -> str | None:
        """Who measured an added run, on what and when; None for a run of this results folder."""
        if self.added_from is None:
            return None
        machine = (self.device.name, self.environment.cpu, self.started_at[:10])
        return ", ".join(plain(each, 60) for each in (self.added_from, *machine) if each)

    @property
    def case_count(self) -> int:
        """Number of cases with a row, plus the planned cases that were never reached."""
        trained = (row.case for row in self.quality)
        return len({*self.planned, *(m.case for m in self.measurements), *trained})

    @property
    def measured_count(self) -> int:
        """Number of cases with a figure."""
        return sum(m.status is Status.OK for m in self.measurements) + sum(q.is_reached for q in self.quality)

    @property
    def workload_names(self) -> list[str]:
        """The distinct workloads of its rows, sorted by name."""
        trained = {row.case.workload for row in self.quality}
        return sorted(trained | {m.case.workload for m in self.measurements})

    def to_frame(self) -> DataFrame:
        """Return one row per measurement, columns as in ``gpubench.load_runs``."""
        found: DataFrame = views().run_frame(self)
        return found

    def plot(self) -> Figure:
        """Return the throughput of every case with its interval, as a plotly figure."""
        return views().run_figure(self)


def newest_first(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Sort runs by start time, newest first."""
    return tuple(sorted(runs, key=lambda run: (run.started_at, run.run_id), reverse=True))


_CASES_IN_REPR = 8


def _rate(each: Measurement) -> str:
    return each.interval.rate(each.case.sample_unit) if each.status is Status.OK else str(each.status)
