"""How often spot machines are taken away: what is assumed, and what is known of a seller and a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import msgspec

from gpubench.folders import data_table
from gpubench.labels import gpu_name
from gpubench.models import Offer, Pricing
from gpubench.recommend.economics import (
    USUAL_HOURS_BETWEEN,
    checkpoint_interval_hours,
    lost_to_interruptions,
)
from gpubench.recommend.request import RankRequest
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


def on_interruptions(request: RankRequest, answers: Iterable[Offer]) -> Iterator[Told]:
    """Yield what is assumed of interruptions where an answer is a spot machine, and what was seen there."""
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
