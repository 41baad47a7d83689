"""Rank offers by the cost of a job: gather the evidence, judge it in one pure function, write JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.labels import card_condition, gpus_of
from gpubench.models import (
    RANKING_SCHEMA,
    ExcludedOffer,
    Offer,
    Ranking,
)
from gpubench.offers.columns import Offers
from gpubench.offers.dates import drift_of
from gpubench.offers.hardware import hosts
from gpubench.offers.table import OfferTable
from gpubench.options import takes_options_of
from gpubench.profile import traced_once
from gpubench.recommend.contradictions import check
from gpubench.recommend.economics import SECONDS_PER_HOUR
from gpubench.recommend.eligible import FilterResult, sift
from gpubench.recommend.evidence import Runs, device_key, gather, mean_power_w
from gpubench.recommend.filters import NothingLeftError
from gpubench.recommend.judge import jobs_of_rent, judge_offers, sentences_of
from gpubench.recommend.owning import Ownership, at_work, offer_of, ownerships
from gpubench.recommend.request import DEFAULT_REFERENCE_GPU, RankRequest
from gpubench.recommend.rows import Chosen
from gpubench.sentences import Told, tell
from gpubench.specs import require_spec
from gpubench.units import count, format_duration, format_price, plain


@takes_options_of(RankRequest)
def rank(request: RankRequest) -> Ranking:
    """Rank GPUs and instances for a job by dollars and hours. It needs no network and no GPU.

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


@traced_once()
def ranked(request: RankRequest, only: Chosen | None = None) -> Ranking:
    """Answer as ``rank`` does.

    Args:
        request: What is asked.
        only: Chooses the rows to make, because 100,000 of them take seconds; None makes all.

    Raises:
        MisuseError: As ``rank`` does.
    """
    from gpubench.offers.snapshot import load_dated

    request = check(request)
    if request.reference_gpu != DEFAULT_REFERENCE_GPU:
        request = msgspec.structs.replace(request, reference_gpu=require_spec(request.reference_gpu).key)
    table, today, clock = load_dated(request.results, request.offers, request.as_of)
    runs, problems = runs_of(request)
    machines, for_sale = _machines(request, runs, today)

    def filtered(asked: RankRequest) -> FilterResult:
        owned = {offer_of(machine): machine for machine in machines}
        offers = Offers.joined(Offers.of(table.offers), Offers.of(owned))
        return sift(asked, offers, today=today, owned=owned, for_sale=for_sale, drift=drift_of(table.changes))

    if request.jobs_per_month is not None:
        # The length of a job determines the utilization of a machine, and that the cost of its hour.
        asked = msgspec.structs.replace(
            request,
            limit=None,
            draws=1,
            max_purchase_usd=None,
            rent_or_buy="buy" if request.buys else request.rent_or_buy,
        )
        first = judge_offers(asked, filtered(asked), partial(gather, asked, runs=runs))
        if first.job is None:
            raise MisuseError(
                "the setting jobs-per-month needs a job, and none can be assumed here: add --samples"
            )
        machines = at_work(machines, first.rows, request)
    try:
        sifted = filtered(request)
    except NothingLeftError as nothing:
        return _instead_of_buying(request, nothing, only)
    notes = [tell("reading_problem", problem=plain(each).rstrip(".")) for each in (*table.notes, *problems)]
    notes += _set_aside(table, request.offers)
    notes += [tell("clock", clock=clock.rstrip("."))] if clock else []
    evidence_for = partial(gather, request, runs=runs)
    try:
        return judge_offers(request, sifted, evidence_for, notes=notes, only=only)
    except NothingLeftError as nothing:
        return _instead_of_buying(request, nothing, only)


def _instead_of_buying(request: RankRequest, nothing: NothingLeftError, only: Chosen | None) -> Ranking:
    """Answer a sum that buys nothing: what to rent, for how many jobs, and what it buys for an owned host.

    Raises:
        NothingLeftError: If no sum was given, or nothing to rent is left either.
    """
    sum_usd = request.max_purchase_usd
    if sum_usd is None or request.rent_or_buy == "buy":
        raise nothing
    at_hand = msgspec.structs.replace(request, host_usd=0.0)
    try:
        with_pc = None if request.host_usd == 0 else ranked(at_hand, only).first
    except NothingLeftError:
        with_pc = None
    renting = msgspec.structs.replace(request, max_purchase_usd=None, jobs_per_month=None)
    ranking = ranked(renting, only)
    usd = format_price(sum_usd)
    opening = [tell("buy_nothing", usd=usd)]
    if with_pc is not None and with_pc.source == "own":
        host_usd = hosts()[0].price_usd if request.host_usd is None else request.host_usd
        opening = [
            tell("buy_none", usd=usd, host_usd=format_price(host_usd)),
            tell(
                "buy_have_pc",
                usd=format_price(with_pc.purchase_usd),
                gpu=gpus_of(with_pc.offer),
                condition=card_condition(with_pc.condition) or "new or used not stated",
                hours=format_duration((with_pc.row.hours.value or 0.0) * SECONDS_PER_HOUR),
            ),
        ]
    opening += jobs_of_rent(sum_usd, ranking.answers["cheapest"].choice)
    return msgspec.structs.replace(
        ranking, sentences=(*sentences_of(opening), *ranking.sentences), max_purchase_usd=sum_usd
    )


def _machines(
    request: RankRequest, runs: Runs, today: date
) -> tuple[list[Ownership], Mapping[Offer, Ownership]]:
    """Return the hardware to rank, and the hardware to buy that is shown beside a ranking of rentals."""
    power_w, own_keys = mean_power_w(runs), {key for run in runs.own if (key := device_key(run))}
    machines = ownerships(request, power_w, today, own_keys)
    if machines or request.buys or request.rent_or_buy is not None:
        return machines, {}
    buying = msgspec.structs.replace(request, rent_or_buy="buy")
    return [], {offer_of(each): each for each in ownerships(buying, power_w, today)}


def _set_aside(table: OfferTable, own: Path | None) -> Iterator[Told]:
    """Yield how many rows were set aside, of the user's table and of others, and how to see them."""
    theirs = [each for each in table.set_aside if own is not None and each.row.startswith(f"{own.name}:")]
    if theirs:
        first = f"{count(len(theirs), 'row')} ({plain(theirs[0].row)}: {plain(theirs[0].reason)})"
        yield tell("set_aside", rows=first, file=shlex.quote(str(own)))
    if others := len(table.set_aside) - len(theirs):
        yield tell("others_set_aside", rows=count(others, "row"))


def runs_of(request: RankRequest) -> tuple[Runs, tuple[str, ...]]:
    """Return the measurements, the user's and the shipped ones, and remarks on the results folder."""
    from gpubench.folders import results_root
    from gpubench.record.store import newest_runs, reference_runs

    stored = newest_runs(results_root(request.results))
    notes = [*stored.problems, *([stored.passed_over] if stored.passed_over else [])]
    if request.results is not None and not request.results.exists():
        notes.append(f"There is no folder {plain(request.results.name)}: nothing measured of yours is used.")
    return Runs(stored.runs, reference_runs()), tuple(notes)


__test__ = {"rank": rank}  # doctest finds a function by its module, and this one is wrapped


def document(ranking: Ranking, asked: RankRequest | None = None) -> dict[str, Any]:
    """Return the document of ``gpubench rank --json``.

    Its rows are those of the ranking, followed by any other rows of the answers.

    Args:
        ranking: The answer.
        asked: The request as given, with its paths and settings, so that ``gpubench try`` can repeat it. None
            for a report, because a report is shared.
    """
    by_rule: dict[str, list[ExcludedOffer]] = {}
    for offer in ranking.excluded:
        by_rule.setdefault(offer.rule, []).append(offer)
    job, answered = ranking.job, [each.row for each in ranking.answers.values()]
    rows = list({id(row): row for row in (*ranking.rows, *answered)}.values())
    places = {id(row): place for place, row in enumerate(rows)}
    return {
        "schema": RANKING_SCHEMA,
        "as_of": ranking.as_of,
        "question": ranking.question if asked is None else {**ranking.question, "asked": asked.question},
        "job": None if job is None else {"samples": job.samples, "words": job.words},
        "hour_worth_usd": ranking.hour_worth_usd,
        "settings": () if asked is None else asked.settings,
        "answers": {
            name: {"row": places[id(each.row)], "p_best": each.p_best, "toss_up": each.toss_up}
            if (each := ranking.answers.get(name))
            else None
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
"""Largest size of the short document, as one line of JSON."""
BRIEF_DIGITS = 6


def brief_document(ranking: Ranking, asked: RankRequest | None = None) -> dict[str, Any]:
    """Return the parts of the document that a script acts on: the question, and the answers with their rows.

    Figures in rows have six digits. Above 8 kB, sentences are left out, those of least weight first, and
    counted in ``more``; the question and all cautions stay.

    Args as in ``document``.
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
