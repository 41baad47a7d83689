"""Prices with their dates, owning compared with renting, and doubts about the specifications in use.

The table of published MLPerf Training runs, with today's cost of each, is here too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median_high

import msgspec

from gpubench.blocks.parts import (
    BLUE,
    Block,
    Charts,
    Look,
    Mark,
    Paragraph,
    Table,
    dots,
    number,
    table,
    text,
    two_lines,
)
from gpubench.groups import first_of_each, grouped
from gpubench.interval import stacked
from gpubench.labels import CONDITION_WORDS, PRICING_WORDS, gpu_name, gpus, gpus_of, offer_name
from gpubench.models import BuyOrRent, Offer, Pricing
from gpubench.offers.dates import STALE_AFTER_DAYS, freshness, show_price_date
from gpubench.readings import MLPERF_LICENSE, PublishedRun, load_mlperf, rounds
from gpubench.recommend.economics import MINUTES_PER_HOUR
from gpubench.recommend.owning import assumed_of, must_work, payback
from gpubench.recommend.rows import best_of_each_gpu
from gpubench.sections.data import ReportData
from gpubench.units import UNKNOWN, count, format_number, format_price, format_usd, listing, plain, span

MOST_ROWS = 12
_OWN = "`gpubench rank --have` takes your own figures."
_VERDICTS = {
    "buy": "buying is cheaper over the whole range of assumptions.",
    "depends": "it depends on how many hours the card works.",
    "rent": "renting is cheaper over the whole range of assumptions.",
}


def _owning(data: ReportData) -> Block | None:
    decisions = data.buy_or_rent[:MOST_ROWS]
    if not decisions:
        return None
    assumed, best = listing(assumed_of(decisions)), _best(data)
    note = Paragraph(text=f"Assumed, because it was not given: {assumed}. {_OWN}", tone="note")
    caption = (
        "Below 1, owning is cheaper. The line covers the ranges of resale value, utilization, electricity "
        "price and speed. Owning is expensive if the card is often idle; a rented card can be returned."
    )
    shown, notes = _table(decisions), (note,) if assumed else ()
    figure = dots(
        [_mark(each) for each in decisions],
        {None: Look(name="owned", color=BLUE)},
        "cost of owning over renting for the same work",
        "Dot chart of the cost of an hour of work, owned versus rented",
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
    if data.ranking is None or data.ranking.max_purchase_usd is None:
        return []
    named = (
        f"{gpus_of(each)} ({CONDITION_WORDS[each.condition]}, {show_price_date(each.price_date)}) for "
        f"{format_price(each.purchase_usd)}"
        for each in first_of_each(data.ranking.buy_or_rent, lambda each: each.condition)
    )
    return [f"Best within {format_price(data.ranking.max_purchase_usd)}: {'; '.join(named)}."]


def _verdicts(decisions: Sequence[BuyOrRent]) -> Iterator[str]:
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
        alt=f"{gpus_of(each)} {owned} versus {rented}",
    )


def _table(decisions: Sequence[BuyOrRent]) -> Table:
    return table(
        "Owning versus renting for the same work",
        decisions,
        text("Card", lambda each: f"{gpus_of(each)}\n{plain(each.instance, 60)}"),
        number(
            "Price",
            lambda each: f"{format_price(each.purchase_usd)}\n{show_price_date(each.price_date)}",
            optional=1,
        ),
        number("Hour of work, owned", lambda each: stacked(each.hourly_usd.by(format_usd))),
        # the name of a rental includes its pricing, unless it is on demand
        text(
            "Against",
            lambda each: (
                plain(each.against) + (", on demand" if each.against_pricing is Pricing.ON_DEMAND else "")
            ),
        ),
        number("The same work, rented", lambda each: format_usd(each.equivalent_usd_per_hour)),
        number("Hours of work to pay off", _hours_to_pay, optional=2),
        text("Must work", lambda each: stacked(must_work(each))),
        text("Payback", payback),
        text("Verdict", lambda each: each.verdict),
    )


def _hours_to_pay(each: BuyOrRent) -> str:
    hours = (each.break_even_hours, each.break_even_hours_low, each.break_even_hours_high)
    likely, low, high = ("never" if h is None else f"{format_number(h, 2)} h" for h in hours)
    return likely if likely == low == high else f"{likely}\n{low} to {high}"


# Maximum characters of a source's text: enough for the name of its license, which some licenses require.
_SOURCE_CHARACTERS = 300


def _prices(data: ReportData) -> Block | None:
    ranked = () if data.ranking is None else data.ranking.rows
    newest_first = sorted(ranked, key=lambda row: row.price_age_days)
    rented = (row for row in newest_first if row.offer.pricing is not Pricing.OWNED)
    by_provider = grouped((row.offer.provider, row) for row in rented)
    if not by_provider:
        return None
    ages = [row.price_age_days for rows in by_provider.values() for row in rows]
    said = (
        "Prices are for the whole instance, in US dollars, without tax, storage or traffic. They rise and "
        "fall, and differ between regions: ask the provider before you sign. A date without a day counts as "
        "the earliest possible day."
    )
    if stale := sum(age > STALE_AFTER_DAYS for age in ages):
        said += f" {stale} of {count(len(ages), 'price')} may be stale (over {STALE_AFTER_DAYS} days old)."
    by_name = table(
        "Prices used, by provider",
        sorted(by_provider.items()),
        text("Provider", lambda item: plain(item[0], 40)),
        number("Offers", lambda item: str(len(item[1]))),
        text("Pricing", lambda item: listing(sorted({PRICING_WORDS[r.offer.pricing] for r in item[1]}))),
        text("Oldest price", lambda item: plain(item[1][-1].offer.price_date, 20)),
        text("Newest price", lambda item: plain(item[1][0].offer.price_date, 20)),
        text("Freshness", lambda item: freshness(item[1][-1].price_age_days)),
    )
    sources = Counter(row.offer.source or UNKNOWN for rows in by_provider.values() for row in rows)
    by_source = table(
        "Where the prices were read",
        sources.most_common(),
        text("Source", lambda item: plain(item[0], _SOURCE_CHARACTERS)),
        number("Offers", lambda item: str(item[1])),
    )
    finding = f"half of them are at most {count(median_high(ages), 'day')} old"
    return Block(title="Prices", finding=finding, parts=(Paragraph(text=said), by_name, by_source))


def _footnotes(data: ReportData) -> Block | None:
    keys = [] if data.spec is None else [data.spec.key]
    if data.ranking is not None:
        keys += [row.offer.gpu_key for row in best_of_each_gpu(data.ranking.rows)]
    doubtful = [data.specs[key] for key in dict.fromkeys(keys) if key in data.specs and data.specs[key].doubt]
    if not doubtful:
        return None
    return Block(
        title="Footnotes to the datasheets",
        parts=(
            Paragraph(
                text=(
                    "Predictions start from datasheet figures: dense rates with FP32 accumulation. "
                    "Where sources disagree, the row says so."
                )
            ),
            table(
                "Where the sources of a specification disagree",
                doubtful,
                text("GPU", lambda spec: gpu_name(spec.key)),
                text("What is uncertain", lambda spec: plain(spec.doubt or "", 400)),
                text("Source of the row", lambda spec: plain(spec.source, 300)),
                folded=True,
            ),
        ),
    )


SECTIONS = {"owning": _owning, "prices": _prices, "footnotes": _footnotes}


# --- published runs of MLPerf Training ------------------------------------------------------------------

MOST_GPUS_OF_A_MACHINE = 8


class PricedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A published run, and the cheapest cloud machines for it.

    Attributes:
        offer: The offer of one machine; None if no cloud lists one on demand.
        machines: The number of machines.
        usd: Hours of the run times the price of all machines, without startup; None without an offer.
    """

    run: PublishedRun
    offer: Offer | None = None
    machines: int | None = None
    usd: float | None = None


def priced(runs: Iterable[PublishedRun], offers: Iterable[Offer]) -> tuple[PricedRun, ...]:
    """Pair each run with the cheapest on-demand cloud machines of the same GPUs.

    Args:
        runs: Published runs.
        offers: Prices; marketplace, spot and reserved offers are skipped, because a published system is a
            complete machine.
    """
    clouds = [
        offer
        for offer in offers
        if offer.kind == "vm" and offer.pricing is Pricing.ON_DEMAND and offer.usd_per_gpu_hour > 0
    ]
    clouds.sort(key=lambda o: (o.usd_per_gpu_hour, o.provider, o.instance, o.region or ""), reverse=True)
    cheapest = {(offer.gpu_key, offer.gpu_count): offer for offer in clouds}

    def with_price(run: PublishedRun) -> PricedRun:
        # a system larger than one machine is priced as several full machines
        machines, rest = divmod(run.gpus, min(run.gpus, MOST_GPUS_OF_A_MACHINE))
        offer = cheapest.get((run.gpu_key, run.gpus // machines))
        if offer is None or rest:
            return PricedRun(run=run)
        usd = offer.usd_per_gpu_hour * run.gpus * run.minutes / MINUTES_PER_HOUR
        return PricedRun(run=run, offer=offer, machines=machines, usd=usd)

    return tuple(map(with_price, runs))


def about_mlperf() -> str:
    """Describe the table of published runs: scope, rounds and limits."""
    known = [f"{name} ({month})" for name, month in rounds(load_mlperf())]
    return (
        "Time to train to the target quality, as published by the submitters, who tuned their own software "
        f"for their own machine. Rounds: {span(known)}; later ones are not in the table. Neither predictions "
        "nor the ranking use these times, but scaling over several GPUs is fitted to published jobs, some "
        "from MLPerf Training. The table shows the fastest run of each GPU in its newest round. A run's cost "
        "is its hours times today's cheapest on-demand cloud price for as many GPUs, without startup. "
        f"Source: {MLPERF_LICENSE}."
    )


def runs_table(runs: Sequence[PricedRun]) -> Table:
    """Return published runs as a table, in the order given."""
    return table(
        "MLPerf Training: minutes to the target quality",
        runs,
        text("Benchmark", lambda p: p.run.benchmark.replace("_", " ")),
        text("GPUs", lambda p: gpus(p.run.gpu_key, p.run.gpus)),
        number("Minutes", lambda p: format_number(p.run.minutes)),
        number("Runs", lambda p: str(p.run.runs), optional=3),
        text("Round", lambda p: f"{p.run.round}\n{p.run.date}"),
        text("Submitter", lambda p: f"{plain(p.run.submitter, 40)}\n{plain(p.run.system, 60)}", optional=2),
        number("Cost of a run", lambda p: format_usd(p.usd)),
        text("At the price of", _priced_at, optional=1),
    )


def _priced_at(one: PricedRun) -> str:
    if one.offer is None:
        return UNKNOWN
    machines = "" if one.machines == 1 else f"{one.machines} x "
    return f"{machines}{offer_name(one.offer)}\n{one.offer.price_date}"
