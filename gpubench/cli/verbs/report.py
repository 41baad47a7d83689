from pathlib import Path

from gpubench.cli.output import print_json, print_path, say
from gpubench.report.page import report
from gpubench.report.request import ReportRequest
from gpubench.units import format_bytes


def verb(request: ReportRequest, *, as_json: bool) -> None:
    path = report(request)
    size_bytes = Path(path).stat().st_size
    if as_json:
        print_json({"path": path, "size_bytes": size_bytes})
    else:
        say(f"{format_bytes(size_bytes)}, one self-contained file")
        print_path(path)
