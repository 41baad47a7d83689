"""The pure core of the ranking: it needs only offers and estimates, no files, clock or network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.labels import gpu_name, gpus_of
from gpubench.models import Answer, BuyOrRent, Choice, PriceCondition, Ranking, Row, Sentence, SentenceKind
from gpubench.offers.columns import Offers
from gpubench.recommend import objective
from gpubench.recommend.answer import answered, facts
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.choice import (
    best_to_own,
    best_to_rent,
    cheapest_of_a_cloud,
    choice_of,
    places_of_answers,
    places_of_named,
)
from gpubench.recommend.eligible import Eligible, FilterResult, eligible, unit_of
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.filters import recorded
from gpubench.recommend.lines import in_words
from gpubench.recommend.owning import against_rent
from gpubench.recommend.paying import on_commitments, on_interruptions
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Chosen, best_places, one_a_gpu, owned, rows_of
from gpubench.recommend.speeds import Drawer
from gpubench.sentences import Told, tell
from gpubench.units import format_price, plain


def judge_offers(
    request: RankRequest,
    filtered: FilterResult,
    evidence_for: Callable[[Sequence[str]], Evidence],
    *,
    drawer: Drawer | None = None,
    notes: Iterable[Told] = (),
    only: Chosen | None = None,
) -> Ranking:
    """Rank the remaining offers as the request asks.

    Args:
        request: A checked request.
        filtered: The offers left by the filters of the same request.
        evidence_for: Maps GPU keys to their evidence.
        drawer: Joint draws of estimates; None for ``predict.answers.draw``.
        notes: Remarks on the evidence and the prices.
        only: Which of the requested rows to build; None for all.

    Raises:
        MisuseError: If no offer is left; the message says which filter removed how many.
    """
    found = eligible(request, filtered, evidence_for, drawer)
    request, priced = found.request, found.pool
    if filtered.owned:  # compared with all rentals
        possible = found.finder.runnable(filtered.possible)[0]
        others = possible.where(~possible.places(priced.offers))
        priced = found.finder.pool_of(Offers.joined(priced.offers, others))
    asked_for = (one_a_gpu(found) if request.one_a_gpu else range(len(found)))[: request.limit]
    shown = np.asarray(asked_for) if only is None else np.intersect1d(asked_for, only(found))
    in_order = sorted({*shown.tolist(), *places_of_answers(found)})
    made = dict(zip(in_order, rows_of(found, in_order), strict=True))
    ranking = _answer(found, made, priced, shown)
    buys = found.is_owned.all()
    told = [
        *(Told("answer", text, FIRST) for text in in_words(ranking)),
        *notes,
        *on_commitments(found),
        *on_interruptions(request, [each.offer for each in answered(ranking)]),
        *facts(found, priced, ranking),
        *(jobs_of_rent(ranking.first.purchase_usd, best_to_rent(found, priced)) if buys else ()),
    ]
    return msgspec.structs.replace(ranking, sentences=sentences_of(told))


FIRST = 1000
"""Weight of the answers, above all other sentences."""


def sentences_of(told: Iterable[Told]) -> tuple[Sentence, ...]:
    """Return the distinct sentences, highest weight first."""
    in_order = sorted(dict.fromkeys(told), key=lambda each: -each.weight)
    return tuple(Sentence(kind=_KINDS[each.kind], text=each.text) for each in in_order)


_KINDS: dict[str, SentenceKind] = {kind: kind for kind in get_args(SentenceKind)}


TOSS_UP_ODDS = 2.0
"""An answer is a toss-up if its odds against the most likely other GPUs are below this."""


def _answered(found: Eligible, made: Mapping[int, Row], name: str, place: int) -> Answer:
    """Return an answer with the chance of its GPUs and, in a toss-up, that of their most likely rivals."""
    p_best = getattr(found.chances, f"p_{name}")
    answer = Answer(choice=choice_of(found, made[place], found))
    machines = found.pool.machine[found.order]
    if np.isnan(p_best[place]) or len(found.offers.gpu_key.present) == 1:
        return answer
    chances = np.bincount(machines, weights=np.nan_to_num(p_best)).round(9)  # sums may slightly exceed 1
    named = int(machines[place])
    answer = msgspec.structs.replace(answer, p_best=float(chances[named]))
    beyond = np.unique(machines[objective.is_a_guess(found.pool)[found.order]])  # guesses are named last
    rivals = np.where(np.isin(np.arange(len(chances)), [named, *beyond]), -1.0, chances)
    rival = int(np.argmax(rivals))
    if rivals[rival] <= 0 or chances[named] >= TOSS_UP_ODDS * rivals[rival]:
        return answer
    first = {machine: found.offers[int(np.argmax(machines == machine))] for machine in (named, rival)}
    both = tuple((each.gpu_key, each.gpu_count, float(chances[at])) for at, each in first.items())
    return msgspec.structs.replace(answer, toss_up=both)


def _answer(found: Eligible, made: Mapping[int, Row], priced: Candidates, shown: Indices) -> Ranking:
    """Return the figures of the ranking; ``priced`` has all rentals to compare with owned hardware."""
    request, filtered, speeds = found.request, found.filtered, found.pool.speeds
    mine = [(place, found.offers[place]) for place in owned(found).tolist()]
    bought = {offer: each for offer, each in filtered.owned.items() if each.purchase_usd}
    machines = {offer: bought[offer] for _, offer in mine if offer in bought}
    beside_rent: tuple[BuyOrRent, ...] = ()
    if machines:
        beside_rent = against_rent(request, found.finder.within_limits(priced.offers)[0], machines)
    unit, reference = unit_of(speeds), gpu_name(request.reference_gpu)
    has_reference = speeds.row_of_one(request.reference_gpu) is not None
    by_reference = has_reference and len(request.workload_names) > 1  # else samples of the one workload
    to_own, cloud = best_to_own(found), cheapest_of_a_cloud(found)
    machine = None if to_own is None else filtered.machines.get(to_own.offer)
    quoted = {offer for offer, each in filtered.owned.items() if each.condition is PriceCondition.QUOTED}
    return Ranking(
        as_of=filtered.market.today.isoformat(),
        objective=objective.in_words(request),
        sorted_by=objective.sorted_by(request),
        hour_worth_usd=None if request.relative else request.hour_worth_usd,
        cases=tuple(dict.fromkeys(part.case for parts in speeds.parts for part in parts)),
        unit=unit,
        by_reference=by_reference,
        throughput_unit=f"x {reference}" if by_reference else f"{unit}/s",
        value_unit=f"{reference} hours per dollar" if by_reference else f"{unit} per dollar",
        reference_gpu_key=request.reference_gpu if has_reference else None,
        rows=tuple(made[place] for place in shown.tolist()),
        offer_count=len(found),
        excluded=recorded(found.excluded),
        job=None if found.pool.work is None else found.pool.work.job,
        answers={name: _answered(found, made, name, place) for name, place in found.answers.items()},
        cloud=None if cloud is None else choice_of(found, made[cloud], found),
        owned=tuple(choice_of(found, made[place], found) for place, offer in mine if offer in quoted),
        asked=tuple(choice_of(found, made[place], found) for place in places_of_named(found)),
        by_gpu=tuple(choice_of(found, made[place], found) for place in best_places(found)),
        best_to_own=to_own,
        best_to_own_use=None if machine is None else machine.utilization.likely,
        question=as_understood(request, [part.case.workload for part in speeds.parts[0]]),
        buy_or_rent=beside_rent,
        max_purchase_usd=request.max_purchase_usd,
    )


def jobs_of_rent(usd: float | None, rent: Choice | None) -> Iterator[Told]:
    """Yield the number of jobs that a sum of money pays for by renting."""
    if usd and rent is not None and rent.row.cost_usd.value:
        gpu = f"{gpus_of(rent.offer)} at {plain(rent.offer.provider, 30)}"
        jobs = f"{math.floor(usd / rent.row.cost_usd.value):,}"
        yield tell("buy_or_rent", usd=format_price(usd), gpu=gpu, jobs=jobs)


_NOT_ASKED = frozenset(
    {"asked", "settings", "results", "offers", "limit", "one_a_gpu", "seed", "draws", "as_of"}
)
"""Fields for paths, display and the day, which the document has elsewhere."""


def as_understood(request: RankRequest, workloads: Sequence[str]) -> dict[str, Any]:
    """Return the question by the options' Python names, defaults filled in, without paths.

    Args:
        request: A checked request.
        workloads: Its workloads by the names in their cases; a user's model is requested by its file.
    """
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name not in _NOT_ASKED}
    by_name = zip(workloads, request.workload_names, strict=True)
    return fields | {
        "workloads": workloads,
        "mix": {name: request.mix[asked] for name, asked in by_name if request.mix},
        "jobs": "ddp" if request.one_job_over_all_gpus else "independent",
        "samples": request.job_samples,
        "spot_lost": request.spot_lost_share,
        "host_lost": request.host_lost_share,
        "startup_minutes": request.rented_startup_minutes,
        "billing_minutes": request.billing_unit_minutes,
        "sort": objective.sorted_by(request),
    }
