"""The results of other pricing: a commitment by its use, spot by its interruptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import msgspec
import numpy as np

from gpubench.folders import data_table
from gpubench.labels import gpu_name
from gpubench.models import Offer, Pricing
from gpubench.offers.columns import Offers
from gpubench.recommend.economics import (
    USUAL_HOURS_BETWEEN,
    checkpoint_interval_hours,
    lost_to_interruptions,
)
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.request import COMMITMENTS, RankRequest
from gpubench.sentences import Told, tell
from gpubench.units import count, format_number, format_percent, format_usd, listing, plain

MOST_SELLERS = 3
"""Most sellers named that state no price for a term."""


def on_commitments(found: Eligible) -> Iterator[Told]:
    """Yield the cost of the best commitment and the use from which it pays, for the term asked and others.

    A commitment is paid around the clock. It pays off once the use exceeds its share of the price on demand:
    2.00 USD against 3.20 pays from 62.5 % use on. It is compared with the seller's own list price on demand,
    and with the cheapest list price of any seller; a "starting at" price or a host's ask is none.
    """
    if found.request.commit is None:
        return
    possible = found.filtered.possible.where(~found.filtered.possible.is_owned)
    asked = COMMITMENTS[found.request.commit]
    best = _cheapest(found, possible, asked)
    for years in (asked, *(each for each in COMMITMENTS.values() if each != asked)):
        offer = _cheapest(found, possible, years, None if best is None else best.gpu_key)
        if offer is None and found.request.gpus:
            offer = _cheapest(found, possible, years)  # all of them were asked about
        if offer is not None:
            yield from _against_on_demand(offer, possible, count(years, "year"))
    on_demand = found.offers.where(found.offers.pricing.equals(Pricing.ON_DEMAND))
    committed = possible.where(_of_term(possible, asked)).provider.present
    if without := [name for name in dict.fromkeys(on_demand.provider.cells()) if name not in committed]:
        names = listing([plain(name, 30) for name in without], most=MOST_SELLERS)
        yield tell("commit_unknown", term=count(asked, "year"), provider=names)


def _of_term(offers: Offers, years: int) -> np.ndarray:
    return offers.pricing.equals(Pricing.RESERVED) & offers.term_years.equals(years)


def _cheapest(found: Eligible, possible: Offers, years: int, gpu_key: str | None = None) -> Offer | None:
    """Return the commitment that does the work for the least, for one GPU if it is named."""
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
    firm = [each for each in on_demand if each.kind != "marketplace" and not each.is_floor]
    there = [each for each in firm if each.provider == offer.provider]
    rivals = [min(some, key=lambda each: each.usd_per_gpu_hour) for some in (there, firm) if some]
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


# --- spot ------------------------------------------------------------------------------------------------


class Interruptions(msgspec.Struct, frozen=True, kw_only=True):
    """Known interruption rates of one GPU at one provider.

    Attributes:
        month_class: Share of the machines taken away in a month, in the worst of six regions.
        traced_per_hour: Interruptions in an hour of one machine in a published trace, the worst of the zones.
    """

    provider: str
    gpu_key: str
    month_class: str | None = None
    month_date: str | None = None
    traced_per_hour: float | None = None
    traced_date: str | None = None
    source: str


@cache
def _seen() -> dict[tuple[str, str], Interruptions]:
    return {(each.provider, each.gpu_key): each for each in data_table("interruptions.csv", Interruptions)}


def on_interruptions(request: RankRequest, answers: Iterable[Offer]) -> Iterator[Told]:
    """Yield the assumed interruptions if an answer is a spot machine, and those seen there."""
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
    for seen in filter(None, map(_seen().get, machines)):
        if seen.month_class and seen.month_date:
            gpu = gpu_name(seen.gpu_key)
            yield tell(
                "spot_seen", provider=seen.provider, gpu=gpu, share=seen.month_class, day=seen.month_date
            )
        if seen.traced_per_hour and seen.traced_date:
            share = format_percent(lost_to_interruptions(seen.traced_per_hour))
            rate_words = format_number(seen.traced_per_hour, 2)
            yield tell("spot_traced", day=seen.traced_date, rate=rate_words, share=share)
