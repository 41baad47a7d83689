"""Evaluates the predictions: each target is predicted by a fit without the data held out with it.

Held-out data are absent from the fit, the deviations and the votes that set the target's interval (see
docs/prediction-evidence.md). A user's measurements can be scored too; the fit does not use them.

``python -m tools.evaluate --hold-out harness`` prints one hold-out. ``python -m tools.evaluate prediction``
evaluates everything: docs/prediction_figures.csv (every slice of every hold-out),
docs/prediction_pairs.csv.gz (each pair with its measured and predicted throughput), and the tables of
docs/prediction-evidence.md. ``python -m tools.evaluate regret`` makes the table of docs/decision.md, the cost
of choosing by a prediction. A setting is one model of one source at one precision, measured on at least four
GPUs with prices. Each way of choosing picks one of these GPUs. Its regret is the extra cost of the job on
that GPU over the best one, where the job costs $100. The prediction of a setting never uses its harness.
"""

from __future__ import annotations

import gzip
import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import spearmanr

from gpubench import folders, stats, units
from gpubench.arrays import Flags, Floats, Indices
from gpubench.cli.output import answer
from gpubench.models import Offer, Pricing, TaskKind
from gpubench.offers.dates import price_day
from gpubench.offers.table import NOT_RANKED
from gpubench.predict import calibration, question, roofline
from gpubench.recommend import rank, request
from gpubench.sections.prediction import scored
from gpubench.specs import load_specs
from tools.calibrate import (
    COMMON_SHARE,
    HOLD_OUTS,
    LEVEL,
    RATIO,
    Aim,
    Fit,
    Judged,
    Pairs,
    batch_spread,
    coefficients_of,
    factor_of,
    fit_scale,
    fit_table,
    geometric_mean_errors,
    held_out,
    host_prior_s,
    level_errors,
    level_weights,
    pairs_of,
    predict_rows,
    ratio_errors,
    scaling_errors,
    stays,
    usual_errors,
    weighted_quantile,
    without_each,
)
from tools.published import FIXES, Table, fitted_on, read_csv


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The held-out prediction of every pair, and of every row as if no GPU were owned.

    Attributes:
        log_error: (pairs,) log of predicted over measured time.
        half_width: (pairs,) log of the factor of the 90 % interval.
        bound: (pairs,) whether the GPU limits the speed on both sides; other pairs are refused.
        level_error, level_half_width: (rows,) the same without an owned GPU; NaN if not scored. The width
            includes the 90 % range of an unknown batch.
    """

    table: Table
    pairs: Pairs
    log_error: Floats
    half_width: Floats
    bound: Flags
    level_error: Floats
    level_half_width: Floats


def evaluate(table: Table, hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Outcome:
    """Predict every pair and every level of a task without the data held out with its target.

    Args:
        table: Published rows, see ``scored_table``.
        hold_out: One of ``HOLD_OUTS``.
        task: The scored task; the fit and the intervals use the entire table.
    """
    seen = table.vendor == question.FITTED_VENDOR
    pairs = pairs_of(table)
    log_error, bound = ratio_errors(table, pairs, without_each(fit_table(table, seen), hold_out))
    level_error = level_errors(table, without_each(fit_table(table, seen, aim=LEVEL), hold_out))
    log_error = log_error - stays(table, pairs, level_error)
    scored = np.isfinite(log_error)
    pairs, log_error, bound = roofline.take(pairs, scored), log_error[scored], bound[scored]

    def usual_of(others: Flags) -> tuple[Floats, Floats]:
        scale = fit_scale(table, pairs, log_error, level_error, others)
        return usual_errors(table, pairs, scale), usual_errors(table, pairs, scale, level_error)

    kinds = np.stack([table.harness[pairs.y], table.architecture[pairs.y]])
    half_width = _half_widths(kinds, log_error, pairs.weight, bound, usual_of)
    kinds = np.stack([table.harness, table.base_model])
    level = _half_widths(
        kinds,
        level_error,
        level_weights(table, level_error),
        np.isfinite(level_error),
        lambda _: (np.ones(len(table)), np.ones(len(table))),
    )
    rows = table.inference == (task is TaskKind.INFER)
    mine = rows[pairs.y]
    return Outcome(
        table=table,
        pairs=roofline.take(pairs, mine),
        log_error=log_error[mine],
        half_width=half_width[mine],
        bound=bound[mine],
        level_error=np.where(rows, level_error, np.nan),
        level_half_width=np.hypot(level, stats.Z90 * batch_spread(table)),
    )


def scored_table(hold_out: str, task: TaskKind = TaskKind.TRAIN) -> Table:
    """Return the shipped rows to score for a hold-out, with other vendors' if vendors are held out."""
    return fitted_on(
        task, (question.FITTED_VENDOR, *(question.OTHER_VENDORS if hold_out == "vendor" else ()))
    )


def _half_widths(
    kinds: NDArray[Any],
    error: Floats,
    weight: Floats,
    scored: Flags,
    usual_of: Callable[[Flags], tuple[Floats, Floats]],
) -> Floats:
    """Return half-widths, each computed only from errors that differ from it in both kinds.

    Args:
        kinds: (2, n) harness and architecture of each pair, or harness and model of each row.
        error: (n,) log errors.
        weight: (n,) votes.
        scored: (n,) whether the error counts.
        usual_of: Returns two sets of usual errors (n,), learned from these other errors. The first set, which
            assumes that no owned GPU is slow, sets the factor by which the second is multiplied.
    """
    result = np.full(len(error), np.nan)
    for first, second in sorted(set(zip(*kinds, strict=True))):
        alike = kinds == np.array([[first], [second]], dtype=object)
        mine, others = alike.all(axis=0), scored & ~alike.any(axis=0)
        if others.any():
            none_slow, usual = usual_of(others)
            factor = factor_of(np.abs(error[others]) / none_slow[others], weight[others])
            result[mine] = factor * usual[mine]
    return result


def score(path: Path) -> dict[str, Any]:
    """Score a CSV with the columns of the shipped measurements.

    Pairs are formed within each (source, model, precision) of the file, separately for training and
    inference. Each target GPU is predicted by a fit to the shipped rows without that GPU and without the
    file's harness.

    Raises:
        MisuseError: If the file cannot be read or contains nothing to score.
    """
    reading = read_csv(path)
    inference = reading.table.inference
    return {
        **report(outcome_of(roofline.take(reading.table, ~inference), TaskKind.TRAIN)),
        "inference": report(outcome_of(roofline.take(reading.table, inference), TaskKind.INFER))
        if inference.any()
        else None,
        "rows": {"read": reading.rows, "used": len(reading.table), "skipped": sum(reading.skipped.values())},
        "skipped": dict(reading.skipped),
        "fixes": {
            reason: next((fix for part, fix in FIXES.items() if part in reason), None)
            for reason in reading.skipped
        },
        "assumed": list(reading.assumed),
        "columns_not_read": list(reading.unread),
    }


def outcome_of(table: Table, task: TaskKind) -> Outcome:
    """Predict every pair and level of a task without the published rows of the target's GPU and harness."""
    pairs = pairs_of(table)
    learned = calibration.load_calibration().of(task)
    assert learned.ratio.scale is not None  # only levels have none
    specs = [load_specs()[gpu] for gpu in table.gpu_key]
    ratio, level = (np.array([each.half_width(s) for s in specs]) for each in (learned.ratio, learned.level))
    log_error, bound = ratio_errors(table, pairs, _without_own(table, RATIO, task))
    level_error = level_errors(table, _without_own(table, LEVEL, task))
    usual = usual_errors(table, pairs, learned.ratio.scale, level_error) if len(pairs.y) else np.empty(0)
    return Outcome(
        table=table,
        pairs=pairs,
        log_error=log_error - stays(table, pairs, level_error),
        half_width=ratio[pairs.y] * usual,
        bound=bound,
        level_error=level_error,
        level_half_width=np.hypot(level, stats.Z90 * batch_spread(table)),
    )


def _without_own(table: Table, aim: Aim, task: TaskKind) -> Judged:
    """Yield each harness and GPU of a table, and its roofline from the shipped rows without either."""
    fit = _fitted(aim, task)
    for rows, dropped in held_out(table, "harness", fit.table):
        z = fit.without(dropped)
        own = roofline.deviations_of(fit.deviations(z), list(table.gpu_key))
        yield rows, predict_rows(table, coefficients_of(z), host_prior_s(table), own)


@cache
def _fitted(aim: Aim, task: TaskKind) -> Fit:
    # Return the fit of the shipped rows for one aim and task.
    table = fitted_on(task)
    return fit_table(table, np.ones(len(table), dtype=bool), aim=aim)


# --- the errors of held-out predictions ---------------------------------------------------------------------

FEWEST_CANDIDATES = 4
_SEED, _DRAWS = 20261120, 400


def report(outcome: Outcome) -> dict[str, Any]:
    """Return the document of ``--json``: all pairs, including refused ones, then slice by slice."""
    pairs = outcome.pairs
    everything = np.ones(len(pairs.y), dtype=bool)
    baseline = geometric_mean_errors(outcome.table, pairs)
    return {
        **figures(outcome, everything),
        "geometric_mean": _errors(baseline, pairs.weight),
        "heaviest_source": _heaviest(outcome),
        **_order_figures(outcome),
        "refused_share": _mean(~outcome.bound, pairs.weight),
        "no_gpu_owned": _level_figures(outcome),
        "by_slice": {
            name: figures(outcome, flags) | {"geometric_mean": _errors(baseline[flags], pairs.weight[flags])}
            for name, flags in _slices(outcome).items()
            if flags.any()
        },
    }


def figures(outcome: Outcome, chosen: Flags) -> dict[str, Any]:
    """Return error and interval of some pairs; each harness has one vote for each target GPU."""
    pairs, keep = outcome.pairs, chosen & np.isfinite(outcome.log_error)
    weight, error, width = pairs.weight[keep], outcome.log_error[keep], outcome.half_width[keep]
    return {
        "pairs": int(keep.sum()),
        "targets": len(set(outcome.table.gpu_key[pairs.y[keep]])),
        **_errors(error, weight),
        "bias": _mean(error, weight),
        **_widths(error, width, weight),
    }


def _errors(error: Floats, weight: Floats) -> dict[str, float | None]:
    ape = np.abs(np.expm1(error))
    return {
        "mape": _mean(ape, weight),
        "median_ape": _round(weighted_quantile(ape, weight)) if len(ape) else None,
    }


def _widths(error: Floats, width: Floats, weight: Floats) -> dict[str, float | None]:
    # Return the coverage and the width of the intervals, where there are any.
    known = np.isfinite(width)
    error, width, weight = error[known], width[known], weight[known]
    return {
        "coverage_90": _mean(np.abs(error) <= width, weight),
        "half_width_factor": _round(np.exp(weighted_quantile(width, weight))) if len(width) else None,
    }


def _heaviest(outcome: Outcome) -> dict[str, Any] | None:
    """Return the harness with the most votes, and its share of them."""
    sums = pd.Series(outcome.pairs.weight).groupby(outcome.table.harness[outcome.pairs.y]).sum()
    return {"harness": sums.idxmax(), "share": _round(sums.max() / sums.sum())} if len(sums) else None


def _level_figures(outcome: Outcome) -> dict[str, Any]:
    keep = np.isfinite(outcome.level_error)
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
        "all pairs": np.ones(len(pairs.y), dtype=bool),
        "GPU-bound": bound,
        "host-bound": ~bound,
        "anchored at Hopper": table.architecture[pairs.x] == "Hopper",
        "same architecture": same,
        "other architecture": ~same,
    }
    labels = {
        "execution": np.where(table.execution == "", "not stated", table.execution),
        "torch": np.where(table.torch == "", "not stated", table.torch),
        "input": np.where(table.data_input == "", "not stated", table.data_input),
        "optimizer in the step": np.where(
            table.inference, "none (forward pass)", np.where(table.arithmetic.no_optimizer, "no", "yes")
        ),
        "batch": np.where(table.batch_high > table.batch_low, "not stated", "stated"),
        "doubt": np.where(table.doubt == "", "none", "some"),
        "precision": table.precision,
        "class": np.array(
            [
                next((kind for kind, beginnings in _CLASSES.items() if name.startswith(beginnings)), "CNN")
                for name in table.base_model
            ],
            dtype=object,
        ),
        "model": table.base_model,
        "harness": table.harness,
        "architecture": table.architecture,
        "target": table.gpu_key,
    }
    for kind, values in labels.items():
        slices |= {f"{kind}: {value}": values[pairs.y] == value for value in sorted(set(values[pairs.y]))}
    return slices


def scaling_figures() -> dict[str, Any]:
    """Return the errors of the multi-GPU model with each harness held out: overall, and ``by_slice``."""
    rows, error, width = scaling_errors()
    weight, known, harness = rows.weight.to_numpy(), rows.fitted.to_numpy(), rows.harness.to_numpy()

    def figures_of_jobs(chosen: Flags) -> dict[str, Any]:
        votes = weight[chosen]
        return {
            "jobs": int(chosen.sum()),
            "targets": round(float(votes.sum())),
            **_errors(error[chosen], votes),
            "bias": _mean(error[chosen], votes),
            **_widths(error[chosen], width[chosen], votes),
        }

    links = np.array([exchange.link for exchange in rows.exchange])
    slices = {
        "from one GPU": known & (rows.few == 1).to_numpy(),
        **{f"harness: {name}": known & (harness == name) for name in sorted(set(harness))},
        **{f"link: {name}": known & (links == name) for name in sorted(set(links[known]))},
        "vendor: AMD, not fitted": ~known,
    }
    slice_figures = {name: figures_of_jobs(flags) for name, flags in slices.items()}
    return figures_of_jobs(known) | {"by_slice": slice_figures}


# Prefixes of the model names of each class; any other model is a CNN.
_CLASSES = {
    "VGG": ("vgg",),
    "LSTM": ("gnmt", "lstm", "rnn", "stacked_lstm"),
    "transformer": (
        "beit", "bert", "cait", "crossvit", "davit", "deit", "dinov2", "eva", "gpt", "hiera", "levit",
        "maxvit", "mvit", "nest", "opt", "pit_", "pvt", "swin", "t5", "tiny_vit", "tnt", "transformer",
        "twins", "vit", "volo", "whisper", "xcit",
    ),
}  # fmt: skip


def _mean(values: Floats | Flags | list[float], weights: Floats | None = None) -> float | None:
    return _round(np.average(values, weights=weights)) if len(values) else None


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)


# --- the predicted order of GPUs ----------------------------------------------------------------------------


def _order_figures(outcome: Outcome) -> dict[str, Any]:
    """Return Spearman, regret and P(best) over all settings of four or more candidates.

    A setting is an owned GPU in a cell. If a candidate has several rows, the row with the nearest
    batch counts. Regret is the share of throughput lost by taking the predicted best. P(best) is the
    predicted probability that the predicted best is the best, and how often it was.
    """
    table, width, random = outcome.table, outcome.half_width, np.random.default_rng(_SEED)
    keep = np.flatnonzero(outcome.bound & np.isfinite(outcome.log_error) & np.isfinite(width))
    x, y = outcome.pairs.x[keep], outcome.pairs.y[keep]
    gap = np.abs(np.log(table.batch[y] / table.batch[x]))
    by_gap = pd.DataFrame({"pair": keep, "x": x, "y": y, "gpu": table.gpu_key[y], "gap": gap}).sort_values(
        ["x", "gap", "y"], ascending=[True, True, False]
    )
    nearest = by_gap.drop_duplicates(["x", "gpu"]).sort_values(["x", "y"])
    enough = nearest.groupby("x").y.transform("size") >= FEWEST_CANDIDATES
    rates = np.log(table.batch) - table.log_seconds
    found = []
    for _, block in nearest[enough].groupby("x"):
        measured, own = rates[block.y], np.sqrt(1 - COMMON_SHARE) * width[block.pair] / stats.Z90
        predicted = measured - outcome.log_error[block.pair]
        first = np.argmax(predicted)
        draws = predicted[:, None] + own[:, None] * random.standard_normal((len(own), _DRAWS))
        chance = np.mean(np.argmax(draws, axis=0) == first)
        lost = -np.expm1(measured[first] - measured.max())
        found.append((spearmanr(measured, predicted).statistic, lost, chance, np.argmax(measured) == first))
    spearman, regret, chance, best = map(_mean, np.array(found, dtype=float).reshape(-1, 4).T)
    return {
        "settings": len(found),
        "spearman": spearman,
        "regret": {"throughput": regret},
        "p_best": {"predicted": chance, "observed": best},
    }


# --- the tables of two pages --------------------------------------------------------------------------------


DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def put(tables: str, page: Path) -> None:
    """Write tables between the markers of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def as_table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table; the first row is the header."""
    first, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((first, f"|{'---|' * first.count(' | ')}---|", *rest))


# --- the tables of prediction errors ------------------------------------------------------------------------

HEADLINE = "harness"
NAMES = {
    "harness": "unseen harness and GPU",
    "stranger": "unseen harness and architecture",
    "gpu": "unseen GPU",
    "family": "unseen chip",
    "architecture": "unseen architecture",
    "model": "unseen model",
    "vendor": "unseen vendor (AMD)",
}
INFERENCE = {
    "inference, harness": "unseen harness and GPU",
    "inference, stranger": "unseen harness and architecture",
    "inference, gpu": "unseen GPU",
    "inference, architecture": "unseen architecture",
}
# The hold-outs on the page; the table of figures has all of them.
SHOWN = ("harness", "stranger", "gpu", "vendor")
SEVERAL = "several GPUs"
WHOLE, NO_GPU, ORDER = "all pairs", "no GPU owned", "Spearman, regret"
COLUMNS = (
    "hold_out", "slice", "pairs", "targets", "mape", "median_ape", "coverage_90", "half_width_factor",
    "geometric_mean_mape", "geometric_mean_median_ape",
)  # fmt: skip

Row = dict[str, Any]


def figures_of(hold_out: str, document: Row) -> list[dict[str, Any]]:
    """Return the rows of the figures for one hold-out: all pairs, levels and order, then every slice."""
    slices = {WHOLE: document} | {n: row for n, row in document["by_slice"].items() if n != WHOLE}
    level = document["no_gpu_owned"]
    rows = slices | {
        NO_GPU: level | {"pairs": level["rows"]},
        ORDER: {"mape": document["spearman"], "median_ape": document["regret"]["throughput"]},
    }
    return [_row(hold_out, name, row) for name, row in rows.items()]


def _row(hold_out: str, name: str, row: Row) -> dict[str, Any]:
    baseline = {f"geometric_mean_{key}": each for key, each in (row.get("geometric_mean") or {}).items()}
    return {"hold_out": hold_out, "slice": name} | {key: (row | baseline).get(key) for key in COLUMNS[2:]}


def pairs_table(outcome: Outcome) -> str:
    """Return every pair of the headline as CSV: the target's throughput over the owned GPU's."""
    table, x, y = outcome.table, outcome.pairs.x, outcome.pairs.y
    per_sample = table.log_seconds - np.log(table.batch)
    measured = per_sample[x] - per_sample[y]
    predicted = measured - outcome.log_error
    end = np.where(outcome.bound, outcome.half_width, np.nan)  # a refused pair has no interval
    columns = {
        "source": table.source[y],
        "model": table.model[y],
        "precision": table.precision[y],
        "own_gpu": table.gpu_key[x],
        "own_batch": table.batch[x].astype(int),
        "target_gpu": table.gpu_key[y],
        "target_batch": table.batch[y].astype(int),
        "measured_ratio": np.exp(measured),
        "predicted_ratio": np.exp(predicted),
        "low": np.exp(predicted - end),
        "high": np.exp(predicted + end),
        "weight": outcome.pairs.weight,
    }
    return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n", float_format="%.4g")


def read_figures(folder: Path = DOCS) -> list[dict[str, Any]]:
    """Return the committed figures, with numbers parsed."""
    table = pd.read_csv(folder / "prediction_figures.csv").astype(object)
    return [dict(zip(COLUMNS, row, strict=True)) for row in table.where(table.notna(), None).to_numpy()]


def markdown(rows: Sequence[Row]) -> str:
    """Return the tables of the page."""
    by_name = {(row["hold_out"], row["slice"]): row for row in rows}

    def order_of(hold_out: str) -> Row:
        order = by_name[hold_out, ORDER]
        return by_name[hold_out, NO_GPU] | {"spearman": order["mape"], "lost": order["median_ape"]}

    return "\n".join([
        "### All pairs, refused ones included\n",
        _table("never seen", _PAIRS, [(NAMES[h], by_name[h, WHOLE]) for h in SHOWN]),
        "\nNo GPU owned (seconds, not ratios), and the order of four or more candidates:\n",
        _table(
            "never seen",
            ("rows", "MAPE / median", "90 % covers", "Spearman", "lost by first choice"),
            [(NAMES[h], order_of(h)) for h in SHOWN],
        ),
        f"\n### By class ({NAMES[HEADLINE]})\n",
        _table(
            "class",
            _PAIRS,
            [
                (name.removeprefix("class: "), row)
                for (h, name), row in by_name.items()
                if h == HEADLINE and name.startswith("class: ")
            ],
        ),
        "\n### Inference\n",
        _table("never seen", _PAIRS, [(INFERENCE[h], by_name[h, WHOLE]) for h in list(INFERENCE)[:2]]),
        "\nNo GPU owned, forward passes:\n",
        _table(
            "never seen",
            ("rows", "MAPE / median", "90 % covers", "half-width"),
            [(INFERENCE[h], by_name[h, NO_GPU]) for h in list(INFERENCE)[:2]],
        ),
        "\n### Several GPUs in one job (unseen harness)\n",
        _table(
            "slice",
            ("jobs / votes", "MAPE", "90 % covers", "half-width"),
            [(name, row) for (h, name), row in by_name.items() if h == SEVERAL],
        ),
    ])  # fmt: skip


def _baseline_cell(row: Row) -> str:
    mine, baseline = row["mape"], row["geometric_mean_mape"]
    beaten = "" if baseline is None or mine is None or mine < baseline else " (**better**)"
    return f"{_percents(row, 'geometric_mean_mape', 'geometric_mean_median_ape')}{beaten}"


def _percents(row: Row, *names: str) -> str:
    return " / ".join(units.format_percent(row[name], 3) for name in names)


_CELLS: Mapping[str, Callable[[Row], str]] = {
    "pairs / targets": lambda row: f"{row['pairs']:.0f} / {row['targets']:.0f}",
    "jobs / votes": lambda row: f"{row['pairs']:.0f} / {row['targets']:.0f}",
    "rows": lambda row: f"{row['pairs']:.0f}",
    "MAPE": lambda row: units.format_percent(row["mape"], 3),
    "MAPE / median": lambda row: _percents(row, "mape", "median_ape"),
    "90 % covers": lambda row: units.format_percent(row["coverage_90"], 3),
    "half-width": lambda row: (
        f"x{units.format_number(row['half_width_factor'])}" if row["half_width_factor"] else units.UNKNOWN
    ),
    "geometric mean": _baseline_cell,
    "Spearman": lambda row: units.format_number(row["spearman"]),
    "lost by first choice": lambda row: units.format_percent(row["lost"], 3),
}
_PAIRS = ("pairs / targets", "MAPE / median", "90 % covers", "half-width", "geometric mean")


def _table(first: str, columns: Sequence[str], rows: Iterable[tuple[str, Row]]) -> str:
    cells = ((name, *(_CELLS[column](row) for column in columns)) for name, row in rows)
    return as_table([(first, *columns), *cells])


def write_prediction(folder: Path = DOCS) -> None:
    """Evaluate, and rewrite the files made from the result."""
    rows = []
    for name in (*NAMES, *INFERENCE):
        hold_out = name.removeprefix("inference, ")
        task = TaskKind.TRAIN if name in NAMES else TaskKind.INFER
        outcome = evaluate(scored_table(hold_out, task), hold_out, task)
        rows += figures_of(name, report(outcome))
        if name == HEADLINE:
            path = folder / "prediction_pairs.csv.gz"
            path.write_bytes(gzip.compress(pairs_table(outcome).encode(), mtime=0))
    several = scaling_figures()
    rows += [
        _row(SEVERAL, name, row | {"pairs": row["jobs"]})
        for name, row in {"all jobs": several, **several["by_slice"]}.items()
    ]
    pd.DataFrame(rows, columns=COLUMNS, dtype=object).to_csv(
        folder / "prediction_figures.csv", index=False, lineterminator="\n"
    )
    put(markdown(read_figures(folder)), folder / "prediction-evidence.md")


# --- the cost of choosing by a prediction -------------------------------------------------------------------

REGRETS = "decision.md"
DAY = date(2026, 11, 20)
# Days with known later prices: the newest prices of most sellers are from 2026-10.
DAYS = (date(2026, 7, 31), date(2026, 8, 31), date(2026, 9, 30))
FEWEST_GPUS = 4
JOB_USD = 100.0

# Maps the rows of a setting, one per GPU, to the index of the chosen row; None if it chooses none.
Way = Callable[[Indices], int | None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The rows of the shipped table with their predicted and measured cost, and the rows of each setting."""

    table: Table
    predicted_s: Floats
    usd_per_s: Floats
    worth_usd_per_s: float
    rows: tuple[Indices, ...]

    @property
    def cost(self) -> Floats:
        """The cost of a second on each GPU, including the worth of the wait [USD]."""
        return self.usd_per_s + self.worth_usd_per_s


def cheapest(day: date) -> Mapping[str, tuple[float, str]]:
    """Return the price that ``rank`` expects for one of each GPU on a day [USD/h], and its provider.

    It is the on-demand offer of each GPU with the lowest expected price.
    """
    found: dict[str, tuple[float, str]] = {}
    for row in rank.ranked(request.RankRequest(as_of=day, draws=1)).rows:
        offer, usd = row.offer, row.usd_per_hour.value
        if offer.pricing is Pricing.ON_DEMAND and usd is not None:
            price = usd / offer.gpu_count, offer.provider
            found[offer.gpu_key] = min(price, found.get(offer.gpu_key, price))
    return found


def price_disappointments() -> Floats:
    """Return the log of the next price over the expected one, for each GPU's cheapest offer on ``DAYS``.

    The expected price uses only prices up to that day. The next one is the lowest price of the same provider
    for the GPU on the first later day in the shipped tables.
    """
    asked = [
        (each.gpu_key, each.provider, price_day(each.price_date), each.usd_per_gpu_hour)
        for each in folders.data_table("offers.csv", Offer)
        if each.pricing is Pricing.ON_DEMAND
        if each.kind not in NOT_RANKED and len(each.price_date) > len("2026")
    ]
    prices = pd.DataFrame(asked, columns=["gpu", "provider", "day", "usd"])
    found: dict[tuple[str, str, date], float] = {}
    for day in DAYS:
        later = prices[prices.day > day].sort_values(["day", "usd"]).drop_duplicates(["gpu", "provider"])
        first: dict[Any, Any] = {(row.gpu, row.provider): row for row in later.itertuples()}
        for gpu, (usd, provider) in cheapest(day).items():
            if row := first.get((gpu, provider)):  # the last expectation before a price replaces earlier ones
                found[gpu, provider, row.day] = math.log(row.usd / usd)
    return np.array(list(found.values()))


def settings_of(
    table: Table, judged: Judged, usd: Mapping[str, float], hour_worth_usd: float = 0.0
) -> Settings:
    """Return every setting with enough priced GPUs for a choice."""
    error = np.full(len(table), np.nan)
    for targets, times in judged:
        error[targets] = (np.log(times.step_s) - table.log_seconds)[targets]
    per_gpu = np.array([usd.get(key, np.nan) for key in table.gpu_key]) / 3600
    usable = np.isfinite(error) & np.isfinite(per_gpu)
    rows = []
    for cell in np.unique(table.cell[usable]).tolist():
        mine = np.flatnonzero(usable & (table.cell == cell))
        usual = float(np.median(table.batch[mine]))  # a GPU with several batches takes the nearest
        nearest = mine[np.lexsort((np.abs(np.log(table.batch[mine] / usual)), table.gpu_key[mine]))]
        _, first = np.unique(table.gpu_key[nearest], return_index=True)
        if len(first) >= FEWEST_GPUS:
            rows.append(nearest[first])
    seconds = np.exp(table.log_seconds + error) / table.batch
    return Settings(
        table=table,
        predicted_s=seconds,
        usd_per_s=per_gpu,
        worth_usd_per_s=hour_worth_usd / 3600,
        rows=tuple(rows),
    )


def ways_of(settings: Settings) -> Mapping[str, Way]:
    """Return the ways of choosing a GPU, by their names on the page."""
    table, usd = settings.table, settings.usd_per_s
    peak = table.chips.peaks[np.arange(len(table.batch)), roofline.leading_mode(table.work, table.arithmetic)]

    def least(cost: Floats) -> Way:
        return lambda rows: int(np.argmin(cost[rows]))

    def always_h100(rows: Indices) -> int | None:
        found = [place for place, row in enumerate(rows) if table.gpu_key[row].startswith("nvidia-h100")]
        return min(found, key=lambda place: usd[rows[place]], default=None)

    return {
        "gpubench": least(settings.predicted_s * settings.cost),
        "always the H100": always_h100,
        "lowest price an hour": least(usd),
        "peak FLOPS per dollar": least(settings.cost / peak),
        "geometric mean of the ratios of peak and bandwidth": least(
            settings.cost / np.sqrt(peak * table.chips.bandwidth)
        ),
    }


def regrets(settings: Settings, way: Way) -> Floats:
    """Return the cost of each choice above the best GPU's $100 [USD], for settings with a choice."""
    cost = np.exp(settings.table.log_seconds) / settings.table.batch * settings.cost
    choices = ((rows, way(rows)) for rows in settings.rows)
    costs = ((cost[rows], cost[rows[chosen]]) for rows, chosen in choices if chosen is not None)
    return np.array([JOB_USD * (named / every.min() - 1) for every, named in costs])


def mean_error(logs: Floats) -> str:
    """Format the mean of logarithms as a relative error, with its standard error."""
    return f"{np.expm1(logs.mean()):+.1%} ± {logs.std(ddof=1) / math.sqrt(len(logs)):.1%}"


def disappointments(settings: Settings) -> tuple[Floats, ...]:
    """Return the log of a GPU's cost at the measured speed over its predicted cost.

    The three results are for the chosen GPU of each setting, for all GPUs of the settings, and for the chosen
    one minus the mean of its setting. The last one would show the bias from choosing the lowest of noisy
    figures. Scores are left out, because their seconds are unknown.
    """
    table, way = settings.table, ways_of(settings)["gpubench"]
    off = table.log_seconds - np.log(table.batch * settings.predicted_s)
    named = np.array([rows[way(rows) or 0] for rows in settings.rows])
    every = np.concatenate(settings.rows)
    beside = off[named] - np.array([off[rows].mean() for rows in settings.rows])
    return *(off[rows[table.level_known[rows]]] for rows in (named, every)), beside


def regret_cells(settings: Settings) -> list[str]:
    """Return the cell of each way: count, mean, median and 90th percentile of its regrets."""
    every = [regrets(settings, way) for way in ways_of(settings).values()]
    ends = [(len(usd), usd.mean(), np.median(usd), np.quantile(usd, 0.9)) for usd in every]
    return [f"{count}: {mean:,.2f} / {middle:,.2f} / {high:,.2f}" for count, mean, middle, high in ends]


def regret_table(task: TaskKind = TaskKind.TRAIN) -> str:
    """Return the text between the markers of the page."""
    table, usd = fitted_on(task), {gpu: usd_per_hour for gpu, (usd_per_hour, _) in cheapest(DAY).items()}
    fit = fit_table(table, table.vendor == question.FITTED_VENDOR, aim=LEVEL)
    ways = {
        "harness out": list(without_each(fit, "publisher")),
        "harness and GPU out": list(without_each(fit, "harness")),
    }
    columns = {}
    for (words, judged), worth in product(ways.items(), (0.0, request.HOUR_WORTH_USD)):
        settings = settings_of(table, judged, usd, worth)
        by = f"dollars and ${worth:g} an hour" if worth else "dollars"
        columns[f"{words}, {by}"] = [*regret_cells(settings), *map(mean_error, disappointments(settings))]
    names = [
        *ways_of(settings),
        "disappointment, picked GPU",
        "disappointment, all GPUs",
        "picked GPU minus the setting's mean",
    ]
    prices = price_disappointments()
    return (
        f"{as_table([('choose by', *columns), *zip(names, *columns.values(), strict=True)])}\n\n"
        f"Disappointment of prices: {mean_error(prices)} on average over {len(prices)} offers."
    )


if __name__ == "__main__":
    parser = ArgumentParser(description="Score predictions on the published rows, each target held out.")
    parser.add_argument("page", nargs="?", choices=("prediction", "regret"), help="make the tables of a page")
    parser.add_argument("--hold-out", choices=tuple(HOLD_OUTS), default="harness")
    parser.add_argument("--task", choices=tuple(TaskKind), type=TaskKind, default=TaskKind.TRAIN)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    if asked.page == "prediction":
        write_prediction()
    elif asked.page == "regret":
        put(regret_table(), DOCS / REGRETS)
    else:
        outcome = evaluate(scored_table(asked.hold_out, asked.task), asked.hold_out, asked.task)
        about = {"hold_out": asked.hold_out, "task": asked.task}
        document = {**about, **report(outcome), "several_gpus": scaling_figures()}
        answer(asked.json, lambda: document, lambda: scored(document))
