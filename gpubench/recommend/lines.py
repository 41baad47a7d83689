"""The lines of an answer: its rows in words, and the effect of commitments and spot prices."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from gpubench.folders import data_table
from gpubench.groups import first_of_each, grouped
from gpubench.interval import Interval
from gpubench.labels import SELLERS, card_condition, gpu_name, gpus_of
from gpubench.models import Answer, Choice, Estimate, MemoryFormat, Offer, Pricing, Ranking, Row
from gpubench.models.ranking import MODELED
from gpubench.offers.table import Offers
from gpubench.recommend.answer import BASES, TITLES, machine_name
from gpubench.recommend.economics import (
    USUAL_HOURS_BETWEEN,
    checkpoint_interval_hours,
    lost_to_interruptions,
)
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.request import COMMITMENTS, RankRequest
from gpubench.sentences import Told, say, tell
from gpubench.units import (
    count,
    format_chance,
    format_number,
    format_percent,
    format_price,
    format_usd,
    listing,
    plain,
)

COST = "You pay"
"""The heading of the column with the cost of a job, excluding the value of waiting."""

CHANCE = "Chance it's best"
"""The heading of the column with the chance that no other GPUs are a better answer."""

BOTH = " \N{MIDDLE DOT} "
"""Joins the names of a row that is more than one answer."""

OR = "or"
"""Precedes the likeliest rival in a toss-up."""

# The names of the answers if hardware is bought for a sum of money.
_TITLES_FOR_A_SUM = {"cheapest": "Best per dollar", "sensible": "Sensible", "fastest": "Most work"}
HOURS = ((48.0, 24.0, " days"), (1.0, 1.0, " h"), (1 / 60, 1 / 60, " min"), (0.0, 1 / 3600, " s"))
"""Units of time, longest first: the hours from which each is used, its length in hours, and its name."""


class Line(NamedTuple):
    """A row to show, with the titles of the answers it represents.

    Attributes:
        names: "Cheapest", "Sensible · Fastest", "Cloud", "Yours" ...
        answers: Its answers; empty for an additional row.
    """

    names: str
    choice: Choice
    answers: tuple[Answer, ...] = ()

    @property
    def chances(self) -> tuple[str, ...]:
        """The chance of each answer, with the likeliest rival in a toss-up.

        If the chances differ, each is prefixed with its answer's name.
        """
        found = [_chance(answer) for answer in self.answers]
        if len(set(found)) < 2:
            return tuple(found[:1])
        return tuple(
            f"{name.lower()} {each}" for name, each in zip(self.names.split(BOTH), found, strict=True)
        )


def lines(ranking: Ranking) -> list[Line]:
    """Return the distinct rows to show: the answers, the best cloud, the buyer's machines, and named GPUs."""
    buys = ranking.max_purchase_usd is not None and ranking.first.source == "own"
    titles = _TITLES_FOR_A_SUM if buys else TITLES
    names = grouped((id(answer.row), name) for name, answer in ranking.answers.items())
    found = [
        Line(
            names=BOTH.join(titles[name] for name in same),
            choice=ranking.answers[same[0]].choice,
            answers=tuple(ranking.answers[name] for name in same),
        )
        for same in names.values()
    ]
    named = {line.choice.offer for line in found}
    others = [("Cloud", ranking.cloud), *(("Yours", each) for each in ranking.owned)]
    others += [("Also named", each) for each in ranking.asked]
    found[1:1] = first_of_each(  # inserted after the first answer
        (Line(name, each) for name, each in others if each is not None and each.offer not in named),
        lambda line: line.choice.offer,
    )
    return found


def _chance(answer: Answer) -> str:
    # Return the chance that no other GPUs are a better answer; in a toss-up also that of the main rival.
    mine = "" if answer.p_best is None else format_chance(answer.p_best)
    if answer.toss_up is None:
        return mine
    (named, *_), (gpu_key, gpu_count, rival) = answer.toss_up
    return f"{mine} ({OR} {machine_name(gpu_key, gpu_count, named)} {format_chance(rival)})"


def headline(ranking: Ranking) -> str:
    """Return the sensible answer as a sentence."""
    sensible = ranking.answers["sensible"].row
    return next(_in_words(ranking, line) for line in lines(ranking) if line.choice.row is sensible)


def in_words(ranking: Ranking) -> list[str]:
    """Return each row of the answer as a sentence."""
    return [_in_words(ranking, line) for line in lines(ranking)]


def _in_words(ranking: Ranking, line: Line) -> str:
    row = line.choice.row
    what = f"{ranking.value_of(row).words()} {plain(ranking.value_unit, 60)}"
    if row.hours.value is not None:
        what = f"{hours_text(row)}, {row.cost_usd.by(format_usd)}"
    known = [each.p_best for each in line.answers if each.p_best is not None]
    if chances := dict.fromkeys(map(format_chance, known)):
        what += f"; {' and '.join(chances)} chance of being best"
    return say(
        "headline", title=line.names, gpu=what_of(line.choice), seller=seller(line.choice.offer), what=what
    )


def what_of(choice: Choice) -> str:
    """Return the GPUs of a row: "1x L4"; for hardware to buy, also its condition and total price."""
    if not choice.purchase_usd:
        return gpus_of(choice.offer)
    cards = ", ".join(filter(None, (gpus_of(choice.offer), card_condition(choice.condition))))
    host = " with a host" if choice.host_usd else ""
    return f"{cards}{host}, {format_price(choice.purchase_usd)}"


def seller(offer: Offer, purchase_usd: float | None = None) -> str:
    """Return the seller and its kind, or whether the machine is owned or to be bought, and its price."""
    if offer.pricing is Pricing.OWNED:
        price = f", {format_price(purchase_usd)}" if purchase_usd else ""
        return f"{'to buy' if offer.provider == 'buy' else 'yours'}{price}"
    paid = " spot" if offer.pricing is Pricing.SPOT else ""
    if offer.pricing is Pricing.RESERVED and offer.term_years is not None:
        paid = f" for {count(offer.term_years, 'year')}"
    kind = f" ({SELLERS[offer.seller]})" if offer.seller is not None else ""
    return f"{plain(offer.provider, 40)}{paid}{kind}"


def hours_text(row: Row) -> str:
    """Return the time of the job with its interval, in one unit."""
    hours = row.hours.value or 0.0
    length, unit = next((length, unit) for least, length, unit in HOURS if hours >= least)
    return Interval(hours, row.hours.low, row.hours.high).over(length).text(unit)


def basis_text(row: Row) -> str:
    """Return the basis of a row's throughput: measured, predicted or a guess."""
    if row.estimate.is_a_guess:
        return BASES["guess"]
    if row.scaling_basis == MODELED:
        return BASES["predicted"]
    return BASES["added" if row.estimate.origin else row.estimate.basis]


def precisions_of(estimates: Iterable[Estimate]) -> str:
    """Return the precisions of the estimates, each once: ``amp`` is bf16 on one card and fp16 on another."""
    return plain(" or ".join(dict.fromkeys(each.case.precision.words for each in estimates)), 60)


def on_evidence(found: Eligible, ranking: Ranking) -> Iterator[Told]:
    """Yield the origin of added runs that measured ranked GPUs, and the image layout the answers assume."""
    speeds, ranked = found.pool.speeds, set(found.pool.offers.gpu_key.present)
    known = zip(speeds.keys, speeds.estimates, strict=True)
    added = [f"{gpu_name(key)} ({each.origin})" for key, each in known if key in ranked and each.origin]
    if added:
        yield tell("added_runs", gpus="; ".join(added))
    answers = (each for answer in ranking.answers.values() for each in answer.row.estimates)
    if any(e.case.memory_format is MemoryFormat.CHANNELS_LAST for e in answers if e.basis == "predicted"):
        yield tell("layout")


# --- commitments ----------------------------------------------------------------------------------------

# A sentence names at most this many sellers that state no price for a term.
_MOST_SELLERS = 3


def on_commitments(found: Eligible) -> Iterator[Told]:
    """Yield the cost of the best commitment and the utilization above which it pays off, for each term.

    A commitment is billed around the clock. It pays off once the utilization exceeds its price divided by the
    on-demand price: $2.00 versus $3.20 pays off above 62.5 %. It is compared with the same seller's on-demand
    list price, and with the cheapest on-demand list price of any seller; "starting at" prices and hosts'
    asking prices do not count.
    """
    if found.request.commit is None:
        return
    possible = found.filtered.possible.where(~found.filtered.possible.is_owned)
    asked = COMMITMENTS[found.request.commit]
    best = _cheapest(found, possible, asked)
    for years in (asked, *(each for each in COMMITMENTS.values() if each != asked)):
        offer = _cheapest(found, possible, years, None if best is None else best.gpu_key)
        if offer is None and found.request.gpus:
            offer = _cheapest(found, possible, years)  # another of the named GPUs
        if offer is not None:
            yield from _against_on_demand(offer, possible, count(years, "year"))
    on_demand = found.offers.where(found.offers.pricing.equals(Pricing.ON_DEMAND))
    committed = possible.where(_of_term(possible, asked)).provider.present
    if without := [name for name in dict.fromkeys(on_demand.provider.cells()) if name not in committed]:
        names = listing([plain(name, 30) for name in without], most=_MOST_SELLERS)
        yield tell("commit_unknown", term=count(asked, "year"), provider=names)


def _of_term(offers: Offers, years: int) -> np.ndarray:
    return offers.pricing.equals(Pricing.RESERVED) & offers.term_years.equals(years)


def _cheapest(found: Eligible, possible: Offers, years: int, gpu_key: str | None = None) -> Offer | None:
    # Return the commitment with the lowest cost per sample, limited to one GPU if it is given.
    same = _of_term(possible, years) & (True if gpu_key is None else possible.gpu_key.equals(gpu_key))
    committed = found.finder.runnable(possible.where(same))[0]
    if not len(committed):
        return None
    pool = found.finder.pool_of(committed)
    return committed[int(np.argmax(pool.rate / pool.price))]


def _against_on_demand(offer: Offer, possible: Offers, term: str) -> Iterator[Told]:
    on_demand = possible.where(
        possible.pricing.equals(Pricing.ON_DEMAND) & possible.gpu_key.equals(offer.gpu_key)
    )
    listed = [each for each in on_demand if each.kind != "marketplace" and not each.is_floor]
    same_seller = [each for each in listed if each.provider == offer.provider]
    rivals = [min(some, key=lambda each: each.usd_per_gpu_hour) for some in (same_seller, listed) if some]
    if rivals:
        gpu, provider = gpu_name(offer.gpu_key), plain(offer.provider, 30)
        yield tell(
            "commit_price", gpu=gpu, provider=provider, term=term, usd=format_usd(offer.usd_per_gpu_hour)
        )
    for rival in dict.fromkeys(rivals):
        share = offer.usd_per_gpu_hour / rival.usd_per_gpu_hour
        yield tell(
            "commit_pays" if share < 1 else "commit_never",
            term=term,
            share=format_percent(share),
            usd=format_usd(rival.usd_per_gpu_hour),
            other=plain(rival.provider, 30),
        )


# --- spot -----------------------------------------------------------------------------------------------


class Interruptions(msgspec.Struct, frozen=True, kw_only=True):
    """Known interruption rates of one GPU at one provider.

    Attributes:
        month_class: Share of the machines interrupted in a month, in words, in the worst of six regions.
        traced_per_hour: Interruptions per machine-hour in a published trace, in the worst zone.
    """

    provider: str
    gpu_key: str
    month_class: str | None = None
    month_date: str | None = None
    traced_per_hour: float | None = None
    traced_date: str | None = None
    source: str


@cache
def _known_interruptions() -> dict[tuple[str, str], Interruptions]:
    return {(each.provider, each.gpu_key): each for each in data_table("interruptions.csv", Interruptions)}


def on_interruptions(request: RankRequest, answers: Iterable[Offer]) -> Iterator[Told]:
    """Yield the assumed and the observed interruptions if an answer is a spot machine."""
    spot = [offer for offer in answers if offer.pricing is Pricing.SPOT]
    if not spot or request.spot_lost is not None:
        return
    rate = 1 / USUAL_HOURS_BETWEEN
    yield tell(
        "spot_risk",
        hours=f"{USUAL_HOURS_BETWEEN:g}",
        minutes=format_number(60 * checkpoint_interval_hours(rate), 2),
        share=format_percent(lost_to_interruptions(rate)),
    )
    machines = dict.fromkeys((offer.provider, offer.gpu_key) for offer in spot)
    for seen in filter(None, map(_known_interruptions().get, machines)):
        if seen.month_class and seen.month_date:
            gpu = gpu_name(seen.gpu_key)
            yield tell(
                "spot_seen", provider=seen.provider, gpu=gpu, share=seen.month_class, day=seen.month_date
            )
        if seen.traced_per_hour and seen.traced_date:
            share = format_percent(lost_to_interruptions(seen.traced_per_hour))
            rate_words = format_number(seen.traced_per_hour, 2)
            yield tell("spot_traced", day=seen.traced_date, rate=rate_words, share=share)
