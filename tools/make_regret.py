"""Make docs/decision.md: `python -m tools.make_regret` says what choosing by a prediction costs.

A setting is one model of one source at one precision that was read on four priced GPUs or more. Each way of
choosing names one of them; its regret is what the job costs there above what it costs on the best, where it
costs $100. Nothing of a setting's harness teaches the prediction that it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np

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
from tools.fit import (
    LEVEL,
    Judged,
    coefficients_of,
    fit_table,
    host_prior_s,
    predict_rows,
    without_each,
)
from tools.published import Table, fitted_on

PAGE = Path(__file__).parents[1] / "docs" / "decision.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
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


def disappointments(settings: Settings) -> tuple[Floats, Floats]:
    """Return the log of what a GPU costs, at the speed that was read, over what was told of it.

    Of the named GPU of each setting, and of all GPUs of the settings; of a score nobody knows the seconds.
    """
    table, way = settings.table, ways_of(settings)["gpubench"]
    read = np.exp(table.log_seconds) / table.batch
    off = np.log(read / settings.predicted_s)
    named = np.array([rows[way(rows) or 0] for rows in settings.rows])
    every = np.concatenate(settings.rows)
    of_named, of_every = (off[rows[table.level_known[rows]]] for rows in (named, every))
    return of_named, of_every


def figures(settings: Settings) -> list[str]:
    """Return the cell of each way: how many settings, and mean, median and 90th percentile of its regrets."""
    cells = []
    for way in ways_of(settings).values():
        usd = regrets(settings, way)
        ends = usd.mean(), np.median(usd), np.quantile(usd, 0.9)
        cells.append(f"{len(usd)}: {' / '.join(f'{each:,.2f}' for each in ends)}")
    return cells


def page_of(task: TaskKind = TaskKind.TRAIN) -> str:
    """Return what stands between the markers of the page."""
    table, usd = fitted_on(task), usd_per_gpu_hour(DAY)
    strict = without_each(fit_table(table, table.vendor == FITTED_VENDOR, aim=LEVEL), "harness")
    ways = {"harness out": list(without_its_harness(table)), "harness and GPU out": list(strict)}
    columns, names = {}, ("choose by", "disappointment, named", "disappointment, all GPUs")
    for words, judged, worth in ((w, j, h) for w, j in ways.items() for h in (0.0, HOUR_WORTH_USD)):
        settings = settings_of(table, judged, usd, worth)
        off = [f"{np.expm1(each.mean()):+.1%}" for each in disappointments(settings)]
        by = f"dollars and ${worth:g} an hour" if worth else "dollars"
        columns[f"{words}, {by}"] = [*figures(settings), *off]
    rows = [(names[0], *columns), ("---",) * (1 + len(columns))]
    rows += zip([*ways_of(settings), *names[1:]], *columns.values(), strict=True)
    prices = price_disappointments()
    return "\n".join([
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"Disappointment of prices: {np.expm1(prices.mean()):+.1%} in the mean of {len(prices)} offers.",
        "",
    ])  # fmt: skip


def main() -> None:
    """Write the page's figures between its markers."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n{page_of()}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
