"""A ranking as a table for people: a verdict, the rows, and the notes that make them honest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpubench.interval import Interval
from gpubench.models import BuyOrRent, RankedOffer, Ranking
from gpubench.offers.dates import freshness
from gpubench.recommend.words import (
    assumed_of,
    batches_of,
    gpu_name,
    gpus_of,
    must_work,
    offer_name,
    pays_after,
)
from gpubench.units import UNKNOWN, format_bytes, format_number, format_percent, format_usd, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


PIPED_WIDTH = 120
"""Columns where the output goes to a file or a pipe, and nothing says otherwise."""

FIGURE_WIDTH = 11
"""Characters that keep an interval or a date on one line: "(580-1,600)"."""


def show(ranking: Ranking, *, limit: int | None = None, explain: bool = False, factors: bool = False) -> None:
    """Print a ranking to stdout: plain where that is no terminal, narrow where it is narrow."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=PIPED_WIDTH)
    console.print(ranking.verdict, markup=False)
    console.print()
    rows = ranking.rows[:limit]
    columns = _columns(ranking, rows)
    shown = [column for column in columns if column.least_width <= console.width]
    console.print(_table(shown, rows, console))
    hidden = [column.title for column in columns if column not in shown]
    if hidden:
        console.print(f"Not shown at this width: {', '.join(hidden)}.", markup=False, style="dim")
    if factors:
        console.print(_factor_table(rows, console))
    if ranking.buy_or_rent:
        console.print(_buying_table(ranking.buy_or_rent[:limit], console))
    for note in _footnotes(ranking):
        console.print(note, markup=False, style="dim")
    if explain:
        _explain(console, ranking, rows)


class _Column(NamedTuple):
    """A column of the ranking: what it says of a row, and how wide a terminal must be to show it."""

    title: str
    cell: Callable[[RankedOffer], str]
    right: bool = False
    wraps: bool = False
    least_width: int = 0


def _columns(ranking: Ranking, rows: Sequence[RankedOffer]) -> list[_Column]:
    """Return every column of the ranking; a narrow terminal shows fewer."""
    with_job = any(row.hours is not None for row in rows)
    columns = [
        _Column("#", lambda r: f"{r.rank}{'=' if r.tie else ' '}{'*' if r.pareto else ' '}", right=True),
        _Column("offer", lambda r: offer_name(r.offer), wraps=True),
        _Column("GPUs", lambda r: gpus_of(r.offer), wraps=True),
        _Column("$/h", lambda r: _usd(float(r.offer.price_usd_per_hour)), right=True),
        _Column("price of", _date, wraps=True, least_width=75),
        _Column(
            ranking.throughput_unit,
            lambda r: _shown(ranking.throughput_of(r)),
            right=True,
            wraps=True,
            least_width=115 if with_job else 95,
        ),
    ]
    with_latency = any(row.latency_s is not None for row in rows)
    if with_latency or len({batches_of(row.parts or (row.estimate,)) for row in ranking.rows}) > 1:
        columns.append(_Column("batch", _batch, right=True, wraps=True, least_width=80))
    if with_latency:
        columns.append(_Column("ms", lambda r: format_number(_ms(r.latency_s)), right=True))
    if with_job:
        columns += [
            _Column("hours", lambda r: _shown(r.job_hours), right=True, wraps=True),
            _Column(
                "cost, $",
                lambda r: _shown(r.job_cost_usd),
                right=True,
                wraps=True,
            ),
        ]
    else:
        title = ranking.value_unit.replace(" per dollar", " per $")
        columns.append(_Column(title, lambda r: _shown(ranking.value_of(r)), right=True, wraps=True))
    columns += [
        _Column("P(best)", lambda r: _chance(r.p_best), right=True, least_width=85),
        _Column("basis", lambda r: r.estimate.basis, least_width=70),
    ]
    return columns


def _table(columns: Sequence[_Column], rows: Sequence[RankedOffer], console: Console) -> Table:
    from rich.text import Text

    table = _plain_table(console)
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold",
            min_width=FIGURE_WIDTH if column.wraps else None,
        )
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    return table


def _batch(row: RankedOffer) -> str:
    return " ".join(f"{batch:,}" for batch in batches_of(row.parts or (row.estimate,)))


def _usd(value: float) -> str:
    return format_usd(value).removeprefix("$")


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else value_s * 1e3


def _plain_table(console: Console) -> Table:
    from rich import box
    from rich.table import Table

    lines = box.SIMPLE_HEAD if console.encoding.startswith("utf") else box.ASCII
    return Table(box=lines, pad_edge=False, padding=(0, 0, 0, 1))


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
        "must work",
        "pays after",
        "",
    ):
        table.add_column(name, overflow="fold")
    for each in decisions:
        cells = [
            f"{each.gpu_count}x {gpu_name(each.gpu_key)}",
            format_usd(each.purchase_usd),
            f"${_shown(each.hourly_usd)}",
            each.against,
            f"{format_usd(each.equivalent_usd_per_hour)}/h",
            must_work(each),
            pays_after(each),
            each.verdict,
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _date(row: RankedOffer) -> str:
    """Return the price's date, with its age where it is stale."""
    age = row.price_age_days
    mark = "" if age is None or freshness(age) == "current" else f" {age}d"
    return f"{plain(row.offer.price_date, 10)}{mark}"


def _shown(figure: Interval) -> str:
    return figure.compact(to="-")


def _chance(probability: float | None) -> str:
    if probability is None or probability == 0:
        return ""
    if probability < 0.01:
        return "< 1 %"
    return "> 99 %" if probability > 0.99 else format_percent(probability)


def _footnotes(ranking: Ranking) -> list[str]:
    notes = list(ranking.notes)
    if ranking.buy_or_rent:
        assumed = assumed_of(ranking.buy_or_rent)
        notes.append(
            f"Assumed, not given: {', '.join(assumed)}." if assumed else "Nothing was assumed of it."
        )
    if any(row.tie for row in ranking.rows):
        notes.append("= cannot be told apart from the first row of the same rank.")
    notes.append("* nothing else is as fast, as cheap and as large in memory at once.")
    return notes


def _explain(console: Console, ranking: Ranking, rows: Sequence[RankedOffer]) -> None:
    beaten = [row for row in rows if row.dominated_by is not None]
    if beaten:
        console.print("\nBeaten in every respect (no *):")
    for row in beaten:
        name = f"  {offer_name(row.offer)} ({gpus_of(row.offer)})"
        console.print(f"{name} by {plain(row.dominated_by or '')}", markup=False)
    console.print(f"\nLeft out: {len(ranking.excluded)} offers")
    groups: Counter[tuple[str, str]] = Counter((e.reason, e.gpu_key) for e in ranking.excluded)
    for (reason, gpu_key), count in groups.most_common():
        console.print(f"  {count:4d} x {plain(gpu_key)}: {plain(reason)}", markup=False)
