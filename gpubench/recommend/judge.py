"""The pure core of the ranking: offers and estimates in, a ranking out; no file, no clock, no network."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.errors import MisuseError
from gpubench.labels import gpu_name
from gpubench.measure.request import RunRequest
from gpubench.models import BuyOrRent, Choice, Estimate, GpuSpec, Job, Offer, Pricing, RankedOffer, Ranking
from gpubench.offers.columns import Offers, kinds_of
from gpubench.offers.dates import USUAL_DRIFT, asks_of
from gpubench.offers.outliers import Market
from gpubench.offers.table import OfferKey, offer_key
from gpubench.options import words_of
from gpubench.precisions import AMP, Precision
from gpubench.predict.question import never_predicted
from gpubench.recommend import limits, objective, prices
from gpubench.recommend.buy_or_rent import against_rent
from gpubench.recommend.buying import owned_rows, purchase_filters, purchases_of, within_the_sum
from gpubench.recommend.candidates import Candidates, Work, candidates_of, work_of
from gpubench.recommend.chances import Chances, chances_of
from gpubench.recommend.changes import changes_of, finding_out
from gpubench.recommend.decision import beside, choice_of, decide
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.filters import (
    NO_FIGURE,
    Exclusion,
    apply,
    excluded,
    filters_of,
    leave_out_doubted,
    nothing_left,
    payment_filters,
)
from gpubench.recommend.limits import share_of
from gpubench.recommend.notes import (
    assumed_of_owning,
    far_from_others,
    free_beside,
    how_to_measure,
    left_out_as_outliers,
    not_as_asked,
    notes_of,
    on_ages,
    on_expected_prices,
    on_feeding,
    on_owning,
    on_the_price,
)
from gpubench.recommend.owning import Ownership, card_share
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Rows
from gpubench.recommend.scaling import Scaling, scaling_of
from gpubench.recommend.speeds import Drawer, Speeds, combine, gpus_needed
from gpubench.recommend.verdict import (
    NO_GPU_NEEDED,
    buying_sentences,
    cpu_comparison,
    cpu_sentences,
    prices_decide,
    verdict,
)
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
    market = prices.Market(today, asks_of(_believed(request, every, asked)), drift, shares)
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


def judge(
    request: RankRequest,
    left: Sifted,
    evidence_for: Callable[[Sequence[str]], Evidence],
    *,
    drawer: Drawer | None = None,
    notes: Iterable[str] = (),
) -> Ranking:
    """Rank what is left of the offers as the request asks.

    Args:
        request: A checked request.
        left: What the same request leaves.
        evidence_for: GPU keys to what is known of them.
        drawer: Joint draws of estimates; None is ``predict.draws.draw``.
        notes: What the reader should know about the evidence.

    Raises:
        MisuseError: If no offer is left; the message says which filter removed how many.
    """
    found = _in_order(request, left, evidence_for, drawer)
    request, pool, rows, market = found.request, found.pool, found.rows, left.market
    priced = _priced(left, found) if left.owned else pool
    to_buy = found.pool_of(found.runnable(left.sold)[0])
    buy_or_rent = _beside_rent(found, left.owned, priced)
    decision = decide(
        request,
        rows,
        found.chances,
        left.specs,
        changes=changes_of(request, pool, found.order, rows, share_of(request, found.photographs)),
        job=None if pool.work is None else pool.work.job,
        machines={**left.for_sale, **left.owned},
        to_own=_best_to_own(request, to_buy, market) if len(to_buy) else None,
        to_rent=_to_rent(left, found, priced) if left.owned else (),
        buy_or_rent=buy_or_rent,
        photographs=found.photographs,
        asks=market.asks,
        measurement=finding_out(request, pool, found.order, rows, found.chances),
    )
    decisive = (
        *notes,
        *left_out_as_outliers(left.doubted_as_asked),
        *far_from_others(left.asked, left.taken.where(left.taken.by_user & left.taken.places(pool.offers))),
        *not_as_asked(request, pool),
        *([] if prices_decide(decision) else on_ages(priced, market.today)),
    )
    ranking = Ranking(
        as_of=market.today.isoformat(),
        objective=objective.in_words(request),
        sorted_by=objective.sorted_by(request),
        cases=_cases(pool.speeds),
        **_units(request, pool.speeds),
        rows=rows.at(rows.one_a_gpu[: request.limit]) if request.one_a_gpu else rows[: request.limit],
        offer_count=len(rows),
        excluded=excluded(found.fallen),
        verdict="",
        decision=decision,
        buy_or_rent=buy_or_rent,
        max_purchase_usd=request.max_purchase_usd,
        purchases=purchases_of(rows, left.owned, left.specs),
        notes=(
            *decisive,
            *notes_of(request, pool, len(rows)),
            *on_expected_prices(market, priced),
            *free_beside(request, left.every, left.specs),
        ),
        decisive_notes=len(decisive),
    )
    return _said(request, ranking, rows, pool.speeds, _headline(request, pool, found.order))


def first_choice(
    request: RankRequest, left: Sifted, evidence_for: Callable[[Sequence[str]], Evidence]
) -> tuple[Job, Choice] | None:
    """Return the job and what to pay for, and nothing beside it; None where no job can be assumed.

    Nothing is said of its chances, which are of other rows. Args as ``judge``.

    Raises:
        MisuseError: As ``judge`` does.
    """
    found = _in_order(request, left, evidence_for, None, first_only=True)
    if found.pool.work is None:
        return None
    choice = choice_of(
        found.request,
        beside(found.rows[0]),
        found.rows,
        left.specs,
        photographs=found.photographs,
        machine=left.owned.get(found.rows.offers[0]),
        asks=left.market.asks,
    )
    return found.pool.work.job, msgspec.structs.replace(choice, rank=1)


@dataclass(frozen=True)
class _InOrder:
    """Offers in order: ``order`` has the rows of the pool best first, ``rows`` are the same."""

    request: RankRequest
    pool: Candidates
    order: Indices
    rows: Rows
    chances: Chances
    fallen: list[Exclusion]
    photographs: frozenset[str]
    runnable: Callable[[Offers], tuple[Offers, list[Exclusion]]]
    pool_of: Callable[[Offers], Candidates]


def _in_order(
    request: RankRequest,
    left: Sifted,
    evidence_for: Callable[[Sequence[str]], Evidence],
    drawer: Drawer | None,
    *,
    first_only: bool = False,
) -> _InOrder:
    """Put the offers that can do the job in order; with ``first_only`` no other row is looked at."""
    keys = {*left.possible.gpu_key.present, *left.sold.gpu_key.present}
    evidence = evidence_for(sorted(keys | {request.reference_gpu}))
    speeds = combine(evidence.answers, request.mix, drawer or _draw(), request.draws, request.seed)
    runnable = _runnable(request, evidence, speeds, left.specs)
    kept, unknown = runnable(left.kept)
    kept, dear = within_the_sum(request, kept, {**left.for_sale, **left.owned})
    if not len(kept):
        _refuse_never_predicted(request, unknown)
    _require(kept, left.every, [*left.fallen, *unknown, *dear])
    work = work_of(request, speeds, evidence.usual_job, _unit(speeds))
    if work is None:
        request = msgspec.structs.replace(request, relative=True)
    pool_of = _pool(request, _Known(speeds, left.specs, evidence, left.market, work))
    photograph_share = share_of(request, evidence.photographs)
    pool, missed = _within_limits(request, kept, pool_of, photograph_share)
    fallen = [*left.fallen, *unknown, *dear, *missed]
    _require(pool.offers, left.every, fallen)
    order = objective.order(request, pool)
    chances = chances_of(request, pool, order[:1] if first_only else order)
    return _InOrder(
        request=request,
        pool=pool,
        order=order,
        rows=Rows(
            request,
            pool,
            order,
            chances,
            market=left.market,
            possible=left.possible,
            doubts=left.doubts,
            photograph_share=photograph_share,
        ),
        chances=chances,
        fallen=fallen,
        photographs=evidence.photographs,
        runnable=runnable,
        pool_of=pool_of,
    )


def _within_limits(
    request: RankRequest,
    kept: Offers,
    pool_of: Callable[[Offers], Candidates],
    photograph_share: float,
) -> tuple[Candidates, list[Exclusion]]:
    """Return the offers that meet the limits of the job, as columns, and why others do not."""
    pool = pool_of(kept)
    misses = limits.misses(request, pool, photograph_share)
    if not misses:
        return pool, []
    meets = np.ones(len(kept), dtype=bool)
    meets[list(misses)] = False
    return pool_of(kept.where(meets)), list(misses.values())


def _priced(left: Sifted, found: _InOrder) -> Candidates:
    """Return owned hardware with all that is for rent, which it is held against: its prices count too."""
    kept, possible = found.pool.offers, found.runnable(left.possible)[0]
    return found.pool_of(Offers.joined(kept, possible.where(~possible.places(kept))))


def _beside_rent(
    found: _InOrder, owned: Mapping[Offer, Ownership], priced: Candidates
) -> tuple[BuyOrRent, ...]:
    """Return how owned hardware that is ranked compares with rent that meets the limits of the job too."""
    if not owned:
        return ()
    ranked = {offer: owned[offer] for _, offer in owned_rows(found.rows) if offer in owned}
    share = share_of(found.request, found.photographs)
    pool, _ = _within_limits(found.request, priced.offers, found.pool_of, share)
    return against_rent(found.request, pool, ranked)


def _said(
    request: RankRequest,
    ranking: Ranking,
    rows: Rows,
    speeds: Speeds,
    fastest_and_cheapest: tuple[int, int],
) -> Ranking:
    """Return the ranking with its verdict and notes."""
    about_the_cpu = cpu_sentences(request, speeds)
    needless = [each for each in about_the_cpu if each.startswith(NO_GPU_NEEDED)]
    said = verdict(
        request,
        ranking,
        rows,
        fastest_and_cheapest,
        first=needless,
        last=[
            *buying_sentences(ranking.buy_or_rent),
            *(each for each in about_the_cpu if each not in needless),
            *cpu_comparison(request, speeds, rows[0]),
        ],
    )
    decisive = (*said.beside, *how_to_measure(ranking.decision), *ranking.notes[: ranking.decisive_notes])
    return msgspec.structs.replace(
        ranking,
        verdict=" ".join(said.verdict),
        notes=(
            *decisive,
            *on_owning(request, ranking.decision),
            *assumed_of_owning(ranking.decision),
            *on_the_price(ranking.decision),
            *on_feeding(ranking.decision),
            *ranking.notes[ranking.decisive_notes :],
        ),
        decisive_notes=len(decisive),
    )


def _require(kept: Offers, offers: Offers, fallen: Sequence[Exclusion]) -> None:
    if not len(kept):
        raise nothing_left(len(offers), fallen)


def _refuse_never_predicted(request: RankRequest, unknown: Iterable[Exclusion]) -> None:
    if request.precision in {None, AMP}:
        return
    reason = never_predicted(Precision(request.precision))
    if any(each.reason == reason for each in unknown):
        run = RunRequest(
            workloads=request.workload_names,
            precisions=(request.precision,),
            **asked_recipe(request),
            executions=(request.execution,),
            task=request.task,
            batch_size=request.batch_size,
        )
        raise MisuseError(
            f"{reason}; no stored run has it of a GPU among the offers: `gpubench run "
            f"{plain(shlex.join(words_of(run)))}` on one, and rank again"
        )


def _believed(request: RankRequest, offers: Offers, asked: Market) -> Offers:
    """Return the asks of today whose prices count, whatever else the buyer rules out."""
    hosts = offers.where(offers.kind.equals("marketplace"))
    return leave_out_doubted(request, asked, hosts).kept


def _draw() -> Drawer:
    from gpubench.predict.draws import draw

    return draw


def _runnable(
    request: RankRequest, evidence: Evidence, speeds: Speeds, specs: Mapping[str, GpuSpec]
) -> Callable[[Offers], tuple[Offers, list[Exclusion]]]:
    """Return what parts offers into those that can run the job and those that cannot, or may not."""
    rows = {key: dict(zip(evidence.answers, parts, strict=True)) for key, parts in _parts(speeds)}
    one_job = evidence.without_room if request.one_job_over_all_gpus else None

    @cache
    def reason(gpu_key: str, gpu_count: int) -> str | None:
        if gpu_key not in rows:
            return _why_unknown(gpu_key, speeds, specs)
        spec = specs.get(gpu_key)
        short = next((part for part in rows[gpu_key].values() if gpu_count < part.fewest_gpus), None)
        if short is not None:
            return _too_few(short, gpu_count)
        if one_job is None or spec is None or gpu_count == 1:
            return None
        found = (one_job(name, spec, gpu_count, part) for name, part in rows[gpu_key].items())
        return next(filter(None, found), None)

    def part(offers: Offers) -> tuple[Offers, list[Exclusion]]:
        machines = kinds_of(offers.gpu_key, offers.gpu_count)
        why = [reason(*machine) for machine in machines.values]
        runs = np.array([text is None for text in why], dtype=bool)[machines.codes]
        places = np.flatnonzero(~runs)
        reasons = [why[machine] or "" for machine in machines.codes[places].tolist()]
        fallen = map(Exclusion, repeat(offers), places.tolist(), repeat(NO_FIGURE), reasons)
        return offers.where(runs), list(fallen)

    return part


def _parts(speeds: Speeds) -> Iterator[tuple[str, tuple[Estimate, ...]]]:
    return zip(speeds.keys, speeds.parts, strict=True)


def _too_few(known: Estimate, gpu_count: int) -> str:
    there = "one GPU" if gpu_count == 1 else f"{gpu_count} GPUs"
    return (
        f"{known.case.workload} at batch {known.case.batch_size:,} does not fit on {there}: it "
        f"{gpus_needed(known.fewest_gpus)}"
    )


def _why_unknown(gpu_key: str, speeds: Speeds, specs: Mapping[str, GpuSpec]) -> str:
    spec = specs.get(gpu_key)
    if spec is not None and spec.not_ranked_because:
        return spec.not_ranked_because
    return speeds.refusals.get(gpu_key, "its GPU is not in the table, and no run of yours measured it")


class _Known(NamedTuple):
    """What every offer is laid out by."""

    speeds: Speeds
    specs: Mapping[str, GpuSpec]
    evidence: Evidence
    market: prices.Market
    work: Work | None


def _pool(request: RankRequest, known: _Known) -> Callable[[Offers], Candidates]:
    """Return what lays offers out as columns."""
    speeds, specs, evidence = known.speeds, known.specs, known.evidence
    scaler = evidence.scaler if request.one_job_over_all_gpus else evidence.independent
    parts = {key: dict(zip(evidence.answers, each, strict=True)) for key, each in _parts(speeds)}
    scalings: dict[tuple[str, int], Scaling] = {}

    def pool_of(offers: Offers) -> Candidates:
        for key, count in set(kinds_of(offers.gpu_key, offers.gpu_count).values) - scalings.keys():
            found = scaling_of(specs.get(key), count, parts[key], scaler=scaler, shares=request.mix)
            scalings[key, count] = found
        return candidates_of(
            offers,
            speeds,
            specs,
            scalings,
            known.market,
            spot_lost=request.spot_lost,
            reference_gpu=request.reference_gpu,
            work=known.work,
        )

    return pool_of


def _best_to_own(request: RankRequest, pool: Candidates, market: prices.Market) -> RankedOffer | None:
    """Return the best hardware to buy, judged among its like; None where none meets what was asked."""
    misses = limits.misses(request, pool)
    left = [row for row in objective.order(request, pool).tolist() if row not in misses]
    if not left:
        return None
    first = np.array(left[:1])
    return beside(Rows(request, pool, first, chances_of(request, pool, first), market=market)[0])


def _to_rent(left: Sifted, found: _InOrder, priced: Candidates) -> list[Choice]:
    """Return the best rent on demand of a cloud and of a marketplace, the better one first."""
    request = found.request
    by_the_hour = priced.offers.where(priced.offers.pricing.equals(Pricing.ON_DEMAND))
    if not len(by_the_hour):
        return []
    pool = found.pool_of(by_the_hour)
    share = share_of(request, found.photographs)
    misses = limits.misses(request, pool, share)
    order = np.array([row for row in objective.order(request, pool).tolist() if row not in misses], dtype=int)
    on_marketplace = pool.offers.kind.equals("marketplace")[order]
    best = sorted(int(np.argmax(of_kind)) for of_kind in (on_marketplace, ~on_marketplace) if of_kind.any())
    choices = []
    for at in best:
        first = order[at : at + 1]
        rows = Rows(  # of which only the first is looked at; the others are where else it is to be had
            request,
            pool,
            np.concatenate((first, np.delete(order, at))),
            chances_of(request, pool, first),
            market=left.market,
            doubts=left.doubts,
            photograph_share=share,
        )
        choices.append(
            choice_of(
                request,
                beside(rows[0]),
                rows,
                left.specs,
                photographs=found.photographs,
                asks=left.market.asks,
            )
        )
    return choices


def _headline(request: RankRequest, pool: Candidates, order: Indices) -> tuple[int, int]:
    """Return the rows, in order, of the fastest offer and of the cheapest by the hour."""
    time, _ = objective.time_and_cost(request, pool, order)
    return int(np.argmin(time)), int(np.argmin(pool.price[order]))


def _cases(speeds: Speeds) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(part.case for parts in speeds.parts for part in parts))


def _units(request: RankRequest, speeds: Speeds) -> dict[str, Any]:
    """Return the units of the ranking: samples of one workload, else multiples of the reference GPU."""
    known = speeds.row_of_one(request.reference_gpu) is not None
    by_reference = known and len(request.workload_names) > 1
    name = gpu_name(request.reference_gpu)
    unit = _unit(speeds)
    return {
        "unit": unit,
        "by_reference": by_reference,
        "throughput_unit": f"x {name}" if by_reference else f"{unit}/s",
        "value_unit": f"{name} hours per dollar" if by_reference else f"{unit} per dollar",
        "reference_gpu_key": request.reference_gpu if known else None,
    }


def _unit(speeds: Speeds) -> str:
    units = {part.case.sample_unit for part in speeds.parts[0]}
    unit = units.pop() if len(units) == 1 and len(speeds.parts[0]) == 1 else "sample"
    return plural(unit)
