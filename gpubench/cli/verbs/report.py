from pathlib import Path

from gpubench.cli.output import print_json, print_path, say
from gpubench.report.page import report
from gpubench.report.request import ReportRequest
from gpubench.sections.section import load_sections
from gpubench.units import format_bytes


def verb(request: ReportRequest, *, as_json: bool) -> None:
    path = report(request)
    for problem in filter(None, (section.problem for section in load_sections())):
        say(problem)
    size_bytes = Path(path).stat().st_size
    if as_json:
        print_json({"path": path, "size_bytes": size_bytes})
    else:
        say(f"{format_bytes(size_bytes)}, one self-contained file")
        print_path(path)
