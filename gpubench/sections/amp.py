"""What AMP gains here, against a baseline that is named: strict fp32, and tf32 where the device has it."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, GREEN, SLATE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Effect, Result, against_fp32, amp_effects, on_all_threads, results_of
from gpubench.findings import FindingKind
from gpubench.interval import Interval, faster_words, stacked
from gpubench.models import Precision, Run, TaskKind
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import FINDINGS, workload_name
from gpubench.units import UNKNOWN, count, format_bytes, format_number, plain

SURE_FACTOR = 1.5
"""A gain is put into words where the ends of its interval lie within this factor."""

_ONE_LAUNCH = "Ratios of a single launch: what differs between processes is not in their intervals."

BASELINES = tuple(p for p in Precision if p.is_usual and not p.is_amp)
_NAMES = {precision: f"against {precision.words}" for precision in BASELINES}
_LOOKS = {
    (flagged, precision): Look(
        name=_NAMES[precision] + (", flagged" if flagged else ""),
        color=SLATE if flagged else color,
        symbol=symbol + ("-open" if flagged else ""),
    )
    for flagged in (False, True)
    for precision, color, symbol in (
        (Precision.FP32, BLUE, "circle"),
        (Precision.TF32, GREEN, "diamond"),
    )
}


def _render(data: ReportData) -> Block | None:
    pairs = amp_effects(data.results)
    if not pairs:
        return None
    sentence = Paragraph(text=_sentence(pairs))
    twin = table(
        "Speed-up of AMP with its baseline",
        pairs,
        text(
            "Workload",
            lambda s: workload_name(s.of.case) + "\nbest batch" * s.of.measurement.at_largest_batch,
        ),
        text("AMP", lambda s: _laid_out(s.of.case.precision.value, s.of)),
        text("Baseline", lambda s: _laid_out(s.to.case.precision.words, s.to)),
        text("Execution", lambda s: s.of.case.execution.value),
        number("Batch", lambda s: _batches(s).replace("batch ", "").replace(", ", "\n"), optional=2),
        number("Speed-up, 95 % interval", lambda s: stacked(s.words)),
        number("Peak allocated", _memory, optional=3),
        number("Loss after the same steps", _loss, optional=1),
        FINDINGS,
    )
    alone = any(r.measurement.within_one_process for pair in pairs for r in (pair.of, pair.to))
    one = (Paragraph(text=_ONE_LAUNCH, tone="note"),) if alone else ()
    equal = tuple(p for p in pairs if not p.of.measurement.at_largest_batch)
    best = tuple(p for p in pairs if p.of.measurement.at_largest_batch)
    groups = (("Equal batch", equal), ("Best batch", best)) if best else (("", equal),)
    return Block(
        title="What automatic mixed precision gains",
        finding=_finding(pairs),
        brief=(sentence, twin, *one),
        parts=(
            sentence,
            Charts(
                figures=tuple(_figure(group, title) for title, group in groups if group),
                twin=twin,
                caption=(
                    "1 is no gain. The line through each mark is the 95 % interval; a gray open mark is "
                    "flagged. The baseline is named in "
                    "every row: fp32 is strict IEEE arithmetic with TF32 off in matmul, convolution and RNN."
                ),
            ),
            *one,
        ),
    )


def _sentence(pairs: tuple[Effect, ...]) -> str:
    """The strongest gain, the weakest, and how many cases lose."""
    sure = _sure(pairs)
    if not sure:
        return (
            "No pairing was measured well enough to state a gain: each is flagged, or its interval is wider "
            f"than a factor of {SURE_FACTOR:g}. Give the run more time on a quiet machine."
        )
    best = max(sure, key=lambda s: s.value)
    host_paced = [s for s in pairs if set(s.doubts) <= {FindingKind.HOST_BOUND} and _narrow(s.interval)]
    losing = [s for s in host_paced if s.interval.high is not None and s.interval.high < 1]
    lead = "The largest gain is" if best.value >= 1 else "AMP gains nothing: at best it runs at"
    text = (
        f"{lead} {best.words}: {workload_name(best.of.case)}, "
        f"{best.of.case.precision.value} {_NAMES[best.to.case.precision]}, "
        f"{best.of.case.execution.value}, {_batches(best)}."
    )
    if losing:
        text += (
            f" In {count(len(losing), 'pairing')} AMP is slower, beyond the interval: a small step is paced "
            "by the host, and AMP gives it more kernels to launch."
        )
    return text


def _batches(pair: Effect) -> str:
    """The batch of both, or of each."""
    if pair.of.case.batch_size == pair.to.case.batch_size:
        return pair.of.batch_words
    return f"{pair.of.batch_words}, against {pair.to.batch_words}"


def _figure(pairs: tuple[Effect, ...], title: str) -> Figure:
    marks = []
    for pair in pairs:
        case, baseline = pair.of.case, _NAMES[pair.to.case.precision]
        task = "" if case.task is TaskKind.TRAIN else " inference"
        flags = f"<br>{', '.join(pair.doubts)}" if pair.doubts else ""
        told = (
            f"{workload_name(case)} {case.precision.value} {case.execution.value} {_batches(pair)} "
            f"{baseline}: {pair.words}"
        )
        marks.append(
            Mark(
                row=two_lines(f"{plain(case.workload, 24)}{task}", pair.of.how),
                interval=pair.interval,
                hover=f"{baseline}: {pair.words}{flags}",
                told=told,
                kind=(bool(pair.doubts), pair.to.case.precision),
            )
        )
    alt = "Dot chart of the speed-up of AMP"
    return dots(
        marks, _LOOKS, "speed-up of AMP", alt, title=title, head_px=110, row_px=40, shared=True, line_at=1.0
    )


def _sure(pairs: Sequence[Effect]) -> list[Effect]:
    """The gains that are put into words: nothing speaks against either figure, and the interval is narrow."""
    return [pair for pair in pairs if not pair.doubts and _narrow(pair.interval)]


def _narrow(interval: Interval) -> bool:
    low, high = interval.low, interval.high
    return bool(low and high and high / low <= SURE_FACTOR)


def _memory(pair: Effect) -> str:
    """Peak of what tensors take under AMP over that of the baseline."""
    amp, baseline = pair.of.measurement.peak_memory_bytes, pair.to.measurement.peak_memory_bytes
    if pair.memory_ratio is None:
        return UNKNOWN
    return f"{format_number(pair.memory_ratio)}×\n{format_bytes(amp)} for {format_bytes(baseline)}"


def _loss(pair: Effect) -> str:
    gap = pair.loss_gap
    if gap is None:
        return UNKNOWN
    return f"{format_number(gap.of, 4)} for {format_number(gap.to, 4)}\n{gap.steps} steps from one seed"


def _laid_out(precision: str, result: Result) -> str:
    layout = result.case.memory_format
    return precision if layout is None else f"{precision}\n{layout.value}"


def _finding(pairs: Sequence[Effect]) -> str | None:
    """Return what the heaviest workload gains, in a few words; None where no gain is known."""
    known = _sure(against_fp32(pairs))
    if not known:
        return None
    heaviest = max(known, key=lambda pair: (pair.of.measurement.flops_per_sample or 0.0, pair.value))
    return f"AMP is {format_number(heaviest.value)} times FP32 on {workload_name(heaviest.of.case)}"


def closing_sentence(run: Run) -> str | None:
    """What mixed precision gained on the heaviest workload; nothing where the page calls no gain known."""
    pairs = _sure(against_fp32(amp_effects(on_all_threads(results_of(run)))))
    if not pairs:
        return None
    heaviest = max(pairs, key=lambda pair: (pair.of.measurement.flops_per_sample or 0.0, pair.value))
    case = heaviest.of.case
    amp, baseline = case.precision.value, heaviest.to.case.precision.value
    where = f"{workload_name(case)}, {case.execution.value}, {heaviest.of.batch_words}"
    return f"{amp} against {baseline} on {where}: {faster_words(heaviest.interval, amp, baseline)}."


SECTION = Section(key="amp", render=_render, place=60, heading="throughput")
