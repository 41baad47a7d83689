"""The pure core of the ranking: offers and estimates in, a ranking out; no file, no clock, no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from gpubench.arrays import Floats, Indices
from gpubench.labels import CONDITION_WORDS, gpu_name, gpus_of
from gpubench.models import Answer, BuyOrRent, Choice, Job, PriceCondition, Ranking, Row
from gpubench.offers.columns import Offers
from gpubench.recommend import objective
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.commitments import on_commitments
from gpubench.recommend.decision import beside, choice_of, decide, decisive_places, likely_use
from gpubench.recommend.economics import SECONDS_PER_HOUR
from gpubench.recommend.eligible import Eligible, FilterResult, eligible, unit_of
from gpubench.recommend.evidence import Evidence
from gpubench.recommend.filters import recorded
from gpubench.recommend.interruptions import on_interruptions
from gpubench.recommend.notes import decisive_notes, notes_of, on_the_choice
from gpubench.recommend.owning import against_rent, is_a_host
from gpubench.recommend.question import as_understood
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import Chosen, leading, one_a_gpu, owned, rows_of
from gpubench.recommend.speeds import Drawer
from gpubench.recommend.tokens import token_costs
from gpubench.recommend.verdict import fastest_and_cheapest_by_the_hour, verdict
from gpubench.sentences import say
from gpubench.units import count, format_duration, format_percent, format_price, format_usd, listing, plain


def judge_offers(
    request: RankRequest,
    filtered: FilterResult,
    evidence_for: Callable[[Sequence[str]], Evidence],
    *,
    drawer: Drawer | None = None,
    notes: Iterable[str] = (),
    clock: str | None = None,
    only: Chosen | None = None,
) -> Ranking:
    """Rank what is left of the offers as the request asks.

    Args:
        request: A checked request.
        filtered: What the same request leaves.
        evidence_for: GPU keys to what is known of them.
        drawer: Joint draws of estimates; None is ``predict.answers.draw``.
        notes: What the reader should know about the evidence.
        clock: As ``Decision`` has it.
        only: Which of the rows that are asked for are made; None is all.

    Raises:
        MisuseError: If no offer is left; the message says which filter removed how many.
    """
    found = eligible(request, filtered, evidence_for, drawer)
    request, priced = found.request, found.pool
    if filtered.owned:  # held against all that is for rent, whose prices count too
        possible = found.finder.runnable(filtered.possible)[0]
        others = possible.where(~possible.places(priced.offers))
        priced = found.finder.pool_of(Offers.joined(priced.offers, others))
    asked_for = (one_a_gpu(found) if request.one_a_gpu else range(len(found)))[: request.limit]
    shown = np.asarray(asked_for) if only is None else np.intersect1d(asked_for, only(found))
    made = _rows_by_place(found, shown)
    ranking = _answer(found, made, priced, shown)
    decision = msgspec.structs.replace(ranking.decision, clock=clock)
    ranking = msgspec.structs.replace(ranking, decision=decision)
    interrupted = tuple(on_interruptions(found))
    said = verdict(found, ranking, made)
    decisive = (
        *([] if request.workloads or request.mix else [say("toy_mix")]),
        *_none_of_ones_own(request, found),
        *_had(found, made),
        *_in_ones_pc(request, decision.best_to_own),
        *interrupted[1:],
        *(each.text for each in said.beside),
        *notes,
        *decisive_notes(found, priced),
    )
    return msgspec.structs.replace(
        ranking,
        opening=(
            *on_commitments(found),
            *interrupted[:1],
            *_fewest_in_time(request, found),
            *_on_tokens(made[0]),
        ),
        sentences=said.verdict,
        notes=(*decisive, *on_the_choice(request, decision), *notes_of(found, priced)),
        decisive_notes=len(decisive),
    )


def _fewest_in_time(request: RankRequest, found: Eligible) -> Iterator[str]:
    """Yield how few GPUs end within the deadline, of the cheapest such offer, where a GPU was named."""
    if request.deadline_hours is None or not request.gpus or found.pool.work is None:
        return
    place = int(np.argmin(found.pool.count[found.order]))
    (row,) = rows_of(found, [place])
    yield say(
        "count_needed",
        gpu=gpus_of(row.offer),
        provider=plain(row.offer.provider, 40),
        limit=format_duration(request.deadline_hours * SECONDS_PER_HOUR),
        hours=format_duration((row.hours.value or 0.0) * SECONDS_PER_HOUR),
        slow=format_duration((row.hours.high or row.hours.value or 0.0) * SECONDS_PER_HOUR),
        efficiency=format_percent(row.scaling_efficiency),
    )


def _on_tokens(first: Row) -> Iterator[str]:
    """Yield what a million tokens cost of inference on the first offer."""
    if first.estimate.case.task == "infer" and (costs := token_costs(first)):
        told = (f"{cost.by(format_usd)} ({what})" for what, cost in costs.items())
        yield say("serve_cost", costs=listing(list(told)), batch=f"{first.estimate.case.batch_size:,}")


def _none_of_ones_own(request: RankRequest, found: Eligible) -> tuple[str, ...]:
    """Say why no price of a person's own table is ranked, where that is so."""
    left_out = [each for each in found.excluded if each.among.by_user[each.at]]
    if request.offers is None or not left_out or found.pool.offers.by_user.any():
        return ()
    each, others = left_out[0], len(left_out) - 1
    more = f", and {count(others, 'more price')} besides" if others else ""
    offer = f"{gpu_name(each.offer.gpu_key)} at {plain(each.offer.provider)}"
    return (f"No price of {plain(request.offers.name)} is ranked: {offer}: {each.reason}{more}.",)


def _had(found: Eligible, made: Mapping[int, Row]) -> Iterator[str]:
    """Yield a sentence for each machine that somebody has: against the best to rent, or why it has no row."""
    place_of = {found.offers[place]: place for place in owned(found).tolist()}
    for offer, machine in found.filtered.owned.items():
        if machine.condition is not PriceCondition.QUOTED:
            continue
        if offer in place_of:
            mine, rented = made[place_of[offer]], int(np.argmin(found.is_owned))
            if found.pool.work is not None and not found.is_owned[rented]:
                bill = "energy" if not machine.purchase_usd else "owning it"
                there = f"{gpus_of(made[rented].offer)} at {plain(made[rented].offer.provider, 40)}"
                yield (
                    f"Your {gpus_of(offer)}: {_takes(mine)} of {bill}; "
                    f"renting {there}: {_takes(made[rented])}."
                )
        else:
            mine_too = (each for each in found.excluded if each.offer == offer)
            yield from (f"Your {gpus_of(offer)} is not ranked: {each.reason}." for each in mine_too)


def _in_ones_pc(request: RankRequest, card: Choice | None) -> Iterator[str]:
    """Yield the best card for a host that somebody has, where nothing was to be bought."""
    if any(map(is_a_host, request.own)) and not request.buys and card is not None:
        yield say(
            "have_pc",
            gpu=gpus_of(card.offer),
            condition=CONDITION_WORDS[card.condition],
            usd=format_price(card.purchase_usd),
            hours=format_duration((card.row.hours.value or 0.0) * SECONDS_PER_HOUR),
        )


def _takes(row: Row) -> str:
    hours = row.hours.value or 0.0
    return f"{format_duration(hours * SECONDS_PER_HOUR)} and {format_usd(row.cost_usd.value)}"


def _rows_by_place(found: Eligible, shown: Indices) -> dict[int, Row]:
    """Return the rows that are shown, and those that the answer and its words are of, by their place."""
    places = {
        *shown.tolist(),
        *decisive_places(found),
        *owned(found).tolist(),
        *leading(found),
        *fastest_and_cheapest_by_the_hour(found),
        *found.answers.values(),
    }
    in_order = sorted(places)
    return dict(zip(in_order, rows_of(found, in_order), strict=True))


TOSS_UP_ODDS = 2.0
"""Below these odds against the likeliest other GPUs an answer is a toss-up."""


def _toss_up(found: Eligible, place: int, p_best: Floats) -> tuple[tuple[str, int, float], ...] | None:
    """Return the GPUs of an answer and their likeliest rivals, each with its chance; None where it is sure.

    Args:
        found: What can do the job.
        place: Of the row that answers.
        p_best: The chance of every place to be the better answer; NaN where it is not worked out.
    """
    machines = found.pool.machine[found.order]
    chances = np.bincount(machines, weights=np.nan_to_num(p_best))
    named = int(machines[place])
    beyond = np.unique(machines[objective.is_a_guess(found.pool)[found.order]])  # guesses are named last
    rivals = np.where(np.isin(np.arange(len(chances)), [named, *beyond]), -1.0, chances)
    rival = int(np.argmax(rivals))
    if rivals[rival] <= 0 or chances[named] >= TOSS_UP_ODDS * rivals[rival]:
        return None
    first = {machine: found.offers[int(np.argmax(machines == machine))] for machine in (named, rival)}
    return tuple((each.gpu_key, each.gpu_count, float(chances[at])) for at, each in first.items())


def _answer(found: Eligible, made: Mapping[int, Row], priced: Candidates, shown: Indices) -> Ranking:
    """Return the ranking in figures; ``priced`` has all rent that owned hardware is held against."""
    request, filtered, speeds = found.request, found.filtered, found.pool.speeds
    offers = (found.offers[place] for place in owned(found).tolist())
    bought = {offer: each for offer, each in filtered.owned.items() if each.purchase_usd}
    machines = {offer: bought[offer] for offer in offers if offer in bought}
    beside_rent: tuple[BuyOrRent, ...] = ()
    if machines:
        beside_rent = against_rent(request, found.finder.within_limits(priced.offers)[0], machines)
    unit, reference = unit_of(speeds), gpu_name(request.reference_gpu)
    has_reference = speeds.row_of_one(request.reference_gpu) is not None
    by_reference = has_reference and len(request.workload_names) > 1  # else samples of the one workload
    decision = decide(found, made, priced, beside_rent)
    answers = {}
    for name, place in found.answers.items():
        row, chances = made[place], getattr(found.chances, f"p_{name}")
        machine = filtered.owned.get(row.offer)
        answers[name] = Answer(
            row=row,
            condition=None if machine is None else machine.condition,
            purchase_usd=None if machine is None else machine.purchase_usd,
            host_usd=None if machine is None else machine.host_usd,
            p_best=getattr(row, f"p_{name}"),
            toss_up=_toss_up(found, place, chances),
        )
    doubts = (
        f"{gpu_name(each.row.offer.gpu_key)} at {why}"
        for each in answers.values()
        if (why := filtered.doubt(each.row.offer))
    )
    decision = msgspec.structs.replace(decision, answer_doubts=tuple(dict.fromkeys(doubts)))
    return Ranking(
        as_of=filtered.market.today.isoformat(),
        objective=objective.in_words(request),
        sorted_by=objective.sorted_by(request),
        hour_worth_usd=request.hour_worth_usd if request.has_job else None,
        cases=tuple(dict.fromkeys(part.case for parts in speeds.parts for part in parts)),
        unit=unit,
        by_reference=by_reference,
        throughput_unit=f"x {reference}" if by_reference else f"{unit}/s",
        value_unit=f"{reference} hours per dollar" if by_reference else f"{unit} per dollar",
        reference_gpu_key=request.reference_gpu if has_reference else None,
        rows=tuple(made[place] for place in shown.tolist()),
        offer_count=len(found),
        excluded=recorded(found.excluded),
        decision=decision,
        answers=answers,
        question=as_understood(request, [part.case.workload for part in speeds.parts[0]]),
        best_to_own_use=likely_use(decision.best_to_own, filtered.machines),
        buy_or_rent=beside_rent,
        max_purchase_usd=request.max_purchase_usd,
    )


def first_choice(
    request: RankRequest, filtered: FilterResult, evidence_for: Callable[[Sequence[str]], Evidence]
) -> tuple[Job, Choice] | None:
    """Return the job and what to pay for, and nothing beside it; None where no job can be assumed.

    Nothing is said of its chances, which are of other rows. Args as ``judge_offers``.

    Raises:
        MisuseError: As ``judge_offers`` does.
    """
    quick = msgspec.structs.replace(request, draws=1)  # no chance is said
    found = eligible(quick, filtered, evidence_for, first_only=True)
    if found.pool.work is None:
        return None
    (row,) = rows_of(found, [0])
    choice = choice_of(found, beside(row), found)
    first = msgspec.structs.replace(choice.row, rank=1)
    return found.pool.work.job, msgspec.structs.replace(choice, row=first)
