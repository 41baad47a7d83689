"""From columns to rows: rank, chances, value, job and Pareto set of every offer, best first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.models import Finding, FindingKind, Offer, Pricing, RankedOffer, TaskKind
from gpubench.offers.dates import STALE_AFTER_DAYS, price_day
from gpubench.recommend import contest, economics
from gpubench.recommend.candidates import Candidates, cost, drawn_scores, hours
from gpubench.recommend.factors import factors_of
from gpubench.recommend.pareto import dominators
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import Speeds
from gpubench.specs import load_specs

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

IN_DETAIL = 500
"""Rows whose ties are worked out; below them each row has a rank of its own."""

_CHANCES = 3
"""An offer behind three cheaper ones of its own GPU is never among the best three."""


def rows_of(request: RankRequest, pool: Candidates, order: Indices, today: date) -> list[RankedOffer]:
    """Return every row of the ranking, best first."""
    columns = _columns(request, pool, order)
    fixed = _FixedParts(pool, today)
    names = tuple(columns)
    gpus = pool.gpu[order].tolist()
    figures = zip(*columns.values(), strict=True)
    return [
        RankedOffer(
            offer=pool.offers[index],
            scaling_basis=pool.scalings[index].basis,
            **fixed.of(pool.offers[index].price_date, gpu),
            **dict(zip(names, values, strict=True)),
        )
        for index, gpu, values in zip(order.tolist(), gpus, figures, strict=True)
    ]


def with_spot_break_even(rows: list[RankedOffer], offers: Iterable[Offer]) -> list[RankedOffer]:
    """Return the rows; spot ones with the share of work that may be lost before on demand is as cheap."""
    if not any(row.offer.pricing is Pricing.SPOT for row in rows):
        return rows
    on_demand = {_machine(o): float(o.price_usd_per_hour) for o in offers if o.pricing is Pricing.ON_DEMAND}
    return [
        msgspec.structs.replace(
            row,
            spot_break_even=economics.spot_break_even(
                on_demand[_machine(row.offer)], float(row.offer.price_usd_per_hour)
            ),
        )
        if row.offer.pricing is Pricing.SPOT and _machine(row.offer) in on_demand
        else row
        for row in rows
    ]


def _machine(offer: Offer) -> tuple[str, str, str | None]:
    return offer.provider, offer.instance, offer.region


def _columns(request: RankRequest, pool: Candidates, order: Indices) -> dict[str, list[Any]]:
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
    }
    for suffix, rate in (("", pool.rate), ("_low", pool.rate_low), ("_high", pool.rate_high)):
        score = rate[order] / reference
        columns[f"score{suffix}"] = _known(score)
        columns[f"reference_hours_per_usd{suffix}"] = _known(score / price)
    columns |= _job_columns(request, pool, order)
    columns |= _pareto_columns(pool, order, columns)
    return columns


def _job_columns(request: RankRequest, pool: Candidates, order: Indices) -> dict[str, list[Any]]:
    if request.job_samples is None:
        return {}
    columns: dict[str, list[Any]] = {}
    for suffix, rate in (("", pool.rate), ("_low", pool.rate_high), ("_high", pool.rate_low)):
        job_hours = hours(request, pool, rate[order], order)
        columns[f"hours{suffix}"] = _known(job_hours)
        columns[f"cost_usd{suffix}"] = _known(cost(request, pool, job_hours, order))
    return columns


def _pareto_columns(
    pool: Candidates, order: Indices, columns: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """Return whether nothing beats a row in time, cost and memory at once, and what does."""
    time = np.array(columns.get("hours") or 1 / pool.rate[order])
    money = np.array(columns.get("cost_usd") or columns["usd_per_million_samples"])
    memory = np.nan_to_num(pool.memory[order], nan=0.0)
    by = dominators(time, money, memory)
    better = (
        (time[by] < time) * _FASTER + (money[by] < money) * _CHEAPER + (memory[by] > memory) * _LARGER
    ).tolist()
    rivals = by.tolist()
    names = {row: _label(pool.offers[order[row]]) for row in set(rivals) if row >= 0}
    reasons = [
        None if rival < 0 else f"{names[rival]}: {_ADVANTAGES[kind]}"
        for rival, kind in zip(rivals, better, strict=True)
    ]
    return {"pareto": [rival < 0 for rival in rivals], "dominated_by": reasons}


_FASTER, _CHEAPER, _LARGER = 1, 2, 4
_ADVANTAGES = {
    1: "faster, and no dearer",
    2: "cheaper per sample, and as fast",
    3: "faster, and cheaper per sample",
    4: "more memory, as fast and no dearer",
    5: "faster and more memory, and no dearer",
    6: "cheaper per sample, more memory, and as fast",
    7: "faster, cheaper per sample, and more memory",
}


def _label(offer: Offer) -> str:
    return " ".join(part for part in (offer.provider, offer.instance, offer.region) if part)


def _contest(
    request: RankRequest, pool: Candidates, order: Indices
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
    """What rows of one GPU and one price date have in common; few are distinct, so each is built once."""

    def __init__(self, pool: Candidates, today: date) -> None:
        self._speeds, self._today = pool.speeds, today
        self._known: dict[tuple[str, int], dict[str, Any]] = {}

    def of(self, price_date: str, gpu: int) -> dict[str, Any]:
        """Return the fields of a row of this price date and GPU."""
        found = self._known.get((price_date, gpu))
        return found if found is not None else self._build(price_date, gpu)

    def _build(self, price_date: str, gpu: int) -> dict[str, Any]:
        estimate, parts = self._speeds.estimates[gpu], self._speeds.parts[gpu]
        age = max(0, (self._today - price_day(price_date)).days)
        findings = estimate.findings
        if age > STALE_AFTER_DAYS:
            findings += (Finding(kind=FindingKind.STALE_PRICE, value=age, limit=STALE_AFTER_DAYS),)
        is_step = len(parts) == 1 and estimate.case.task is TaskKind.INFER
        built = self._known[price_date, gpu] = {
            "estimate": estimate,
            "parts": parts if len(parts) > 1 else (),
            "fits_memory": estimate.fits_memory,
            "latency_s": estimate.case.batch_size / estimate.samples_per_s if is_step else None,
            "price_age_days": age,
            "findings": findings,
            "factors": factors_of(load_specs().get(self._speeds.keys[gpu])),
        }
        return built


def _reference_rate(request: RankRequest, speeds: Speeds) -> float:
    if request.reference_gpu not in speeds.keys:
        return math.nan
    return float(speeds.samples_per_s[speeds.keys.index(request.reference_gpu)])


def _known(values: Floats) -> list[float | None]:
    plain: list[float] = values.tolist()
    if np.isnan(values).any():
        return [None if math.isnan(value) else value for value in plain]
    return list[float | None](plain)
