"""Make the tables of two pages: ``python -m tools.make_pages prediction`` or ``regret``.

``prediction`` evaluates everything: docs/prediction_figures.csv (every slice of every hold-out),
docs/prediction_pairs.csv.gz (each pair with what was measured and predicted for it), and the tables of
docs/prediction-evidence.md. ``regret`` makes that of docs/decision.md, what choosing by a prediction costs: a
setting is one model of one source at one precision that was read on four priced GPUs or more. Each way of
choosing names one of them; its regret is what the job costs there above what it costs on the best, where it
costs $100. Nothing of a setting's harness teaches the prediction that it is judged by.
"""

from __future__ import annotations

import gzip
import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from gpubench.arrays import Floats, Indices
from gpubench.folders import data_table
from gpubench.models import Offer, Pricing, TaskKind
from gpubench.offers.columns import Offers
from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, asks_of, price_day
from gpubench.offers.listing import outdated
from gpubench.offers.outliers import AskedPrices
from gpubench.offers.snapshot import load_offers
from gpubench.offers.table import NOT_RANKED, offer_key
from gpubench.predict.question import FITTED_VENDOR
from gpubench.predict.roofline import deviations_of, leading_mode
from gpubench.recommend.filters import leave_out_doubted
from gpubench.recommend.prices import Market, prices_of
from gpubench.recommend.request import HOUR_WORTH_USD, RankRequest
from gpubench.units import format_number, format_percent
from tools.evaluate import Outcome, evaluate, report, scored_table
from tools.fit import (
    LEVEL,
    Judged,
    coefficients_of,
    fit_table,
    host_prior_s,
    predict_rows,
    scaling_figures,
    without_each,
)
from tools.published import Table, fitted_on

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def put(tables: str, page: Path) -> None:
    """Write tables between the markers of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def as_table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as a table of Markdown; the first is its head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *others))


# --- how far predictions are off ---------------------------------------------------------------------------

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
SHOWN = ("harness", "stranger", "gpu", "vendor")
"""Hold-outs on the page; the table of figures has all."""
SEVERAL = "several GPUs"
WHOLE, NO_GPU, ORDER = "all pairs", "no GPU owned", "Spearman, regret"
COLUMNS = (
    "hold_out", "slice", "pairs", "targets", "mape", "median_ape", "coverage_90", "half_width_factor",
    "geometric_mean_mape", "geometric_mean_median_ape",
)  # fmt: skip

Row = dict[str, Any]


def figures_of(hold_out: str, document: Row) -> list[dict[str, Any]]:
    """The rows of the table of figures for one hold-out: the whole, levels and order, then every slice."""
    rows = [_row(hold_out, WHOLE, document)]
    rows += [_row(hold_out, name, row) for name, row in document["by_slice"].items() if name != WHOLE]
    level = document["no_gpu_owned"]
    order = {"mape": document["spearman"], "median_ape": document["regret"]["throughput"]}
    return [*rows, _row(hold_out, NO_GPU, level | {"pairs": level["rows"]}), _row(hold_out, ORDER, order)]


def _row(hold_out: str, name: str, row: Row) -> dict[str, Any]:
    plain = {f"geometric_mean_{key}": each for key, each in (row.get("geometric_mean") or {}).items()}
    return {"hold_out": hold_out, "slice": name} | {key: (row | plain).get(key) for key in COLUMNS[2:]}


def pairs_table(outcome: Outcome) -> str:
    """Every pair of the headline as CSV: the throughput of the target over that of the owned GPU."""
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
    """The committed figures, numbers as numbers."""
    table = pd.read_csv(folder / "prediction_figures.csv").astype(object)
    return [dict(zip(COLUMNS, row, strict=True)) for row in table.where(table.notna(), None).to_numpy()]


def markdown(rows: Sequence[Row]) -> str:
    """The tables of the page."""
    by_name = {(row["hold_out"], row["slice"]): row for row in rows}

    def order_of(hold_out: str) -> Row:
        order = by_name[hold_out, ORDER]
        return by_name[hold_out, NO_GPU] | {"spearman": order["mape"], "lost": order["median_ape"]}

    def slices_of(hold_out: str, kind: str) -> list[tuple[str, Row]]:
        return [
            (n.partition(": ")[2], row)
            for (h, n), row in by_name.items()
            if h == hold_out and n.startswith(f"{kind}: ")
        ]

    parts = [
        "### Whole, refused pairs included\n",
        _table("never seen", _PAIRS, [(NAMES[h], by_name[h, WHOLE]) for h in SHOWN]),
        "\nNo GPU owned (seconds, not ratios), and the order of four or more candidates:\n",
        _table(
            "never seen",
            ("rows", "MAPE / median", "90 % covers", "Spearman", "lost by the first"),
            [(NAMES[h], order_of(h)) for h in SHOWN],
        ),
    ]
    return "\n".join([
        *parts,
        f"\n### By class ({NAMES[HEADLINE]})\n",
        _table("class", _PAIRS, slices_of(HEADLINE, "class")),
        "\n### Inference\n",
        _table("never seen", _PAIRS, [(INFERENCE[h], by_name[h, WHOLE]) for h in list(INFERENCE)[:2]]),
        "\nNo GPU owned, forward passes:\n",
        _table("never seen", _LEVELS, [(INFERENCE[h], by_name[h, NO_GPU]) for h in list(INFERENCE)[:2]]),
        "\n### Several GPUs in one job (unseen harness)\n",
        _table(
            "slice",
            ("jobs / votes", "MAPE", "90 % covers", "half-width"),
            [(name, row) for (h, name), row in by_name.items() if h == SEVERAL],
        ),
    ])  # fmt: skip


def _beside_the_plain_rule(row: Row) -> str:
    mine, plain = row["mape"], row["geometric_mean_mape"]
    beaten = "" if plain is None or mine is None or mine < plain else " (**better**)"
    return f"{_percent(plain)} / {_percent(row['geometric_mean_median_ape'])}{beaten}"


_CELLS: Mapping[str, Callable[[Row], str]] = {
    "pairs / targets": lambda row: f"{row['pairs']:.0f} / {row['targets']:.0f}",
    "jobs / votes": lambda row: f"{row['pairs']:.0f} / {row['targets']:.0f}",
    "rows": lambda row: f"{row['pairs']:.0f}",
    "MAPE": lambda row: _percent(row["mape"]),
    "MAPE / median": lambda row: f"{_percent(row['mape'])} / {_percent(row['median_ape'])}",
    "90 % covers": lambda row: _percent(row["coverage_90"]),
    "half-width": lambda row: f"x{format_number(row['half_width_factor'])}",
    "geometric mean": _beside_the_plain_rule,
    "Spearman": lambda row: format_number(row["spearman"]),
    "lost by the first": lambda row: _percent(row["lost"]),
}
_LEVELS = ("rows", "MAPE / median", "90 % covers", "half-width")
_PAIRS = ("pairs / targets", "MAPE / median", "90 % covers", "half-width", "geometric mean")


def _table(first: str, columns: Sequence[str], rows: Iterable[tuple[str, Row]]) -> str:
    cells = ((name, *(_CELLS[column](row) for column in columns)) for name, row in rows)
    return as_table([(first, *columns), *cells])


def _percent(ratio: float | None) -> str:
    return format_percent(ratio, 3)


def write_prediction(folder: Path = DOCS) -> None:
    """Evaluate, and rewrite what is made of it."""
    rows = []
    for name in (*NAMES, *INFERENCE):
        hold_out = name.removeprefix("inference, ")
        task = TaskKind.TRAIN if name in NAMES else TaskKind.INFER
        outcome = evaluate(scored_table(hold_out, task), hold_out, task)
        rows += figures_of(name, report(outcome))
        if name == HEADLINE:
            packed = gzip.compress(pairs_table(outcome).encode(), mtime=0)
            (folder / "prediction_pairs.csv.gz").write_bytes(packed)
    several = scaling_figures()
    rows += [
        _row(SEVERAL, name, row | {"pairs": row["jobs"]})
        for name, row in {"all jobs": several, **several["by_slice"]}.items()
    ]
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object)
    table.to_csv(folder / "prediction_figures.csv", index=False, lineterminator="\n")
    put(markdown(read_figures(folder)), folder / "prediction-evidence.md")


# --- what choosing by a prediction costs -------------------------------------------------------------------

REGRETS = "decision.md"
DAY = date(2026, 11, 20)
DAYS = (date(2026, 7, 31), date(2026, 8, 31), date(2026, 9, 30))
"""On which the next prices are known: the newest of most sellers are of 2026-10."""
FEWEST_GPUS = 4
JOB_USD = 100.0
H100 = "nvidia-h100"

Way = Callable[[Indices], int | None]
"""Rows of a setting, one a GPU, to the place of the one that is chosen; None where it names none of them."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Rows of the shipped table, the predicted and the measured cost of each, and which make up a setting."""

    table: Table
    predicted_s: Floats
    usd_per_s: Floats
    worth_usd_per_s: float
    rows: tuple[Indices, ...]

    @property
    def cost(self) -> Floats:
        """What a second on each GPU costs, with what the wait is worth [USD]."""
        return self.usd_per_s + self.worth_usd_per_s


class Told(NamedTuple):
    """The cheapest offer of a GPU: who has it, and what is expected to be paid for one of them [USD/h]."""

    usd: float
    provider: str


def cheapest(offers: Iterable[Offer], today: date) -> Mapping[str, Told]:
    """Return of each GPU the believed offer on demand that is expected to cost least."""
    every = Offers.of(offers)
    believed = leave_out_doubted(RankRequest(), AskedPrices(every), every).kept
    old = outdated(every, today)
    ranks = [
        o.kind not in NOT_RANKED and o.price_usd_per_hour > 0 and offer_key(o) not in old for o in believed
    ]
    on_demand = believed.where(np.array(ranks) & believed.pricing.equals(Pricing.ON_DEMAND))
    usd = prices_of(on_demand, Market(today, asks_of(believed))).expected / on_demand.gpu_count.figures(float)
    found: dict[str, Told] = {}
    for offer, each in zip(on_demand, usd.tolist(), strict=True):
        told = Told(each, offer.provider)
        found[offer.gpu_key] = min(told, found.get(offer.gpu_key, told))
    return found


def usd_per_gpu_hour(today: date) -> Mapping[str, float]:
    """Return what the cheapest offer of each GPU is expected to cost for one of them."""
    return {key: told.usd for key, told in cheapest(load_offers().offers, today).items()}


def price_disappointments() -> Floats:
    """Return the log of the next dated price over the one told, of each GPU's cheapest offer on some days.

    What is told on a day rests on the prices of at most half a year before it; the next one is the least that
    the same provider asks for the GPU on the first later day that the shipped tables have.
    """
    dated = [each for each in data_table("offers.csv", Offer) if each.pricing is Pricing.ON_DEMAND]
    dated = [each for each in dated if each.kind not in NOT_RANKED and len(each.price_date) > len("2026")]
    found: dict[tuple[str, str, date], float] = {}
    for day in DAYS:
        known = [
            each for each in dated if 0 <= (day - price_day(each.price_date)).days <= NOT_CURRENT_AFTER_DAYS
        ]
        for key, told in cheapest(known, day).items():
            later: dict[date, float] = {}
            for each in dated:
                when = price_day(each.price_date)
                if (each.gpu_key, each.provider) == (key, told.provider) and when > day:
                    later[when] = min(each.usd_per_gpu_hour, later.get(when, math.inf))
            if later:  # what is told last before it
                found[key, told.provider, min(later)] = math.log(later[min(later)] / told.usd)
    return np.array(list(found.values()))


def without_its_harness(table: Table) -> Judged:
    """Yield the rows of each harness, and their times by a fit that saw none of its rows."""
    fit = fit_table(table, table.vendor == FITTED_VENDOR, aim=LEVEL)
    for harness in sorted(set(table.harness)):
        mine = table.harness == harness
        z = fit.without(mine)
        own = deviations_of(fit.deviations(z), list(table.gpu_key))
        yield mine, predict_rows(table, coefficients_of(z), host_prior_s(table), own)


def settings_of(
    table: Table, judged: Judged, usd: Mapping[str, float], hour_worth_usd: float = 0.0
) -> Settings:
    """Return every setting with so many priced GPUs that a choice is one."""
    error = np.full(len(table), np.nan)
    for targets, times in judged:
        error[targets] = (np.log(times.step_s) - table.log_seconds)[targets]
    per_gpu = np.array([usd.get(key, np.nan) for key in table.gpu_key]) / 3600
    usable = np.isfinite(error) & np.isfinite(per_gpu)
    rows = []
    for cell in np.unique(table.cell[usable]).tolist():
        mine = np.flatnonzero(usable & (table.cell == cell))
        usual = float(np.median(table.batch[mine]))  # of a GPU with several batches the one next to it
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
    """Return the ways of choosing a GPU, by the name that they have on the page."""
    table, usd = settings.table, settings.usd_per_s
    peak = table.chips.peaks[np.arange(len(table.batch)), leading_mode(table.work, table.arithmetic)]

    def least(cost: Floats) -> Way:
        return lambda rows: int(np.argmin(cost[rows]))

    def always_h100(rows: Indices) -> int | None:
        found = [place for place, row in enumerate(rows) if table.gpu_key[row].startswith(H100)]
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
    """Return what each choice costs above the best, where a job costs $100 [USD]; none where none is made."""
    table, found = settings.table, []
    cost = np.exp(table.log_seconds) / table.batch * settings.cost
    for rows in settings.rows:
        chosen = way(rows)
        if chosen is not None:
            found.append(JOB_USD * (cost[rows[chosen]] / cost[rows].min() - 1))
    return np.array(found)


OFF = ("disappointment, named", "disappointment, all GPUs", "named beside the others of its setting")


def error_of(values: Floats) -> float:
    """Return the standard error of a mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def disappointments(settings: Settings) -> tuple[Floats, Floats, Floats]:
    """Return the log of what a GPU costs, at the speed that was read, over what was told of it.

    Of the named GPU of each setting, of all GPUs of the settings, and of the named one less the mean of its
    setting, where choosing the least of noisy figures would show; of a score nobody knows the seconds.
    """
    table, way = settings.table, ways_of(settings)["gpubench"]
    read = np.exp(table.log_seconds) / table.batch
    off = np.log(read / settings.predicted_s)
    named = np.array([rows[way(rows) or 0] for rows in settings.rows])
    every = np.concatenate(settings.rows)
    beside = off[named] - np.array([off[rows].mean() for rows in settings.rows])
    of_named, of_every = (off[rows[table.level_known[rows]]] for rows in (named, every))
    return of_named, of_every, beside


def regret_cells(settings: Settings) -> list[str]:
    """Return the cell of each way: how many settings, and mean, median and 90th percentile of its regrets."""
    cells = []
    for way in ways_of(settings).values():
        usd = regrets(settings, way)
        ends = usd.mean(), np.median(usd), np.quantile(usd, 0.9)
        cells.append(f"{len(usd)}: {' / '.join(f'{each:,.2f}' for each in ends)}")
    return cells


def regret_table(task: TaskKind = TaskKind.TRAIN) -> str:
    """Return what stands between the markers of the page."""
    table, usd = fitted_on(task), usd_per_gpu_hour(DAY)
    strict = without_each(fit_table(table, table.vendor == FITTED_VENDOR, aim=LEVEL), "harness")
    ways = {"harness out": list(without_its_harness(table)), "harness and GPU out": list(strict)}
    columns, names = {}, ("choose by", *OFF)
    for words, judged, worth in ((w, j, h) for w, j in ways.items() for h in (0.0, HOUR_WORTH_USD)):
        settings = settings_of(table, judged, usd, worth)
        off = [f"{np.expm1(each.mean()):+.1%} ± {error_of(each):.1%}" for each in disappointments(settings)]
        by = f"dollars and ${worth:g} an hour" if worth else "dollars"
        columns[f"{words}, {by}"] = [*regret_cells(settings), *off]
    rows = zip([*ways_of(settings), *names[1:]], *columns.values(), strict=True)
    prices = price_disappointments()
    mean = f"{np.expm1(prices.mean()):+.1%} ± {error_of(prices):.1%}"
    said = f"Disappointment of prices: {mean} in the mean of {len(prices)} offers."
    return f"{as_table([(names[0], *columns), *rows])}\n\n{said}"


if __name__ == "__main__":
    parser = ArgumentParser(description="Make the tables of a page.")
    parser.add_argument("page", choices=("prediction", "regret"))
    if parser.parse_args().page == "prediction":
        write_prediction()
    else:
        put(regret_table(), DOCS / REGRETS)
