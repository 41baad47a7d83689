"""One measured case: raw rounds, telemetry, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from enum import StrEnum
from functools import cached_property
from math import ceil, hypot, sqrt
from statistics import fmean, linear_regression, median
from typing import Annotated, Any, Literal

from msgspec import Meta

from gpubench import heat
from gpubench.findings import Finding, FindingKind
from gpubench.interval import MOST_DIGITS, Interval
from gpubench.models.case import AtLeastOne, Case, Positive
from gpubench.models.record import Record
from gpubench.precisions import Precision
from gpubench.spread import CARD, HOST, PARTS, USUAL_PROCESS, USUAL_PROCESS_HOST_BOUND, Component
from gpubench.stats import (
    Z95,
    Prior,
    between_launches_half_width,
    prior_of,
    relative_half_width,
    variance_of,
)
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


UNFINISHED = frozenset({Status.TIMEOUT, Status.INTERRUPTED})
"""With more time, or without the interruption, these cases may succeed: a resumed run repeats them."""


class Cause(StrEnum):
    """The cause of a case's end, if a rule needs more than its status; ``reason`` has it in words.

    ``REFUSED_IN_CAPTURE`` is CUDA's own refusal of a call inside a capture, not a later error.
    ``SILENCE`` marks a process that was killed because it sent nothing, not one that ran out of time.
    """

    REFUSED_IN_CAPTURE = "refused in a capture"
    SILENCE = "silence"


class Switches(Record, frozen=True, kw_only=True):
    """The five fp32 switches of torch, read back; None if this torch lacks the switch."""

    cudnn_allow_tf32: bool
    matmul_allow_tf32: bool
    conv_fp32_precision: str | None
    rnn_fp32_precision: str | None
    matmul_fp32_precision: str | None

    @classmethod
    def wanted(cls, precision: Precision) -> Switches:
        """Return the switches as a precision needs them, on a torch that has all five."""
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
        """Name the first switch that differs from what this precision needs, and its value."""
        wanted = Switches.wanted(precision)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value != getattr(wanted, name):
                return f"{name}={value}"
        return None


class Reading(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of a working device; unknown fields are left out of the file, because there are thousands.

    Idle has its own field: it is not a reason for a lower clock.
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
    """A reading with its time since the first timed round, negative in warm-up [s]."""

    t_s: float


class Round(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A timed block of ``steps`` steps with one synchronize at each edge. ``loss`` is read at its end.

    Attributes:
        left_out: Why it does not count; None if it counts.
        call_s: Of a framework that is timed by the slope over two calls: the shorter call, of one step, which
            was taken off the longer one [s].
        mark: What is suspicious about it, whether or not it counts: ``clock_gap``.
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
        sequence: Place among all launches of the run in the order in which they began, from 0.
        began_at: When it began, UTC.
        switches: As read back before the work; as read after the timed rounds, where they differ by then.
        precision_errors: Relative error of a matmul and a convolution against float64, switches in force, and
            of an LSTM layer in rows of fp32 whose model has a recurrent one: the worse of before the work and
            after the timed rounds. Under autocast where the precision has it; null if an operator
            was not computed in its type.
        control_errors: In rows of fp32 on a device that has TF32, what the same operators on the same inputs
            err under TF32: where that does not show, the errors above prove nothing.
        event_s: Device time between step edges of one extra round [s].
        host_issue_s: Time the host took to issue each of three steps from a drained device [s].
        fused: Whether the optimizer is fused; None if there is none.
        skipped_steps: Steps that the gradient scaler skipped after warm-up, of ``timed_steps``.
        reference_error: First loss against the same weights on the CPU, in float32 unless they are of another
            type, relative, dropout off.
        output_error: Of inference, the outputs of at most four samples against float32 on the CPU,
            ``|x - y| / |y|``; None if weights are of fewer bits.
        graph_error: Loss after a replay, or a compiled step, against the eager step from the same
            state, relative.
        telemetry: Ten samples a second of the timed rounds, one a second of the warm-up (``t_s`` below 0).
        energy_edges_j: The device's energy counter at the first timed round's start and the last one's end
            [J]; only the difference means anything.
        held_clocks_s: For how long each policy (power, thermal, ...) held the clocks down while rounds were
            timed, by the driver's own counters [s]; empty if there are none.
        host_load: CPU time that others took of the host's threads while rounds were timed, 0 to 1.
        host_steal: The same of other guests of the machine that this one is a guest of.
        memory_errors: Uncorrectable memory errors that appeared while this was measured.
        batch_count: Prebuilt batches that the steps rotate.
        loss_curve: Loss of each of the first steps from the seed.
        told_in_s: From the arrival of the first timed round at the parent to that of the last, on the
            parent's clock [s].
        cold_s: Costs paid once, apart from the steps [s]: ``import`` and ``context`` of a process, on the
            first launch in it; ``build``, ``first_step`` and ``capture`` or ``compile`` of the case.
        latency_s: Forward passes at batch 1, each from a drained device to a drained device [s].
        first_token_s: Of each generation, from its prompts' submission to their first ids on the host [s].
        per_token_s: Of each generation, (last - first token) / (n - 1) [s].
        token_gap_s: Between two tokens, each id copied to the host [s].
        stopped: Whether it was cut off, by a stop of the run or the death of its process; measured again
            where the run goes on.
        findings: What only this process could see (not steady, drifting, telemetry hung).
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
        """The rounds that count: all except those that the drift guard left out."""
        return tuple(r for r in self.rounds if r.left_out is None)

    @property
    def step_times_s(self) -> list[float]:
        """Mean seconds per step of every round that counts."""
        return [round_.step_s for round_ in self.accepted]

    @property
    def timed_telemetry(self) -> tuple[TelemetrySample, ...]:
        """The samples from the first timed round on, which the figures and findings rest on."""
        return tuple(sample for sample in self.telemetry if sample.t_s >= 0)

    def moment(self, step_s: float) -> heat.Moment:
        """Return clock and temperature of the timed rounds, and their mean seconds per step, ``step_s``."""
        read = [(x.t_s, x.temperature_c) for x in self.timed_telemetry if x.temperature_c is not None]
        tells = len(read) > 2 and read[-1][0] - read[0][0] >= LONG_LOOK_S
        return heat.Moment(
            step_s=step_s,
            clock_hz=_mean([x.sm_clock_hz for x in self.timed_telemetry]),
            temperature_c=_mean([degrees for _, degrees in read]),
            slope_c_per_s=linear_regression(*zip(*read, strict=True)).slope if tells else None,
        )


Basis = Literal["measured", "reference", "predicted"]
"""What a throughput rests on: this user's run, one that the package ships, or a prediction."""

BatchChoice = Literal["fixed", "largest"]
"""How a batch came about: equal for all devices, or the largest that fits on this one."""


LONG_LOOK_S = 8.0
"""Shorter timed parts miss events every few seconds, and give no slope of the temperature."""
ENOUGH_LAUNCHES = 5
"""The spread of this many launches holds what varies within them."""
FP32_CONVOLUTION = 2.25
"""Winograd's 2 x 2 form multiplies this much less than the count assumes; TF32 posing as fp32 passes it."""
DIGITS_OF_ONE_LAUNCH = 3
"""Digits of a throughput from one process: further digits would differ in another process."""

MOST_HALF_WIDTH = 0.5
"""Relative half-width of a step time up to which the throughput has an upper end."""
LEAST_GAPS = 1000
"""A 99th percentile of fewer times between tokens rests on less than ten of them."""


class Measurement(Record, frozen=True, kw_only=True):
    """One measured case: raw rounds of every launch, and the figures that follow from them.

    Attributes:
        cause: None if no rule depends on it, and in older files.
        batch_choice: How the batch was found; the case does not depend on it. None is unknown.
        flops_per_sample: The model's own arithmetic, which MFU counts [FLOP]; for a generation that of the
            prompt, and MFU is None.
        hardware_flops_per_sample: With what the step computes again: checkpointed blocks, scores of a chunk
            of tokens [FLOP]. HFU counts it. None is unknown.
        tokens_per_sample: None if the input is not tokens, of a generation, whose prompt and new tokens
            are distinguished, and where it was not recorded.
        convolves: Whether the work holds convolutions, by its profile; fast ones pass the arithmetic peak.
        target: Half-width of the 95 % interval that the run set out for, over the estimate.
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
        """Whether the batch is the largest that fits; such a row is never ranked against equal batches."""
        return self.batch_choice == "largest"

    @property
    def label(self) -> str:
        """The case in words, with the origin of its batch if that matters."""
        return f"{self.case.label}, the largest that fits" if self.at_largest_batch else self.case.label

    @cached_property
    def launch_step_times_s(self) -> list[float]:
        """Seconds per step of each launch with a round that counts: wall time over steps."""
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
        """Throughput of the case; times ``step_time_s`` it is the batch."""
        if self.step_time_s is None:
            return None
        return self.case.batch_size * self.case.gpu_count / self.step_time_s

    @property
    def relative_half_width(self) -> float | None:
        """Half-width of the 95 % interval over the estimate.

        Between launches, where there are ``ENOUGH_LAUNCHES``: what varies within them is in their means. Of
        fewer the wider of it and the median width within a launch. Of one launch that within it, with what
        processes of a GPU usually differ by.
        """
        if not self.within_launches:
            return None
        if self.within_one_process:
            return hypot(self.within_launches[0], Z95 * sqrt(self._usual.variance))
        if len(self.launch_step_times_s) >= ENOUGH_LAUNCHES:
            return self.between_launches
        return max(median(self.within_launches), self.between_launches or 0.0)

    @cached_property
    def within_launches(self) -> list[float]:
        """Half-width of the 95 % interval within each launch that has two rounds, over its mean."""
        widths = (relative_half_width(times) for x in self.launches if (times := x.step_times_s))
        return [width for width in widths if width is not None]

    @property
    def between_launches(self) -> float | None:
        """Half-width of the 95 % interval from the means of the launches; None for one launch."""
        return between_launches_half_width(self.launch_step_times_s, self.prior)

    @property
    def prior(self) -> Prior | None:
        """The difference between launches by the other cases of the run; None for a row by itself."""
        prior: Prior | None = self.__dict__.get("prior_of_run")
        return prior

    @property
    def within_one_process(self) -> bool:
        """Whether the interval rests on one launch: the difference between processes is not measured."""
        return len(self.launch_step_times_s) == 1

    @property
    def _usual(self) -> Prior:
        """The usual difference between processes if only one was measured; unknown for a CPU."""
        if not self.__dict__.get("on_gpu"):
            return Prior(0.0, 0.0)
        bound = any(finding.kind is FindingKind.HOST_BOUND for finding in self.findings)
        return USUAL_PROCESS_HOST_BOUND if bound else USUAL_PROCESS

    @property
    def ledger(self) -> tuple[Component, ...]:
        """The parts of the figure's error; a row without a figure has none.

        The first three are of this card, and make up ``relative_half_width`` and ``samples_per_s_low``. The
        last two are added where the question is about another card of the kind.
        """
        if not self.within_launches:
            return ()
        launches, cases = len(self.launch_step_times_s), self.__dict__.get("cases_of_prior", 0)
        process, source = self.between_launches, f"Student's t over {count(launches, 'launch')}"
        if self.within_one_process:
            process, source = Z95 * sqrt(self._usual.variance) or None, "one launch: what is usual of a GPU"
        elif self.prior is not None:
            source += f", moderated by those of {cases} cases (Smyth 2004)"
        rounds = sum(len(launch.accepted) for launch in self.launches)
        here = (
            (median(self.within_launches), rounds, "rounds, correlation included"),
            (process, launches, source),
            (self.slowing_to_come, launches, "clock and temperature from launch to launch"),
        )
        named = zip(PARTS, here, strict=False)
        parts = (Component(name=name, half_width=h, n=n, source=said) for name, (h, n, said) in named)
        return (*parts, HOST, CARD)

    @property
    def slowing_to_come(self) -> float | None:
        """The share of the step time by which the card may still slow down as it heats; None if unknown.

        From the mean clock and temperature of each launch's timed part, and the cost of a degree in its run.
        """
        return heat.slowing_to_come(self.moments, self.__dict__.get("slowing_per_c", heat.USUAL_PER_C))

    @cached_property
    def moments(self) -> list[heat.Moment]:
        """Temperature, clock, and step time of each launch."""
        pairs = zip(self._counted, self.launch_step_times_s, strict=True)
        return [launch.moment(step_s) for launch, step_s in pairs]

    @property
    def not_heat_soaked(self) -> bool:
        """Whether the card was still warming up from launch to launch."""
        return self.slowing_to_come is not None and heat.is_warming_up(self.moments)

    @property
    def samples_per_s_low(self) -> float | None:
        """Lower end of the 95 % interval of the throughput, with the slowdown still to come from heat."""
        if self.samples_per_s is None or self.relative_half_width is None:
            return None
        return self.samples_per_s / (1 + self.relative_half_width + (self.slowing_to_come or 0.0))

    @property
    def samples_per_s_high(self) -> float | None:
        """Upper end of the 95 % interval of the throughput; None if the step time is too uncertain.

        At a half-width of ``MOST_HALF_WIDTH`` it is twice the estimate; near 1 it is without bound.
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
        """The most digits of the throughput to print: few for one launch, since another would differ."""
        return DIGITS_OF_ONE_LAUNCH if len(self.launch_step_times_s) < 2 else MOST_DIGITS

    @property
    def output_error(self) -> float | None:
        """Largest relative error of the outputs of any launch against float32 on the CPU, in inference."""
        return max(self._known("output_error"), default=None)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Largest peak of any launch."""
        return max(self._known("peak_memory_bytes"), default=None)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most that torch's allocator held in any launch, with the peak of tensors."""
        return max(self._known("peak_reserved_bytes"), default=None)

    @property
    def device_bytes(self) -> int | None:
        """The most memory in use on the device, by its driver, in the timed rounds of any launch."""
        samples = (sample for launch in self.launches for sample in launch.timed_telemetry)
        return max((s.memory_used_bytes for s in samples if s.memory_used_bytes is not None), default=None)

    @property
    def gpu_busy(self) -> float | None:
        """Median share of the wall time in which the device computed."""
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
        """A quantile over the passes of all launches; None if too few lie beyond it."""
        passes = sorted(self._times("latency_s"))
        if len(passes) * (1 - share) < 1 - 1e-9:
            return None
        return passes[ceil(share * len(passes) - 1e-9) - 1]

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
        """Energy of the device over the samples of the same time [J]."""
        if self.mean_power_w is None or self.samples_per_s is None:
            return None
        return self.mean_power_w / self.samples_per_s

    @cached_property
    def first_token_s(self) -> float | None:
        """Median time from the submission of the prompts to their first ids on the host [s]."""
        return _median(self._times("first_token_s"))

    @cached_property
    def per_token_s(self) -> float | None:
        """Median time per token after the first over a whole generation [s]."""
        return _median(self._times("per_token_s"))

    def token_latency_s(self, share: float) -> float | None:
        """Quantile of the time between two tokens [s]; None below ``LEAST_GAPS`` of them.

        Args:
            share: 0.5 for the median, 0.99 for the 99th percentile.
        """
        gaps = sorted(self._times("token_gap_s"))
        return gaps[min(len(gaps) - 1, int(share * len(gaps)))] if len(gaps) >= LEAST_GAPS else None

    @property
    def decoded_tokens_per_s(self) -> float | None:
        """Generated tokens per second after the first, over all sequences of the batch."""
        return None if not self.per_token_s else self.case.batch_size / self.per_token_s

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens per second, up to the first id on the host."""
        if not self.first_token_s:
            return None
        return self.case.batch_size * self.case.prompt_tokens / self.first_token_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of the case; None for other input and for a generation."""
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

        None for a generation: only its prompt is counted, and a token waits for memory, not for arithmetic.
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
        """Hardware FLOP utilization: the same, counting recomputation; None if that is unknown."""
        if self.mfu is None or not self.flops_per_sample or self.hardware_flops_per_sample is None:
            return None
        return self.mfu * self.hardware_flops_per_sample / self.flops_per_sample

    @property
    def most_utilization(self) -> float:
        """The largest possible ratio of a counted rate to the device's; an unknown workload may convolve."""
        fast = self.case.precision is Precision.FP32 and self.convolves is not False
        return FP32_CONVOLUTION if fast else 1.0

    @property
    def over_product(self) -> float | None:
        """Achieved rate over the best matrix product of the same run, even if the ratio is impossible."""
        if self.achieved_flops_per_s is None or not self.gemm_flops_per_s:
            return None
        return self.achieved_flops_per_s / (self.gemm_flops_per_s * self.case.gpu_count)

    @property
    def mfu_of_gemm(self) -> float | None:
        """Achieved rate over this card's best matrix product at the same precision; None if impossible."""
        share = self.over_product
        return share if share is None or share <= self.most_utilization else None


def beside_each_other(measurements: Iterable[Measurement], *, on_gpu: bool) -> tuple[Measurement, ...]:
    """Return the rows of a run, each with what all say of how far launches differ, and of what heat costs.

    That is no part of a row, and is not stored: it follows from the launches of the others.
    """
    rows = tuple(measurements)
    means = [each for row in rows if len(each := row.launch_step_times_s) > 1]
    variances = [variance_of(each) / fmean(each) ** 2 for each in means]
    prior = prior_of(variances, [len(each) - 1 for each in means])
    known = {
        "prior_of_run": prior,
        "cases_of_prior": len(means),
        "on_gpu": on_gpu,
        "slowing_per_c": heat.slowing_per_c([row.moments for row in rows]),
    }
    return tuple(row if known.items() <= row.__dict__.items() else _with(row, known) for row in rows)


def _with(row: Measurement, known: dict[str, Any]) -> Measurement:
    twin = copy(row)
    twin.__dict__.update(row.__dict__ | known)
    return twin


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
