"""What a commitment costs against renting on demand, and from which use on it pays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpubench.labels import gpu_name
from gpubench.models import Offer, Pricing
from gpubench.offers.columns import Offers
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.request import COMMITMENTS
from gpubench.sentences import Told, tell
from gpubench.units import count, format_percent, format_usd, listing, plain

MOST_SELLERS = 3
"""Sellers named that state no price for a term."""


def on_commitments(found: Eligible) -> Iterator[Told]:
    """Yield what the best commitment costs and from which use on it pays, for the term asked and the others.

    A commitment is paid day and night, so that it pays from the use on that is its share of the price on
    demand: 2.00 USD against 3.20 pays from 62.5 % use on. It is held against the seller's own price on
    demand, and against the cheapest of anybody.
    """
    if found.request.commit is None:
        return
    possible = found.filtered.possible.where(~found.filtered.possible.is_owned)
    asked = COMMITMENTS[found.request.commit]
    best = _cheapest(found, possible, asked)
    for years in (asked, *(each for each in COMMITMENTS.values() if each != asked)):
        same = None if best is None else _cheapest(found, possible, years, best.gpu_key)
        offer = same or _cheapest(found, possible, years)
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
    """Return the commitment that does the work for least, of one GPU where it is named."""
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
    there = on_demand.where(on_demand.provider.equals(offer.provider))
    rivals = [each[int(np.argmin(each.usd_per_gpu_hour))] for each in (there, on_demand) if len(each)]
    usd = offer.usd_per_gpu_hour
    for rival in dict.fromkeys(rivals):
        share = usd / rival.usd_per_gpu_hour
        yield tell(
            "commit_pays" if share < 1 else "commit_never",
            gpu=gpu_name(offer.gpu_key),
            provider=plain(offer.provider, 30),
            term=term,
            usd=format_usd(usd),
            on_demand_usd=format_usd(rival.usd_per_gpu_hour),
            other=plain(rival.provider, 30),
            share=format_percent(share),
        )
