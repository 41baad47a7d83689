"""One measured case: raw rounds, telemetry, and the figures derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from math import ceil, hypot
from statistics import fmean, linear_regression, median
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from gpubench import heat
from gpubench.findings import Finding, FindingKind
from gpubench.interval import MOST_DIGITS, Interval
from gpubench.models.case import AtLeastOne, Case, Positive
from gpubench.models.record import Record
from gpubench.precisions import Precision
from gpubench.spread import (
    CARD,
    HOST,
    UNKNOWN_PROCESS,
    USUAL_PROCESS,
    USUAL_PROCESS_HOST_BOUND,
    Component,
)
from gpubench.stats import Prior, between_launches_half_width, relative_half_width
from gpubench.units import count


class Status(StrEnum):
    """How a case ended. Only ``ok`` is ever ranked."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    FAILED = "failed"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


# Cases that may succeed with more time or without an interruption; a resumed run repeats them.
UNFINISHED = frozenset({Status.TIMEOUT, Status.INTERRUPTED})


class Cause(StrEnum):
    """Why a case ended, if a rule needs more than its status; ``reason`` gives the message.

    ``REFUSED_IN_CAPTURE``: CUDA refused a call while a graph was captured. Other failures of a capture have
    no cause.
    ``SILENCE``: the process was killed because it sent nothing, not because it ran out of time.
    """

    REFUSED_IN_CAPTURE = "refused in a capture"
    SILENCE = "silence"


class Switches(Record, frozen=True, kw_only=True):
    """The five fp32 switches as read back from torch; None if that version lacks the switch."""

    cudnn_allow_tf32: bool
    matmul_allow_tf32: bool
    conv_fp32_precision: str | None
    rnn_fp32_precision: str | None
    matmul_fp32_precision: str | None

    @classmethod
    def wanted(cls, precision: Precision) -> Switches:
        """Return the switches that a precision needs, on a torch that has all five."""
        on = precision.facts.tf32
        mode = "tf32" if on else "ieee"
        return cls(
            cudnn_allow_tf32=on,
            matmul_allow_tf32=on,
            conv_fp32_precision=mode,
            rnn_fp32_precision=mode,
            matmul_fp32_precision=mode,
        )

    def unexpected(self, precision: Precision) -> str | None:
        """Return the first switch with a wrong value for this precision, and that value."""
        wanted, own = structs.asdict(Switches.wanted(precision)), structs.asdict(self)
        wrong = (name for name, value in own.items() if value not in {None, wanted[name]})
        return next((f"{name}={own[name]}" for name in wrong), None)


class Reading(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One telemetry sample. Files omit unknown fields, because there are thousands of samples.

    Idle has its own field, because it is not a reason for throttling.
    """

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    memory_used_bytes: int | None = None
    clock_event_reasons: tuple[str, ...] | None = None
    idle: bool | None = None


class TelemetrySample(Reading, frozen=True, kw_only=True, omit_defaults=True):
    """A reading with its time relative to the first timed round, negative during warm-up [s]."""

    t_s: float


class Round(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A timed block of ``steps`` steps, synchronized at both ends. ``loss`` is read at its end.

    Attributes:
        left_out: Why the round does not count; None if it counts.
        call_s: For a framework timed by the difference between two calls, the time of the one-step call,
            which is already subtracted [s].
        mark: Why the round is suspicious, whether or not it counts: ``clock_gap``.
    """

    steps: AtLeastOne
    wall_s: Positive
    loss: float | None = None
    left_out: str | None = None
    mark: str | None = None
    call_s: float | None = None

    @property
    def step_s(self) -> float:
        """Mean seconds per step."""
        return self.wall_s / self.steps


class Launch(Record, frozen=True, kw_only=True):
    """The measurement of one case in one fresh process.

    A value that was not finite is null in the file, so numbers may be None.

    Attributes:
        sequence: Position among all launches of the run by start time, from 0.
        began_at: Start time, UTC.
        switches: As read back before the work, or after the timed rounds if they changed.
        precision_errors: Relative error of a matmul and a convolution against float64 with the switches set;
            for fp32 rows of a recurrent model, also of an LSTM layer. Each is the larger of the values before
            the work and after the timed rounds. The operators run under autocast if the precision uses it;
            the error of one that did not compute in the precision's type is null.
        control_errors: For fp32 rows on a device with TF32, errors of the same operators on the same inputs
            under TF32. Unless these are larger, ``precision_errors`` prove nothing.
        event_s: Device time between step boundaries of one extra round [s].
        host_issue_s: For each of three steps on an idle device, the host's time to issue the step, then the
            time until the device finished it [s].
        fused: Whether the optimizer is fused; None if there is none.
        skipped_steps: Steps that the gradient scaler skipped after warm-up, of ``timed_steps``.
        reference_error: Relative error of the first loss against the same weights on the CPU, in float32
            unless the weights have another type, without dropout.
        output_error: Relative error of inference outputs of at most four samples against float32 on the CPU,
            ``|x - y| / |y|``; None if the weights have fewer bits than float32.
        graph_error: Relative error of the loss after a replay or a compiled step, against the eager step from
            the same state.
        telemetry: Ten samples per second during the timed rounds, one per second in warm-up (``t_s`` below
            0).
        energy_edges_j: The device's energy counter at the start of the first timed round and at the end of
            the last [J]; only the difference is meaningful.
        held_clocks_s: How long each policy (power, thermal, ...) lowered the clocks during the timed rounds,
            from the driver's counters [s]; empty if there are none.
        host_load: Share of the host's CPU time used by other processes during the timed rounds, 0 to 1.
        host_steal: Share of the host's CPU time taken by other virtual machines, if the host is one itself.
        memory_errors: Uncorrectable memory errors that appeared during the measurement.
        batch_count: Number of prebuilt batches that the steps cycle through.
        loss_curve: Loss of each of the first steps from the seed.
        told_in_s: Time on the parent process's clock between its receiving the first and the last timed
            round, excluding the pauses between rounds [s].
        cold_s: One-time costs outside the steps [s]: ``import`` and ``context`` of a process, in its first
            launch; ``build``, ``first_step`` and ``capture`` or ``compile`` of the case.
        latency_s: Times of forward passes at batch 1, each from an idle device to an idle device [s].
        first_token_s: For each generation, the time from the prompts' submission to their first ids on the
            host [s].
        per_token_s: For each generation, (last - first token) / (n - 1) [s].
        token_gap_s: Times between two tokens, with each id copied to the host [s].
        stopped: Whether the launch ended early because the run was stopped or its process died; a resumed run
            measures it again.
        findings: Findings that only this process could make (not steady, drifting, telemetry hung).
    """

    index: int
    sequence: int | None = None
    began_at: str | None = None
    switches: Switches | None = None
    precision_errors: dict[str, float | None] = {}
    control_errors: dict[str, float | None] = {}
    warmup: tuple[Round, ...] = ()
    rounds: tuple[Round, ...] = ()
    event_s: tuple[float | None, ...] = ()
    host_issue_s: tuple[float | None, ...] = ()
    fused: bool | None = None
    telemetry: tuple[TelemetrySample, ...] = ()
    telemetry_source: str | None = None
    energy_j: Positive | None = None
    energy_source: str | None = None
    energy_edges_j: tuple[float | None, ...] = ()
    energy_region_s: float | None = None
    held_clocks_s: dict[str, float | None] = {}
    peak_memory_bytes: Annotated[int, Meta(ge=0)] | None = None
    peak_reserved_bytes: int | None = None
    gpu_busy: float | None = None
    skipped_steps: int | None = None
    timed_steps: int | None = None
    reference_error: float | None = None
    output_error: float | None = None
    graph_error: float | None = None
    parameters_moved: bool | None = None
    memory_errors: int | None = None
    batch_count: int | None = None
    loss_curve: tuple[float | None, ...] = ()
    latency_s: tuple[float | None, ...] = ()
    first_token_s: tuple[float | None, ...] = ()
    per_token_s: tuple[float | None, ...] = ()
    token_gap_s: tuple[float | None, ...] = ()
    told_in_s: float | None = None
    host_load: float | None = None
    host_steal: float | None = None
    cold_s: dict[str, float | None] = {}
    stopped: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def accepted(self) -> tuple[Round, ...]:
        """The rounds that count: all except those left out by the drift guard."""
        return tuple(r for r in self.rounds if r.left_out is None)

    @property
    def step_times_s(self) -> list[float]:
        """Seconds per step of each round that counts."""
        return [round_.step_s for round_ in self.accepted]

    @property
    def timed_telemetry(self) -> tuple[TelemetrySample, ...]:
        """The samples from the first timed round on. Figures and findings are based on them."""
        return tuple(sample for sample in self.telemetry if sample.t_s >= 0)

    def moment(self, step_s: float) -> heat.Moment:
        """Return clock, temperature and mean seconds per step of the timed rounds."""
        read = [(x.t_s, x.temperature_c) for x in self.timed_telemetry if x.temperature_c is not None]
        is_long = len(read) > 2 and read[-1][0] - read[0][0] >= LONG_LOOK_S
        return heat.Moment(
            step_s=step_s,
            at_s=datetime.fromisoformat(self.began_at).timestamp() if self.began_at else None,
            clock_hz=_mean([x.sm_clock_hz for x in self.timed_telemetry]),
            temperature_c=_mean([degrees for _, degrees in read]),
            slope_c_per_s=linear_regression(*zip(*read, strict=True)).slope if is_long else None,
        )


# The basis of a throughput: the user's own run, a run shipped with the package, or a prediction.
Basis = Literal["measured", "reference", "predicted"]

# How a batch was chosen: equal for all devices, or the largest that fits on this one.
BatchChoice = Literal["fixed", "largest"]


# Factor by which the mean power may exceed the power limit: the energy counter updates only every 0.1 s.
POWER_TOLERANCE = 1.2
# Rounds that take less time in all may miss events that recur every few seconds, and are too short for a
# temperature trend [s].
LONG_LOOK_S = 8.0
# With at least this many launches, the interval comes from the spread between them alone.
ENOUGH_LAUNCHES = 5
# Factor by which Winograd's 2 x 2 form reduces multiplications; fp32 rows with undeclared TF32 exceed it.
FP32_CONVOLUTION = 2.25
# Digits of a throughput from one process; further digits would differ in another process.
DIGITS_OF_ONE_LAUNCH = 3

# Above this relative half-width of the step time, the throughput has no upper end.
MOST_HALF_WIDTH = 0.5
# With fewer token gaps, a 99th percentile would depend on fewer than ten of them.
LEAST_GAPS = 1000


class Measurement(Record, frozen=True, kw_only=True):
    """One measured case: raw rounds of every launch, and the figures derived from them.

    Attributes:
        cause: Why the case ended, if a rule depends on that; otherwise, and in older files, None.
        batch_choice: How the batch was chosen; it is not part of the case. None if unknown.
        flops_per_sample: The model's own arithmetic, which MFU counts [FLOP]; for a generation, that of the
            prompt, and MFU is None.
        hardware_flops_per_sample: The same plus recomputation (checkpointed blocks, scores of a token
            chunk), which HFU counts [FLOP]. None if unknown.
        tokens_per_sample: None if the input is not tokens, if it was not recorded, and for a generation,
            which has prompt tokens and new tokens.
        convolves: Whether the work includes convolutions; fast algorithms exceed the arithmetic peak.
        target: Relative half-width of the 95 % interval that the run aimed for.
    """

    case: Case
    status: Status
    reason: str | None = None
    cause: Cause | None = None
    batch_choice: BatchChoice | None = None
    launches: tuple[Launch, ...] = ()
    flops_per_sample: Positive | None = None
    hardware_flops_per_sample: Positive | None = None
    tokens_per_sample: AtLeastOne | None = None
    parameter_count: int | None = None
    loss_trace: tuple[float | None, ...] = ()
    peak_flops_per_s: Positive | None = None
    gemm_flops_per_s: Positive | None = None
    cpu_threads: int | None = None
    convolves: bool | None = None
    target: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def at_largest_batch(self) -> bool:
        """Whether the batch is the largest that fits; the row is then never ranked against equal batches."""
        return self.batch_choice == "largest"

    @property
    def label(self) -> str:
        """The case in words, with a note if its batch is the largest that fits."""
        return f"{self.case.label}, the largest that fits" if self.at_largest_batch else self.case.label

    @cached_property
    def launch_step_times_s(self) -> list[float]:
        """Seconds per step of each launch with rounds that count: wall time over steps."""
        rounds = [launch.accepted for launch in self._counted]
        return [sum(r.wall_s for r in each) / sum(r.steps for r in each) for each in rounds]

    @property
    def _counted(self) -> list[Launch]:
        return [launch for launch in self.launches if launch.accepted]

    @cached_property
    def step_time_s(self) -> float | None:
        """Seconds per step: the mean over launches of wall time over steps."""
        return fmean(self.launch_step_times_s) if self.launch_step_times_s else None

    @cached_property
    def samples_per_s(self) -> float | None:
        """Throughput of the case: the combined batch of all GPUs over ``step_time_s``."""
        if self.step_time_s is None:
            return None
        return self.case.batch_size * self.case.gpu_count / self.step_time_s

    @property
    def relative_half_width(self) -> float | None:
        """Half-width of the 95 % interval relative to the estimate.

        With at least ``ENOUGH_LAUNCHES`` launches, it comes from the spread between them, which includes the
        variation within each. With fewer, it is the larger of that spread and the median width within a
        launch. With one launch, it combines the width within that launch and the usual difference between
        processes on a GPU.
        """
        if not self.within_launches:
            return None
        if self.within_one_process:
            return hypot(self.within_launches[0], self._usual_process.half_width or 0.0)
        if len(self.launch_step_times_s) >= ENOUGH_LAUNCHES:
            return self.between_launches
        return max(median(self.within_launches), self.between_launches or 0.0)

    @cached_property
    def within_launches(self) -> list[float]:
        """Relative half-width of the 95 % interval within each launch that has at least two rounds."""
        widths = (relative_half_width(times) for x in self.launches if (times := x.step_times_s))
        return [width for width in widths if width is not None]

    @property
    def between_launches(self) -> float | None:
        """Relative half-width of the 95 % interval from the means of the launches; None for one launch."""
        return between_launches_half_width(self.launch_step_times_s, self.prior)

    @property
    def prior(self) -> Prior | None:
        """The variation between launches, estimated from all cases of the run; None outside of a run.

        The run sets it and other values derived from all its rows: see ``with_run_estimates``.
        """
        prior: Prior | None = self.__dict__.get("prior_of_run")
        return prior

    @property
    def within_one_process(self) -> bool:
        """Whether there is only one launch, so the difference between processes was not measured."""
        return len(self.launch_step_times_s) == 1

    @property
    def is_host_bound(self) -> bool:
        """Whether the measured speed depends on the CPU as much as on the GPU."""
        return any(finding.kind is FindingKind.HOST_BOUND for finding in self.findings)

    @property
    def _usual_process(self) -> Component:
        # The usual difference between processes, if only one was measured.
        if not self.__dict__.get("on_gpu"):
            return UNKNOWN_PROCESS
        return USUAL_PROCESS_HOST_BOUND if self.is_host_bound else USUAL_PROCESS

    @property
    def ledger(self) -> tuple[Component, ...]:
        """The components of the figure's uncertainty; empty for a row without a figure.

        The first three describe this card and make up ``relative_half_width`` and ``samples_per_s_low``. The
        last two apply to another card of the same model.
        """
        if not self.within_launches:
            return ()
        launches, cases = len(self.launch_step_times_s), self.__dict__.get("cases_of_prior", 0)
        moderated = f", moderated by those of {cases} cases (Smyth 2004)" if self.prior is not None else ""
        source = f"Student's t over {count(launches, 'launch')}{moderated}"
        process = Component(name="process", half_width=self.between_launches, n=launches, source=source)
        rounds = sum(len(launch.accepted) for launch in self.launches)
        return (
            Component(
                name="within process",
                half_width=median(self.within_launches),
                n=rounds,
                source="rounds, correlation included",
            ),
            self._usual_process if self.within_one_process else process,
            Component(
                name="heat",
                half_width=self.slowing_to_come,
                n=launches,
                source="clock and temperature from launch to launch",
            ),
            HOST,
            CARD,
        )

    @property
    def loss_error(self) -> float | None:
        """Largest relative error of the first loss of any launch against the CPU."""
        return max(self._known("reference_error"), default=None)

    @property
    def slowing_to_come(self) -> float | None:
        """Relative increase in step time still to come as the card heats up; None if unknown.

        It is estimated from each launch's time, mean clock and temperature, and from the run's slowdown.
        """
        return heat.slowing_to_come(self.moments, **self.__dict__.get("slowing", {}))

    @cached_property
    def moments(self) -> list[heat.Moment]:
        """Temperature, clock and step time of each launch."""
        pairs = zip(self._counted, self.launch_step_times_s, strict=True)
        return [launch.moment(step_s) for launch, step_s in pairs]

    @property
    def samples_per_s_low(self) -> float | None:
        """Lower end of the 95 % interval of the throughput, including slowdown yet to come from heat."""
        if self.samples_per_s is None or self.relative_half_width is None:
            return None
        return self.samples_per_s / (1 + self.relative_half_width + (self.slowing_to_come or 0.0))

    @property
    def samples_per_s_high(self) -> float | None:
        """Upper end of the 95 % interval of the throughput; None if the step time is too uncertain.

        At ``MOST_HALF_WIDTH`` it is twice the estimate, and it grows without limit as the half-width nears 1.
        """
        width = self.relative_half_width
        if self.samples_per_s is None or width is None or width > MOST_HALF_WIDTH:
            return None
        return self.samples_per_s / (1 - width)

    @property
    def interval(self) -> Interval:
        """The throughput with its 95 % interval [samples/s]."""
        return Interval(self.samples_per_s, self.samples_per_s_low, self.samples_per_s_high)

    @property
    def digits(self) -> int:
        """Maximum digits of the throughput to print: few for one launch, because another would differ."""
        return DIGITS_OF_ONE_LAUNCH if len(self.launch_step_times_s) < 2 else MOST_DIGITS

    @property
    def output_error(self) -> float | None:
        """Largest relative error of inference outputs of any launch against float32 on the CPU."""
        return max(self._known("output_error"), default=None)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Largest peak of tensor memory in any launch."""
        return max(self._known("peak_memory_bytes"), default=None)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Most memory that torch's allocator held in any launch, including that of tensors."""
        return max(self._known("peak_reserved_bytes"), default=None)

    @property
    def device_bytes(self) -> int | None:
        """Most device memory in use in the timed rounds of any launch, from the driver."""
        samples = (sample for launch in self.launches for sample in launch.timed_telemetry)
        return max((s.memory_used_bytes for s in samples if s.memory_used_bytes is not None), default=None)

    @property
    def gpu_busy(self) -> float | None:
        """Median share of wall time during which the device was computing."""
        return _median(self._known("gpu_busy"))

    @property
    def latency_p50_s(self) -> float | None:
        """Median time of one forward pass at batch 1 [s]."""
        return self._latency(0.50)

    @property
    def latency_p95_s(self) -> float | None:
        """95th percentile of the time of a forward pass at batch 1 [s]."""
        return self._latency(0.95)

    @property
    def latency_p99_s(self) -> float | None:
        """99th percentile of the time of a forward pass at batch 1 [s]; None below 100 passes."""
        return self._latency(0.99)

    def _latency(self, share: float) -> float | None:
        # None if not even one pass is beyond the quantile.
        return self._quantile("latency_s", share, least=(1 - 1e-9) / (1 - share))

    def _quantile(self, field: str, share: float, *, least: float) -> float | None:
        # The nearest-rank quantile of a list field over all launches; None with fewer values than ``least``.
        values = sorted(self._times(field))
        return values[ceil(share * len(values) - 1e-9) - 1] if len(values) >= least else None

    @property
    def energy_source(self) -> str | None:
        """How the energy was read: ``counter``, ``power_integral``, or None."""
        return next((x.energy_source for x in self.launches if x.energy_source), None)

    @property
    def mean_power_w(self) -> float | None:
        """Mean power over the timed regions with known energy [W]."""
        known = [(x.energy_j, x.energy_region_s) for x in self.launches if x.energy_j and x.energy_region_s]
        return sum(e for e, _ in known) / sum(s for _, s in known) if known else None

    @property
    def joules_per_sample(self) -> float | None:
        """Device energy per sample at the mean power [J]."""
        if self.mean_power_w is None or self.samples_per_s is None:
            return None
        return self.mean_power_w / self.samples_per_s

    @cached_property
    def first_token_s(self) -> float | None:
        """Median time from the prompts' submission to their first ids on the host [s]."""
        return _median(self._times("first_token_s"))

    @cached_property
    def per_token_s(self) -> float | None:
        """Median time per token after the first over a complete generation [s]."""
        return _median(self._times("per_token_s"))

    def token_latency_s(self, share: float) -> float | None:
        """Return a quantile of the time between two tokens [s]; None with fewer than ``LEAST_GAPS`` gaps.

        Args:
            share: 0.5 for the median, 0.99 for the 99th percentile.
        """
        return self._quantile("token_gap_s", share, least=LEAST_GAPS)

    @property
    def decoded_tokens_per_s(self) -> float | None:
        """Tokens generated per second after the first token, over all sequences of the batch."""
        return None if not self.per_token_s else self.case.batch_size / self.per_token_s

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens per second until the first id is on the host."""
        if not self.first_token_s:
            return None
        return self.case.batch_size * self.case.prompt_tokens / self.first_token_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second; None if the input is not tokens, and for a generation."""
        if self.tokens_per_sample is None or self.samples_per_s is None:
            return None
        return self.tokens_per_sample * self.samples_per_s

    def _known(self, field: str) -> list[Any]:
        # The values of a field, from every launch that has it.
        return [value for launch in self.launches if (value := getattr(launch, field)) is not None]

    def _times(self, field: str) -> list[float]:
        # The numbers of a list field, from all launches.
        return [value for values in self._known(field) for value in values if value is not None]

    @property
    def achieved_flops_per_s(self) -> float | None:
        """Counted floating-point operations per second.

        None for a generation: only its prompt is counted, and new tokens are memory-bound.
        """
        if self.flops_per_sample is None or self.samples_per_s is None or self.case.new_tokens:
            return None
        return self.flops_per_sample * self.samples_per_s

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilization: achieved over the peak of the precision, 0 to 1."""
        if self.achieved_flops_per_s is None or not self.peak_flops_per_s:
            return None
        return self.achieved_flops_per_s / (self.peak_flops_per_s * self.case.gpu_count)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOP utilization: MFU including recomputation; None if that is unknown."""
        if self.mfu is None or not self.flops_per_sample or self.hardware_flops_per_sample is None:
            return None
        return self.mfu * self.hardware_flops_per_sample / self.flops_per_sample

    @property
    def most_utilization(self) -> float:
        """Highest possible ratio of the achieved rate to the peak; above 1 if fast convolutions may run."""
        fast = self.case.precision is Precision.FP32 and self.convolves is not False
        return FP32_CONVOLUTION if fast else 1.0

    @property
    def share_of_gemm(self) -> float | None:
        """Achieved rate over the rate of the run's best matrix product, even if that ratio is impossible."""
        if self.achieved_flops_per_s is None or not self.gemm_flops_per_s:
            return None
        return self.achieved_flops_per_s / (self.gemm_flops_per_s * self.case.gpu_count)

    @property
    def mfu_of_gemm(self) -> float | None:
        """``share_of_gemm``, or None if that ratio is impossible."""
        share = self.share_of_gemm
        return share if share is None or share <= self.most_utilization else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
