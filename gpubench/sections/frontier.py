"""Cost against throughput: which offers no other beats on both, and what speed costs."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BASIS_LOOKS, Point, label, plane, spaced
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.interval import Interval, stacked
from gpubench.labels import gpus_of, offer_lines, offer_name, price_of
from gpubench.models import Ranking, Row
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import (
    JOB_HOURS,
    basis_words,
    cost_of,
    cost_unit,
    of_a_job,
    per_s_unit,
    speed_of,
)
from gpubench.units import format_number

MOST_POINTS = 250
"""Offers that the figure shows, best first, beside those on the line."""


def frontier(ranking: Ranking) -> tuple[Row, ...]:
    """The offers that no other beats on both the cost of work and throughput, by rising throughput.

    Guesses beyond the fit are left out, unless there is nothing else.
    """
    line: list[Row] = []
    known = [row for row in ranking.rows if not row.estimate.is_extrapolated]
    for row in sorted(known or ranking.rows, key=lambda r: (-speed_of(ranking, r), cost_of(ranking, r))):
        if not line or cost_of(ranking, row) < cost_of(ranking, line[-1]):
            line.append(row)
    return tuple(reversed(line))


def _render(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None or len(ranking.rows) < 2:
        return None
    line = frontier(ranking)
    cheapest, fastest = line[0], line[-1]
    if cheapest is fastest:
        name = f"{gpus_of(cheapest.offer)} ({offer_name(cheapest.offer)})"
        said = f"{name} is both the cheapest for the work and the fastest."
    else:
        faster = Interval(speed_of(ranking, fastest) / speed_of(ranking, cheapest))
        dearer = Interval(cost_of(ranking, fastest) / cost_of(ranking, cheapest))
        said = (
            f"From the cheapest work ({gpus_of(cheapest.offer)}) to the highest throughput "
            f"({gpus_of(fastest.offer)}) speed grows {faster.text('×')} "
            f"and its price {dearer.text('×')}, by best estimates."
        )
    few = len(ranking.rows) <= MOST_POINTS
    shown = "Every ranked offer" if few else f"The first {MOST_POINTS} ranked offers"
    return Block(
        title="What speed costs",
        parts=(
            Paragraph(text=said),
            Charts(
                figures=(_figure(ranking, line),),
                twin=table(
                    "The offers on the line, from the cheapest work to the fastest",
                    line,
                    text("GPUs and offer", lambda row: offer_lines(row.offer)),
                    number(_speed_unit(ranking), lambda row: stacked(_speed_words(ranking, row))),
                    number(cost_unit(ranking), lambda row: f"${format_number(cost_of(ranking, row))}"),
                    number("Price", price_of),
                    text("Basis", lambda row: stacked(basis_words(row.estimate))),
                ),
                caption=(
                    f"{shown}; right is faster, down is cheaper, both axes logarithmic. The "
                    "dashed line joins the offers that no other beats on both, guesses beyond the fit left "
                    "out. Positions are best estimates: offers near the line may be as good within their "
                    "intervals."
                ),
            ),
        ),
    )


def _figure(ranking: Ranking, line: Sequence[Row]) -> Figure:
    shown = ranking.rows[:MOST_POINTS]
    clouds = [
        (look, [_point(ranking, row, "") for row in shown if row.estimate.basis == basis])
        for basis, look in BASIS_LOOKS.items()
    ]
    words_of = spaced([(speed_of(ranking, row), cost_of(ranking, row)) for row in line])
    named = [
        _point(ranking, row, label(gpus_of(row.offer), 30) if i in words_of else "")
        for i, row in enumerate(line)
    ]
    alt = "; ".join(f"{gpus_of(row.offer)} {_position(row, ranking)}" for row in line[:8])
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


def _point(ranking: Ranking, row: Row, text: str) -> Point:
    hover = (
        f"{label(gpus_of(row.offer))}<br>{label(offer_name(row.offer), 90)}"
        f"<br>{label(_position(row, ranking), 120)}<br>{price_of(row)}, {row.estimate.basis}"
    )
    return Point(x=row.hours.value or speed_of(ranking, row), y=cost_of(ranking, row), text=text, hover=hover)


def _position(row: Row, ranking: Ranking) -> str:
    cost = format_number(cost_of(ranking, row))
    return f"{_speed_words(ranking, row)} {_speed_unit(ranking)}, {cost} {cost_unit(ranking)}"


def _speed_unit(ranking: Ranking) -> str:
    return JOB_HOURS if of_a_job(ranking) else per_s_unit(ranking)


def _speed_words(ranking: Ranking, row: Row) -> str:
    if row.hours.value is None:
        return ranking.throughput_of(row).words()
    return row.hours.collapsed.words()


SECTION = Section(key="frontier", render=_render, place=100)
