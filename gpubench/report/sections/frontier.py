"""Cost against throughput: which offers no other beats on both, and what speed costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpubench.models import RankedOffer, Ranking
from gpubench.report.charts import BASIS_COLOURS, BASIS_SYMBOLS, Point, label, plane, spaced
from gpubench.report.data import ReportData
from gpubench.report.section import Block, Charts, Column, Figure, Paragraph, Section, Table
from gpubench.report.words import (
    basis_words,
    gpus_words,
    offer_words,
    per_s_words,
    price_words,
    quantity,
    ratio_words,
    stacked,
)
from gpubench.units import format_number


def frontier(rows: Iterable[RankedOffer]) -> tuple[RankedOffer, ...]:
    """The offers that no other beats on both cost per sample and throughput, by rising throughput."""
    line: list[RankedOffer] = []
    for row in sorted(rows, key=lambda r: (-r.samples_per_s, r.usd_per_million_samples)):
        if not line or row.usd_per_million_samples < line[-1].usd_per_million_samples:
            line.append(row)
    return tuple(reversed(line))


def _render(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None or len(ranking.rows) < 2:
        return None
    line = frontier(ranking.rows)
    return Block(
        title="What speed costs",
        parts=(
            Paragraph(text=_sentence(data, line)),
            Charts(
                figures=(_figure(data, ranking, line),),
                twin=_twin(data, ranking, line),
                caption=(
                    "Every ranked offer; right is faster, down is cheaper, both axes logarithmic. The dashed "
                    "line joins the offers that no other beats on both. Positions are best estimates: offers "
                    "near the line may be as good within their intervals."
                ),
            ),
        ),
    )


def _sentence(data: ReportData, line: Sequence[RankedOffer]) -> str:
    cheapest, fastest = line[0], line[-1]
    if cheapest is fastest:
        name = f"{gpus_words(data, cheapest.offer)} ({offer_words(cheapest.offer)})"
        return f"{name} is both the cheapest by the sample and the fastest."
    faster = fastest.samples_per_s / cheapest.samples_per_s
    dearer = fastest.usd_per_million_samples / cheapest.usd_per_million_samples
    return (
        f"From the cheapest sample ({gpus_words(data, cheapest.offer)}) to the highest throughput "
        f"({gpus_words(data, fastest.offer)}) speed grows {ratio_words(faster, None, None)} "
        f"and the price of a sample {ratio_words(dearer, None, None)}, by best estimates."
    )


def _figure(data: ReportData, ranking: Ranking, line: Sequence[RankedOffer]) -> Figure:
    words = quantity(ranking)
    clouds = [
        (
            str(basis),
            colour,
            BASIS_SYMBOLS[basis],
            [_point(data, ranking, row, "") for row in ranking.rows if row.estimate.basis == basis],
        )
        for basis, colour in BASIS_COLOURS.items()
    ]
    words_of = spaced([(row.samples_per_s, row.usd_per_million_samples) for row in line])
    named = [
        _point(data, ranking, row, label(gpus_words(data, row.offer), 30) if i in words_of else "")
        for i, row in enumerate(line)
    ]
    alt = "; ".join(f"{gpus_words(data, row.offer)} {_position(row, ranking)}" for row in line[:8])
    return Figure(
        figure=plane(clouds, named, f"throughput, {words.per_s}", words.usd_per_million),
        alt=f"Scatter chart of cost against throughput. On the line of best trade-offs: {alt}.",
        height_px=460,
    )


def _point(data: ReportData, ranking: Ranking, row: RankedOffer, text: str) -> Point:
    hover = (
        f"{label(gpus_words(data, row.offer))}<br>{label(offer_words(row.offer), 90)}"
        f"<br>{label(_position(row, ranking), 120)}<br>{price_words(row.offer)}, {row.estimate.basis}"
    )
    return Point(x=row.samples_per_s, y=row.usd_per_million_samples, text=text, hover=hover)


def _position(row: RankedOffer, ranking: Ranking) -> str:
    words = quantity(ranking)
    cost = format_number(row.usd_per_million_samples)
    return f"{per_s_words(row)} {words.per_s}, {cost} {words.usd_per_million}"


def _twin(data: ReportData, ranking: Ranking, line: Sequence[RankedOffer]) -> Table:
    words = quantity(ranking)
    return Table(
        caption="The offers on the line, from cheapest sample to fastest",
        columns=(
            Column(title="GPUs and offer"),
            Column(title=words.per_s.capitalize(), numeric=True),
            Column(title=words.usd_per_million, numeric=True),
            Column(title="Price", numeric=True),
            Column(title="Basis"),
        ),
        rows=tuple(
            (
                f"{gpus_words(data, row.offer)}\n{offer_words(row.offer)}",
                stacked(per_s_words(row)),
                f"${format_number(row.usd_per_million_samples)}",
                price_words(row.offer),
                stacked(basis_words(row.estimate)),
            )
            for row in line
        ),
    )


SECTION = Section(key="frontier", render=_render)
