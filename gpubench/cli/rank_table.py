"""A ranking as a table for people: a verdict, the rows, and the notes that make them honest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpubench.models import BuyOrRent, RankedOffer, Ranking
from gpubench.offers.dates import freshness
from gpubench.recommend.words import compact, gpu_name, gpus_of, offer_name
from gpubench.units import UNKNOWN, format_bytes, format_number, format_percent, format_usd, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_ASSUMED = {
    "years": "life",
    "utilisation": "share of hours at work",
    "power_w": "board power as the power at work",
    "pue": "PUE",
    "tariff_usd_per_kwh": "price of energy",
    "resale_usd": "resale",
}


def show(ranking: Ranking, *, limit: int, explain: bool, factors: bool) -> None:
    """Print a ranking to stdout: plain where that is no terminal, narrow where it is narrow."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, 120))
    console.print(ranking.verdict, markup=False)
    console.print()
    rows = ranking.rows[:limit]
    console.print(_table(ranking, rows, console))
    if factors:
        console.print(_factor_table(rows, console))
    if ranking.buy_or_rent:
        console.print(_buying_table(ranking.buy_or_rent[:limit], console))
    for note in _footnotes(ranking):
        console.print(note, markup=False, style="dim")
    if explain:
        _explain(console, ranking, rows)


def _table(ranking: Ranking, rows: Sequence[RankedOffer], console: Console) -> Table:
    from rich.text import Text

    with_job = any(row.hours is not None for row in rows)
    table = _plain_table(console)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("offer", overflow="fold")
    table.add_column("GPUs", overflow="fold")
    table.add_column("$/h", justify="right", no_wrap=True)
    table.add_column("price of", overflow="fold")
    table.add_column(f"{ranking.unit}/s", justify="right", overflow="fold")
    with_latency = any(row.latency_s is not None for row in rows)
    if with_latency:
        table.add_column("batch", justify="right", no_wrap=True)
        table.add_column("ms", justify="right", no_wrap=True)
    if with_job:
        table.add_column("hours", justify="right", overflow="fold")
        table.add_column("cost", justify="right", overflow="fold")
    else:
        table.add_column(f"{ranking.unit} per $", justify="right", overflow="fold")
    table.add_column("P(best)", justify="right", no_wrap=True)
    table.add_column("basis", no_wrap=True)
    for row in rows:
        cells = [
            f"{row.rank}{'=' if row.tie else ' '}{'*' if row.pareto else ' '}",
            offer_name(row.offer),
            gpus_of(row.offer),
            format_usd(float(row.offer.price_usd_per_hour)).removeprefix("$"),
            _date(row),
            _shown(row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high),
            *(_latency(row) if with_latency else []),
            *([_hours(row), _cost(row)] if with_job else [_value(row)]),
            _chance(row.p_best),
            row.estimate.basis,
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _plain_table(console: Console) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD if console.encoding.startswith("utf") else box.ASCII, pad_edge=False)


def _factor_table(rows: Sequence[RankedOffer], console: Console) -> Table:
    """Return what the GPUs of the rows are, one line for each."""
    from rich.text import Text

    table = _plain_table(console)
    for name in ("GPU", "memory", "GB/s", "cores", "tensor", "architecture", "line"):
        table.add_column(name, overflow="fold")
    for name in ("ECC", "FP64", "link", "cooling", "W"):
        table.add_column(name, no_wrap=True)
    for key, known in {row.offer.gpu_key: row.factors for row in rows}.items():
        bandwidth = known["memory_bandwidth_bytes_per_s"]
        cells = [
            gpu_name(key),
            f"{format_bytes(known['memory_bytes'])} {known['memory_type'] or ''}",
            _whole(None if bandwidth is None else bandwidth / 1e9),
            _whole(known["core_count"]),
            _whole(known["tensor_core_count"]),
            known["architecture"] or UNKNOWN,
            known["line"] or UNKNOWN,
            {True: "yes", False: "no"}.get(known["ecc"], UNKNOWN),
            _share(known["fp64_share"]),
            known["link"] or UNKNOWN,
            known["cooling"] or UNKNOWN,
            _whole(known["board_power_w"]),
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _whole(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    """Return a rate as a share of the FP32 rate: "1/2", "1/64"."""
    return UNKNOWN if not value else "1/1" if value > 1 else f"1/{1 / value:.0f}"


def _buying_table(decisions: Sequence[BuyOrRent], console: Console) -> Table:
    """Return what owning costs and from when on it pays, a line for each machine and rival."""
    from rich.text import Text

    table = _plain_table(console)
    for name in (
        "own",
        "price",
        "a useful hour",
        "against",
        "same work",
        "breaks even after",
        "of its life",
        "",
    ):
        table.add_column(name, overflow="fold")
    for each in decisions:
        hour = compact(each.usd_per_hour, each.usd_per_hour_low, each.usd_per_hour_high, to="-")
        hours = (each.break_even_hours, each.break_even_hours_low, each.break_even_hours_high)
        life = (
            each.break_even_utilisation,
            each.break_even_utilisation_low,
            each.break_even_utilisation_high,
        )
        cells = [
            f"{each.gpu_count}x {gpu_name(each.gpu_key)}",
            format_usd(each.purchase_usd),
            f"${hour}",
            each.against,
            f"{format_usd(each.equivalent_usd_per_hour)}/h",
            _or_never(hours, lambda value: f"{format_number(value)} h"),
            _or_never(life, format_percent),
            each.verdict,
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _or_never(
    values: tuple[float | None, float | None, float | None], written: Callable[[float], str]
) -> str:
    likely, low, high = ("never" if value is None else written(value) for value in values)
    return likely if likely == low == high else f"{likely} ({low} to {high})"


def _date(row: RankedOffer) -> str:
    """Return the price's date, with its age where it is stale."""
    age = row.price_age_days
    mark = "" if age is None or freshness(age) == "current" else f" {age}d"
    return f"{plain(row.offer.price_date, 10)}{mark}"


def _shown(value: float, low: float | None, high: float | None) -> str:
    return compact(value, low, high, to="-")


def _value(row: RankedOffer) -> str:
    return _shown(row.samples_per_usd, row.samples_per_usd_low, row.samples_per_usd_high)


def _latency(row: RankedOffer) -> list[str]:
    latency_ms = None if row.latency_s is None else row.latency_s * 1e3
    return [str(row.estimate.case.batch_size), format_number(latency_ms)]


def _hours(row: RankedOffer) -> str:
    return UNKNOWN if row.hours is None else _shown(row.hours, row.hours_low, row.hours_high)


def _cost(row: RankedOffer) -> str:
    return UNKNOWN if row.cost_usd is None else _shown(row.cost_usd, row.cost_usd_low, row.cost_usd_high)


def _chance(probability: float | None) -> str:
    if probability is None or probability == 0:
        return ""
    if probability < 0.01:
        return "< 1 %"
    return "> 99 %" if probability > 0.99 else format_percent(probability)


def _footnotes(ranking: Ranking) -> list[str]:
    notes = list(ranking.notes)
    if ranking.buy_or_rent:
        assumed = sorted({_ASSUMED[name] for each in ranking.buy_or_rent for name in each.assumed})
        notes.append(
            f"Assumed, not given: {', '.join(assumed)}." if assumed else "Nothing was assumed of it."
        )
    if any(row.tie for row in ranking.rows):
        notes.append("= cannot be told apart from the first row of the same rank.")
    notes.append("* nothing else is as fast, as cheap and as large in memory at once.")
    return notes


def _explain(console: Console, ranking: Ranking, rows: Sequence[RankedOffer]) -> None:
    console.print("\nNot best in any respect (no *), because of:")
    for row in rows:
        if row.dominated_by is not None:
            name = f"  {offer_name(row.offer)} ({gpus_of(row.offer)})"
            console.print(f"{name}: {plain(row.dominated_by)}", markup=False)
    console.print(f"\nLeft out: {len(ranking.excluded)} offers")
    groups: Counter[tuple[str, str]] = Counter((e.reason, e.gpu_key) for e in ranking.excluded)
    for (reason, gpu_key), count in groups.most_common():
        console.print(f"  {count:4d} x {plain(gpu_key)}: {plain(reason)}", markup=False)
