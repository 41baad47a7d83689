"""The pure core of the ranking: offers and estimates in, a ranking out; no file, no clock, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.labels import gpu_name
from gpubench.models import BuyOrRent, Choice, Decision, FindingKind, Job, Pricing, RankedOffer, Ranking
from gpubench.offers.columns import Offers
from gpubench.recommend import objective
from gpubench.recommend.buy_or_rent import against_rent
from gpubench.recommend.buying import owned_rows, purchases_of
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.chances import chances_of
from gpubench.recommend.changes import changes_of, finding_out
from gpubench.recommend.decision import beside, choice_of, decide
from gpubench.recommend.eligible import Eligible, Sifted, eligible, unit_of
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.filters import excluded
from gpubench.recommend.notes import (
    far_from_others,
    free_beside,
    how_to_measure,
    left_out_as_outliers,
    not_as_asked,
    notes_of,
    on_ages,
    on_expected_prices,
    on_the_choice,
)
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Chosen, Rows
from gpubench.recommend.speeds import Drawer, Speeds
from gpubench.recommend.verdict import (
    NO_GPU_NEEDED,
    buying_sentences,
    cpu_comparison,
    cpu_sentences,
    prices_decide,
    verdict,
)


def judge(
    request: RankRequest,
    left: Sifted,
    evidence_for: Callable[[Sequence[str]], Evidence],
    *,
    drawer: Drawer | None = None,
    notes: Iterable[str] = (),
    only: Chosen | None = None,
) -> Ranking:
    """Rank what is left of the offers as the request asks.

    Args:
        request: A checked request.
        left: What the same request leaves.
        evidence_for: GPU keys to what is known of them.
        drawer: Joint draws of estimates; None is ``predict.answers.draw``.
        notes: What the reader should know about the evidence.
        only: Which of the rows that are asked for are made; None is all.

    Raises:
        MisuseError: If no offer is left; the message says which filter removed how many.
    """
    found = eligible(request, left, evidence_for, drawer)
    request, pool, rows, market = found.request, found.pool, found.rows, left.market
    priced = pool
    if left.owned:  # held against all that is for rent, whose prices count too
        possible = found.runnable(left.possible)[0]
        others = possible.where(~possible.places(pool.offers))
        priced = found.pool_of(Offers.joined(pool.offers, others))
    ranked = {offer: left.owned[offer] for _, offer in owned_rows(rows) if offer in left.owned}
    beside_rent = against_rent(request, found.within_limits(priced.offers), ranked) if left.owned else ()
    decision = _decision(left, found, priced, beside_rent)
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
        cases=tuple(dict.fromkeys(part.case for parts in pool.speeds.parts for part in parts)),
        **_units(request, pool.speeds),
        rows=_asked_for(request, rows, only),
        offer_count=len(rows),
        excluded=excluded(found.fallen),
        verdict="",
        decision=decision,
        buy_or_rent=beside_rent,
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
    return _said(ranking, found)


def _decision(
    left: Sifted, found: Eligible, priced: Candidates, beside_rent: Iterable[BuyOrRent]
) -> Decision:
    """Return what to pay for; ``priced`` are the offers with all rent that owned hardware is held against."""
    request, pool, order, rows = found.request, found.pool, found.order, found.rows
    return decide(
        request,
        rows,
        found.chances,
        left.specs,
        changes=changes_of(request, pool, order, rows),
        job=None if pool.work is None else pool.work.job,
        machines=left.machines,
        to_own=_best_to_own(left, found),
        to_rent=_to_rent(left, found, priced) if left.owned else (),
        buy_or_rent=beside_rent,
        photograph_share=found.photograph_share,
        asks=left.market.asks,
        measurement=finding_out(request, pool, order, rows, found.chances),
    )


def _units(request: RankRequest, speeds: Speeds) -> dict[str, Any]:
    """Return the units of the ranking: samples of one workload, else multiples of the reference GPU."""
    known = speeds.row_of_one(request.reference_gpu) is not None
    by_reference = known and len(request.workload_names) > 1
    name = gpu_name(request.reference_gpu)
    unit = unit_of(speeds)
    return {
        "unit": unit,
        "by_reference": by_reference,
        "throughput_unit": f"x {name}" if by_reference else f"{unit}/s",
        "value_unit": f"{name} hours per dollar" if by_reference else f"{unit} per dollar",
        "reference_gpu_key": request.reference_gpu if known else None,
    }


def _said(ranking: Ranking, found: Eligible) -> Ranking:
    """Return the ranking with its verdict, and the notes that go with it."""
    request, pool, rows, decision = found.request, found.pool, found.rows, ranking.decision
    time, _ = objective.time_and_cost(request, pool, found.order)
    about_the_cpu = cpu_sentences(request, pool.speeds)
    needless = [each for each in about_the_cpu if each.startswith(NO_GPU_NEEDED)]
    said = verdict(
        request,
        ranking,
        rows,
        fastest_and_cheapest=(int(np.argmin(time)), int(np.argmin(rows.prices))),
        first=needless,
        last=[
            *buying_sentences(ranking.buy_or_rent),
            *(each for each in about_the_cpu if each not in needless),
            *cpu_comparison(request, pool.speeds, rows[0]),
        ],
    )
    known = ranking.decisive_notes
    decisive = (*said.beside, *how_to_measure(decision), *ranking.notes[:known])
    return msgspec.structs.replace(
        ranking,
        verdict=" ".join(said.verdict),
        notes=(*decisive, *on_the_choice(request, decision), *ranking.notes[known:]),
        decisive_notes=len(decisive),
    )


def _asked_for(request: RankRequest, rows: Rows, only: Chosen | None) -> tuple[RankedOffer, ...]:
    asked = (rows.one_a_gpu if request.one_a_gpu else range(len(rows)))[: request.limit]
    if only is None:
        return rows.at(asked)
    return rows.at(np.intersect1d(asked, only(rows)))


def first_choice(
    request: RankRequest, left: Sifted, evidence_for: Callable[[Sequence[str]], Evidence]
) -> tuple[Job, Choice] | None:
    """Return the job and what to pay for, and nothing beside it; None where no job can be assumed.

    Nothing is said of its chances, which are of other rows. Args as ``judge``.

    Raises:
        MisuseError: As ``judge`` does.
    """
    quick = msgspec.structs.replace(request, draws=1)  # no chance is said
    found = eligible(quick, left, evidence_for, first_only=True)
    if any(each.kind is FindingKind.OUT_OF_DOMAIN for each in found.rows[0].findings):
        found = eligible(request, left, evidence_for)  # what ties with it may be surer
    if found.pool.work is None:
        return None
    return found.pool.work.job, msgspec.structs.replace(_choice(left, found, found.rows), rank=1)


def _best_to_own(left: Sifted, found: Eligible) -> RankedOffer | None:
    """Return the best hardware to buy, judged among its like; None where none meets what was asked."""
    pool = found.within_limits(found.runnable(left.sold)[0])
    if not len(pool):
        return None
    return beside(_with_first(left, found, pool, objective.order(found.request, pool)[:1])[0])


def _to_rent(left: Sifted, found: Eligible, priced: Candidates) -> list[Choice]:
    """Return the best rent on demand of a cloud and of a marketplace, the better one first."""
    by_the_hour = priced.offers.where(priced.offers.pricing.equals(Pricing.ON_DEMAND))
    pool = found.within_limits(by_the_hour)
    order = objective.order(found.request, pool)
    on_marketplace = pool.offers.kind.equals("marketplace")[order]
    best = sorted(int(np.argmax(of_kind)) for of_kind in (on_marketplace, ~on_marketplace) if of_kind.any())
    in_front = (np.concatenate((order[at : at + 1], np.delete(order, at))) for at in best)
    return [_choice(left, found, _with_first(left, found, pool, each)) for each in in_front]


def _with_first(left: Sifted, found: Eligible, pool: Candidates, order: Indices) -> Rows:
    """Return rows of which only the first is looked at; the others are where else it is to be had."""
    return Rows(
        found.request,
        pool,
        order,
        chances_of(found.request, pool, order[:1]),
        market=left.market,
        doubts=left.doubts,
    )


def _choice(left: Sifted, found: Eligible, rows: Rows) -> Choice:
    """Return the first of these rows as a choice beside the ranking."""
    return choice_of(
        found.request,
        beside(rows[0]),
        rows,
        left.specs,
        photograph_share=found.photograph_share,
        machine=left.owned.get(rows.offers[0]),
        asks=left.market.asks,
    )
