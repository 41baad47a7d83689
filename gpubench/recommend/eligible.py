"""The offers that can do the job, best first: those that the filters leave, that run it, in its limits."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import repeat
from types import MappingProxyType

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.errors import MisuseError
from gpubench.measure.request import RunRequest
from gpubench.models import Estimate, Execution, GpuSpec, Offer
from gpubench.offers.columns import Offers, kinds_of
from gpubench.offers.dates import USUAL_DRIFT, asks_of
from gpubench.offers.outliers import Market
from gpubench.offers.table import OfferKey, offer_key
from gpubench.options import words_of
from gpubench.precisions import AMP, Precision
from gpubench.predict.answers import draw
from gpubench.predict.question import never_predicted
from gpubench.recommend import limits, objective, prices
from gpubench.recommend.buying import purchase_filters, within_the_sum
from gpubench.recommend.candidates import Candidates, Work, candidates_of, share_of, work_of
from gpubench.recommend.chances import Chances, chances_of
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.filters import (
    NO_FIGURE,
    Exclusion,
    apply,
    filters_of,
    leave_out_doubted,
    nothing_left,
    payment_filters,
)
from gpubench.recommend.owning import Ownership, card_share
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Rows
from gpubench.recommend.scaling import Scaling, scaling_of
from gpubench.recommend.speeds import Drawer, Speeds, combine, gpus_needed
from gpubench.shared_options import asked_recipe
from gpubench.units import plain, plural


@dataclass(frozen=True)
class Sifted:
    """What the filters leave, before anything is known of throughput: alike for every workload.

    Attributes:
        every: All offers.
        kept: Offers to rank, paid as asked.
        possible: The same however they are paid.
        sold: Hardware to buy that would pass.
        fallen: What was left out, and why.
        doubted_as_asked: Of that, for a price that nobody corroborates, what is paid as asked.
        taken: What ranks although nobody corroborates it: the buyer's own, and what is admitted.
        doubts: Why each of these is doubted, in a few words.
        asked: What every provider asks.
        market: What is expected of prices, and the day that their ages count to.
        owned: What owning means, for the owned ones among the offers; ``for_sale`` for those beside them.
    """

    every: Offers
    kept: Offers
    possible: Offers
    sold: Offers
    fallen: list[Exclusion]
    doubted_as_asked: list[Exclusion]
    taken: Offers
    doubts: Mapping[OfferKey, str]
    asked: Market
    market: prices.Market
    specs: Mapping[str, GpuSpec]
    owned: Mapping[Offer, Ownership]
    for_sale: Mapping[Offer, Ownership]

    @property
    def machines(self) -> Mapping[Offer, Ownership]:
        """What owning means, for owned hardware and for what could be bought."""
        return {**self.for_sale, **self.owned}


def sift(
    request: RankRequest,
    offers: Iterable[Offer],
    *,
    specs: Mapping[str, GpuSpec],
    today: date,
    owned: Mapping[Offer, Ownership] = MappingProxyType({}),
    for_sale: Mapping[Offer, Ownership] = MappingProxyType({}),
    drift: float = USUAL_DRIFT,
) -> Sifted:
    """Part offers into those to rank and those that a filter of the request drops.

    Args:
        request: A checked request.
        offers: Every offer known, in any order.
        specs: The specification table.
        today: The day that price ages count to.
        owned: What owning means, for the owned ones among the offers.
        for_sale: Hardware that could be bought and is not ranked: the best of it stands beside the ranking.
        drift: How far list prices move in a year: see ``offers.dates.drift_of``.

    Raises:
        MisuseError: If a name is unknown or no offer is left; the message says which filter removed how many.
    """
    every = Offers.of(offers)
    asked = Market(every)
    machines = {**for_sale, **owned}
    shares = {offer: card_share(machine) for offer, machine in machines.items()}
    hosts = every.where(every.kind.equals("marketplace"))
    believed = leave_out_doubted(request, asked, hosts).kept  # whatever else the buyer rules out
    market = prices.Market(today, asks_of(believed), drift, shares)
    watts = {offer: ownership.power_w for offer, ownership in machines.items()}
    filters = [*filters_of(request, every, market, watts), *purchase_filters(request, machines)]
    possible, fallen = apply(filters, every, specs)
    most_usd = math.inf if request.budget_usd is None else request.budget_usd
    payable = [offer for offer, machine in for_sale.items() if machine.purchase_usd <= most_usd]
    sold, _ = apply(filters, payable, specs)
    possible, doubted, taken = leave_out_doubted(request, asked, possible)
    paid_as_asked = payment_filters(request, every.pricing.present)
    kept, otherwise_paid = apply(paid_as_asked, possible, specs)
    fallen = [*fallen, *doubted, *otherwise_paid]
    _require(kept, every, fallen)
    return Sifted(
        every=every,
        kept=kept,
        possible=possible,
        sold=sold,
        fallen=fallen,
        doubted_as_asked=[each for each in doubted if len(apply(paid_as_asked, [each.offer], specs)[0])],
        taken=taken,
        doubts={offer_key(each): why for each in taken if (why := asked.doubt_in_short(each))},
        asked=asked,
        market=market,
        specs=specs,
        owned=owned,
        for_sale=for_sale,
    )


@dataclass(frozen=True)
class Eligible:
    """Offers that can do the job: ``order`` has the rows of the pool best first, ``rows`` are the same.

    Attributes:
        request: What was asked; where no job can be assumed, of relative units.
        fallen: What was left out, and why.
        photograph_share: Of the samples, which the vCPUs of a host must prepare.
        runnable: Parts offers into those that run the job and those that cannot, or may not.
        pool_of: Lays offers out as columns.
    """

    request: RankRequest
    pool: Candidates
    order: Indices
    rows: Rows
    chances: Chances
    fallen: list[Exclusion]
    photograph_share: float
    runnable: Callable[[Offers], tuple[Offers, list[Exclusion]]]
    pool_of: Callable[[Offers], Candidates]

    def within_limits(self, offers: Offers) -> Candidates:
        """Return those of other offers that meet the limits of the job, as columns."""
        return _within_limits(self.request, offers, self.pool_of)[0]


def eligible(
    request: RankRequest,
    left: Sifted,
    evidence_for: Callable[[Sequence[str]], Evidence],
    drawer: Drawer | None = None,
    *,
    first_only: bool = False,
) -> Eligible:
    """Put the offers that can do the job in order; with ``first_only`` no other row is looked at.

    Args:
        request: A checked request.
        left: What the same request leaves.
        evidence_for: GPU keys to what is known of them.
        drawer: Joint draws of estimates; None is ``predict.answers.draw``.
        first_only: Whether the chances of the first row are all that is asked.

    Raises:
        MisuseError: If no offer is left; the message says which filter removed how many.
    """
    keys = {*left.possible.gpu_key.present, *left.sold.gpu_key.present}
    evidence = evidence_for(sorted(keys | {request.reference_gpu}))
    speeds = combine(evidence.answers, request.mix, drawer or draw, request.draws, request.seed)
    parts = {
        key: dict(zip(evidence.answers, each, strict=True))
        for key, each in zip(speeds.keys, speeds.parts, strict=True)
    }
    runnable = _runnable(request, evidence, speeds, parts, left.specs)
    kept, unknown = runnable(left.kept)
    kept, dear = within_the_sum(request, kept, left.machines)
    if not len(kept):
        _refuse_never_predicted(request, unknown)
    fallen = [*left.fallen, *unknown, *dear]
    _require(kept, left.every, fallen)
    photograph_share = share_of(request, evidence.photographs)
    work = work_of(request, speeds, evidence.usual_job, unit_of(speeds))
    if work is None:
        request = msgspec.structs.replace(request, relative=True)
    pool_of = _pool_of(request, left, evidence, speeds, parts=parts, work=work)
    pool, missed = _within_limits(request, kept, pool_of)
    fallen += missed
    _require(pool.offers, left.every, fallen)
    order = objective.order(request, pool)
    chances = chances_of(request, pool, order[:1] if first_only else order)
    order = order if first_only else chances.order
    rows = Rows(
        request,
        pool,
        order,
        chances,
        market=left.market,
        possible=left.possible,
        doubts=left.doubts,
    )
    return Eligible(
        request=request,
        pool=pool,
        order=order,
        rows=rows,
        chances=chances,
        fallen=fallen,
        photograph_share=photograph_share,
        runnable=runnable,
        pool_of=pool_of,
    )


def unit_of(speeds: Speeds) -> str:
    """Return what a sample is, in the plural; of several workloads it is just "samples"."""
    units = {part.case.sample_unit for part in speeds.parts[0]}
    unit = units.pop() if len(units) == 1 and len(speeds.parts[0]) == 1 else "sample"
    return plural(unit)


def _require(kept: Offers, offers: Offers, fallen: Sequence[Exclusion]) -> None:
    if not len(kept):
        raise nothing_left(len(offers), fallen)


def _refuse_never_predicted(request: RankRequest, unknown: Iterable[Exclusion]) -> None:
    ways: list[Precision | Execution] = [Execution(request.execution)]
    if request.precision not in {None, AMP}:
        ways.insert(0, Precision(request.precision))
    found = {each.reason for each in unknown}
    for reason in (reason for way in ways if (reason := never_predicted(way)) in found):
        run = RunRequest(
            workloads=request.workload_names,
            precisions=() if request.precision is None else (request.precision,),
            **asked_recipe(request),
            executions=(request.execution,),
            task=request.task,
            batch_size=request.batch_size,
        )
        raise MisuseError(
            f"{reason}; no stored run has it of a GPU among the offers: `gpubench run "
            f"{plain(shlex.join(words_of(run)))}` on one, and rank again"
        )


def _runnable(
    request: RankRequest,
    evidence: Evidence,
    speeds: Speeds,
    parts: Mapping[str, Mapping[str, Estimate]],
    specs: Mapping[str, GpuSpec],
) -> Callable[[Offers], tuple[Offers, list[Exclusion]]]:
    """Return what parts offers into those that can run the job and those that cannot, or may not."""
    one_job = evidence.without_room if request.one_job_over_all_gpus else None

    @cache
    def reason(gpu_key: str, gpu_count: int) -> str | None:
        spec = specs.get(gpu_key)
        if gpu_key not in parts:
            listed = None if spec is None else spec.not_ranked_because
            none = "its GPU is not in the table, and no run of yours measured it"
            return listed or speeds.refusals.get(gpu_key, none)
        short = next((part for part in parts[gpu_key].values() if gpu_count < part.fewest_gpus), None)
        if short is not None:
            there = "one GPU" if gpu_count == 1 else f"{gpu_count} GPUs"
            return (
                f"{short.case.workload} at batch {short.case.batch_size:,} does not fit on {there}: it "
                f"{gpus_needed(short.fewest_gpus)}"
            )
        if one_job is None or spec is None or gpu_count == 1:
            return None
        found = (one_job(name, spec, gpu_count, part) for name, part in parts[gpu_key].items())
        return next(filter(None, found), None)

    def parted(offers: Offers) -> tuple[Offers, list[Exclusion]]:
        machines = kinds_of(offers.gpu_key, offers.gpu_count)
        why = [reason(*machine) for machine in machines.values]
        runs = np.array([text is None for text in why], dtype=bool)[machines.codes]
        places = np.flatnonzero(~runs)
        reasons = [why[machine] or "" for machine in machines.codes[places].tolist()]
        fallen = map(Exclusion, repeat(offers), places.tolist(), repeat(NO_FIGURE), reasons)
        return offers.where(runs), list(fallen)

    return parted


def _pool_of(
    request: RankRequest,
    left: Sifted,
    evidence: Evidence,
    speeds: Speeds,
    *,
    parts: Mapping[str, Mapping[str, Estimate]],
    work: Work | None,
) -> Callable[[Offers], Candidates]:
    """Return what lays offers out as columns."""
    scaler = evidence.scaler if request.one_job_over_all_gpus else evidence.independent
    scalings: dict[tuple[str, int], Scaling] = {}

    def pool_of(offers: Offers) -> Candidates:
        for key, count in set(kinds_of(offers.gpu_key, offers.gpu_count).values) - scalings.keys():
            found = scaling_of(left.specs.get(key), count, parts[key], scaler=scaler, shares=request.mix)
            scalings[key, count] = found
        return candidates_of(
            offers,
            speeds,
            left.specs,
            scalings,
            left.market,
            spot_lost=request.spot_lost,
            photograph_share=share_of(request, evidence.photographs),
            reference_gpu=request.reference_gpu,
            work=work,
        )

    return pool_of


def _within_limits(
    request: RankRequest,
    kept: Offers,
    pool_of: Callable[[Offers], Candidates],
) -> tuple[Candidates, list[Exclusion]]:
    """Return the offers that meet the limits of the job, as columns, and why others do not."""
    pool = pool_of(kept)
    misses = limits.misses(request, pool)
    if not misses:
        return pool, []
    meets = np.ones(len(kept), dtype=bool)
    meets[list(misses)] = False
    return pool_of(kept.where(meets)), list(misses.values())
