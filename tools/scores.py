"""What held-out predictions are worth: their errors, what their intervals hold, and how they order GPUs.

Slice by slice, with the weighted votes of harnesses; ``evaluate`` and anybody's own file give the outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpubench.arrays import Flags, Floats
from gpubench.stats import Z90
from tools.conformal import COVERAGE, Pairs, geometric_mean_errors, level_weights
from tools.table import Table

FEWEST_VOTES = 4
"""An architecture or harness with fewer targets is too small for a test of its coverage."""
TEST_LEVEL = 0.01
FEWEST_CANDIDATES = 4
COMMON_SHARE = 0.8  # of the variance of an error, common to all candidates of one anchor
_STRESS_EXPONENT, _STRESS_SPREAD, _SEED, _REPEATS = 0.9, 0.3, 20261120, 20
_DRAWS = 400


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Held-out predictions of every pair, and of every row without an anchor.

    Attributes:
        log_error: (pairs,) log of predicted over measured time.
        half_width: (pairs,) log of the factor of the 90 % interval.
        bound: (pairs,) the GPU sets the pace on both sides; the others are refused.
        level_error, level_half_width: (rows,) the same without a GPU owned; NaN where not scored.
    """

    table: Table
    pairs: Pairs
    log_error: Floats
    half_width: Floats
    bound: Flags
    level_error: Floats
    level_half_width: Floats


def report(outcome: Outcome) -> dict[str, Any]:
    """The document of `predict evaluate --json`: all pairs first, refused ones too, then slice by slice."""
    pairs = outcome.pairs
    everything = np.ones(len(pairs), dtype=bool)
    plain = geometric_mean_errors(outcome.table, pairs)
    return {
        **figures(outcome, everything),
        "geometric_mean": _plain_figures(plain, pairs, everything),
        "heaviest_source": _heaviest(outcome),
        **_order_figures(outcome),
        "refused_share": _mean(~outcome.bound, pairs.weight),
        "no_gpu_owned": _level_figures(outcome),
        "by_slice": {
            name: figures(outcome, flags) | {"geometric_mean": _plain_figures(plain, pairs, flags)}
            for name, flags in _slices(outcome).items()
            if flags.any()
        },
        "rejected": rejected(outcome),
    }


def figures(outcome: Outcome, chosen: Flags) -> dict[str, Any]:
    """Error and interval of some pairs; each harness has one vote for each target GPU."""
    pairs, keep = outcome.pairs, chosen & np.isfinite(outcome.log_error)
    if not keep.any():
        return dict.fromkeys(("mape", "median_ape", "coverage_90", "half_width_factor")) | {
            "pairs": 0,
            "targets": 0,
        }
    weight, error, width = pairs.weight[keep], outcome.log_error[keep], outcome.half_width[keep]
    return {
        "pairs": int(keep.sum()),
        "targets": len(set(outcome.table.gpu_key[pairs.y[keep]])),
        **_errors(error, weight),
        "bias": _round(np.average(error, weights=weight)),
        **_widths(error, width, weight),
    }


def votes(outcome: Outcome, kind: str) -> Mapping[str, list[float]]:
    """By architecture or harness, the share covered of each target GPU in each harness: one vote each."""
    table, pairs = outcome.table, outcome.pairs
    keep = np.isfinite(outcome.half_width) & outcome.bound
    inside = np.abs(outcome.log_error) <= outcome.half_width
    found: dict[str, list[float]] = {}
    labels = getattr(table, kind)[pairs.y]
    for label in sorted(set(labels[keep])):
        mine = keep & (labels == label)
        voters = set(zip(table.harness[pairs.y][mine], table.gpu_key[pairs.y][mine], strict=True))
        for harness, gpu in sorted(voters):
            each = mine & (table.harness[pairs.y] == harness) & (table.gpu_key[pairs.y] == gpu)
            found.setdefault(label, []).append(float(np.average(inside[each], weights=pairs.weight[each])))
    return found


def rejected(outcome: Outcome) -> dict[str, list[str]]:
    """Architectures and harnesses whose coverage is not that of a 90 % interval, by Holm's procedure at 1 %.

    A two-sided binomial test with targets as n, for each that has ``FEWEST_VOTES`` or more.
    """
    from scipy.stats import binomtest

    found: dict[str, list[str]] = {}
    for kind in ("architecture", "harness"):
        tested = sorted(
            (float(binomtest(round(sum(shares)), len(shares), COVERAGE).pvalue), label)
            for label, shares in votes(outcome, kind).items()
            if len(shares) >= FEWEST_VOTES
        )
        found[kind] = []
        for i, (p, label) in enumerate(tested):
            if p > TEST_LEVEL / (len(tested) - i):
                break
            found[kind].append(label)
    return found


def _plain_figures(error: Floats, pairs: Pairs, chosen: Flags) -> dict[str, float | None]:
    """Of the geometric mean of the ratios of peak and bandwidth, on the same pairs."""
    keep = chosen & np.isfinite(error)
    return _errors(error[keep], pairs.weight[keep])


def _errors(error: Floats, weight: Floats) -> dict[str, float | None]:
    if not len(error):
        return {"mape": None, "median_ape": None}
    ape = np.abs(np.expm1(error))
    return {"mape": _mean(ape, weight), "median_ape": _round(weighted_median(ape, weight))}


def _widths(error: Floats, width: Floats, weight: Floats) -> dict[str, float | None]:
    """How much the intervals hold where there are any, and how wide they are."""
    known = np.isfinite(width)
    error, width, weight = error[known], width[known], weight[known]
    return {
        "coverage_90": _mean(np.abs(error) <= width, weight),
        "half_width_factor": _round(np.exp(weighted_median(width, weight))) if len(width) else None,
    }


def _heaviest(outcome: Outcome) -> dict[str, Any] | None:
    """The harness with the most votes, and its share of them."""
    labels, weight = outcome.table.harness[outcome.pairs.y], outcome.pairs.weight
    if not len(labels):
        return None
    shares = {label: float(weight[labels == label].sum() / weight.sum()) for label in set(labels)}
    name = max(sorted(shares), key=lambda label: shares[label])
    return {"harness": name, "share": _round(shares[name])}


def _level_figures(outcome: Outcome) -> dict[str, Any]:
    keep = np.isfinite(outcome.level_error)
    if not keep.any():
        return {"rows": 0, "targets": 0, "mape": None, "median_ape": None, "coverage_90": None}
    error, width = outcome.level_error[keep], outcome.level_half_width[keep]
    weight = level_weights(outcome.table, outcome.level_error)[keep]
    return {
        "rows": int(keep.sum()),
        "targets": len(set(outcome.table.gpu_key[keep])),
        **_errors(error, weight),
        **_widths(error, width, weight),
    }


def _slices(outcome: Outcome) -> Mapping[str, Flags]:
    table, pairs, bound = outcome.table, outcome.pairs, outcome.bound
    same = table.architecture[pairs.x] == table.architecture[pairs.y]
    slices: dict[str, Flags] = {
        "all pairs": np.ones(len(pairs), dtype=bool),
        "GPU-bound": bound,
        "host-bound": ~bound,
        "anchored at Hopper": table.architecture[pairs.x] == "Hopper",
        "same architecture": same,
        "other architecture": ~same,
    }
    labels = {
        "execution": _stated(table.execution),
        "torch": _stated(table.torch),
        "input": _stated(table.data_input),
        "optimizer in the step": np.where(
            table.inference, "none (forward pass)", np.where(table.arithmetic.no_optimizer, "no", "yes")
        ),
        "batch": np.where(table.batch_high > table.batch_low, "not stated", "stated"),
        "doubt": np.where(table.doubt == "", "none", "some"),
        "precision": table.precision,
        "class": np.array([model_class(name) for name in table.base_model], dtype=object),
        "model": table.base_model,
        "harness": table.harness,
        "architecture": table.architecture,
        "target": table.gpu_key,
    }
    for kind, values in labels.items():
        slices |= {f"{kind}: {value}": values[pairs.y] == value for value in sorted(set(values[pairs.y]))}
    return slices


def _stated(values: NDArray[Any]) -> NDArray[Any]:
    return np.where(values == "", "not stated", values)


_CLASSES = {
    "VGG": ("vgg",),
    "LSTM": ("gnmt", "lstm"),
    "transformer": ("bert", "gpt", "opt", "vit", "swin", "t5", "whisper", "dinov2"),
}
"""How the names of their models begin."""


def model_class(name: str) -> str:
    """CNN, VGG, LSTM or transformer, by a model's name."""
    return next((kind for kind, beginnings in _CLASSES.items() if name.startswith(beginnings)), "CNN")


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value below which half of the weight lies."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(cumulative, 0.5 * cumulative[-1])])


def _mean(values: Floats | Flags | list[float], weights: Floats | None = None) -> float | None:
    return _round(np.average(values, weights=weights)) if len(values) else None


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)


# --- do they put GPUs in the right order? ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """One owned GPU in one cell, and every other GPU of the cell as a candidate."""

    gpus: NDArray[Any]
    log_measured: Floats
    log_predicted: Floats
    log_deviation: Floats

    def regret(self, log_price: Floats | float = 0.0, chosen: Flags | slice = slice(None)) -> float:
        """Share lost by taking the first of the predicted ranking, of all candidates or some, at prices."""
        measured, predicted = (x[chosen] - log_price for x in (self.log_measured, self.log_predicted))
        return float(-np.expm1(measured[np.argmax(predicted)] - measured.max()))


def _order_figures(outcome: Outcome) -> dict[str, Any]:
    """Spearman and regret over all settings of four or more candidates.

    Regret is the share of throughput (or of throughput per dollar) lost by taking the first of the
    predicted ranking. ``stress`` prices are close to throughput, so that a ranking by value is hard.
    """
    from scipy.stats import spearmanr

    settings = list(_settings(outcome))
    if not settings:
        return {"spearman": None, "regret": {"throughput": None, "per_usd": None, "stress": None}}
    prices = _prices()
    per_usd = [r for s in settings if (r := _regret_per_usd(s, prices)) is not None]
    predicted, hit = _best(settings)
    return {
        "settings": len(settings),
        "spearman": _mean([float(spearmanr(s.log_measured, s.log_predicted).statistic) for s in settings]),
        "regret": {
            "throughput": _mean([s.regret() for s in settings]),
            "per_usd": _mean(per_usd),
            "per_usd_settings": len(per_usd),
            "stress": _mean([_stress(s, i) for i, s in enumerate(settings)]),
        },
        "p_best": {"predicted": _mean(predicted), "observed": _mean(hit)},
    }


def _settings(outcome: Outcome) -> Iterator[_Setting]:
    """Candidates at one batch each: of several rows of a GPU, the one nearest to the owned row."""
    table, pairs, log_error, half_width = outcome.table, outcome.pairs, outcome.log_error, outcome.half_width
    keep = np.flatnonzero(outcome.bound & np.isfinite(log_error) & np.isfinite(half_width))
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
            yield _Setting(
                gpus=table.gpu_key[rows[picked]],
                log_measured=-per_sample[rows[picked]],
                log_predicted=-per_sample[rows[picked]] - log_error[block[picked]],
                log_deviation=half_width[block[picked]] / Z90,
            )


def _regret_per_usd(setting: _Setting, prices: Mapping[str, float]) -> float | None:
    known = np.array([gpu in prices for gpu in setting.gpus])
    if known.sum() < FEWEST_CANDIDATES:
        return None
    price = np.log([prices[gpu] for gpu in setting.gpus[known]])
    return setting.regret(price, known)


def _stress(setting: _Setting, index: int) -> float:
    random = np.random.default_rng((_SEED, index))
    noise = _STRESS_SPREAD * random.standard_normal((_REPEATS, len(setting.gpus)))
    price = _STRESS_EXPONENT * setting.log_measured + noise
    return float(np.mean([setting.regret(p) for p in price]))


def _best(settings: list[_Setting]) -> tuple[list[float], list[float]]:
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
