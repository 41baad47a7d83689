"""From columns to rows: rank, chances, value, job and Pareto set of every offer, best first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.models import Estimate, Finding, FindingKind, Offer, Pricing, RankedOffer, TaskKind
from gpubench.offers.dates import STALE_AFTER_DAYS, price_day
from gpubench.recommend import economics
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.chances import Chances
from gpubench.recommend.factors import factors_of
from gpubench.recommend.objective import cost, hours, job_rates, time_and_cost
from gpubench.recommend.pareto import dominators
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import Speeds
from gpubench.specs import load_specs

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def rows_of(
    request: RankRequest, pool: Candidates, order: Indices, today: date, chances: Chances
) -> list[RankedOffer]:
    """Return every row of the ranking, best first."""
    columns = _known_columns(pool, order, today) | _figure_columns(request, pool, order, chances)
    names = tuple(columns)
    return [
        RankedOffer(**dict(zip(names, values, strict=True))) for values in zip(*columns.values(), strict=True)
    ]


def with_spot_break_even(rows: list[RankedOffer], offers: Iterable[Offer]) -> list[RankedOffer]:
    """Return the rows; spot ones with the share of work that may be lost before on demand is as cheap."""
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


def _figure_columns(
    request: RankRequest, pool: Candidates, order: Indices, chances: Chances
) -> dict[str, list[Any]]:
    """Return the computed fields of the rows, in order, as plain lists."""
    price = pool.price[order]
    value, low, high = (
        economics.samples_per_usd(rate[order], price) for rate in (pool.rate, pool.rate_low, pool.rate_high)
    )
    reference = _reference_rate(request, pool.speeds)
    columns: dict[str, list[Any]] = {
        "rank": chances.ranks,
        "tie": chances.ties,
        "p_best": chances.p_best,
        "p_best_independent": chances.p_best_independent,
        "p_near_best": chances.p_near_best,
        "p_top3": chances.p_top3,
        "samples_per_s": pool.rate[order].tolist(),
        "samples_per_s_low": _known(pool.rate_low[order]),
        "samples_per_s_high": _known(pool.rate_high[order]),
        "samples_per_usd": value.tolist(),
        "samples_per_usd_low": _known(low),
        "samples_per_usd_high": _known(high),
        "usd_per_million_samples": economics.usd_per_million_samples(value).tolist(),
        "scaling_efficiency": pool.efficiency[order].tolist(),
    }
    for suffix, rate in (("", pool.rate), ("_low", pool.ratio_low), ("_high", pool.ratio_high)):
        score = rate[order] / reference
        columns[f"score{suffix}"] = _known(score)
        columns[f"reference_hours_per_usd{suffix}"] = _known(score / price)
    columns |= _job_columns(request, pool, order)
    columns |= _pareto_columns(request, pool, order)
    return columns


def _job_columns(request: RankRequest, pool: Candidates, order: Indices) -> dict[str, list[Any]]:
    if pool.work is None:
        return {}
    columns: dict[str, list[Any]] = {}
    for suffix, rate in zip(("", "_low", "_high"), job_rates(pool), strict=True):
        job_hours = hours(request, pool, rate[order], order)
        columns[f"hours{suffix}"] = _known(job_hours)
        columns[f"cost_usd{suffix}"] = _known(cost(request, pool, job_hours, order))
    return columns


def _pareto_columns(request: RankRequest, pool: Candidates, order: Indices) -> dict[str, list[Any]]:
    """Return whether nothing beats a row in time, cost and memory at once, and what does."""
    time, money = time_and_cost(request, pool, order)
    work = " per sample" if pool.work is None else ""
    memory = np.nan_to_num(pool.memory[order], nan=0.0)
    by = dominators(time, money, memory)
    better = (
        (time[by] < time) * _FASTER + (money[by] < money) * _CHEAPER + (memory[by] > memory) * _LARGER
    ).tolist()
    rivals = by.tolist()
    names = {row: _label(pool.offers[order[row]]) for row in set(rivals) if row >= 0}
    reasons = [
        None if rival < 0 else f"{names[rival]}: {_ADVANTAGES[kind].format(work=work)}"
        for rival, kind in zip(rivals, better, strict=True)
    ]
    return {"pareto": [rival < 0 for rival in rivals], "dominated_by": reasons}


_FASTER, _CHEAPER, _LARGER = 1, 2, 4
_ADVANTAGES = {
    1: "faster, at no higher cost",
    2: "cheaper{work}, and as fast",
    3: "faster, and cheaper{work}",
    4: "more memory, as fast, at no higher cost",
    5: "faster and more memory, at no higher cost",
    6: "cheaper{work}, more memory, and as fast",
    7: "faster, cheaper{work}, and more memory",
}


def _label(offer: Offer) -> str:
    return " ".join(part for part in (offer.provider, offer.instance, offer.region) if part)


def _known_columns(pool: Candidates, order: Indices, today: date) -> dict[str, list[Any]]:
    """Return what is known of each row before any arithmetic: the offer, its GPU, the age of its price."""
    offers = [pool.offers[row] for row in order.tolist()]
    gpus = pool.gpu[order].tolist()
    ages = {day: max(0, (today - price_day(day)).days) for day in {offer.price_date for offer in offers}}
    price_ages = [ages[offer.price_date] for offer in offers]
    estimates, parts = pool.speeds.estimates, pool.speeds.parts
    stale = {age: _stale(age) for age in ages.values()}
    by_gpu = {
        "estimate": estimates,
        "parts": [each if len(each) > 1 else () for each in parts],
        "fits_memory": [each.fits_memory for each in estimates],
        "latency_s": [_latency_s(each) for each in parts],
        "factors": [factors_of(load_specs().get(key)) for key in pool.speeds.keys],
    }
    return {
        "offer": offers,
        "scaling_basis": [pool.scalings[row].basis for row in order.tolist()],
        "price_age_days": price_ages,
        "findings": [estimates[gpu].findings + stale[age] for gpu, age in zip(gpus, price_ages, strict=True)],
        **{name: [values[gpu] for gpu in gpus] for name, values in by_gpu.items()},
    }


def _stale(age_days: int) -> tuple[Finding, ...]:
    if age_days <= STALE_AFTER_DAYS:
        return ()
    return (Finding(kind=FindingKind.STALE_PRICE, value=age_days, limit=STALE_AFTER_DAYS),)


def _latency_s(parts: Sequence[Estimate]) -> float | None:
    """Return the time of one batch of inference [s]; None for training and for several workloads."""
    if len(parts) != 1 or parts[0].case.task is not TaskKind.INFER:
        return None
    return parts[0].case.batch_size / parts[0].samples_per_s


def _reference_rate(request: RankRequest, speeds: Speeds) -> float:
    if request.reference_gpu not in speeds.keys:
        return math.nan
    return float(speeds.samples_per_s[speeds.keys.index(request.reference_gpu)])


def _known(values: Floats) -> list[float | None]:
    plain: list[float] = values.tolist()
    if np.isnan(values).any():
        return [None if math.isnan(value) else value for value in plain]
    return list[float | None](plain)
