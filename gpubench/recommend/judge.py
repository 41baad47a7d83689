"""The pure core of the ranking: offers and estimates in, a ranking out; no file, no clock, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from gpubench.labels import gpu_name
from gpubench.models import BuyOrRent, Choice, Job, Ranking
from gpubench.offers.columns import Offers
from gpubench.recommend import objective
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.decision import beside, choice_of, decide, likely_use
from gpubench.recommend.eligible import Eligible, FilterResult, eligible, unit_of
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.filters import recorded
from gpubench.recommend.notes import decisive_notes, notes_of, on_the_choice
from gpubench.recommend.owning import against_rent
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Chosen
from gpubench.recommend.speeds import Drawer
from gpubench.recommend.verdict import verdict


def judge_offers(
    request: RankRequest,
    left: FilterResult,
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
    request, priced = found.request, found.pool
    if left.owned:  # held against all that is for rent, whose prices count too
        possible = found.able.runnable(left.possible)[0]
        others = possible.where(~possible.places(priced.offers))
        priced = found.able.pool_of(Offers.joined(priced.offers, others))
    ranking = _answer(found, priced, only)
    decision, said = ranking.decision, verdict(found, ranking)
    decisive = (
        *(each.text for each in said.beside),
        *notes,
        *decisive_notes(found, priced),
    )
    return msgspec.structs.replace(
        ranking,
        sentences=said.verdict,
        notes=(*decisive, *on_the_choice(request, decision), *notes_of(found, priced)),
        decisive_notes=len(decisive),
    )


def _answer(found: Eligible, priced: Candidates, only: Chosen | None) -> Ranking:
    """Return the ranking in figures; ``priced`` has all rent that owned hardware is held against."""
    request, left, rows, speeds = found.request, found.left, found.rows, found.pool.speeds
    owned = {at: offer for at in rows.owned.tolist() if (offer := rows.offers[at]) in left.owned}
    beside_rent: tuple[BuyOrRent, ...] = ()
    if owned:
        machines = {offer: left.owned[offer] for offer in owned.values()}
        beside_rent = against_rent(request, found.able.within_limits(priced.offers)[0], machines)
    asked_for = (rows.one_a_gpu if request.one_a_gpu else range(len(rows)))[: request.limit]
    unit, reference = unit_of(speeds), gpu_name(request.reference_gpu)
    has_reference = speeds.row_of_one(request.reference_gpu) is not None
    by_reference = has_reference and len(request.workload_names) > 1  # else samples of the one workload
    decision = decide(found, priced, beside_rent)
    return Ranking(
        as_of=left.market.today.isoformat(),
        objective=objective.in_words(request),
        sorted_by=objective.sorted_by(request),
        cases=tuple(dict.fromkeys(part.case for parts in speeds.parts for part in parts)),
        unit=unit,
        by_reference=by_reference,
        throughput_unit=f"x {reference}" if by_reference else f"{unit}/s",
        value_unit=f"{reference} hours per dollar" if by_reference else f"{unit} per dollar",
        reference_gpu_key=request.reference_gpu if has_reference else None,
        rows=rows.at(asked_for if only is None else np.intersect1d(asked_for, only(rows))),
        offer_count=len(rows),
        excluded=recorded(found.excluded),
        decision=decision,
        best_to_own_use=likely_use(decision.best_to_own, left.machines),
        buy_or_rent=beside_rent,
        max_purchase_usd=request.max_purchase_usd,
    )


def first_choice(
    request: RankRequest, left: FilterResult, evidence_for: Callable[[Sequence[str]], Evidence]
) -> tuple[Job, Choice] | None:
    """Return the job and what to pay for, and nothing beside it; None where no job can be assumed.

    Nothing is said of its chances, which are of other rows. Args as ``judge_offers``.

    Raises:
        MisuseError: As ``judge_offers`` does.
    """
    quick = msgspec.structs.replace(request, draws=1)  # no chance is said
    found = eligible(quick, left, evidence_for, first_only=True)
    if found.pool.work is None:
        return None
    choice = choice_of(found, beside(found.rows[0]), found.rows)
    return found.pool.work.job, msgspec.structs.replace(choice, rank=1)
