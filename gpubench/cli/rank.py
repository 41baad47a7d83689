"""`gpubench rank`: options in, one call, a table or JSON out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from gpubench.blocks.terminal import show
from gpubench.cli.common import JsonOption, print_json, say
from gpubench.cli.options import options_of
from gpubench.options import check_fields
from gpubench.recommend.request import OUTPUT, TRY_MINUTES, RankRequest

if TYPE_CHECKING:
    from gpubench.models import Ranking

HUMAN_LIMIT = 20


def _option(text: str, *names: str) -> object:
    return typer.Option(*names, help=text, rich_help_panel=OUTPUT)


@options_of(RankRequest)
def verb(
    request: RankRequest,
    all_offers: Annotated[
        bool, _option("List every offer, not the best offer of each GPU.", "--all-offers")
    ] = False,
    factors: Annotated[bool, _option("Also list memory, cores, ECC and power.", "--factors")] = False,
    explain: Annotated[
        bool, _option("Also list every note, and what is left out and why.", "--explain")
    ] = False,
    try_count: Annotated[
        int | None, _option("Write SkyPilot tasks that measure the best N; with --out.", "--try")
    ] = None,
    out: Annotated[Path | None, _option("Folder of the task files.")] = None,
    try_gpu: Annotated[
        str | None, _option("Measure this GPU rather than the best; the ranking stays the same.", "--try-gpu")
    ] = None,
    try_provider: Annotated[
        str | None, _option("Measure at this provider; the ranking stays the same.", "--try-provider")
    ] = None,
    try_minutes: Annotated[float, _option("Time limit of each task [min].")] = TRY_MINUTES,
    wheel: Annotated[
        Path | None, _option("Wheel of gpubench that they install [default: the running one].", "--wheel")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rank GPUs and instances by training per dollar, and say how sure that is.

    Needs no GPU and no network: measured figures where you have them, predictions elsewhere.
    """
    from gpubench.recommend.rank import rank
    from gpubench.recommend.skypilot import check_task_options, rows_to_try, write_task_files

    check_fields(request)  # before the limit of a terminal stands in for one
    shown = HUMAN_LIMIT if request.limit is None else request.limit
    kept = None if try_count else request.limit if as_json else shown
    one_a_gpu = request.one_a_gpu or not (as_json or all_offers or try_count)
    check_task_options(try_count, out, try_minutes, wheel, narrowed=try_gpu or try_provider)
    ranking = rank(structs.replace(request, limit=kept, one_a_gpu=one_a_gpu))
    if try_count is not None and out is not None:
        rows = rows_to_try(ranking.rows, try_gpu, try_provider)
        files, passed = write_task_files(rows, request, try_count, out, minutes=try_minutes, wheel=wheel)
        for reason in passed:
            say(f"passed over {reason}")
        if out.is_symlink():
            say(f"{out} is a link: the files are in {out.resolve()}")
        for file in files:
            say(f"wrote {file}")
        say(f"Next: sh {files[-1]} rents, measures, downloads results, shuts down, re-ranks.")
    if as_json:
        from gpubench.recommend.rank import as_json as document

        print_json(document(ranking))
        return
    print_ranking(ranking, shown, all_offers=all_offers, explain=explain, factors=factors)
    if sys.stdout.isatty():
        from gpubench.sections.verdict import headline

        say(headline(ranking))  # its first line has left the screen by now
    say(
        "Next: `gpubench run` measures the GPU here, or the CPU where there is none; "
        "`gpubench report` makes the page."
    )


def print_ranking(
    ranking: Ranking,
    limit: int,
    *,
    all_offers: bool = False,
    explain: bool = False,
    factors: bool = False,
    more_by: str = "--explain",
) -> None:
    """Print the verdict, so many rows, buying against renting, and what was asked for besides.

    Args:
        ranking: With the rows to print among its own.
        limit: Rows to print.
        all_offers: Each is an offer; else each is a GPU at its best.
        explain: Also print every note, what is left out, and what is beaten.
        factors: Also print what the GPUs are.
        more_by: What shows the notes that are left out here.
    """
    from gpubench.sections.data import of_ranking
    from gpubench.sections.section import brief
    from gpubench.sections.value import beaten_table, excluded_table, factor_table, shown_rows

    data = of_ranking(ranking, limit, every_offer=all_offers, more_by=None if explain else more_by)
    rows = shown_rows(data, ranking)
    beside = [factor_table(rows)] if factors else []
    left_out = [beaten_table(rows), excluded_table(ranking)] if explain else []
    show(*brief(data, "verdict", "buying", "value", "owning"), *beside, *left_out)
