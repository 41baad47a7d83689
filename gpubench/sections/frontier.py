"""Cost against throughput: which offers no other beats on both, and what speed costs."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.charts import BASIS_COLOURS, BASIS_SYMBOLS, Point, label, plane, spaced
from gpubench.blocks.parts import Block, Charts, Column, Figure, Paragraph, Table
from gpubench.interval import Interval, stacked
from gpubench.models import RankedOffer, Ranking
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import (
    JOB_HOURS,
    basis_words,
    cost_of,
    cost_unit,
    gpus_words,
    of_a_job,
    offer_words,
    per_s_unit,
    per_s_words,
    price_words,
    speed_of,
)
from gpubench.units import format_number


def frontier(ranking: Ranking) -> tuple[RankedOffer, ...]:
    """The offers that no other beats on both the cost of work and throughput, by rising throughput."""
    line: list[RankedOffer] = []
    for row in sorted(ranking.rows, key=lambda r: (-speed_of(ranking, r), cost_of(ranking, r))):
        if not line or cost_of(ranking, row) < cost_of(ranking, line[-1]):
            line.append(row)
    return tuple(reversed(line))


def _render(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None or len(ranking.rows) < 2:
        return None
    line = frontier(ranking)
    return Block(
        title="What speed costs",
        parts=(
            Paragraph(text=_sentence(data, ranking, line)),
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


def _sentence(data: ReportData, ranking: Ranking, line: Sequence[RankedOffer]) -> str:
    cheapest, fastest = line[0], line[-1]
    if cheapest is fastest:
        name = f"{gpus_words(data, cheapest.offer)} ({offer_words(cheapest.offer)})"
        return f"{name} is both the cheapest for the work and the fastest."
    faster = speed_of(ranking, fastest) / speed_of(ranking, cheapest)
    dearer = cost_of(ranking, fastest) / cost_of(ranking, cheapest)
    return (
        f"From the cheapest work ({gpus_words(data, cheapest.offer)}) to the highest throughput "
        f"({gpus_words(data, fastest.offer)}) speed grows {Interval(faster).text('×')} "
        f"and its price {Interval(dearer).text('×')}, by best estimates."
    )


def _figure(data: ReportData, ranking: Ranking, line: Sequence[RankedOffer]) -> Figure:
    clouds = [
        (
            str(basis),
            colour,
            BASIS_SYMBOLS[basis],
            [_point(data, ranking, row, "") for row in ranking.rows if row.estimate.basis == basis],
        )
        for basis, colour in BASIS_COLOURS.items()
    ]
    words_of = spaced([(speed_of(ranking, row), cost_of(ranking, row)) for row in line])
    named = [
        _point(data, ranking, row, label(gpus_words(data, row.offer), 30) if i in words_of else "")
        for i, row in enumerate(line)
    ]
    alt = "; ".join(f"{gpus_words(data, row.offer)} {_position(row, ranking)}" for row in line[:8])
    return Figure(
        figure=plane(
            clouds,
            named,
            _speed_unit(ranking) if of_a_job(ranking) else f"throughput, {per_s_unit(ranking)}",
            cost_unit(ranking),
            less_to_the_right=of_a_job(ranking),
        ),
        alt=f"Scatter chart of cost against throughput. On the line of best trade-offs: {alt}.",
        height_px=460,
    )


def _point(data: ReportData, ranking: Ranking, row: RankedOffer, text: str) -> Point:
    hover = (
        f"{label(gpus_words(data, row.offer))}<br>{label(offer_words(row.offer), 90)}"
        f"<br>{label(_position(row, ranking), 120)}<br>{price_words(row.offer)}, {row.estimate.basis}"
    )
    return Point(x=row.hours or speed_of(ranking, row), y=cost_of(ranking, row), text=text, hover=hover)


def _position(row: RankedOffer, ranking: Ranking) -> str:
    cost = format_number(cost_of(ranking, row))
    return f"{_speed_words(ranking, row)} {_speed_unit(ranking)}, {cost} {cost_unit(ranking)}"


def _speed_unit(ranking: Ranking) -> str:
    return JOB_HOURS if of_a_job(ranking) else per_s_unit(ranking)


def _speed_words(ranking: Ranking, row: RankedOffer) -> str:
    if row.hours is None:
        return per_s_words(ranking, row)
    return row.job_hours.words()


def _twin(data: ReportData, ranking: Ranking, line: Sequence[RankedOffer]) -> Table:
    return Table(
        caption="The offers on the line, from the cheapest work to the fastest",
        columns=(
            Column(title="GPUs and offer"),
            Column(title=_speed_unit(ranking), numeric=True),
            Column(title=cost_unit(ranking), numeric=True),
            Column(title="Price", numeric=True),
            Column(title="Basis"),
        ),
        rows=tuple(
            (
                f"{gpus_words(data, row.offer)}\n{offer_words(row.offer)}",
                stacked(_speed_words(ranking, row)),
                f"${format_number(cost_of(ranking, row))}",
                price_words(row.offer),
                stacked(basis_words(row.estimate)),
            )
            for row in line
        ),
    )


SECTION = Section(key="frontier", render=_render, place=100)
