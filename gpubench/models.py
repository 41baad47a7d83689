"""Every recorded type: frozen, keyword-only, units in the names, ``None`` for unknown.

These structs are the file format (msgspec reads, checks and writes them) and the data that flows from
room to room. Raw values are stored; whatever can be derived from them is a property, so that a figure
can be derived again from the file alone.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from gpubench.findings import Finding, FindingKind
from gpubench.stats import between_launches_half_width, relative_half_width

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Basis",
    "BuyOrRent",
    "Case",
    "DeviceProfile",
    "Environment",
    "Estimate",
    "ExcludedOffer",
    "Execution",
    "Finding",
    "FindingKind",
    "GpuSpec",
    "Launch",
    "Measurement",
    "MemoryFormat",
    "MicroResult",
    "Offer",
    "Operator",
    "OperatorKind",
    "Precision",
    "Pricing",
    "RankedOffer",
    "Ranking",
    "Round",
    "Run",
    "Settings",
    "StartState",
    "Status",
    "Switches",
    "TaskKind",
    "TelemetrySample",
    "WorkloadProfile",
]

SCHEMA_VERSION = 1
PROTOCOL = "gpubench/1"


class _Record(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Base of every recorded type; ``dict`` only holds cached derived values, never state."""


# --- the device ------------------------------------------------------------------------------------


class DeviceProfile(_Record, frozen=True, kw_only=True):
    """What a device is, as its driver answers. A refused field is None; ``unavailable`` says why.

    ``uuid`` is shown by ``probe`` alone. A stored run holds ``device_id``, a salted hash, instead.

    Attributes:
        index: Place in the driver's order (PCI order), as ``probe`` lists it.
        core_count: Physical cores of a CPU that this process may use.
        unified_memory: The device shares the machine's memory; ``memory_bytes`` is then the machine's.
        l2_bytes: From the specification table: drivers do not report it.
        tensor_core_precisions: Formats that the tensor cores take; on a CPU, the reduced formats it has
            instructions for ("bf16", "fp16", "int8").
        pcie_generation, pcie_width: The most that card and slot allow together.
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


class TelemetrySample(_Record, frozen=True, kw_only=True):
    """One reading of a device while it works; ``t_s`` counts from the first timed round, below 0 in warm-up.

    Idle is no reason for a lower clock, so it stands apart from ``clock_event_reasons``.
    """

    t_s: float
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    memory_used_bytes: int | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    idle: bool | None = None


# --- the case: what identifies a number ----------------------------------------------------------------


class Precision(StrEnum):
    """``fp32`` is IEEE, TF32 off in matmul, convolution and RNN; AMP is autocast, at fp16 with GradScaler."""

    FP32 = "fp32"
    TF32 = "tf32"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"

    @property
    def is_amp(self) -> bool:
        """Whether autocast is on."""
        return self in {Precision.AMP_FP16, Precision.AMP_BF16}


class Execution(StrEnum):
    """``graph`` is the whole step in one CUDA graph; ``compile`` is torch.compile."""

    EAGER = "eager"
    GRAPH = "graph"
    COMPILE = "compile"


class TaskKind(StrEnum):
    """One optimiser update a step, or one forward pass."""

    TRAIN = "train"
    INFER = "infer"


class MemoryFormat(StrEnum):
    """Layout of image tensors."""

    CHANNELS_LAST = "channels_last"
    CONTIGUOUS = "contiguous"


class Case(_Record, frozen=True, kw_only=True):
    """The identity of a number. Two figures whose cases differ are never compared without saying so."""

    workload: str
    workload_version: int
    task: TaskKind
    precision: Precision
    execution: Execution
    memory_format: MemoryFormat | None
    batch_size: int
    sample_unit: str
    gpu_count: int = 1

    @property
    def label(self) -> str:
        """Short name for people: ``vgg16 amp-bf16 graph batch 64``."""
        task = "" if self.task is TaskKind.TRAIN else f" {self.task}"
        count = "" if self.gpu_count == 1 else f" on {self.gpu_count} GPUs"
        return f"{self.workload}{task} {self.precision} {self.execution} batch {self.batch_size}{count}"


# --- the measurement ------------------------------------------------------------------------------------


class Status(StrEnum):
    """How a case ended. Only ``ok`` is ever ranked."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    FAILED = "failed"
    TIMEOUT = "timeout"


class Switches(_Record, frozen=True, kw_only=True):
    """The five fp32 switches of torch as read back; None where this torch has no such switch."""

    cudnn_allow_tf32: bool
    matmul_allow_tf32: bool
    conv_fp32_precision: str | None
    rnn_fp32_precision: str | None
    matmul_fp32_precision: str | None

    def unexpected(self, precision: Precision) -> str | None:
        """Name the first switch that does not stand as this precision needs it, with its value.

        TF32 is off at fp32 alone: under AMP it is on for what autocast leaves in fp32.
        """
        on = precision is not Precision.FP32
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value != (on if isinstance(value, bool) else "tf32" if on else "ieee"):
                return f"{name}={value}"
        return None


class Round(_Record, frozen=True, kw_only=True):
    """A timed block of ``steps`` steps with one synchronise at each edge. ``loss`` is read at its end.

    Attributes:
        left_out: Why it does not count; None where it does.
        mark: What is suspect about it, whether it counts or not: ``clock_gap``.
    """

    steps: int
    wall_s: float
    loss: float | None = None
    left_out: str | None = None
    mark: str | None = None


class Launch(_Record, frozen=True, kw_only=True):
    """What one fresh process saw of one case.

    A value that was not finite is null in the file, hence the None among the numbers.

    Attributes:
        sequence: Place among all launches of the run in the order in which they began, from 0.
        began_at: When it began, UTC.
        switches: As read back before the work; as read after the timed rounds, where they differ by then.
        precision_errors: Relative error of a matmul and a convolution against float64, switches in force:
            the worse of before the work and after the timed rounds.
        event_s: Device time between step edges of one extra round [s].
        host_issue_s: Time the host took to issue each of three steps from a drained device [s].
        fused: Whether the optimizer is fused; None where there is none.
        skipped_steps: Steps that the gradient scaler skipped after warm-up, of ``timed_steps``.
        reference_error: First loss against float32 on the CPU, relative, dropout off.
        graph_error: Loss after a replay, or a compiled step, against the eager step from the same
            state, relative.
        telemetry: Ten samples a second of the timed rounds, one a second of the warm-up (``t_s`` below 0).
        energy_edges_j: The device's energy counter at the first timed round's start and the last one's end
            [J]; only the difference means anything.
        held_clocks_s: For how long each policy (power, thermal, ...) held the clocks down while rounds were
            timed, by the driver's own counters [s]; empty where it tells none.
        memory_errors: Uncorrectable memory errors that appeared while this was measured.
        batch_count: Prebuilt batches that the steps rotate.
        loss_curve: Loss of each of the first steps from the seed.
        cold_s: Costs paid once, apart from the steps [s]: ``import`` and ``context`` of a process, on the
            first launch in it; ``build``, ``first_step`` and ``capture`` or ``compile`` of the case.
        latency_s: Forward passes at batch 1, each from a drained device to a drained device [s].
        findings: What only this process could see (not steady, drifting, telemetry hung).
    """

    index: int
    sequence: int | None = None
    began_at: str | None = None
    switches: Switches | None = None
    precision_errors: dict[str, float | None] = {}
    warmup: tuple[Round, ...] = ()
    rounds: tuple[Round, ...] = ()
    event_s: tuple[float | None, ...] = ()
    host_issue_s: tuple[float | None, ...] = ()
    fused: bool | None = None
    telemetry: tuple[TelemetrySample, ...] = ()
    telemetry_source: str | None = None
    energy_j: float | None = None
    energy_source: str | None = None
    energy_edges_j: tuple[float | None, ...] = ()
    energy_region_s: float | None = None
    held_clocks_s: dict[str, float | None] = {}
    peak_memory_bytes: int | None = None
    gpu_busy: float | None = None
    skipped_steps: int | None = None
    timed_steps: int | None = None
    reference_error: float | None = None
    graph_error: float | None = None
    parameters_moved: bool | None = None
    memory_errors: int | None = None
    batch_count: int | None = None
    loss_curve: tuple[float | None, ...] = ()
    latency_s: tuple[float | None, ...] = ()
    cold_s: dict[str, float | None] = {}
    findings: tuple[Finding, ...] = ()

    @property
    def accepted(self) -> tuple[Round, ...]:
        """The rounds that count: all but those the drift guard left out."""
        return tuple(r for r in self.rounds if r.left_out is None)

    @property
    def timed_telemetry(self) -> tuple[TelemetrySample, ...]:
        """The samples from the first timed round on: what the figures and findings rest on."""
        return tuple(sample for sample in self.telemetry if sample.t_s >= 0)


BatchChoice = Literal["fixed", "largest"]
"""How a batch came about: equal for all devices, or the largest that fits on this one."""


class Measurement(_Record, frozen=True, kw_only=True):
    """One case as measured: raw rounds of every launch, and the figures that follow from them.

    Attributes:
        batch_choice: How the batch was found; no part of the case, whose work is the same. None is unknown.
        convolves: Whether the work holds convolutions, by its profile; fast ones pass the arithmetic peak.
        target: Half-width of the 95 % interval that the run set out for, over the estimate.
    """

    case: Case
    status: Status
    reason: str | None = None
    batch_choice: BatchChoice | None = None
    launches: tuple[Launch, ...] = ()
    flops_per_sample: float | None = None
    parameter_count: int | None = None
    loss_trace: tuple[float | None, ...] = ()
    peak_flops_per_s: float | None = None
    gemm_flops_per_s: float | None = None
    cpu_threads: int | None = None
    convolves: bool | None = None
    target: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def at_largest_batch(self) -> bool:
        """Whether the batch is the largest that fits: never to be ranked beside an equal batch."""
        return self.batch_choice == "largest"

    @property
    def label(self) -> str:
        """The case in words, with a word on how its batch came about where that matters."""
        return f"{self.case.label}, the largest that fits" if self.at_largest_batch else self.case.label

    @cached_property
    def step_time_s(self) -> float | None:
        """Seconds per step: the median over launches of wall time over steps."""
        per_launch = [_mean_step_s(launch) for launch in self.launches if launch.accepted]
        return median(per_launch) if per_launch else None

    @cached_property
    def samples_per_s(self) -> float | None:
        """Throughput of the whole case; times ``step_time_s`` it is the batch."""
        return (
            None
            if self.step_time_s is None
            else self.case.batch_size * self.case.gpu_count / self.step_time_s
        )

    @cached_property
    def relative_half_width(self) -> float | None:
        """Half-width of the 95 % interval over the estimate: within or between launches, the wider.

        Within launches it is the median width, as the estimate is the median launch: one restless launch
        moves neither, and where its level differs the interval between launches shows it.
        """
        per_launch = [
            relative_half_width([r.wall_s / r.steps for r in launch.accepted])
            for launch in self.launches
            if launch.accepted
        ]
        within = [width for width in per_launch if width is not None]
        if not within:
            return None
        return max(median(within), self.between_launches or 0.0)

    @cached_property
    def between_launches(self) -> float | None:
        """Half-width of the 95 % interval that the launches' own means give; None for one launch."""
        return between_launches_half_width([_mean_step_s(x) for x in self.launches if x.accepted])

    @property
    def samples_per_s_low(self) -> float | None:
        """Lower end of the 95 % interval of the throughput."""
        if self.samples_per_s is None or self.relative_half_width is None:
            return None
        return self.samples_per_s / (1 + self.relative_half_width)

    @property
    def samples_per_s_high(self) -> float | None:
        """Upper end of the 95 % interval of the throughput; None when the width exceeds the estimate."""
        if self.samples_per_s is None or self.relative_half_width is None or self.relative_half_width >= 1:
            return None
        return self.samples_per_s / (1 - self.relative_half_width)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Largest peak of any launch."""
        return max(
            (x.peak_memory_bytes for x in self.launches if x.peak_memory_bytes is not None), default=None
        )

    @property
    def gpu_busy(self) -> float | None:
        """Median share of the wall time in which the device computed."""
        shares = [x.gpu_busy for x in self.launches if x.gpu_busy is not None]
        return median(shares) if shares else None

    @property
    def latency_p50_s(self) -> float | None:
        """Median time of one forward pass at batch 1 [s]."""
        return self._latency(0.50)

    @property
    def latency_p95_s(self) -> float | None:
        """Time that 95 of 100 forward passes at batch 1 stay under [s]."""
        return self._latency(0.95)

    @property
    def latency_p99_s(self) -> float | None:
        """Time that 99 of 100 forward passes at batch 1 stay under [s]; None below 100 passes."""
        return self._latency(0.99)

    def _latency(self, share: float) -> float | None:
        """A quantile over the passes of all launches; None where too few passes lie beyond it."""
        passes = sorted(s for launch in self.launches for s in launch.latency_s if s is not None)
        if len(passes) * (1 - share) < 1 - 1e-9:
            return None
        return passes[ceil(share * len(passes) - 1e-9) - 1]

    @property
    def energy_source(self) -> str | None:
        """Where the energy was read: counter, power_integral, or None."""
        return next((x.energy_source for x in self.launches if x.energy_source), None)

    @property
    def mean_power_w(self) -> float | None:
        """Mean power over the timed regions whose energy is known [W]."""
        known = [(x.energy_j, x.energy_region_s) for x in self.launches if x.energy_j and x.energy_region_s]
        return sum(e for e, _ in known) / sum(s for _, s in known) if known else None

    @property
    def joules_per_sample(self) -> float | None:
        """Energy of the device over the samples of the same time [J]."""
        if self.mean_power_w is None or self.samples_per_s is None:
            return None
        return self.mean_power_w / self.samples_per_s

    @property
    def achieved_flops_per_s(self) -> float | None:
        """Counted floating-point operations per second."""
        if self.flops_per_sample is None or self.samples_per_s is None:
            return None
        return self.flops_per_sample * self.samples_per_s

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilisation: achieved over the peak of the precision, 0 to 1."""
        if self.achieved_flops_per_s is None or not self.peak_flops_per_s:
            return None
        return self.achieved_flops_per_s / (self.peak_flops_per_s * self.case.gpu_count)

    @property
    def mfu_of_gemm(self) -> float | None:
        """Achieved over this card's own best matrix product at the same precision."""
        if self.achieved_flops_per_s is None or not self.gemm_flops_per_s:
            return None
        return self.achieved_flops_per_s / (self.gemm_flops_per_s * self.case.gpu_count)


def _mean_step_s(launch: Launch) -> float:
    return sum(r.wall_s for r in launch.accepted) / sum(r.steps for r in launch.accepted)


class MicroResult(_Record, frozen=True, kw_only=True):
    """One micro-benchmark: GEMM, device copy, transfer or kernel launch, with its 95 % interval.

    ``value`` is ``work * repeats`` over the median of ``times_s``, or that median over ``repeats``.

    Attributes:
        n: Repetitions that count.
        left_out: Repetitions before them that the drift guard left out.
        work: FLOP or bytes of one call; None where the time itself is the result.
        repeats: Calls in one repetition.
        times_s: Each repetition in turn, those left out included, as far as they are kept [s].
        mean_power_w, sm_clock_min_hz, clock_event_reasons: Telemetry while it was repeated.
    """

    name: str
    precision: str | None
    size: str
    value: float
    low: float | None
    high: float | None
    unit: str
    n: int
    left_out: int = 0
    work: float | None = None
    repeats: int = 1
    times_s: tuple[float, ...] = ()
    mean_power_w: float | None = None
    sm_clock_min_hz: float | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()


class Environment(_Record, frozen=True, kw_only=True):
    """The software and host that a run ran on."""

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


class Settings(_Record, frozen=True, kw_only=True):
    """What a run was told, beside its cases, budget name and seed.

    Attributes:
        time_limit_s: For the whole run; None for no limit [s].
        gpus: GPUs of one data-parallel job.
        micro: Whether micro-benchmarks were run too (``also``), alone (``only``) or not at all (``none``).
        budget: Every number of the budget, by name.
    """

    time_limit_s: float | None = None
    allow_shared: bool = False
    allow_throttled: bool = False
    gpus: int = 1
    micro: str = "none"
    budget: dict[str, float | str | bool] = {}


class StartState(_Record, frozen=True, kw_only=True):
    """The device just before the run, while nothing of the run was on it.

    Attributes:
        idle_power_w: What it drew, where nothing else was using it [W].
        pcie_generation, pcie_width: Of the link at that moment; an idle link may run below its most.
    """

    temperature_c: float | None = None
    idle_power_w: float | None = None
    persistence_mode: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


class Run(_Record, frozen=True, kw_only=True):
    """One file: one device, one environment, and every case measured in one go.

    ``planned`` and ``launch_count`` say what the run set out to measure, so that it can be resumed.
    """

    schema_version: int = SCHEMA_VERSION
    protocol: str = PROTOCOL
    run_id: str
    started_at: str
    finished_at: str | None = None
    budget: str
    seed: int
    planned: tuple[Case, ...] = ()
    launch_count: int | None = None
    settings: Settings | None = None
    device: DeviceProfile
    start: StartState | None = None
    environment: Environment
    micro: tuple[MicroResult, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


# --- what a workload costs ---------------------------------------------------------------------------


class OperatorKind(StrEnum):
    """The kinds of operator that the roofline tells apart."""

    CONV3X3 = "conv3x3"
    CONV = "conv"
    DEPTHWISE = "depthwise"
    MATMUL = "matmul"
    MEMORY = "memory"
    OPTIMIZER = "optimizer"


CONVOLUTIONS = frozenset({OperatorKind.CONV3X3, OperatorKind.CONV, OperatorKind.DEPTHWISE})


class Operator(_Record, frozen=True, kw_only=True):
    """``count`` alike kernels of one step. FLOPs and bytes are of one of them, bytes at 4 per element."""

    kind: OperatorKind
    count: int
    flops_per_sample: float = 0.0
    bytes_per_sample: float = 0.0
    flops_fixed: float = 0.0
    bytes_fixed: float = 0.0


class WorkloadProfile(_Record, frozen=True, kw_only=True):
    """What one step of a workload computes and moves, read on the meta device; no GPU, no weights.

    Attributes:
        forward_flops_per_sample: Forward pass alone [FLOP], 2 per multiply-add.
        train_flops_per_sample: Forward and both backward products [FLOP].
        saved_bytes_per_sample: Activations kept for the backward pass, at fp32 [B].
        batches: Default batches: small, main, large.
        train, infer: Operators of one training step and one forward pass.
        summary: What the model is, in a few words.
        tasks: What can be measured with it; an input pipeline is only ever run forward.
    """

    name: str
    version: int
    summary: str = ""
    sample_unit: str
    sample_shape: tuple[int, ...]
    is_image: bool
    source: str
    optimizer: str
    parameters: int
    trainable_parameters: int
    batches: tuple[int, ...]
    forward_flops_per_sample: float
    train_flops_per_sample: float
    saved_bytes_per_sample: float
    optimizer_bytes_per_parameter: float
    train: tuple[Operator, ...]
    infer: tuple[Operator, ...]
    tasks: tuple[TaskKind, ...] = (TaskKind.TRAIN, TaskKind.INFER)

    def convolves(self, task: TaskKind) -> bool:
        """Whether a step of this task holds convolutions."""
        operators = self.train if task is TaskKind.TRAIN else self.infer
        return any(operator.kind in CONVOLUTIONS for operator in operators)

    @property
    def main_batch(self) -> int:
        """The batch that a headline uses: the second default, or the only one."""
        return self.batches[min(1, len(self.batches) - 1)]


# --- the catalogue ----------------------------------------------------------------------------------


class GpuSpec(_Record, frozen=True, kw_only=True):
    """A row of data/gpus.csv in SI units: dense rates, FP32 accumulation; one die or one device index.

    Attributes:
        ecc: Whether the memory can correct errors; boards with ECC off by default count as True.
        cooling: active (a fan), passive (the server's air), liquid, or module.
        shared_names: Names that other cards bear too: they mean this one only where its memory agrees.
        board_source: Where clocks, lanes, FP64 and the facts of the board are from.
        variants: Keys of the cards that the name can mean, where a price list leaves the form factor open.
            Each figure of such a row is that of its slowest variant.
        not_ranked_because: Set where an accelerator is listed for information only.
    """

    key: str
    name: str
    aliases: tuple[str, ...]
    vendor: str
    line: str | None
    architecture: str | None
    compute_capability: str | None
    release_year: int | None
    sm_count: int | None
    cuda_core_count: int | None
    tensor_core_count: int | None
    memory_bytes: int | None
    memory_type: str | None
    memory_bandwidth_bytes_per_s: float | None
    l2_bytes: int | None
    fp32_flops_per_s: float | None
    fp16_vector_flops_per_s: float | None
    tf32_tensor_flops_per_s: float | None
    fp16_tensor_flops_per_s: float | None
    bf16_tensor_flops_per_s: float | None
    fp8_tensor_flops_per_s: float | None
    int8_ops_per_s: float | None
    tdp_w: float | None
    form_factor: str | None
    pcie_generation: int | None
    nvlink_bytes_per_s: float | None
    launch_price_usd: Decimal | None
    street_price_usd: Decimal | None
    price_source: str | None
    source: str
    doubt: str | None
    as_of: str | None = None
    base_clock_hz: float | None = None
    boost_clock_hz: float | None = None
    pcie_lanes: int | None = None
    fp64_flops_per_s: float | None = None
    ecc: bool | None = None
    cooling: str | None = None
    slot_count: float | None = None
    power_connector: str | None = None
    shared_names: tuple[str, ...] = ()
    board_source: str | None = None
    variants: tuple[str, ...] = ()
    not_ranked_because: str | None = None


class Pricing(StrEnum):
    """How an offer is paid."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


class Offer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing to pay for; the price is of the whole instance, tax excluded, in USD.

    ``kind`` is vm, marketplace, serverless, historic, attach-fee or free. Historic and attach-fee offers
    stay out of a ranking unless asked for, and a free one (price 0) has no throughput per dollar.
    ``price_date`` may be partial (``2026``, ``2026-08``); ``term_years`` is set on reserved prices alone.

    Nothing in an offer can refer back to it, so the collector need not walk over 100,000 of them.
    """

    provider: str
    instance: str
    region: str | None
    gpu_key: str
    gpu_count: int
    vcpus: float | None
    ram_bytes: int | None
    price_usd_per_hour: Decimal
    pricing: Pricing
    kind: str
    price_date: str
    source: str
    note: str | None = None
    term_years: int | None = None
    retrieved_at: str | None = None


# --- prediction and recommendation -------------------------------------------------------------------

Basis = Literal["measured", "reference", "predicted"]
Figure: TypeAlias = tuple[float | None, float | None, float | None]
"""A value with the low and the high end of its interval."""


class Estimate(_Record, frozen=True, kw_only=True):
    """Throughput of one case on one GPU, with the interval and what it rests on.

    ``low`` and ``high`` bound 95 % for a measurement and 90 % for a prediction; None is unknown.
    ``anchored`` says whether a prediction starts from a GPU measurement of the same case. ``host_cpu`` names
    the processor that set the pace of a host-bound measurement.
    """

    case: Case
    gpu_key: str
    samples_per_s: float
    low: float | None
    high: float | None
    basis: Basis
    method: str
    evidence: tuple[str, ...] = ()
    anchored: bool | None = None
    peak_memory_bytes: int | None = None
    fits_memory: bool | None = None
    largest_batch: int | None = None
    compute_share: float | None = None
    bandwidth_share: float | None = None
    host_share: float | None = None
    host_cpu: str | None = None
    findings: tuple[Finding, ...] = ()


class RankedOffer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of a ranking. ``samples_per_s`` is of the whole instance.

    Attributes:
        rank: Shared by the rows of a band; see ``gpubench.recommend.contest.bands``.
        tie: Whether the row cannot be told from the first of its band.
        p_best, p_top3: Probability of being the best offer, or among the best three, over joint draws.
        hours, cost_usd: Of the job, where one was given; ``_low`` and ``_high`` are of the interval.
        pareto: Whether nothing else is as fast, as cheap and as large in memory at once.
        dominated_by: What is, and in which respects it is better.
        score: Throughput of the instance over that of one reference GPU.
        reference_hours_per_usd: Hours of the reference GPU's work that a dollar buys.
        spot_break_even: Share of the work that may be lost before on demand is as cheap.
        latency_s: Of one batch, for inference.
        factors: Memory, cores, ECC ... of the GPU.
        parts: The estimates of single workloads, where several count together.
    """

    rank: int
    offer: Offer
    estimate: Estimate
    samples_per_s: float
    samples_per_s_low: float | None
    samples_per_s_high: float | None
    samples_per_usd: float
    samples_per_usd_low: float | None
    samples_per_usd_high: float | None
    usd_per_million_samples: float
    scaling_efficiency: float
    scaling_basis: str
    hours: float | None = None
    cost_usd: float | None = None
    p_best: float | None = None
    p_top3: float | None = None
    pareto: bool | None = None
    tie: bool = False
    fits_memory: bool | None = None
    price_age_days: int | None = None
    score: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    reference_hours_per_usd: float | None = None
    reference_hours_per_usd_low: float | None = None
    reference_hours_per_usd_high: float | None = None
    hours_low: float | None = None
    hours_high: float | None = None
    cost_usd_low: float | None = None
    cost_usd_high: float | None = None
    dominated_by: str | None = None
    spot_break_even: float | None = None
    latency_s: float | None = None
    factors: dict[str, Any] = {}
    parts: tuple[Estimate, ...] = ()
    findings: tuple[Finding, ...] = ()

    def flat(self) -> dict[str, Any]:
        """Return the row as one flat record: the keys of ``gpubench rank --json``."""
        row = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _NOT_FLAT}
        offer = {name: getattr(self.offer, name) for name in _OFFER_COLUMNS}
        offer["price_usd_per_hour"] = float(self.offer.price_usd_per_hour)
        estimate = {name: getattr(self.estimate, name) for name in _ESTIMATE_COLUMNS}
        case = {"batch_size": self.estimate.case.batch_size, "precision": self.estimate.case.precision}
        findings = [str(finding.kind) for finding in self.findings]
        return {"rank": self.rank} | offer | estimate | case | row | self.factors | {"findings": findings}


_NOT_FLAT = frozenset({"offer", "estimate", "parts", "factors", "findings"})
_ESTIMATE_COLUMNS = ("basis", "anchored", "method", "host_cpu", "peak_memory_bytes", "largest_batch")
_OFFER_COLUMNS = (
    "provider", "instance", "region", "gpu_key", "gpu_count", "vcpus", "ram_bytes",
    "pricing", "kind", "price_usd_per_hour", "price_date",
)  # fmt: skip


class BuyOrRent(_Record, frozen=True, kw_only=True):
    """Owning one machine against the best rented offer at equal throughput.

    A break-even of None is never; ``_low`` is the end that favours owning, ``_high`` the other, over the
    ranges of resale, utilisation and tariff and the interval of the throughput ratio.

    Attributes:
        usd_per_hour: Cost of a useful hour of the owned machine.
        equivalent_usd_per_hour: What the rival costs for the same work in that hour.
        break_even_hours: Useful hours after which owning is the cheaper.
        break_even_utilisation: Those hours as a share of its life.
        verdict: buy, rent, or depends.
        quoted: Whether the price is the buyer's own; else a dated street price.
    """

    gpu_key: str
    gpu_count: int
    instance: str
    purchase_usd: float
    power_w: float
    power_basis: str
    usd_per_hour: float
    usd_per_hour_low: float
    usd_per_hour_high: float
    against: str
    against_pricing: Pricing
    equivalent_usd_per_hour: float
    break_even_hours: float | None
    break_even_hours_low: float | None
    break_even_hours_high: float | None
    break_even_utilisation: float | None
    break_even_utilisation_low: float | None
    break_even_utilisation_high: float | None
    verdict: Literal["buy", "rent", "depends"]
    quoted: bool = False
    assumed: tuple[str, ...] = ()


class ExcludedOffer(_Record, frozen=True, kw_only=True):
    """An offer that is not ranked, and why."""

    provider: str
    instance: str
    gpu_key: str
    reason: str


class Ranking(_Record, frozen=True, kw_only=True):
    """Offers by training per dollar, with what was left out and the sentences that sum it up.

    Attributes:
        unit: What a sample is, in the plural; of several workloads it is just "samples".
        by_reference: Whether figures are for people as multiples of the reference GPU, because samples of
            several workloads together mean nothing; ``throughput_of`` and ``value_of`` give them.
        throughput_unit, value_unit: Units of what those two return.
        verdict: The answer, how sure it is, the fastest and the cheapest; the first sentence stands alone.
    """

    schema_version: int = SCHEMA_VERSION
    as_of: str
    objective: str
    cases: tuple[Case, ...]
    unit: str
    by_reference: bool = False
    throughput_unit: str = "samples/s"
    value_unit: str = "samples per dollar"
    reference_gpu_key: str | None
    rows: tuple[RankedOffer, ...]
    excluded: tuple[ExcludedOffer, ...]
    verdict: str
    buy_or_rent: tuple[BuyOrRent, ...] = ()
    notes: tuple[str, ...] = ()

    def throughput_of(self, row: RankedOffer) -> Figure:
        """Return a row's throughput and its interval, in ``throughput_unit``."""
        if self.by_reference:
            return row.score, row.score_low, row.score_high
        return row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high

    def value_of(self, row: RankedOffer) -> Figure:
        """Return what a dollar buys of a row and its interval, in ``value_unit``."""
        if self.by_reference:
            return (
                row.reference_hours_per_usd,
                row.reference_hours_per_usd_low,
                row.reference_hours_per_usd_high,
            )
        return row.samples_per_usd, row.samples_per_usd_low, row.samples_per_usd_high

    def to_frame(self) -> DataFrame:
        """Return the ranked rows as a pandas frame, one row an offer, columns as in ``rank --json``."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows])
