"""What a published MLPerf run would cost at today's prices: its hours times the rent of as many GPUs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpubench.models import Offer, Pricing
from gpubench.readings import PublishedRun
from gpubench.recommend.economics import MINUTES_PER_HOUR

MOST_GPUS_OF_A_MACHINE = 8


class PricedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A published run and the cheapest cloud machines that it would fit on.

    Attributes:
        offer: What one machine is; None where no cloud lists such a machine on demand.
        machines: How many of them.
        usd: Hours of the run times the price of all machines, without start-up; None without an offer.
    """

    run: PublishedRun
    offer: Offer | None = None
    machines: int | None = None
    usd: float | None = None


def priced(runs: Iterable[PublishedRun], offers: Iterable[Offer]) -> tuple[PricedRun, ...]:
    """Put the cheapest on-demand cloud machines of the same GPUs beside each run.

    Args:
        runs: What was published.
        offers: Prices; marketplace hosts, spot and reserved ones are passed over: a published system is a
            whole machine that stays.
    """
    clouds: dict[str, list[Offer]] = {}
    for offer in offers:
        if offer.kind == "vm" and offer.pricing is Pricing.ON_DEMAND and offer.price_usd_per_hour > 0:
            clouds.setdefault(offer.gpu_key, []).append(offer)
    found = []
    for run in runs:
        # GPUs that worked as one machine are priced as one; more than a machine holds, as several full ones
        size = min(run.gpus, MOST_GPUS_OF_A_MACHINE)
        fitting = [offer for offer in clouds.get(run.gpu_key, ()) if offer.gpu_count == size]
        if not fitting or run.gpus % size:
            found.append(PricedRun(run=run))
            continue
        offer = min(fitting, key=lambda o: (o.price_usd_per_hour, o.provider, o.instance, o.region or ""))
        machines = run.gpus // size
        usd = float(offer.price_usd_per_hour) * machines * run.minutes / MINUTES_PER_HOUR
        found.append(PricedRun(run=run, offer=offer, machines=machines, usd=usd))
    return tuple(found)
