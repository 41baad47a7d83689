"""How often spot machines are taken away: what is assumed, and what is known of a seller and a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec

from gpubench.folders import data_table
from gpubench.models import Offer, Pricing
from gpubench.recommend.economics import (
    USUAL_HOURS_BETWEEN,
    checkpoint_interval_hours,
    lost_to_interruptions,
)
from gpubench.recommend.eligible import Eligible
from gpubench.sentences import Told, tell
from gpubench.units import format_number, format_percent


class Interruptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one GPU at one provider.

    Attributes:
        month_class: Share of the machines that were taken away in a month, the worst of six regions.
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


def on_interruptions(found: Eligible) -> Iterator[Told]:
    """Yield what is assumed of interruptions where the answer is a spot machine, and what was seen there."""
    offer: Offer = found.offers[0]
    if offer.pricing is not Pricing.SPOT or found.request.spot_lost is not None:
        return
    rate = 1 / USUAL_HOURS_BETWEEN
    yield tell(
        "spot_risk",
        hours=f"{USUAL_HOURS_BETWEEN:g}",
        minutes=format_number(60 * checkpoint_interval_hours(rate), 2),
        share=format_percent(lost_to_interruptions(rate)),
    )
    seen = _seen().get((offer.provider, offer.gpu_key))
    if seen is not None and seen.month_class and seen.month_date:
        yield tell("spot_seen", provider=offer.provider, share=seen.month_class, day=seen.month_date)
    if seen is not None and seen.traced_per_hour and seen.traced_date:
        share = format_percent(lost_to_interruptions(seen.traced_per_hour))
        rate_words = format_number(seen.traced_per_hour, 2)
        yield tell("spot_traced", day=seen.traced_date, rate=rate_words, share=share)
