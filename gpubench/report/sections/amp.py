"""What AMP gains here, against a baseline that is named: strict fp32, and tf32 where the device has it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from gpubench.models import Case, MemoryFormat, Precision, TaskKind
from gpubench.report.charts import BLUE, GREEN, Mark, Series, dots, two_lines
from gpubench.report.data import ReportData, Result
from gpubench.report.section import Block, Charts, Column, Figure, Paragraph, Section, Table
from gpubench.report.words import count, ratio_words, stacked
from gpubench.units import plain

BASELINES = (Precision.FP32, Precision.TF32)
_LOOKS = {Precision.FP32: (BLUE, "circle"), Precision.TF32: (GREEN, "diamond")}
_NAMES = {Precision.FP32: "against fp32 (IEEE, TF32 off)", Precision.TF32: "against tf32"}


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """Throughput of an AMP case over that of its baseline, with a 95 % interval.

    Both figures are means of independent rounds, so their relative errors add in quadrature on the
    logarithmic scale.
    """

    amp: Case
    baseline: Case
    ratio: float
    low: float | None
    high: float | None


def speed_ups(results: Iterable[Result]) -> tuple[SpeedUp, ...]:
    """Pair every AMP case with its baselines: all else equal but the precision, and the layout with it.

    The layout may differ, because each precision is measured in the layout that suits it; of two layouts
    at one precision the faster stands.
    """
    by_speed = sorted(results, key=lambda r: r.measurement.samples_per_s or 0.0)
    known = {_apart_from_precision(r.case, r.case.precision): r for r in by_speed}
    pairs = []
    for amp in known.values():
        if not amp.case.precision.is_amp:
            continue
        for precision in BASELINES:
            baseline = known.get(_apart_from_precision(amp.case, precision))
            if baseline is not None:
                pairs.append(_speed_up(amp, baseline))
    return tuple(
        sorted(pairs, key=lambda s: (s.amp.workload, s.amp.batch_size, s.amp.execution, s.amp.precision))
    )


def _apart_from_precision(case: Case, precision: Precision) -> Case:
    return msgspec.structs.replace(case, precision=precision, memory_format=None)


def _speed_up(amp: Result, baseline: Result) -> SpeedUp:
    ratio = (amp.measurement.samples_per_s or 0.0) / (baseline.measurement.samples_per_s or math.inf)
    widths = [amp.measurement.relative_half_width, baseline.measurement.relative_half_width]
    low = high = None
    if widths[0] is not None and widths[1] is not None:
        factor = math.exp(math.hypot(math.log1p(widths[0]), math.log1p(widths[1])))
        low, high = ratio / factor, ratio * factor
    return SpeedUp(amp=amp.case, baseline=baseline.case, ratio=ratio, low=low, high=high)


def _render(data: ReportData) -> Block | None:
    pairs = speed_ups(data.results)
    if not pairs:
        return None
    return Block(
        title="What automatic mixed precision gains",
        parts=(
            Paragraph(text=_sentence(pairs)),
            Charts(
                figures=(_figure(pairs),),
                twin=_twin(pairs),
                caption=(
                    "1 is no gain. The line through each mark is the 95 % interval. The baseline is named in "
                    "every row: fp32 is strict IEEE arithmetic with TF32 off in matmul, convolution and RNN."
                ),
            ),
        ),
    )


def _sentence(pairs: tuple[SpeedUp, ...]) -> str:
    """The strongest gain, the weakest, and how many cases lose."""
    best = max(pairs, key=lambda s: s.ratio)
    losing = [s for s in pairs if s.high is not None and s.high < 1]
    text = (
        f"The largest gain is {ratio_words(best.ratio, best.low, best.high)}: "
        f"{plain(best.amp.workload, 40)}, {best.amp.precision.value} {_NAMES[best.baseline.precision]}, "
        f"{best.amp.execution.value}, batch {best.amp.batch_size}."
    )
    if losing:
        text += (
            f" In {count(len(losing), 'pairing')} AMP is slower, beyond the interval: a small step is paced "
            "by the host, and AMP gives it more kernels to launch."
        )
    return text


def _figure(pairs: tuple[SpeedUp, ...]) -> Figure:
    rows = list(dict.fromkeys(_row_label(pair.amp) for pair in pairs))
    series = [
        Series(
            name=_NAMES[precision],
            marks=tuple(
                Mark(
                    row=rows.index(_row_label(pair.amp)),
                    value=pair.ratio,
                    low=pair.low,
                    high=pair.high,
                    hover=f"{_NAMES[precision]}: {ratio_words(pair.ratio, pair.low, pair.high)}",
                )
                for pair in pairs
                if pair.baseline.precision is precision
            ),
            colour=_LOOKS[precision][0],
            symbol=_LOOKS[precision][1],
        )
        for precision in BASELINES
        if any(pair.baseline.precision is precision for pair in pairs)
    ]
    alt = "; ".join(
        f"{plain(p.amp.workload, 40)} {p.amp.precision.value} {p.amp.execution.value} "
        f"batch {p.amp.batch_size} {_NAMES[p.baseline.precision]}: {ratio_words(p.ratio, p.low, p.high)}"
        for p in pairs
    )
    return Figure(
        figure=dots(series, rows, "speed-up of AMP", line_at=1.0),
        alt=f"Dot chart of the speed-up of AMP: {alt}.",
        height_px=110 + 40 * len(rows),
    )


def _row_label(case: Case) -> str:
    task = "" if case.task is TaskKind.TRAIN else " inference"
    return two_lines(
        f"{plain(case.workload, 24)}{task}",
        f"{case.precision.value} {case.execution.value} batch {case.batch_size}",
    )


def _twin(pairs: tuple[SpeedUp, ...]) -> Table:
    return Table(
        caption="Speed-up of AMP with its baseline",
        columns=(
            Column(title="Workload"),
            Column(title="AMP"),
            Column(title="Baseline"),
            Column(title="Execution"),
            Column(title="Batch", numeric=True),
            Column(title="Layout, AMP and baseline"),
            Column(title="Speed-up, 95 % interval", numeric=True),
        ),
        rows=tuple(
            (
                plain(s.amp.workload, 40),
                s.amp.precision.value,
                "fp32 (IEEE, TF32 off)" if s.baseline.precision is Precision.FP32 else "tf32",
                s.amp.execution.value,
                str(s.amp.batch_size),
                f"{_layout(s.amp.memory_format)}, {_layout(s.baseline.memory_format)}",
                stacked(ratio_words(s.ratio, s.low, s.high)),
            )
            for s in pairs
        ),
    )


def _layout(layout: MemoryFormat | None) -> str:
    return "—" if layout is None else layout.value.replace("_", " ")


SECTION = Section(key="amp", render=_render)
