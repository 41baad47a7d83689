"""Ranks offers by the cost of a job: checks a request, gathers evidence, judges offers, builds the document.

``judge_offers`` is pure: its inputs are offers and estimates, and it uses no clock or network, and no files
except the shipped tables.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from gpubench.arrays import Indices
from gpubench.errors import MisuseError
from gpubench.files import many_objects
from gpubench.groups import grouped
from gpubench.labels import card_condition, gpu_name, gpus_of
from gpubench.models import (
    RANKING_SCHEMA,
    Answer,
    BuyOrRent,
    Choice,
    Offer,
    PriceCondition,
    Ranking,
    Row,
    Sentence,
    SentenceKind,
    TaskKind,
)
from gpubench.offers.dates import drift_of
from gpubench.offers.hardware import hosts
from gpubench.offers.table import Offers, OfferTable
from gpubench.options import takes_options_of, typed
from gpubench.predict.question import task_of
from gpubench.profile import known_profile, traced_once
from gpubench.recommend import objective
from gpubench.recommend.answer import facts, first_screen_choices, work_done
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.eligible import Eligible, FilterResult, eligible, sift, unit_of
from gpubench.recommend.evidence import Evidence, Runs, device_key, gather, mean_power_w
from gpubench.recommend.filters import NothingLeftError, excluded_by, recorded
from gpubench.recommend.lines import in_words, on_commitments, on_evidence, on_interruptions
from gpubench.recommend.owning import Ownership, against_rent, offer_of, ownerships, with_utilization
from gpubench.recommend.request import HOUR_WORTH_USD, RankRequest
from gpubench.recommend.rows import (
    Chosen,
    best_places,
    best_to_own,
    best_to_rent,
    cheapest_of_a_cloud,
    choice_of,
    one_a_gpu,
    owned,
    places_of_answers,
    places_of_named,
    rows_of,
)
from gpubench.recommend.speeds import Drawer
from gpubench.sentences import Told, tell
from gpubench.specs import require_spec
from gpubench.units import count, format_price, plain, plural


@takes_options_of(RankRequest)
def rank(request: RankRequest) -> Ranking:
    """Rank GPUs and instances for a job by dollars and hours; this needs neither a network nor a GPU.

    Returns:
        The three answers, the ranked offers, the excluded offers with reasons, and the sentences about them.

    Raises:
        MisuseError: If an option is wrong, a name is unknown, or no offer is left.

    Example:
        >>> ranking = rank("vgg16", precision="amp", gpu=["h100", "rtx 5090"])
        >>> ranking.rows[0].rank
        1
    """
    return ranked(request)


@many_objects()
@traced_once()
def ranked(request: RankRequest, only: Chosen | None = None) -> Ranking:
    """Answer as ``rank`` does.

    Args:
        request: The question.
        only: Chooses the rows to build, because building 100,000 takes seconds; None builds all.

    Raises:
        MisuseError: As ``rank`` does.
    """
    from gpubench.offers.snapshot import load_dated

    request = check(request)
    request = msgspec.structs.replace(request, reference_gpu=require_spec(request.reference_gpu).key)
    table, today, clock = load_dated(request.results, request.offers, request.as_of)
    runs, problems = runs_of(request.results)
    machines, for_sale = _machines(request, runs, today)

    def sift_for(asked: RankRequest) -> FilterResult:
        owned = {offer_of(machine): machine for machine in machines}
        drift = drift_of(table.changes)
        return sift(asked, table.offers, today=today, owned=owned, for_sale=for_sale, drift=drift)

    if request.jobs_per_month is not None:
        # The length of a job determines a machine's utilization, which in turn determines its hourly cost.
        asked = msgspec.structs.replace(
            request,
            limit=None,
            draws=1,
            max_purchase_usd=None,
            rent_or_buy="buy" if request.buys else request.rent_or_buy,
        )
        first = judge_offers(asked, sift_for(asked), partial(gather, asked, runs=runs))
        if first.job is None:
            raise MisuseError(
                "the setting jobs-per-month needs a job, and none can be assumed here: add --samples"
            )
        machines = with_utilization(machines, first.rows, request)
    notes = [
        *(tell("reading_problem", problem=plain(each).rstrip(".")) for each in (*table.notes, *problems)),
        *_set_aside(table, request.offers),
        *([tell("clock", clock=clock.rstrip("."))] if clock else []),
        *_on_names(request, Offers.of(table.offers)),
    ]
    evidence_for = partial(gather, request, runs=runs)
    may_rent = request.max_purchase_usd is not None and request.rent_or_buy != "buy"
    try:
        ranking = judge_offers(request, sift_for(request), evidence_for, notes=notes, only=only)
    except NothingLeftError:
        if not may_rent:
            raise
    else:
        # What the buyer already has is ranked too, at no purchase price.
        if not may_rent or any(each.purchase_usd for each in ranking.by_gpu):
            return ranking
    return _instead_of_buying(request, only)


def _instead_of_buying(request: RankRequest, only: Chosen | None) -> Ranking:
    """Answer a request with a sum that buys no machine: rank rentals, and say what the sum does buy.

    The sum may pay for a number of rented jobs, or for a card in a PC that the buyer already has.

    Raises:
        NothingLeftError: If no rental is left either.
    """
    sum_usd = request.max_purchase_usd
    assert sum_usd is not None  # a request without a sum is not answered here
    in_own_pc = msgspec.structs.replace(request, host_usd=0.0, own=())
    try:
        with_pc = None if request.host_usd == 0 else ranked(in_own_pc, only).first
    except MisuseError:
        with_pc = None
    renting = msgspec.structs.replace(request, max_purchase_usd=None, jobs_per_month=None)
    ranking = ranked(renting, only)
    usd = format_price(sum_usd)
    often = request.jobs_per_month
    work = "this job" if often is None else f"{often:,g} of these jobs a month"
    opening = [tell("buy_nothing", usd=usd, work=work)]
    if with_pc is not None and with_pc.source == "own":
        host_usd = hosts()[0].price_usd if request.host_usd is None else request.host_usd
        opening = [
            tell("buy_none", usd=usd, work=work, host_usd=format_price(host_usd)),
            tell(
                "buy_have_pc",
                usd=format_price(with_pc.purchase_usd),
                gpu=gpus_of(with_pc.offer),
                condition=card_condition(with_pc.condition) or "new or used not stated",
                work=work_done(ranking, with_pc.row),
            ),
        ]
    opening += _jobs_of_rent(sum_usd, ranking.answers["cheapest"].choice)
    return msgspec.structs.replace(
        ranking, sentences=(*_sentences_of(opening), *ranking.sentences), max_purchase_usd=sum_usd
    )


def _machines(
    request: RankRequest, runs: Runs, today: date
) -> tuple[list[Ownership], Mapping[Offer, Ownership]]:
    # Return the hardware to rank, and the hardware to buy that is shown next to a ranking of rentals.
    power_w, own_keys = mean_power_w(runs), {key for run in runs.own if (key := device_key(run))}
    machines = ownerships(request, power_w, today, own_keys)
    if machines or request.buys or request.rent_or_buy is not None:
        return machines, {}
    buying = msgspec.structs.replace(request, rent_or_buy="buy")
    return [], {offer_of(each): each for each in ownerships(buying, power_w, today)}


def _on_names(request: RankRequest, offers: Offers) -> Iterator[Told]:
    # Yield which names in the request have no effect: a missing folder, and exclusions of nothing.
    if request.results is not None and not request.results.exists():
        yield tell("no_folder", folder=plain(str(request.results)))
    there = {*offers.gpu_key.present, *map(str.casefold, offers.provider.present)}
    if idle := [name for name in request.excluded if there.isdisjoint(excluded_by(name, offers))]:
        yield tell("exclude_none", names=plain(",".join(idle)))


def _set_aside(table: OfferTable, own: Path | None) -> Iterator[Told]:
    # Yield how many rows of the user's table and of others were set aside, and how to list them.
    own_rows = [each for each in table.set_aside if own is not None and each.row.startswith(f"{own.name}:")]
    if own_rows:
        rows = (
            f"{count(len(own_rows), 'row')}, {'including ' if len(own_rows) > 1 else ''}"
            f"{plain(own_rows[0].row)} ({plain(own_rows[0].reason)})"
        )
        yield tell("set_aside", rows=rows, file=shlex.quote(str(own)))
    if others := len(table.set_aside) - len(own_rows):
        yield tell("others_set_aside", rows=count(others, "row"))


def runs_of(results: Path | None) -> tuple[Runs, tuple[str, ...]]:
    """Return the user's and the shipped runs, and remarks about the results folder."""
    from gpubench.folders import results_root
    from gpubench.record.store import newest_runs, reference_runs

    stored = newest_runs(results_root(results))
    return Runs(stored.runs, reference_runs()), tuple(filter(None, (*stored.problems, stored.passed_over)))


__test__ = {"rank": rank}  # doctest finds a function by its module, and this one is wrapped


def document(ranking: Ranking, asked: RankRequest | None = None) -> dict[str, Any]:
    """Return the document of ``gpubench rank --json``.

    Its rows are those of the ranking, followed by any other rows of the answers.

    Args:
        ranking: The answer.
        asked: The request as given, with its paths and settings, so that ``gpubench try`` can repeat it. None
            for a report, because reports are shared with others.
    """
    by_rule = grouped((offer.rule, offer) for offer in ranking.excluded)
    job, of_answers = ranking.job, [each.row for each in ranking.answers.values()]
    rows = list({id(row): row for row in (*ranking.rows, *of_answers)}.values())
    places = {id(row): place for place, row in enumerate(rows)}
    return {
        "schema": RANKING_SCHEMA,
        "as_of": ranking.as_of,
        "question": ranking.question if asked is None else {**ranking.question, "asked": asked.question},
        "job": None if job is None else {"samples": job.samples, "words": job.words},
        "hour_worth_usd": ranking.hour_worth_usd,
        "settings": () if asked is None else asked.settings,
        "answers": {
            name: None
            if (each := ranking.answers.get(name)) is None
            else {"row": places[id(each.row)], "p_best": each.p_best, "toss_up": each.toss_up}
            for name in ("cheapest", "sensible", "fastest")
        },
        "rows": [row.flat() for row in rows],
        "excluded": [
            {
                "reason": rule,
                "count": len(of_rule),
                "example": f"{of_rule[-1].provider} {of_rule[-1].instance}: {of_rule[-1].reason}",
            }
            for rule, of_rule in sorted(by_rule.items(), key=lambda item: -len(item[1]))
        ],
        "sentences": [{"kind": each.kind, "text": each.text} for each in ranking.sentences],
    }


BRIEF_BYTES = 8000
"""Size above which the brief document loses sentences [B], as one line of JSON."""
BRIEF_DIGITS = 6


def brief_document(ranking: Ranking, asked: RankRequest | None = None) -> dict[str, Any]:
    """Return the parts of the document that a script needs: the question, and the answers with their rows.

    Figures in rows have six significant digits, and notes are left out. If the document exceeds 8 kB, further
    sentences are left out, lowest weight first, and counted in ``more``; cautions and what the user asked
    about stay.

    The arguments are those of ``document``.
    """
    told = [each for each in ranking.sentences if each.kind != "note"]
    whole = document(msgspec.structs.replace(ranking, rows=(), sentences=tuple(told)), asked)
    del whole["excluded"]
    whole["rows"] = [
        {name: float(f"{v:.{BRIEF_DIGITS}g}") if isinstance(v, float) else v for name, v in row.items()}
        for row in whole["rows"]
    ]
    whole["more"] = 0
    spare = [place for place, each in enumerate(told) if each.kind not in {"asked", "caution"}]
    while spare and len(msgspec.json.encode(whole, enc_hook=str)) > BRIEF_BYTES:
        del whole["sentences"][spare.pop()]
        whole["more"] += 1
    return whole


# --- the judgment ---------------------------------------------------------------------------------------


def judge_offers(
    request: RankRequest,
    filtered: FilterResult,
    evidence_for: Callable[[Sequence[str]], Evidence],
    *,
    drawer: Drawer | None = None,
    notes: Iterable[Told] = (),
    only: Chosen | None = None,
) -> Ranking:
    """Rank the offers that passed the filters.

    Args:
        request: A checked request.
        filtered: The offers that pass the filters of the same request.
        evidence_for: Maps GPU keys to their evidence.
        drawer: Joint draws of estimates; None for ``predict.answers.draw``.
        notes: Remarks about the evidence and the prices.
        only: Chooses which rows to build; None builds all.

    Raises:
        MisuseError: If no offer is left; the message counts the offers that each filter removed.
    """
    found = eligible(request, filtered, evidence_for, drawer)
    request, priced = found.request, found.pool
    if filtered.owned:  # hardware to own is compared with all rentals
        possible = found.finder.runnable(filtered.possible)[0]
        others = possible.where(~possible.are_in(priced.offers))
        priced = found.finder.pool_of(priced.offers.joined(others))
    requested = (one_a_gpu(found) if request.one_a_gpu else range(len(found)))[: request.limit]
    shown = np.asarray(requested) if only is None else np.intersect1d(requested, only(found))
    in_order = sorted({*shown.tolist(), *places_of_answers(found)})
    row_at = dict(zip(in_order, rows_of(found, in_order), strict=True))
    ranking = _answer(found, row_at, priced, shown)
    told = [
        *(Told("answer", text, FIRST) for text in in_words(ranking)),
        *notes,
        *on_commitments(found),
        *on_evidence(found, ranking),
        *on_interruptions(request, [each.offer for each in first_screen_choices(ranking)]),
        *facts(found, priced, ranking),
        *(
            _jobs_of_rent(ranking.first.purchase_usd, best_to_rent(found, priced))
            if found.is_owned.all()
            else ()
        ),
    ]
    return msgspec.structs.replace(ranking, sentences=_sentences_of(told))


FIRST = 1000
"""Weight of the answers, above all other sentences."""


def _sentences_of(told: Iterable[Told]) -> tuple[Sentence, ...]:
    # Return the distinct sentences, highest weight first.
    in_order = sorted(dict.fromkeys(told), key=lambda each: -each.weight)
    return tuple(Sentence(kind=_KINDS[each.kind], text=each.text) for each in in_order)


_KINDS: dict[str, SentenceKind] = {kind: kind for kind in get_args(SentenceKind)}


TOSS_UP_ODDS = 2.0
"""An answer is a toss-up if its odds against its most likely rival are below this."""


def _answer_at(found: Eligible, row_at: Mapping[int, Row], name: str, place: int) -> Answer:
    # Return an answer with the chance of its GPUs and, in a toss-up, the chance of their most likely rival.
    p_best = getattr(found.chances, f"p_{name}")
    answer = Answer(choice=choice_of(found, row_at[place], found))
    machines = found.pool.machine[found.order]
    if np.isnan(p_best[place]) or len(found.offers.gpu_key.present) == 1:
        return answer
    chances = np.bincount(machines, weights=np.nan_to_num(p_best)).round(9)  # sums may slightly exceed 1
    named = int(machines[place])
    answer = msgspec.structs.replace(answer, p_best=float(chances[named]))
    guessed = np.unique(machines[objective.is_a_guess(found.pool)[found.order]])  # a guess is no rival
    rivals = np.where(np.isin(np.arange(len(chances)), [named, *guessed]), -1.0, chances)
    rival = int(np.argmax(rivals))
    if rivals[rival] <= 0 or chances[named] >= TOSS_UP_ODDS * rivals[rival]:
        return answer
    first = {machine: found.offers[int(np.argmax(machines == machine))] for machine in (named, rival)}
    both = tuple((each.gpu_key, each.gpu_count, float(chances[at])) for at, each in first.items())
    return msgspec.structs.replace(answer, toss_up=both)


def _answer(found: Eligible, row_at: Mapping[int, Row], priced: Candidates, shown: Indices) -> Ranking:
    # Assemble the ranking; ``priced`` also contains all rentals, for comparison with owned hardware.
    request, filtered, speeds = found.request, found.filtered, found.pool.speeds
    to_own = [(place, found.offers[place]) for place in owned(found).tolist()]
    paid = {offer: each for offer, each in filtered.owned.items() if each.purchase_usd}
    machines = {offer: paid[offer] for _, offer in to_own if offer in paid}
    compared: tuple[BuyOrRent, ...] = ()
    if machines:
        compared = against_rent(found.finder.within_limits(priced.offers)[0], machines)
    unit, reference = plural(unit_of(speeds)), gpu_name(request.reference_gpu)
    has_reference = speeds.row_of_one(request.reference_gpu) is not None
    by_reference = has_reference and len(request.workload_names) > 1
    best_own, cloud = best_to_own(found), cheapest_of_a_cloud(found)
    machine = None if best_own is None else filtered.machines.get(best_own.offer)
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
        rows=tuple(row_at[place] for place in shown.tolist()),
        offer_count=len(found),
        excluded=recorded(found.excluded),
        job=None if found.pool.work is None else found.pool.work.job,
        answers={name: _answer_at(found, row_at, name, place) for name, place in found.answers.items()},
        cloud=None if cloud is None else choice_of(found, row_at[cloud], found),
        owned=tuple(choice_of(found, row_at[place], found) for place, offer in to_own if offer in quoted),
        asked=tuple(choice_of(found, row_at[place], found) for place in places_of_named(found)),
        by_gpu=tuple(choice_of(found, row_at[place], found) for place in best_places(found)),
        best_to_own=best_own,
        best_to_own_use=None if machine is None else machine.utilization.likely,
        question=_as_understood(request, [part.case.workload for part in speeds.parts[0]]),
        buy_or_rent=compared,
        max_purchase_usd=request.max_purchase_usd,
    )


def _jobs_of_rent(usd: float | None, rent: Choice | None) -> Iterator[Told]:
    # Yield the number of jobs that a sum of money pays for on a rented machine.
    if usd and rent is not None and rent.source != "own" and rent.row.cost_usd.value:
        gpu = f"{gpus_of(rent.offer)} at {plain(rent.offer.provider, 30)}"
        jobs = f"{math.floor(usd / rent.row.cost_usd.value):,}"
        yield tell("buy_or_rent", usd=format_price(usd), gpu=gpu, jobs=jobs)


# Fields that do not change the question: paths, options of display and draws, and the date, which the
# document has as ``as_of``.
_LEFT_OUT = frozenset(
    {"asked", "settings", "results", "offers", "limit", "one_a_gpu", "seed", "draws", "as_of"}
)


def _as_understood(request: RankRequest, workloads: Sequence[str]) -> dict[str, Any]:
    """Return the question by the fields of the request, with defaults filled in and without paths.

    Args:
        request: A checked request.
        workloads: The names of its workloads in their cases; the request names a user's model by its file.
    """
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name not in _LEFT_OUT}
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


# --- errors in a request --------------------------------------------------------------------------------

# Tolerance on the sum of the shares of a mix, because three shares of 0.33 sum to 0.99.
_SHARES_TOLERANCE = 0.011


def check(request: RankRequest) -> RankRequest:
    """Return the request if it is valid.

    Raises:
        MisuseError: If a number is outside its limits, a choice is unknown, or two options contradict each
            other.
    """
    request = _with_its_task(request)
    errors = (*_task_errors(request), *_money_errors(request), *_job_errors(request), *_mix_errors(request))
    for is_wrong, why in errors:
        if is_wrong:
            raise MisuseError(why)
    return request


def _with_its_task(request: RankRequest) -> RankRequest:
    """Return the request, with inference as the task if the workload is never trained.

    Raises:
        MisuseError: If training was requested explicitly.
    """
    known = [known_profile(name) for name in request.workload_names]
    if any(each is None or each.task_for("train") is TaskKind.TRAIN for each in known):
        return request
    for profile in filter(None, known):
        task_of(profile, request.task, named="task" in request.asked)
    return msgspec.structs.replace(request, task="infer")


def _task_errors(asked: RankRequest) -> tuple[tuple[bool, str], ...]:
    # Return each possible error about the task: whether it applies, and its text. The functions below return
    # the other errors in the same form.
    late, infers = asked.max_latency_ms is not None, asked.task == "infer"
    return (
        (late and not infers, "--max-latency-ms is for inference: add --task infer"),
        (
            late and asked.batch_size == "max",
            "--max-latency-ms chooses the batch: leave out --batch-size max",
        ),
        (
            infers and asked.jobs == "ddp",
            "the setting jobs ddp trains one model over all GPUs: it does not apply to --task infer",
        ),
    )


def _money_errors(asked: RankRequest) -> tuple[tuple[bool, str], ...]:
    rents, tax, lost = asked.rent_or_buy == "rent", asked.tax, asked.spot_lost
    return (
        *(
            (
                not 0 <= low <= likely <= high <= most or (field == "utilization" and low == 0),
                f"the setting {field} {low:g}-{high:g} must be {least} {most:g}, low end first",
            )
            for field, (low, likely, high), least, most in (
                ("utilization", asked.utilization, "above 0 and at most", 1.0),
                ("resale", asked.resale, "from 0 to", 1.0),
                ("tariff", asked.tariff, "from 0 to", 10.0),
            )
        ),
        (rents and bool(asked.own), "rent contradicts --have; leave one of them out"),
        (
            rents and asked.max_purchase_usd is not None,
            "rent contradicts --max-purchase-usd; leave one of them out",
        ),
        (tax >= 1, f"the setting tax {tax:g} is a share and must be below 1: {tax:g} % is {tax / 100:g}"),
        (
            bool(lost) and not asked.spot,
            f"the setting spot-lost {lost or 0:g} applies to spot prices: add --spot, or leave it out",
        ),
    )


def _job_errors(asked: RankRequest) -> tuple[tuple[bool, str], ...]:
    by_epochs, by_size = asked.epochs is not None, asked.dataset_size is not None
    a_month = asked.jobs_per_month is not None
    return (
        (
            asked.sort == "joules" and len(asked.workload_names) != 1,
            "--sort joules compares the samples of one workload: name one",
        ),
        (
            asked.samples is not None and (by_epochs or by_size),
            "--samples contradicts --epochs and --dataset-size; give one or the other",
        ),
        (
            asked.epoch_samples is None if by_epochs else by_size,
            "--epochs and --dataset-size go together: samples = epochs x dataset size",
        ),
        (
            asked.relative and asked.job_samples is not None,
            "the setting relative ranks without a job: leave out --samples, --epochs and --dataset-size",
        ),
        *(
            (
                asked.relative and getattr(asked, field) is not None,
                f"--{typed(field)} needs a job, and the setting relative ranks without one: leave one out",
            )
            for field in ("deadline_hours", "budget_usd")
        ),
        (
            asked.relative and asked.hour_worth_usd not in {0, HOUR_WORTH_USD},
            (
                "--hour-worth values the hours of a job, and the setting relative ranks without one: leave "
                "one out"
            ),
        ),
        (
            a_month and asked.relative,
            "the setting jobs-per-month counts jobs, and relative ranks without one: leave one out",
        ),
        (
            a_month and not (asked.buys or asked.own),
            "the setting jobs-per-month applies to owned hardware: add --buy, --max-purchase-usd or --have",
        ),
        (
            a_month and asked.was_given("utilization"),
            "the setting jobs-per-month determines the utilization: leave out the setting utilization",
        ),
    )


def _mix_errors(asked: RankRequest) -> tuple[tuple[bool, str], ...]:
    if not asked.mix:
        return ()
    bad = [f"{name}={share:g}" for name, share in asked.mix.items() if not 0 < share < math.inf]
    total = sum(asked.mix.values())
    return (
        (bool(asked.workloads), "the setting mix names its own workloads; leave out the others"),
        (bool(bad), f"the setting mix {', '.join(bad)}: a share must be above 0"),
        (
            abs(total - 1) > _SHARES_TOLERANCE,
            f"the shares of the setting mix sum to {total:g}: they must sum to 1, as in vgg16=0.5,lstm=0.5",
        ),
    )
