"""Published MLPerf Training runs, and the cost of each today."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpubench.blocks.parts import Table, number, table, text
from gpubench.labels import gpus, offer_name
from gpubench.models import Offer, Pricing
from gpubench.readings import MLPERF_LICENSE, PublishedRun, load_mlperf, rounds
from gpubench.recommend.economics import MINUTES_PER_HOUR
from gpubench.units import UNKNOWN, format_number, format_usd, plain

MOST_GPUS_OF_A_MACHINE = 8


class PricedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A published run and the cheapest cloud machines that it would fit on.

    Attributes:
        offer: One machine; None if no cloud lists it on demand.
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

    def one(run: PublishedRun) -> PricedRun:
        # a system with more GPUs than a machine has is priced as several full machines
        machines, rest = divmod(run.gpus, min(run.gpus, MOST_GPUS_OF_A_MACHINE))
        offer = cheapest.get((run.gpu_key, run.gpus // machines))
        if offer is None or rest:
            return PricedRun(run=run)
        usd = offer.usd_per_gpu_hour * run.gpus * run.minutes / MINUTES_PER_HOUR
        return PricedRun(run=run, offer=offer, machines=machines, usd=usd)

    return tuple(map(one, runs))


def what() -> str:
    """Describe the table of published runs: its scope, newest round, and limits."""
    known = [f"{name} ({month})" for name, month in rounds(load_mlperf())]
    span = " to ".join(dict.fromkeys((*known[:1], *known[-1:])))
    return (
        "Time to train to the stated quality, as submitters published it: their own software, tuned for "
        f"their own machine. Rounds: {span}; later ones are not in the table. No time to train enters a "
        "prediction or the ranking; how throughput scales over several GPUs is fitted to published jobs, "
        "some of them of MLPerf Training. The fastest run of the newest round of each GPU is shown; its cost "
        "is its hours times today's cheapest on-demand cloud price of as many GPUs, without start-up. "
        f"Source: {MLPERF_LICENSE}."
    )


def runs_table(runs: Sequence[PricedRun]) -> Table:
    """Return published runs as a table, in the order given."""
    return table(
        "MLPerf Training: minutes to the stated quality",
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
