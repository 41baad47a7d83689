"""Buy or rent: what a useful hour of an owned card costs, against renting the same work."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Figure, Paragraph, Table, number, table, text
from gpubench.interval import stacked
from gpubench.labels import PRICING_WORDS, gpus_of
from gpubench.models import BuyOrRent
from gpubench.recommend.buy_or_rent import assumed_of, assumptions, must_work, pays_after
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.units import format_number, format_price, format_usd, listing, plain

MOST_ROWS = 12
_VERDICTS = {
    "buy": "buying is the cheaper over the whole range of assumptions.",
    "depends": "it depends on how many hours the card works.",
    "rent": "renting is the cheaper over the whole range of assumptions.",
}


def _render(data: ReportData) -> Block | None:
    decisions = data.buy_or_rent[:MOST_ROWS]
    if not decisions:
        return None
    assumed = assumptions(decisions, "price")
    own = " `gpubench rank --own` takes your own figures." if assumed_of(decisions) else ""
    note = Paragraph(text=f"{assumed}{own}", tone="note")
    names = {
        verdict: [gpus_of(each) for each in decisions if each.verdict == verdict] for verdict in _VERDICTS
    }
    verdicts = (
        f"{listing(names[each], most=3)}: {words}" for each, words in _VERDICTS.items() if names[each]
    )
    return Block(
        title="Buy or rent",
        brief=(_table(decisions, narrow=True), note),
        parts=(
            Paragraph(text=" ".join(verdicts)),
            Charts(
                figures=(_figure(decisions),),
                twin=_table(decisions, narrow=False),
                caption=(
                    "Below 1 owning is the cheaper. The line spans resale, the share of hours "
                    "at work, the price of energy, and the interval of its speed. An owned card costs most "
                    "while it idles; a rented one is handed back."
                ),
            ),
            note,
        ),
    )


def _figure(decisions: Sequence[BuyOrRent]) -> Figure:
    marks = []
    for each in decisions:
        owned, rented = _hourly(each), format_usd(each.equivalent_usd_per_hour)
        marks.append(
            Mark(
                row=two_lines(gpus_of(each), f"{format_price(each.purchase_usd)} to buy"),
                interval=each.hourly_usd.over(each.equivalent_usd_per_hour),
                hover=f"owned {owned}, rented {rented}",
                told=f"{gpus_of(each)} {owned} against {rented}",
            )
        )
    return dots(
        marks,
        {None: Look(name="owned", color=BLUE)},
        "cost of owning over renting the same work",
        "Dot chart of the cost of an hour of work, owned against rented",
        line_at=1.0,
    )


def _hourly(each: BuyOrRent) -> str:
    return each.hourly_usd.by(format_usd)


def _table(decisions: Sequence[BuyOrRent], *, narrow: bool) -> Table:
    """Owning beside renting; a narrow terminal can break a rival that has a column of words."""

    def rival(each: BuyOrRent) -> str:
        return f"{plain(each.against, 60)}, {PRICING_WORDS[each.against_pricing]}"

    def rented(each: BuyOrRent) -> str:
        return format_usd(each.equivalent_usd_per_hour)

    words = text if narrow else number
    return table(
        "Owning against renting the same work",
        decisions,
        text("Card", lambda each: f"{gpus_of(each)}\n{plain(each.instance, 60)}"),
        number("Price", lambda each: format_price(each.purchase_usd), optional=1 if narrow else 0),
        number("Hour of work, owned", lambda each: stacked(_hourly(each))),
        text("Against", rival) if narrow else None,
        number("The same work, rented", rented if narrow else lambda each: f"{rented(each)}\n{rival(each)}"),
        number("Hours of work to pay", _hours_to_pay, optional=2 if narrow else 0),
        words("Must work", lambda each: stacked(must_work(each))),
        words("Pays after", pays_after),
        text("Verdict", lambda each: each.verdict),
    )


def _hours_to_pay(each: BuyOrRent) -> str:
    hours = (each.break_even_hours, each.break_even_hours_low, each.break_even_hours_high)
    likely, low, high = ("never" if h is None else f"{format_number(h, 2)} h" for h in hours)
    return likely if likely == low == high else f"{likely}\n{low} to {high}"


SECTION = Section(key="owning", render=_render, place=110)
