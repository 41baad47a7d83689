from collections.abc import Iterator, Sequence
from typing import Any

from gpubench.cli.output import answer, say
from gpubench.errors import ExitCode, MisuseError
from gpubench.models import Run
from gpubench.record import compare, store
from gpubench.record.request import CompareRequest
from gpubench.record.run_file import why_invalid
from gpubench.sections.lists import compared
from gpubench.units import plain


def verb(request: CompareRequest, *, as_json: bool) -> ExitCode:
    tolerance = request.fail_over

    def read(name: str, other: str) -> Run:
        # "reference" is the shipped run with the most cases in common with the other run
        run = store.read_named(request.results, other if name == "reference" else name)
        if broken := why_invalid(run):
            raise MisuseError(f"run {plain(run.run_id)} cannot be true: {broken}")
        return store.reference_for(run) if name == "reference" else run

    runs = read(request.a, request.b), read(request.b, request.a)
    found = compare.compare(*runs, across_devices=request.by == "device")
    say(*found.remarks)
    answer(as_json, lambda: found.document(tolerance), lambda: compared(found))
    say(*_notes_on_b(found, tolerance))
    if found.failed(tolerance):
        return ExitCode.NO
    return ExitCode.UNDECIDED if found.undecided(tolerance) else ExitCode.DONE


def _notes_on_b(found: compare.Comparison, tolerance: float | None) -> Iterator[str]:
    # Yield a line for each case without a figure in B, then the cases that are slower in B or undecided.
    for broken in found.broken:
        why = f": {plain(broken.reason)}" if broken.reason else ""
        yield f"no figure in B ({broken.status.replace('_', ' ')}{why}): {plain(broken.label)}"
    if tolerance is None:
        return
    share = compare.share_words(tolerance)
    reasons: dict[str, Sequence[Any]] = {
        f"slower in B by more than {share}, even allowing for the interval": found.slower(tolerance),
        f"undecided at {share}: the interval includes slowdowns above and below that; measure longer": (
            found.undecided(tolerance)
        ),
    }
    yield from (
        f"{why}: {', '.join(plain(each.label) for each in cases)}" for why, cases in reasons.items() if cases
    )
