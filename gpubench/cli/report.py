"""`gpubench report`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli.common import JsonOption, ResultsOption, print_json


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
    kind: Annotated[
        ReportFormat | None,
        typer.Option("--format", help="[default: by the ending of the file, else html]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained page: verdict, device, throughput, ranking, method. Prints its path."""
    from gpubench.report.page import report

    path = report(output, results, format=None if kind is None else kind.value)
    if as_json:
        print_json({"path": path, "size_bytes": Path(path).stat().st_size})
    else:
        print(path)
