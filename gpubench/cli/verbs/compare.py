"""`gpubench compare`: two runs, case by case, with the interval of each ratio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.errors import ExitCode
from gpubench.record.request import CompareRequest
from gpubench.units import plain

if TYPE_CHECKING:
    from gpubench.record.compare import Comparison


def verb(request: CompareRequest, *, as_json: bool) -> ExitCode:
    """Compare two runs case by case: B over A, so that above 1 B is faster."""
    from gpubench.folders import results_root
    from gpubench.record.compare import compare
    from gpubench.record.run_file import read_run
    from gpubench.record.store import find_run, reference_for
    from gpubench.sections.comparison import compared

    tolerance, root = request.fail_over, results_root(request.results)
    b = read_run(find_run(root, request.b))
    a = reference_for(b) if request.a == "reference" else read_run(find_run(root, request.a))
    found = compare(a, b, across_devices=request.by == "device")
    for remark in found.remarks:
        say(remark)
    answer(as_json, lambda: found.document(tolerance), lambda: compared(found))
    for line in _against_b(found, tolerance):
        say(line)
    if found.failed(tolerance):
        return ExitCode.NO
    return ExitCode.UNDECIDED if found.undecided(tolerance) else ExitCode.DONE


def _against_b(found: Comparison, tolerance: float | None) -> Iterator[str]:
    """Name the cases without a figure in B, and those that fail the gate or are undecided at it."""
    from gpubench.record.compare import share_words

    for broken in found.broken:
        why = f": {plain(broken.reason)}" if broken.reason else ""
        yield f"no figure in B ({broken.status.replace('_', ' ')}{why}): {plain(broken.label)}"
    if tolerance is None:
        return
    share = share_words(tolerance)
    for why, cases, then in (
        (f"slower in B by more than {share}, beyond the interval", found.slower(tolerance), ""),
        ("broken in B", found.broken, ""),
        (
            f"undecided at {share}, as the interval allows both",
            found.undecided(tolerance),
            "; measure longer",
        ),
    ):
        if cases:
            yield f"{why}: {', '.join(plain(each.label) for each in cases)}{then}"


VERB = Verb(verb, place=60, also_called=("diff", "regress"))
