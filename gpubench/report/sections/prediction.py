"""How far to trust the predictions: what each rests on, how wide it is, where it must not be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.findings import FindingKind, describe
from gpubench.labels import gpu_name, gpus_of
from gpubench.models import Estimate, RankedOffer, Ranking
from gpubench.predict.calibration import load_calibration
from gpubench.report.data import ReportData
from gpubench.report.section import Block, Column, Paragraph, Part, Section, Table
from gpubench.report.sections.value import best_of_each_gpu
from gpubench.units import UNKNOWN, count, format_number, format_percent, listing, plain

MOST_ROWS = 20


def _render(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None:
        return None
    rows = [row for row in best_of_each_gpu(ranking) if row.estimate.basis == "predicted"]
    if not rows:
        return None
    parts: list[Part] = [Paragraph(text=_sentence(ranking, rows)), Paragraph(text=_meaning())]
    if any(f.kind is FindingKind.OUT_OF_DOMAIN for row in rows for f in row.estimate.findings):
        parts.append(Paragraph(text=_far(rows), tone="warning"))
    parts.append(_table(rows[:MOST_ROWS]))
    return Block(title="How far to trust the predictions", parts=tuple(parts))


def _sentence(ranking: Ranking, rows: Sequence[RankedOffer]) -> str:
    known = [row for row in best_of_each_gpu(ranking) if row.estimate.basis != "predicted"]
    anchored = sum(row.estimate.anchored is True for row in rows)
    text = f"{len(rows)} of {count(len(rows) + len(known), 'kind')} of GPU in the ranking are predicted"
    if anchored == len(rows):
        return f"{text}, each as a ratio from a measurement of the same case on a GPU."
    if anchored:
        return f"{text}; {anchored} start from a measurement of the same case, the rest from data sheets."
    return (
        f"{text}, all from data sheets alone: no GPU measurement of the same case is at hand. Measuring any "
        "one GPU with `gpubench run` narrows every interval."
    )


def _meaning() -> str:
    calibration = load_calibration()
    return (
        "An interval is meant to hold the true figure for 9 of 10 GPUs. That is an average over GPUs: for "
        "one card it may miss. Part of the error is common to all predictions from one starting point, so "
        "the order is surer than the level. The model was calibrated on published measurements "
        f"({calibration.rows:,} rows, {plain(calibration.fitted, 20)}); docs/prediction.md of the project "
        "gives the errors by GPU, model and precision, on GPUs that were held out."
    )


def _far(rows: Sequence[RankedOffer]) -> str:
    far = [
        gpus_of(row.offer)
        for row in rows
        if any(f.kind is FindingKind.OUT_OF_DOMAIN for f in row.estimate.findings)
    ]
    return f"Far from every GPU with published measurements, so treat as a guess: {listing(far)}."


def _table(rows: Sequence[RankedOffer]) -> Table:
    return Table(
        caption="What each prediction rests on",
        columns=(
            Column(title="GPU"),
            Column(title="90 % interval", numeric=True),
            Column(title="Compute", numeric=True),
            Column(title="Bandwidth", numeric=True),
            Column(title="Host", numeric=True),
            Column(title="Method"),
            Column(title="Evidence"),
            Column(title="Remarks"),
        ),
        rows=tuple(_cells(row) for row in rows),
        folded=True,
    )


def _cells(row: RankedOffer) -> tuple[str, ...]:
    e = row.estimate
    remarks = [plain(describe(f), 200) for f in e.findings if f.kind is not FindingKind.STALE_PRICE]
    return (
        gpu_name(e.gpu_key),
        _width(e),
        format_percent(e.compute_share),
        format_percent(e.bandwidth_share),
        format_percent(e.host_share),
        plain(e.method, 160),
        ", ".join(plain(x, 60) for x in e.evidence[:4]) or UNKNOWN,
        "; ".join(remarks) or "none",
    )


def _width(estimate: Estimate) -> str:
    """The interval as factors of the estimate: easier to compare between GPUs than its ends."""
    if estimate.low is None or estimate.high is None:
        return UNKNOWN
    down, up = estimate.low / estimate.samples_per_s, estimate.high / estimate.samples_per_s
    return f"×{format_number(down, 2)} to ×{format_number(up, 3)}"


SECTION = Section(key="prediction", render=_render)
