"""`gpubench report`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gpubench import precisions
from gpubench.cli.common import JsonOption, ResultsOption, print_json, say

ASK = "What the ranking is asked (the rest of its options: gpubench rank)"


class ReportFormat(StrEnum):
    """What the report is written as."""

    HTML = "html"
    MD = "md"
    JSON = "json"
    CSV = "csv"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("report")(verb)


def verb(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write [default: a dated file in reports/ of the results folder].",
        ),
    ] = None,
    results: ResultsOption = None,
    run: Annotated[
        str | None, typer.Option(help="The page is about this run's device: path, id or latest.")
    ] = None,
    kind: Annotated[
        ReportFormat | None,
        typer.Option("--format", help="[default: by the ending of the file, else html]"),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Rank by this workload or own model.", rich_help_panel=ASK)
    ] = None,
    precision: Annotated[str | None, typer.Option(help=f"{precisions.HELP}.", rich_help_panel=ASK)] = None,
    samples: Annotated[
        float | None, typer.Option(help="Samples of the job: gives hours and cost.", rich_help_panel=ASK)
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(help="Hardware you own or could buy, as in gpubench rank --own.", rich_help_panel=ASK),
    ] = None,
    offers: Annotated[Path | None, typer.Option(help="Your own price table.", rich_help_panel=ASK)] = None,
    accept_outliers: Annotated[
        bool,
        typer.Option(
            "--accept-outliers",
            help="Rank prices far below what every other provider asks too.",
            rich_help_panel=ASK,
        ),
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Report as on this day (YYYY-MM-DD): later prices are left out.", rich_help_panel=ASK
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained page: verdict, device, throughput, ranking, method. Prints its path."""
    from gpubench.report.page import report
    from gpubench.units import format_bytes

    asked = {
        "workloads": tuple(workload or ()) or None,
        "precision": precision,
        "samples": samples,
        "own": tuple(own or ()) or None,
        "offers": offers,
        "accept_outliers": accept_outliers or None,
        "as_of": as_of,
    }
    question: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    path = report(output, results, format=None if kind is None else kind.value, run=run, **question)
    size_bytes = Path(path).stat().st_size
    if as_json:
        print_json({"path": path, "size_bytes": size_bytes})
        return
    say(f"{format_bytes(size_bytes)}, one file that loads nothing from anywhere")
    print(path)
