"""Buy or rent: the cost of a useful hour of an owned card, compared with renting the same work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, Look, Mark, dots, two_lines
from gpubench.blocks.parts import Charts, Paragraph, Table, number, table, text
from gpubench.interval import stacked
from gpubench.labels import CONDITION_WORDS, PRICING_WORDS, gpus_of
from gpubench.models import BuyOrRent, PriceCondition, Pricing
from gpubench.offers.dates import show_price_date
from gpubench.recommend.owning import assumed_of, must_work, payback
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.units import format_number, format_price, format_usd, listing, plain

MOST_ROWS = 12
_OWN = "`gpubench rank --have` takes your own figures."
_VERDICTS = {
    "buy": "buying is the cheaper over the whole range of assumptions.",
    "depends": "it depends on how many hours the card works.",
    "rent": "renting is the cheaper over the whole range of assumptions.",
}


def _render(data: ReportData) -> Block | None:
    decisions = data.buy_or_rent[:MOST_ROWS]
    if not decisions:
        return None
    assumed, best = listing(assumed_of(decisions)), _best(data)
    note = Paragraph(text=f"Assumed, because it was not given: {assumed}. {_OWN}", tone="note")
    caption = (
        "Below 1 owning is the cheaper. The line spans resale, the share of hours at work, the price of "
        "energy, and the interval of its speed. An owned card costs most while it idles; a rented one is "
        "handed back."
    )
    shown, notes = _table(decisions), (note,) if assumed else ()
    figure = dots(
        [_mark(each) for each in decisions],
        {None: Look(name="owned", color=BLUE)},
        "cost of owning over renting the same work",
        "Dot chart of the cost of an hour of work, owned against rented",
        line_at=1.0,
    )
    chart = Charts(figures=(figure,), twin=shown, caption=caption)
    brief = (shown, *(Paragraph(text=each) for each in best), *notes)
    return Block(
        title="Buy or rent",
        brief=brief,
        parts=(Paragraph(text=" ".join((*best, *_verdicts(decisions)))), chart, *notes),
    )


def _best(data: ReportData) -> list[str]:
    """Return a sentence on the best new and the best used hardware, if a sum was given."""
    if data.ranking is None or data.ranking.max_purchase_usd is None:
        return []
    best: dict[PriceCondition, BuyOrRent] = {}
    for each in data.ranking.buy_or_rent:
        best.setdefault(each.condition, each)
    named = (
        f"{gpus_of(each)} ({CONDITION_WORDS[each.condition]}, {show_price_date(each.price_date)}) for "
        f"{format_price(each.purchase_usd)}"
        for each in best.values()
    )
    return [f"Best within {format_price(data.ranking.max_purchase_usd)}: {'; '.join(named)}."]


def _verdicts(decisions: Sequence[BuyOrRent]) -> Iterator[str]:
    """Yield the verdicts against rent on demand."""
    by_the_hour = [each for each in decisions if each.against_pricing is Pricing.ON_DEMAND]
    for verdict, words in _VERDICTS.items():
        names = dict.fromkeys(gpus_of(each) for each in by_the_hour if each.verdict == verdict)
        if names:
            yield f"{listing(names, most=3)}: {words}"


def _mark(each: BuyOrRent) -> Mark:
    owned, rented = each.hourly_usd.by(format_usd), format_usd(each.equivalent_usd_per_hour)
    return Mark(
        row=two_lines(gpus_of(each), f"{format_price(each.purchase_usd)} to buy"),
        interval=each.hourly_usd.over(each.equivalent_usd_per_hour),
        hover=f"owned {owned}, rented {rented}",
        told=f"{gpus_of(each)} {owned} against {rented}",
    )


def _table(decisions: Sequence[BuyOrRent]) -> Table:
    return table(
        "Owning against renting the same work",
        decisions,
        text("Card", lambda each: f"{gpus_of(each)}\n{plain(each.instance, 60)}"),
        number(
            "Price", lambda each: f"{format_price(each.purchase_usd)}\n{show_price_date(each.price_date)}", 1
        ),
        number("Hour of work, owned", lambda each: stacked(each.hourly_usd.by(format_usd))),
        text("Against", lambda each: f"{plain(each.against, 60)}, {PRICING_WORDS[each.against_pricing]}"),
        number("The same work, rented", lambda each: format_usd(each.equivalent_usd_per_hour)),
        number("Hours of work to pay", _hours_to_pay, 2),
        text("Must work", lambda each: stacked(must_work(each))),
        text("Payback", payback),
        text("Verdict", lambda each: each.verdict),
    )


def _hours_to_pay(each: BuyOrRent) -> str:
    hours = (each.break_even_hours, each.break_even_hours_low, each.break_even_hours_high)
    likely, low, high = ("never" if h is None else f"{format_number(h, 2)} h" for h in hours)
    return likely if likely == low == high else f"{likely}\n{low} to {high}"


SECTION = Section(key="owning", render=_render, place=110, heading="prices")
