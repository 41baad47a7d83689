"""The request of a report: where to write it, and the options of its ranking."""

from pathlib import Path
from typing import Annotated, Any

from gpubench.errors import MisuseError
from gpubench.options import FILE, RESULTS, WORKLOAD, Option, with_help
from gpubench.recommend.request import RankRequest
from gpubench.units import plain

FORMATS = ("html", "md", "json", "csv")
"""Formats of a report, each also the extension of its default file name."""


class ReportRequest(RankRequest, frozen=True, kw_only=True):
    """Where to write the report, which run it is about, and every option of a ranking."""

    output: Annotated[
        Path | None,
        with_help(FILE, place=True, default="a dated file in reports/ of the results folder"),
    ] = None
    results: Annotated[Path | None, with_help(RESULTS, place=True)] = None
    public: Annotated[
        Path | None,
        Option(
            "Folder for a website: index.html and data.json, both without the names of machines.",
        ),
    ] = None
    format: Annotated[
        str | None,
        Option("Format of the report.", choices=FORMATS, default="from the file's extension, else html"),
    ] = None
    run: Annotated[
        str | None,
        Option("Run whose device the report is about: a path, an id or latest.", default="the newest usable"),
    ] = None
    workloads: Annotated[
        tuple[str, ...],
        with_help(WORKLOAD, help="Rank by this workload, or by a model of your own.", place=False),
    ] = ()
    data: Annotated[
        Any,
        Option(
            "The data to report, if you already have it; nothing is then read or ranked.",
            python="ReportData | None",
            way="python",
        ),
    ] = None


def format_of(output: Path | None) -> str:
    """Return the format that a file's extension implies; html if there is none.

    Raises:
        MisuseError: If no format of a report has this extension.
    """
    name = "" if output is None else output.name
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    by_ending = {"htm": "html", "markdown": "md", "": "html"}.get(ending, ending)
    if by_ending not in FORMATS:
        raise MisuseError(
            f"{output}: a report is html, md, json or csv, not {plain(ending, 40)!r}; "
            "give a name with one of these extensions, or add --format"
        )
    return by_ending
