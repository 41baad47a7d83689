"""`gpubench report`."""

from __future__ import annotations

from pathlib import Path

from gpubench.cli.options import Verb
from gpubench.cli.output import print_json, print_path, say
from gpubench.report.request import ReportRequest
from gpubench.settings import FILES

ASK = "What the ranking is asked (the rest of its options: gpubench rank)"
ASKED = ("workload", "offers", "as_of")


def verb(request: ReportRequest, *, as_json: bool) -> None:
    """Write one self-contained page: verdict, device, throughput, ranking, method. Prints its path."""
    from gpubench.report.page import report
    from gpubench.units import format_bytes

    path = report(request)
    if request.settings:
        say(f"set in {' or '.join(FILES)} of this folder: {'; '.join(request.settings)}")
    size_bytes = Path(path).stat().st_size
    if as_json:
        print_json({"path": path, "size_bytes": size_bytes})
    else:
        say(f"{format_bytes(size_bytes)}, one self-contained file")
        print_path(path)


VERB = Verb(
    verb,
    place=130,
    also_called=("html", "page", "export"),
    only=dict.fromkeys(("output", "results", "run", "format", "public")) | dict.fromkeys(ASKED, ASK),
)
