"""The pure core of the ranking: offers and estimates in, a ranking out; no file, no clock, no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpubench.models import Estimate, Finding, FindingKind, GpuSpec, Offer, RankedOffer, Ranking
from gpubench.offers.dates import STALE_AFTER_DAYS, price_age_days
from gpubench.recommend import contest, economics
from gpubench.recommend.candidates import Candidates, candidates_of, cost, drawn_scores, hours, score
from gpubench.recommend.filters import Exclusion, apply, excluded, filters_of, nothing_left
from gpubench.recommend.pareto import dominators
from gpubench.recommend.request import RankRequest
from gpubench.recommend.scaling import Scaler, scaling_of
from gpubench.recommend.speeds import Answers, Drawer, Speeds, combine
from gpubench.recommend.verdict import verdict

Floats = NDArray[np.float64]

IN_DETAIL = 500
"""Rows whose ties are worked out; below them each row has a rank of its own."""

_CHANCES = 3
"""An offer behind three cheaper ones of its own GPU is never among the best three."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known: an answer for each workload and GPU, and how several GPUs train together."""

    answers: Mapping[str, Answers]
    scaler: Scaler


def judge(
    request: RankRequest,
    offers: Sequence[Offer],
    evidence_for: Callable[[Sequence[str]], Evidence],
    *,
    specs: Mapping[str, GpuSpec],
    today: date,
    drawer: Drawer | None = None,
    notes: Iterable[str] = (),
) -> Ranking:
    """Rank offers as the request asks.

    Args:
        request: A checked request.
        offers: Every offer known, in any order.
        evidence_for: GPU keys to what is known of them.
        specs: The specification table.
        today: The day that price ages count to.
        drawer: Joint draws of estimates; None is ``predict.interval.draw``.
        notes: What the reader should know about the evidence.

    Raises:
        MisuseError: If a name is unknown or no offer is left; the message says which filter removed how many.
    """
    kept, fallen = apply(filters_of(request, offers, today), offers, specs)
    if not kept:
        raise nothing_left(len(offers), fallen)
    evidence = evidence_for(sorted({offer.gpu_key for offer in kept} | {request.reference_gpu}))
    speeds = combine(evidence.answers, request.mix, drawer or _draw(), request.draws, request.seed)
    kept, unknown = _with_speed(kept, speeds)
    fallen += unknown
    if not kept:
        raise nothing_left(len(offers), fallen)
    pool = _pool(request, kept, speeds, specs, evidence)
    order = _order(request, pool)
    rows = _rows(request, pool, order, today)
    shown = tuple(rows if request.limit is None else rows[: request.limit])
    return Ranking(
        as_of=today.isoformat(),
        objective=_objective(request, speeds),
        cases=_cases(speeds),
        unit=_unit(speeds),
        reference_gpu_key=request.reference_gpu if request.reference_gpu in speeds.keys else None,
        rows=shown,
        excluded=excluded(fallen),
        verdict=verdict(request, rows, _unit(speeds)),
        notes=(*notes, *_notes(request, speeds, len(rows))),
    )


def _draw() -> Drawer:
    from gpubench.predict.interval import draw

    return draw


def _with_speed(offers: Sequence[Offer], speeds: Speeds) -> tuple[list[Offer], list[Exclusion]]:
    known = set(speeds.keys)
    kept = [offer for offer in offers if offer.gpu_key in known]
    fallen = [
        Exclusion(
            offer, "no honest throughput", speeds.refusals.get(offer.gpu_key, "its GPU is not in the table")
        )
        for offer in offers
        if offer.gpu_key not in known
    ]
    return kept, fallen


def _pool(
    request: RankRequest,
    offers: Sequence[Offer],
    speeds: Speeds,
    specs: Mapping[str, GpuSpec],
    evidence: Evidence,
) -> Candidates:
    scaler = evidence.scaler if request.one_job_over_all_gpus else None
    parts = {
        key: dict(zip(evidence.answers, each, strict=True))
        for key, each in zip(speeds.keys, speeds.parts, strict=True)
    }
    scalings = {
        (key, count): scaling_of(specs.get(key), count, parts[key], scaler=scaler, shares=request.mix)
        for key, count in {(offer.gpu_key, offer.gpu_count) for offer in offers}
    }
    return candidates_of(offers, speeds, specs, scalings)


def _order(request: RankRequest, pool: Candidates) -> NDArray[np.int64]:
    """Return rows best first; equal scores go by price, then by name, so that input order is nothing."""
    merit = score(request, pool, pool.rate, slice(None))
    order = np.lexsort((pool.price, -merit))
    keys = list(zip(merit[order].tolist(), pool.price[order].tolist(), strict=True))
    if len(set(keys)) == len(keys):
        return order
    settled: list[int] = []
    for _, run in groupby(zip(keys, order.tolist(), strict=True), key=lambda pair: pair[0]):
        settled += sorted((row for _, row in run), key=lambda row: _name(pool.offers[row]))
    return np.array(settled)


def _name(offer: Offer) -> tuple[str, ...]:
    return offer.provider, offer.instance, offer.region or "", str(offer.pricing), offer.gpu_key


def _rows(request: RankRequest, pool: Candidates, order: NDArray[np.int64], today: date) -> list[RankedOffer]:
    """Return every row of the ranking, best first."""
    columns = _columns(request, pool, order)
    fixed = _FixedParts(pool.speeds, today)
    names = list(columns)
    return [
        RankedOffer(
            offer=pool.offers[index],
            estimate=pool.speeds.estimates[gpu],
            parts=pool.speeds.parts[gpu] if len(pool.speeds.parts[gpu]) > 1 else (),
            scaling_basis=pool.scalings[index].basis,
            fits_memory=pool.speeds.estimates[gpu].fits_memory,
            **fixed.of(pool.offers[index], gpu),
            **dict(zip(names, values, strict=True)),
        )
        for index, gpu, values in zip(
            order.tolist(), pool.gpu[order].tolist(), zip(*columns.values(), strict=True), strict=True
        )
    ]


def _columns(request: RankRequest, pool: Candidates, order: NDArray[np.int64]) -> dict[str, list[Any]]:
    """Return the computed fields of the rows, in order, as plain lists."""
    price = pool.price[order]
    value, low, high = (
        economics.samples_per_usd(rate[order], price) for rate in (pool.rate, pool.rate_low, pool.rate_high)
    )
    reference = _reference_rate(request, pool.speeds)
    ranks, ties, p_best, p_top3 = _contest(request, pool, order)
    columns: dict[str, list[Any]] = {
        "rank": ranks,
        "tie": ties,
        "p_best": p_best,
        "p_top3": p_top3,
        "samples_per_s": pool.rate[order].tolist(),
        "samples_per_s_low": _known(pool.rate_low[order]),
        "samples_per_s_high": _known(pool.rate_high[order]),
        "samples_per_usd": value.tolist(),
        "samples_per_usd_low": _known(low),
        "samples_per_usd_high": _known(high),
        "usd_per_million_samples": economics.usd_per_million_samples(value).tolist(),
        "scaling_efficiency": pool.efficiency[order].tolist(),
        "speed_ratio": _known(pool.rate[order] / reference),
    }
    columns |= _job_columns(request, pool, order)
    columns |= _pareto_columns(pool, order, columns)
    return columns


def _job_columns(request: RankRequest, pool: Candidates, order: NDArray[np.int64]) -> dict[str, list[Any]]:
    if request.job_samples is None:
        return {}
    columns: dict[str, list[Any]] = {}
    for suffix, rate in (("", pool.rate), ("_low", pool.rate_high), ("_high", pool.rate_low)):
        job_hours = hours(request, pool, rate[order], order)
        columns[f"hours{suffix}"] = _known(job_hours)
        columns[f"cost_usd{suffix}"] = _known(cost(request, pool, job_hours, order))
    return columns


def _pareto_columns(
    pool: Candidates, order: NDArray[np.int64], columns: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """Return whether nothing beats a row in time, cost and memory at once, and what does."""
    time = np.array(columns.get("hours") or 1 / pool.rate[order])
    money = np.array(columns.get("cost_usd") or columns["usd_per_million_samples"])
    better = dominators(time, money, pool.memory[order]).tolist()
    names = [_label(pool.offers[row]) for row in order[sorted({b for b in better if b >= 0})]]
    name_of = dict(zip(sorted({b for b in better if b >= 0}), names, strict=True))
    return {"pareto": [b < 0 for b in better], "dominated_by": [name_of.get(b) for b in better]}


def _label(offer: Offer) -> str:
    return " ".join(part for part in (offer.provider, offer.instance, offer.region) if part)


def _contest(
    request: RankRequest, pool: Candidates, order: NDArray[np.int64]
) -> tuple[list[int], list[bool], list[float], list[float]]:
    """Return rank, tie, P(best) and P(top 3) of each row, in order."""
    total, detailed = len(order), min(len(order), IN_DETAIL)
    kinds = pool.gpu[order]
    seen: dict[int, int] = {}
    able = []
    for position, kind in enumerate(kinds.tolist()):
        seen[kind] = seen.get(kind, 0) + 1
        if position < detailed or seen[kind] <= _CHANCES:
            able.append(position)
    scores = drawn_scores(request, pool, order[able])
    ranks, ties = contest.bands(scores[:detailed], kinds[:detailed].tolist())
    p_best, p_top3 = np.zeros(total), np.zeros(total)
    p_best[able], p_top3[able] = contest.chances(scores)
    if p_best[0] < contest.SURE:
        ties[0] = True
    rest = range(detailed + 1, total + 1)
    return [*ranks, *rest], [*ties, *(False for _ in rest)], p_best.tolist(), p_top3.tolist()


class _FixedParts:
    """Price age and findings of a row; few distinct values, so each is built once."""

    def __init__(self, speeds: Speeds, today: date) -> None:
        self._speeds, self._today = speeds, today
        self._ages: dict[str, int] = {}
        self._known: dict[tuple[int, int], dict[str, Any]] = {}

    def of(self, offer: Offer, gpu: int) -> dict[str, Any]:
        age = self._ages.get(offer.price_date)
        if age is None:
            age = self._ages[offer.price_date] = price_age_days(offer, self._today)
        found = self._known.get((age, gpu))
        if found is None:
            findings = self._speeds.estimates[gpu].findings
            if age > STALE_AFTER_DAYS:
                findings += (Finding(kind=FindingKind.STALE_PRICE, value=age, limit=STALE_AFTER_DAYS),)
            found = self._known[age, gpu] = {"price_age_days": age, "findings": findings}
        return found


def _reference_rate(request: RankRequest, speeds: Speeds) -> float:
    if request.reference_gpu not in speeds.keys:
        return math.nan
    return float(speeds.samples_per_s[speeds.keys.index(request.reference_gpu)])


def _known(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _cases(speeds: Speeds) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(part.case for parts in speeds.parts for part in parts))


def _unit(speeds: Speeds) -> str:
    units = {part.case.sample_unit for part in speeds.parts[0]}
    unit = units.pop() if len(units) == 1 else "sample"
    return unit if unit.endswith("s") else f"{unit}s"


def _objective(request: RankRequest, speeds: Speeds) -> str:
    del speeds
    words = {
        "value": "throughput per US dollar",
        "throughput": "throughput of the instance",
        "time": "time to train" if request.job_samples else "throughput of the instance",
        "cost": "cost to train" if request.job_samples else "throughput per US dollar",
    }
    return words[request.sort]


def _notes(request: RankRequest, speeds: Speeds, total: int) -> list[str]:
    notes = []
    if request.mix:
        notes.append("Samples/s is the rate at which the mixture is worked off: 1 / sum(share / rate).")
    elif len(request.workload_names) > 1:
        notes.append(
            f"Samples/s is the geometric mean over {', '.join(request.workload_names)}; "
            f"the ratio is to one {request.reference_gpu}."
        )
    if any(isinstance(e, Estimate) and e.basis == "predicted" and not e.anchored for e in speeds.estimates):
        notes.append(
            "No measurement on a GPU anchors the predictions: they are absolute and wide. "
            "`gpubench run` on any GPU narrows them."
        )
    if total > IN_DETAIL:
        notes.append(f"Ties are worked out for the first {IN_DETAIL} of {total:,} rows.")
    return notes
