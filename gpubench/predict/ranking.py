"""Do predictions put GPUs in the right order? Spearman, what the first choice costs, and P(best)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats
from gpubench.predict.conformal import Pairs
from gpubench.predict.table import Table

FEWEST_CANDIDATES = 4
COMMON_SHARE = 0.8  # of the variance of an error, common to all candidates of one anchor
_STRESS_EXPONENT, _STRESS_SPREAD, _SEED, _REPEATS = 0.9, 0.3, 20261120, 20
_DRAWS = 400


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One owned GPU in one cell, and every other GPU of the cell as a candidate."""

    gpus: NDArray[Any]
    log_measured: Floats
    log_predicted: Floats
    log_deviation: Floats


def figures(
    table: Table, pairs: Pairs, log_error: Floats, half_width: Floats, chosen: Flags
) -> dict[str, Any]:
    """Spearman and regret over all settings of four or more candidates.

    Regret is the share of throughput (or of throughput per dollar) lost by taking the first of the
    predicted ranking. ``stress`` prices are close to throughput, so that a ranking by value is hard.
    """
    settings = list(_settings(table, pairs, log_error, half_width, chosen))
    if not settings:
        return {"spearman": None, "regret": {"throughput": None, "per_usd": None, "stress": None}}
    prices = _prices()
    per_usd = [r for s in settings if (r := _regret_per_usd(s, prices)) is not None]
    predicted, hit = _best(settings)
    return {
        "settings": len(settings),
        "spearman": _mean([_spearman(s.log_measured, s.log_predicted) for s in settings]),
        "regret": {
            "throughput": _mean([_regret(s.log_measured, s.log_predicted) for s in settings]),
            "per_usd": _mean(per_usd),
            "per_usd_settings": len(per_usd),
            "stress": _mean([_stress(s, i) for i, s in enumerate(settings)]),
        },
        "p_best": {"predicted": _mean(predicted), "observed": _mean(hit)},
    }


def _settings(
    table: Table, pairs: Pairs, log_error: Floats, half_width: Floats, chosen: Flags
) -> Iterator[Setting]:
    """Candidates at one batch each: of several rows of a GPU, the one nearest to the owned row."""
    keep = np.flatnonzero(chosen & np.isfinite(log_error) & np.isfinite(half_width))
    order = keep[np.lexsort((pairs.y[keep], pairs.x[keep]))]
    per_sample = table.log_seconds - np.log(table.batch)
    for block in np.split(order, np.flatnonzero(np.diff(pairs.x[order])) + 1):
        if len(block) == 0:
            continue
        rows = pairs.y[block]
        gap = np.abs(np.log(table.batch[rows] / table.batch[pairs.x[block[0]]]))
        first = {gpu: i for i in np.argsort(-gap, kind="stable") for gpu in [table.gpu_key[rows[i]]]}
        picked = np.array(sorted(first.values()))
        if len(picked) >= FEWEST_CANDIDATES:
            yield Setting(
                gpus=table.gpu_key[rows[picked]],
                log_measured=-per_sample[rows[picked]],
                log_predicted=-per_sample[rows[picked]] - log_error[block[picked]],
                log_deviation=half_width[block[picked]] / 1.6449,
            )


def _spearman(a: Floats, b: Floats) -> float:
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(float) for values in (a, b)]
    return float(np.corrcoef(ranks)[0, 1])


def _regret(measured: Floats, predicted: Floats) -> float:
    return float(-np.expm1(measured[np.argmax(predicted)] - measured.max()))


def _regret_per_usd(setting: Setting, prices: Mapping[str, float]) -> float | None:
    known = np.array([gpu in prices for gpu in setting.gpus])
    if known.sum() < FEWEST_CANDIDATES:
        return None
    price = np.log([prices[gpu] for gpu in setting.gpus[known]])
    return _regret(setting.log_measured[known] - price, setting.log_predicted[known] - price)


def _stress(setting: Setting, index: int) -> float:
    random = np.random.default_rng((_SEED, index))
    noise = _STRESS_SPREAD * random.standard_normal((_REPEATS, len(setting.gpus)))
    price = _STRESS_EXPONENT * setting.log_measured + noise
    return float(np.mean([_regret(setting.log_measured - p, setting.log_predicted - p) for p in price]))


def _best(settings: list[Setting]) -> tuple[list[float], list[float]]:
    """P(best) of each predicted first, and whether it was the best."""
    random = np.random.default_rng(_SEED)
    predicted, hit = [], []
    for setting in settings:
        own = np.sqrt(1 - COMMON_SHARE) * setting.log_deviation[:, None]
        draws = setting.log_predicted[:, None] + own * random.standard_normal((len(own), _DRAWS))
        first = int(np.argmax(setting.log_predicted))
        predicted.append(float(np.mean(np.argmax(draws, axis=0) == first)))
        hit.append(float(np.argmax(setting.log_measured) == first))
    return predicted, hit


def _prices() -> dict[str, float]:
    """Cheapest on-demand price per GPU and hour of whole instances in the shipped offers [USD]."""
    from gpubench.offers.snapshot import load_offers

    prices: dict[str, float] = {}
    for offer in load_offers().offers:
        if offer.pricing == "on_demand" and offer.kind in {"vm", "marketplace"}:
            each = float(offer.price_usd_per_hour) / offer.gpu_count
            prices[offer.gpu_key] = min(each, prices.get(offer.gpu_key, each))
    return prices


def _mean(values: list[float]) -> float | None:
    return round(float(np.mean(values)), 4) if values else None
