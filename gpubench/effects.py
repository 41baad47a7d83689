"""Speedups: AMP over full precision, several GPUs over one, graph over eager.

An effect is a pair of measurements of the same work and the ratio of their throughputs, with its interval and
doubts. Terminal, page and JSON use the same pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.executions import Execution
from gpubench.findings import FindingKind, doubts, is_unfounded
from gpubench.groups import grouped
from gpubench.interval import Interval
from gpubench.models import Case, Framework, Measurement, Run, Status, TaskKind, WeightType
from gpubench.precisions import Precision

ROTATION = 4
"""Steps cycle through four batches, so losses are compared over complete cycles."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A measurement with its run, since no figure is complete without its environment."""

    run: Run
    measurement: Measurement

    @property
    def case(self) -> Case:
        """The case of the figure."""
        return self.measurement.case

    @property
    def doubts(self) -> tuple[FindingKind, ...]:
        """The kinds of finding on the row or its run that cast doubt on the figure."""
        return doubts(self.run.findings, self.measurement.findings)

    @property
    def leads(self) -> bool:
        """Whether the figure may lead a list or appear in a sentence; an unfounded one is only shown."""
        return not is_unfounded(self.measurement.findings)

    @property
    def threads(self) -> int | None:
        """CPU threads that were used; None for a GPU, and if unknown."""
        if not self.run.device.is_cpu:
            return None
        return self.case.threads or self.measurement.cpu_threads or self.run.environment.cpu_threads

    @property
    def batch_words(self) -> str:
        """The batch, marked if it is the largest that fits, which differs between devices."""
        searched = ", largest that fits" if self.measurement.at_largest_batch else ""
        return f"batch {self.case.batch_size:,}{searched}"

    @property
    def how(self) -> str:
        """Precision, execution and batch: "amp-bf16 graph batch 64"."""
        return f"{self.case.precision.value} {self.case.execution.value} {self.batch_words}"


@dataclass(frozen=True, kw_only=True)
class LossGap:
    """Mean final losses of two measurements with the same seed, after the same number of steps."""

    result: float
    baseline: float
    steps: int

    @property
    def value(self) -> float | None:
        """The increase of the loss relative to ``baseline``; None if that is 0."""
        return self.result / self.baseline - 1 if self.baseline else None


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The throughput of ``result`` divided by the throughput of ``baseline``.

    Attributes:
        interval: The ratio with its 95 % interval.
    """

    result: Result
    baseline: Result
    interval: Interval

    @property
    def value(self) -> float:
        """The ratio without its interval."""
        assert self.interval.value is not None  # ``ratio`` rejects a row without a figure
        return self.interval.value

    @property
    def words(self) -> str:
        """The ratio with its interval, as text."""
        return self.interval.text("×")

    @property
    def doubts(self) -> tuple[FindingKind, ...]:
        """The kinds of finding that cast doubt on either figure."""
        return tuple(sorted({*self.result.doubts, *self.baseline.doubts}))

    @property
    def leads(self) -> bool:
        """Whether both figures may appear in a sentence."""
        return self.result.leads and self.baseline.leads

    @property
    def efficiency(self) -> Interval:
        """The ratio divided by the GPUs of ``result``; 1 is perfect scaling."""
        return self.interval.over(self.result.case.gpu_count)

    @property
    def memory_ratio(self) -> float | None:
        """Ratio of the peaks of tensor memory; None if either is unknown."""
        mine, theirs = self.result.measurement.peak_memory_bytes, self.baseline.measurement.peak_memory_bytes
        return mine / theirs if mine is not None and theirs else None

    @property
    def curve_steps(self) -> int:
        """Number of steps from the seed with losses in both measurements."""
        return min(len(_curve(self.result)), len(_curve(self.baseline)))

    @property
    def loss_gap(self) -> LossGap | None:
        """Mean losses over the last fifth of the common steps, in complete cycles of the batches.

        None if nothing is trained, a loss is missing or not finite, seed or batch differ, or the common steps
        do not complete a cycle.
        """
        steps = self.curve_steps
        mine, theirs = ((r.run.seed, r.case.batch_size) for r in (self.result, self.baseline))
        if self.result.case.task is not TaskKind.TRAIN or mine != theirs or steps < ROTATION:
            return None
        last = max(ROTATION, steps // 5 // ROTATION * ROTATION)
        ends = [_curve(result)[steps - last : steps] for result in (self.result, self.baseline)]
        means = [fmean(loss for loss in end if loss is not None) for end in ends if None not in end]
        return None if len(means) < 2 else LossGap(result=means[0], baseline=means[1], steps=steps)


def ratio(measurement: Measurement, baseline: Measurement) -> Interval:
    """Return the throughput of one measurement divided by that of another.

    The two are independent, so their half-widths add in quadrature on the log scale. If one card may slow
    down more from heat than the other, the interval is wider on one side. There are no bounds if either
    half-width is unknown.

    Raises:
        MisuseError: If one of them has no figure.
    """
    mine, theirs = measurement.samples_per_s, baseline.samples_per_s
    if mine is None or theirs is None:
        missing = measurement if mine is None else baseline
        raise MisuseError(f"{missing.label} has no figure ({missing.status}): nothing to compare")
    value = mine / theirs
    widths = (measurement.relative_half_width, baseline.relative_half_width)
    if widths[0] is None or widths[1] is None:
        return Interval(value)
    slowing = [each.slowing_to_come or 0.0 for each in (measurement, baseline)]
    extra = [each - min(slowing) for each in slowing]  # a slowdown from heat that both have cancels out
    down = math.hypot(math.log1p(widths[0] + extra[0]), math.log1p(widths[1]))
    up = math.hypot(math.log1p(widths[0]), math.log1p(widths[1] + extra[1]))
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def effect(result: Result, baseline: Result) -> Effect:
    """Compare one result with another.

    Raises:
        MisuseError: If one of them has no figure.
    """
    return Effect(result=result, baseline=baseline, interval=ratio(result.measurement, baseline.measurement))


def results_of(run: Run) -> tuple[Result, ...]:
    """Return the measurements of a run that have a figure, including those on fewer threads of a CPU."""
    return tuple(Result(run=run, measurement=m) for m in run.measurements if m.status is Status.OK)


def on_all_threads(results: Iterable[Result]) -> tuple[Result, ...]:
    """Drop rows on a subset of a CPU's threads, which only show how the CPU scales."""
    return tuple(result for result in results if not result.case.threads)


def by_speed(result: Result) -> tuple[bool, float]:
    """Return a sort key: first the results that must not lead (``Result.leads``), then by ascending speed."""
    return result.leads, result.measurement.samples_per_s or 0.0


def amp_effects(results: Iterable[Result]) -> tuple[Effect, ...]:
    """Pair every AMP case with its baselines, which differ only in precision and layout.

    The layout may differ, because each precision is measured in its best layout; with two layouts at one
    precision, the faster is used. Pairs at the largest batches also differ in batch, since that is what they
    compare; they come last.
    """
    known = {_at_precision(r, r.case.precision): r for r in sorted(results, key=by_speed)}
    baselines = [p for p in Precision if p.is_usual and not p.is_amp]
    pairs = [
        effect(amp, known[twin])
        for amp in known.values()
        if amp.case.precision.is_amp
        for precision in baselines
        if (twin := _at_precision(amp, precision)) in known
    ]
    return tuple(
        sorted(
            pairs,
            key=attrgetter(
                "result.measurement.at_largest_batch",
                "result.case.workload",
                "result.case.batch_size",
                "result.case.execution",
                "result.case.precision",
            ),
        )
    )


def inference_effects(results: Iterable[Result]) -> tuple[Effect, ...]:
    """Pair every inference at a lower precision with strict fp32 at equal batch, each in its best layout."""
    infer = [r for r in results if r.case.task is TaskKind.INFER and not r.measurement.at_largest_batch]
    ascending = sorted(infer, key=by_speed)
    known = {_in_float32(r): r for r in ascending if r.case.precision is Precision.FP32}
    pairs = [
        effect(result, known[twin])
        for result in ascending
        if result.case.precision is not Precision.FP32 and (twin := _in_float32(result)) in known
    ]
    order = list(Precision)
    return tuple(
        sorted(
            pairs,
            key=lambda p: (
                p.result.case.workload,
                p.result.case.batch_size,
                order.index(p.result.case.precision),
                p.result.case.execution,
            ),
        )
    )


def scaling_effects(results: Iterable[Result]) -> tuple[Effect, ...]:
    """Pair every case on several GPUs with one GPU, at the batch per GPU and at the total batch."""
    known = {result.case: result for result in results}
    return tuple(
        effect(result, known[alone])
        for case, result in known.items()
        if case.gpu_count > 1
        for alone in (case.on_one_gpu, case.whole_on_one_gpu)
        if alone in known
    )


def thread_effects(results: Iterable[Result]) -> tuple[Effect, ...]:
    """Pair every CPU case with the same case on one thread, in order of the number of threads."""
    known = {result.case: result for result in results}
    pairs = [
        effect(result, known[alone])
        for case, result in known.items()
        if result.threads is not None and (alone := msgspec.structs.replace(case, threads=1)) in known
    ]
    return tuple(
        sorted(
            pairs, key=lambda p: (p.baseline.case.label, p.result.threads or 0, p.result.case.threads == 0)
        )
    )


def execution_effects(results: Iterable[Result]) -> tuple[Effect, ...]:
    """Pair every graph or compile case with the same case in eager mode."""
    known = {result.case: result for result in results}
    pairs = [
        effect(result, known[eager])
        for case, result in known.items()
        if case.execution is not Execution.EAGER
        if (eager := msgspec.structs.replace(case, execution=Execution.EAGER)) in known
    ]
    return tuple(
        sorted(pairs, key=attrgetter("result.case.workload", "result.case.batch_size", "result.case.label"))
    )


def framework_effects(results: Iterable[Result]) -> tuple[Effect, ...]:
    """Pair every case with the same work in the first framework that has it, torch before Keras.

    The work is the same if workload, task, precision and batch are; layout and execution depend on the
    framework. The baseline is the first framework's eager case if there is one, else its fastest.
    """
    order = list(Framework)
    groups = grouped(
        ((r.case.workload, r.case.task, r.case.precision, r.case.batch_size, r.case.recipe), r)
        for r in results
        if r.case.gpu_count == 1 and not r.measurement.at_largest_batch
    )
    pairs = []
    for group in groups.values():
        first = min((r.case.framework for r in group), key=order.index)
        mine = [r for r in group if r.case.framework is first]
        base = max(
            mine,
            key=lambda r: (r.leads, r.case.execution is Execution.EAGER, r.measurement.samples_per_s or 0.0),
        )
        pairs += [effect(r, base) for r in group if r.case.framework is not first]
    return tuple(
        sorted(
            pairs,
            key=lambda p: (
                p.result.case.workload,
                p.result.case.precision,
                p.result.case.batch_size,
                order.index(p.result.case.framework),
                p.result.case.execution,
            ),
        )
    )


def against_fp32(pairs: Iterable[Effect]) -> tuple[Effect, ...]:
    """Return the pairs with strict fp32 at an equal batch, for a line of text."""
    return tuple(
        pair
        for pair in pairs
        if pair.baseline.case.precision is Precision.FP32
        and pair.result.case.batch_size == pair.baseline.case.batch_size
    )


def document(run: Run) -> dict[str, Any]:
    """Return the speedups from precisions, GPUs, threads and other frameworks in a run, for JSON."""
    every = results_of(run)
    results = on_all_threads(every)
    return {
        "amp": [
            {
                "case": pair.result.case,
                "baseline": pair.baseline.case,
                "speedup": pair.interval,
                "memory_ratio": pair.memory_ratio,
                "loss_gap": pair.loss_gap.value if pair.loss_gap else None,
                "curve_steps": pair.curve_steps,
            }
            for pair in against_fp32(amp_effects(results))
        ],
        "scaling": [
            {"case": pair.result.case, "speedup": pair.interval, "efficiency": pair.efficiency}
            for pair in scaling_effects(results)
        ],
        "inference": [
            {
                "case": pair.result.case,
                "baseline": pair.baseline.case,
                "speedup": pair.interval,
                "output_error": pair.result.measurement.output_error,
            }
            for pair in inference_effects(results)
        ],
        "threads": [
            {
                "case": pair.result.case,
                "threads": pair.result.threads,
                "speedup": pair.interval,
                "efficiency": pair.interval.over(pair.result.threads or 1),
            }
            for pair in thread_effects(every)
            if pair.result is not pair.baseline
        ],
        "frameworks": [
            {"case": pair.result.case, "baseline": pair.baseline.case, "throughput": pair.interval}
            for pair in framework_effects(results)
        ],
    }


def _at_precision(result: Result, precision: Precision) -> tuple[Case, bool]:
    """Return the key by which results are paired, with this precision in place of the result's own.

    Results at the largest batch that fits are paired even if these batches differ: their key has batch 0.
    """
    is_largest = result.measurement.at_largest_batch
    batch = 0 if is_largest else result.case.batch_size
    case = msgspec.structs.replace(result.case, precision=precision, memory_format=None, batch_size=batch)
    return case, is_largest


def _in_float32(result: Result) -> Case:
    return msgspec.structs.replace(
        result.case, precision=Precision.FP32, memory_format=None, weight_type=WeightType.FLOAT32
    )


def _curve(result: Result) -> tuple[float | None, ...]:
    return next((x.loss_curve for x in result.measurement.launches if x.loss_curve), ())
