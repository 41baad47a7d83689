"""The decision: the choice, its runner-up, the three winners, and what would change it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np

from gpubench.models import (
    Asks,
    BuyOrRent,
    Change,
    Choice,
    Decision,
    FindingOut,
    GpuSpec,
    Job,
    Offer,
    Pricing,
    RankedOffer,
    Source,
)
from gpubench.offers.columns import kinds_of
from gpubench.offers.dates import AskKey
from gpubench.recommend.break_even import pays
from gpubench.recommend.chances import Chances
from gpubench.recommend.choices import choice_of, source_by
from gpubench.recommend.owning import Ownership
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Rows


def decide(
    request: RankRequest,
    rows: Rows,
    chances: Chances,
    specs: Mapping[str, GpuSpec],
    *,
    changes: Iterable[Change] = (),
    job: Job | None = None,
    machines: Mapping[Offer, Ownership] = MappingProxyType({}),
    to_own: RankedOffer | None = None,
    to_rent: Sequence[Choice] = (),
    buy_or_rent: Iterable[BuyOrRent] = (),
    photographs: Collection[str] = (),
    asks: Mapping[AskKey, Asks] = MappingProxyType({}),
    measurement: FindingOut | None = None,
) -> Decision:
    """Return what to pay for.

    Args:
        request: What was asked.
        rows: Every row of the ranking, best first; at least one.
        chances: How sure their order is.
        specs: The specification table.
        changes: What would make the runner-up the better.
        job: What hours and dollars are of.
        machines: What owning means, for owned offers.
        to_own: The best hardware to buy where none is among the rows.
        to_rent: Beside hardware to own, the best to rent on demand of each source, best first.
        buy_or_rent: How owned hardware compares with renting.
        photographs: Workloads that train on decoded photographs.
        asks: What hosts of marketplaces ask for each GPU.
        measurement: The one that is worth most before choosing.
    """

    def choice(row: RankedOffer | None) -> Choice | None:
        if row is None:
            return None
        machine = machines.get(row.offer)
        return choice_of(request, row, rows, specs, photographs=photographs, machine=machine, asks=asks)

    best = rows.at(rows.best_to_rent_and_to_own)
    by_gpu = tuple(found for row in best if (found := choice(row)))
    first = by_gpu[0]
    runner_up = choice(None if rows.runner_up is None else rows[rows.runner_up])
    return Decision(
        job=job,
        choice=first,
        runner_up=runner_up,
        sureness=chances.sureness,
        sureness_independent=chances.sureness_independent,
        sureness_at_these_prices=chances.sureness_at_these_prices,
        changes=tuple(changes),
        rather_rent=_rather_rent(first, to_rent, buy_or_rent),
        best_cloud=choice(_best(rows, "cloud")) or _of_source(to_rent, "cloud"),
        best_marketplace=choice(_best(rows, "marketplace")) or _of_source(to_rent, "marketplace"),
        best_to_own=choice(_best(rows, "own") or to_own),
        by_gpu=by_gpu,
        finding_out=measurement,
        unfitted=_unfitted(request, first, runner_up),
    )


def to_pay(decision: Decision) -> Choice:
    """Return what to pay for: the choice, unless that is a purchase that had rather be rented."""
    return decision.rather_rent or decision.choice


def second_best(decision: Decision) -> Choice | None:
    """Return the runner-up: where a purchase had rather be rented, that purchase."""
    return decision.choice if decision.rather_rent else decision.runner_up


def _of_source(choices: Iterable[Choice], source: Source) -> Choice | None:
    return next((each for each in choices if each.source == source), None)


def _rather_rent(first: Choice, to_rent: Iterable[Choice], buy_or_rent: Iterable[BuyOrRent]) -> Choice | None:
    """Return the rent that does the work for less than hardware to buy that never pays for itself."""
    weighed = against_rent_by_the_hour(first, buy_or_rent)
    if first.purchase_usd is None or weighed is None or pays(weighed):
        return None
    return next((each for each in to_rent if _is_cheaper(each, first)), None)


def against_rent_by_the_hour(choice: Choice, buy_or_rent: Iterable[BuyOrRent]) -> BuyOrRent | None:
    """Return how hardware to own compares with rent on demand; None of what is rented itself."""
    if choice.source != "own":
        return None
    one = (choice.instance, choice.gpu_key, choice.gpu_count, Pricing.ON_DEMAND)
    return next((each for each in buy_or_rent if one == _weighed(each)), None)


def _weighed(each: BuyOrRent) -> tuple[object, ...]:
    return (each.instance, each.gpu_key, each.gpu_count, each.against_pricing)


def _is_cheaper(rent: Choice, own: Choice) -> bool:
    """Whether the job costs less; without a job, what a sample costs."""
    if rent.cost_usd is not None and own.cost_usd is not None:
        return rent.cost_usd < own.cost_usd
    return rent.expected_usd_per_hour / rent.samples_per_s < own.expected_usd_per_hour / own.samples_per_s


def _unfitted(request: RankRequest, first: Choice, runner_up: Choice | None) -> str | None:
    """Say that what decides is predicted without a fit: of inference hardly any row is published."""
    decisive = [choice for choice in (first, runner_up) if choice is not None]
    if request.task != "infer" or all(choice.basis != "predicted" for choice in decisive):
        return None
    return "speeds of inference are predicted from few published measurements"


def best_of_each_gpu(rows: Iterable[RankedOffer]) -> list[RankedOffer]:
    """Return the first row of each GPU, in their order."""
    best: dict[str, RankedOffer] = {}
    for row in rows:
        best.setdefault(row.offer.gpu_key, row)
    return list(best.values())


def best_to_rent_and_to_own(rows: Iterable[RankedOffer]) -> list[RankedOffer]:
    """Return the first row of each GPU to rent, and the first to own, in their order."""
    best: dict[tuple[str, bool], RankedOffer] = {}
    for row in rows:
        best.setdefault((row.offer.gpu_key, row.offer.pricing is Pricing.OWNED), row)
    return list(best.values())


def beside(row: RankedOffer) -> RankedOffer:
    """Return a row that stands beside the ranking: without rank and chances, which are of other rows."""
    return msgspec.structs.replace(
        row, rank=0, tie=False, p_best=None, p_best_independent=None, p_near_best=None, p_top3=None
    )


def _best(rows: Rows, source: Source) -> RankedOffer | None:
    alike = kinds_of(rows.offers.pricing, rows.offers.kind)
    of_source = [source_by(*each) == source for each in alike.values]
    among = np.flatnonzero(np.array(of_source, dtype=bool)[alike.codes])
    return rows[int(among[0])] if len(among) else None
