"""What AMP gains here, against a baseline that is named: strict fp32, and tf32 where the device has it."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import msgspec

from gpubench.blocks.charts import BLUE, GREEN, SLATE, Mark, Series, dots, two_lines
from gpubench.blocks.parts import Block, Charts, Figure, Paragraph, Table, number, table, text
from gpubench.interval import Interval, stacked
from gpubench.models import Case, Precision, TaskKind
from gpubench.sections.data import ReportData, Result
from gpubench.sections.ratios import Ratio, ratio
from gpubench.sections.section import Section
from gpubench.units import UNKNOWN, count, format_bytes, format_number, plain

SURE_FACTOR = 1.5
"""A gain is put into words where the ends of its interval lie within this factor."""

_ONE_LAUNCH = "Ratios of a single launch: what differs between processes is not in their intervals."

BASELINES = tuple(precision for precision in Precision if not precision.is_amp)
_LOOKS = {Precision.FP32: (BLUE, "circle"), Precision.TF32: (GREEN, "diamond")}
_NAMES = {precision: f"against {precision.words}" for precision in BASELINES}


def speed_ups(results: Iterable[Result]) -> tuple[Ratio, ...]:
    """Pair every AMP case with its baselines: all else equal but the precision, and the layout with it.

    The layout may differ, because each precision is measured in the layout that suits it; of two layouts
    at one precision the faster stands. At the largest batches the batch differs too: that is the question
    there, and such pairs make a group of their own.
    """
    by_speed = sorted(results, key=lambda r: r.measurement.samples_per_s or 0.0)
    known = {_kin(r, r.case.precision): r for r in by_speed}
    pairs = []
    for amp in known.values():
        if not amp.case.precision.is_amp:
            continue
        for precision in BASELINES:
            baseline = known.get(_kin(amp, precision))
            if baseline is not None:
                pairs.append(ratio(amp, baseline))
    return tuple(
        sorted(
            pairs,
            key=lambda s: (
                s.of.measurement.at_largest_batch,
                s.of.case.workload,
                s.of.case.batch_size,
                s.of.case.execution,
                s.of.case.precision,
            ),
        )
    )


def _kin(result: Result, precision: Precision) -> tuple[Case, bool]:
    """What two results must share to be paired, with this precision in place of theirs."""
    best = result.measurement.at_largest_batch
    batch = 0 if best else result.case.batch_size
    case = msgspec.structs.replace(result.case, precision=precision, memory_format=None, batch_size=batch)
    return case, best


def _render(data: ReportData) -> Block | None:
    pairs = speed_ups(data.results)
    if not pairs:
        return None
    sentence, twin = Paragraph(text=_sentence(pairs)), _twin(pairs)
    alone = any(r.measurement.within_one_process for pair in pairs for r in (pair.of, pair.to))
    one = (Paragraph(text=_ONE_LAUNCH, tone="note"),) if alone else ()
    return Block(
        title="What automatic mixed precision gains",
        brief=(sentence, twin, *one),
        parts=(
            sentence,
            Charts(
                figures=tuple(_figure(group, title) for title, group in _groups(pairs)),
                twin=twin,
                caption=(
                    "1 is no gain. The line through each mark is the 95 % interval; a grey open mark is "
                    "flagged. The baseline is named in "
                    "every row: fp32 is strict IEEE arithmetic with TF32 off in matmul, convolution and RNN."
                ),
            ),
            *one,
        ),
    )


def _groups(pairs: tuple[Ratio, ...]) -> list[tuple[str | None, tuple[Ratio, ...]]]:
    """Pairs at an equal batch, and those where each precision has its own largest batch."""
    equal = tuple(p for p in pairs if not p.of.measurement.at_largest_batch)
    best = tuple(p for p in pairs if p.of.measurement.at_largest_batch)
    if not best:
        return [(None, equal)]
    return [(title, group) for title, group in (("Equal batch", equal), ("Best batch", best)) if group]


def _sentence(pairs: tuple[Ratio, ...]) -> str:
    """The strongest gain, the weakest, and how many cases lose."""
    sure = [s for s in pairs if not s.doubts and _narrow(s.interval)]
    if not sure:
        return (
            "No pairing was measured well enough to state a gain: each is flagged, or its interval is wider "
            f"than a factor of {SURE_FACTOR:g}. Give the run more time on a quiet machine."
        )
    best = max(sure, key=lambda s: s.value)
    losing = [s for s in sure if s.interval.high is not None and s.interval.high < 1]
    lead = "The largest gain is" if best.value >= 1 else "AMP gains nothing: at best it runs at"
    text = (
        f"{lead} {best.words}: {plain(best.of.case.workload, 40)}, "
        f"{best.of.case.precision.value} {_NAMES[best.to.case.precision]}, "
        f"{best.of.case.execution.value}, {_batches(best)}."
    )
    if losing:
        text += (
            f" In {count(len(losing), 'pairing')} AMP is slower, beyond the interval: a small step is paced "
            "by the host, and AMP gives it more kernels to launch."
        )
    return text


def _batches(pair: Ratio) -> str:
    """The batch of both, or of each."""
    if pair.of.case.batch_size == pair.to.case.batch_size:
        return pair.of.batch_words
    return f"{pair.of.batch_words}, against {pair.to.batch_words}"


def _figure(pairs: tuple[Ratio, ...], title: str | None) -> Figure:
    rows = list(dict.fromkeys(_row_label(pair.of) for pair in pairs))
    series = [
        Series(
            name=_NAMES[precision] + (", flagged" if flagged else ""),
            marks=tuple(
                _mark(pair, rows)
                for pair in pairs
                if pair.to.case.precision is precision and bool(pair.doubts) is flagged
            ),
            colour=SLATE if flagged else _LOOKS[precision][0],
            symbol=_LOOKS[precision][1] + ("-open" if flagged else ""),
        )
        for flagged in (False, True)
        for precision in BASELINES
        if any(p.to.case.precision is precision and bool(p.doubts) is flagged for p in pairs)
    ]
    alt = "; ".join(
        f"{plain(p.of.case.workload, 40)} {p.of.case.precision.value} {p.of.case.execution.value} "
        f"{_batches(p)} {_NAMES[p.to.case.precision]}: {p.words}"
        for p in pairs
    )
    return Figure(
        figure=dots(series, rows, "speed-up of AMP", line_at=1.0),
        title=title,
        alt=f"Dot chart of the speed-up of AMP: {alt}.",
        height_px=110 + 40 * len(rows),
    )


def _narrow(interval: Interval) -> bool:
    low, high = interval.low, interval.high
    return bool(low and high and high / low <= SURE_FACTOR)


def _mark(pair: Ratio, rows: list[str]) -> Mark:
    flags = f"<br>{', '.join(pair.doubts)}" if pair.doubts else ""
    return Mark(
        row=rows.index(_row_label(pair.of)),
        value=pair.value,
        low=pair.interval.low,
        high=pair.interval.high,
        hover=f"{_NAMES[pair.to.case.precision]}: {pair.words}{flags}",
    )


def _row_label(result: Result) -> str:
    case = result.case
    task = "" if case.task is TaskKind.TRAIN else " inference"
    return two_lines(
        f"{plain(case.workload, 24)}{task}",
        f"{case.precision.value} {case.execution.value} {result.batch_words}",
    )


def _twin(pairs: tuple[Ratio, ...]) -> Table:
    return table(
        "Speed-up of AMP with its baseline",
        pairs,
        text(
            "Workload",
            lambda s: plain(s.of.case.workload, 40) + "\nbest batch" * s.of.measurement.at_largest_batch,
        ),
        text("AMP", lambda s: _laid_out(s.of.case.precision.value, s.of)),
        text("Baseline", lambda s: _laid_out(s.to.case.precision.words, s.to)),
        text("Execution", lambda s: s.of.case.execution.value),
        number("Batch", lambda s: _batches(s).replace("batch ", "").replace(", ", "\n"), optional=2),
        number("Speed-up, 95 % interval", lambda s: stacked(s.words)),
        number("Peak memory", _memory, optional=3),
        number("Loss after the same steps", _loss, optional=1),
        text("Doubts", lambda s: ", ".join(s.doubts) or "none"),
    )


def _memory(pair: Ratio) -> str:
    """Peak memory of AMP over that of the baseline."""
    amp, baseline = pair.of.measurement.peak_memory_bytes, pair.to.measurement.peak_memory_bytes
    if amp is None or not baseline:
        return UNKNOWN
    return f"{format_number(amp / baseline)}×\n{format_bytes(amp)} for {format_bytes(baseline)}"


def loss_gap(pair: Ratio) -> tuple[float, float, int] | None:
    """Mean loss of AMP and of the baseline over the last fifth of the steps that both ran from one seed.

    Returns:
        Both losses and the number of steps, or None where a curve is missing or not finite, or the batches
        differ, and with them what was learnt.
    """
    trained = pair.of.case.task is TaskKind.TRAIN  # a forward pass learns nothing
    if (
        not trained
        or pair.of.run.seed != pair.to.run.seed
        or pair.of.case.batch_size != pair.to.case.batch_size
    ):
        return None
    curves = [_curve(pair.of), _curve(pair.to)]
    steps = min(len(curve) for curve in curves)
    if steps < 5:
        return None
    ends = [curve[steps - steps // 5 : steps] for curve in curves]
    means = [fmean(loss for loss in end if loss is not None) for end in ends if None not in end]
    return None if len(means) < 2 else (means[0], means[1], steps)


def _curve(result: Result) -> tuple[float | None, ...]:
    return next((x.loss_curve for x in result.measurement.launches if x.loss_curve), ())


def _loss(pair: Ratio) -> str:
    gap = loss_gap(pair)
    if gap is None:
        return UNKNOWN
    amp, baseline, steps = gap
    return f"{format_number(amp, 4)} for {format_number(baseline, 4)}\n{steps} steps from one seed"


def _laid_out(precision: str, result: Result) -> str:
    layout = result.case.memory_format
    return precision if layout is None else f"{precision}\n{layout.value}"


SECTION = Section(key="amp", render=_render, place=60)
