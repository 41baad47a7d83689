"""A ranking as a table for people: a verdict, the rows, and the notes that make them honest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpubench.models import RankedOffer, Ranking
from gpubench.offers.dates import freshness
from gpubench.recommend.words import compact, gpus_of, offer_name
from gpubench.units import UNKNOWN, format_percent, format_usd, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show(ranking: Ranking, *, explain: bool) -> None:
    """Print a ranking to stdout: plain where that is no terminal, narrow where it is narrow."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, 120))
    console.print(ranking.verdict, markup=False)
    console.print()
    console.print(_table(ranking, console))
    for note in _footnotes(ranking):
        console.print(note, markup=False, style="dim")
    if explain:
        _explain(console, ranking)


def _table(ranking: Ranking, console: Console) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    with_job = any(row.hours is not None for row in ranking.rows)
    table = Table(box=box.SIMPLE_HEAD if console.encoding.startswith("utf") else box.ASCII, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("offer", overflow="fold")
    table.add_column("GPUs", overflow="fold")
    table.add_column("$/h", justify="right", no_wrap=True)
    table.add_column("price of", overflow="fold")
    table.add_column(f"{ranking.unit}/s", justify="right", overflow="fold")
    if with_job:
        table.add_column("hours", justify="right", overflow="fold")
        table.add_column("cost", justify="right", overflow="fold")
    else:
        table.add_column(f"{ranking.unit} per $", justify="right", overflow="fold")
    table.add_column("P(best)", justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    for row in ranking.rows:
        cells = [
            f"{row.rank}{'=' if row.tie else ' '}",
            offer_name(row.offer),
            gpus_of(row.offer),
            format_usd(float(row.offer.price_usd_per_hour)).removeprefix("$"),
            _date(row),
            _shown(row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high),
            *([_hours(row), _cost(row)] if with_job else [_value(row)]),
            _chance(row.p_best),
            row.estimate.basis,
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _date(row: RankedOffer) -> str:
    """Return the price's date, with its age where it is stale."""
    age = row.price_age_days
    mark = "" if age is None or freshness(age) == "current" else f" {age}d"
    return f"{plain(row.offer.price_date, 10)}{mark}"


def _shown(value: float, low: float | None, high: float | None) -> str:
    return compact(value, low, high, to="-")


def _value(row: RankedOffer) -> str:
    return _shown(row.samples_per_usd, row.samples_per_usd_low, row.samples_per_usd_high)


def _hours(row: RankedOffer) -> str:
    return UNKNOWN if row.hours is None else _shown(row.hours, row.hours_low, row.hours_high)


def _cost(row: RankedOffer) -> str:
    return UNKNOWN if row.cost_usd is None else _shown(row.cost_usd, row.cost_usd_low, row.cost_usd_high)


def _chance(probability: float | None) -> str:
    if probability is None or probability == 0:
        return ""
    return "< 1 %" if probability < 0.01 else format_percent(probability)


def _footnotes(ranking: Ranking) -> list[str]:
    notes = list(ranking.notes)
    if any(row.tie for row in ranking.rows):
        notes.append("= cannot be told apart from the first row of the same rank.")
    return notes


def _explain(console: Console, ranking: Ranking) -> None:
    console.print(f"\nLeft out: {len(ranking.excluded)} offers")
    groups: Counter[tuple[str, str]] = Counter((e.reason, e.gpu_key) for e in ranking.excluded)
    for (reason, gpu_key), count in groups.most_common():
        console.print(f"  {count:4d} x {plain(gpu_key)}: {plain(reason)}", markup=False)
