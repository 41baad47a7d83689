"""Two states of one run made one: no finished launch is dropped, whoever knew of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpubench.models import Case, Launch, Measurement, Run, Status
from gpubench.models.measurement import UNFINISHED

FINAL = frozenset({Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.INVALID, Status.FAILED})
"""A case that ended so would end so again."""


def finished_part(row: Measurement) -> Measurement | None:
    """Return a row with the launches that came to their end, to be judged anew; None where there is none."""
    if row.status in UNFINISHED:
        return None
    launches = tuple(launch for launch in row.launches if not launch.stopped)
    if len(launches) == len(row.launches):
        return row if launches or row.status in FINAL else None
    changed = msgspec.structs.replace(row, status=Status.OK, reason=None, launches=launches)
    return changed if launches else None


def merged(run: Run, other: Run) -> Run:
    """Return a run with every finished launch and training of another state of it; nothing is dropped.

    A row that gains a launch is judged anew, and one with figures takes the place of one without.
    """
    rows = {m.case: m for m in run.measurements}
    gained: list[Case] = []
    for row in filter(None, map(finished_part, other.measurements)):
        mine = rows.get(row.case)
        part = None if mine is None else finished_part(mine)
        if part is None or (_is_measured(row) and not _is_measured(part)):
            rows[row.case] = row
        elif {launch.index for launch in row.launches} - {launch.index for launch in part.launches}:
            launches = _together(row.launches, part.launches)
            rows[row.case] = msgspec.structs.replace(part, status=Status.OK, reason=None, launches=launches)
            gained.append(row.case)
    beside = msgspec.structs.replace(run, measurements=tuple(rows.values())).measurements
    for row in beside if gained else ():
        from gpubench.measure import checks  # a reader of finished runs judges nothing

        if row.case in gained:
            rows[row.case] = checks.judge_measurement(row, run.launch_count or 1, beside)
    micro = {(result.name, result.precision, result.size): result for result in (*other.micro, *run.micro)}
    trained = {row.case: row for row in run.quality}
    for training in other.quality:
        if training.case not in trained or len(training.runs) > len(trained[training.case].runs):
            trained[training.case] = training
    return msgspec.structs.replace(
        run,
        measurements=tuple(rows.values()),
        micro=tuple(micro.values()),
        quality=tuple(trained.values()),
    )


def _is_measured(row: Measurement) -> bool:
    return row.status in {Status.OK, Status.INVALID} and bool(row.launches)


def _together(first: Iterable[Launch], second: Iterable[Launch]) -> tuple[Launch, ...]:
    """Return the launches of both by their index; of two of one index the finished one, else the second."""
    launches: dict[int, Launch] = {}
    for launch in (*first, *second):
        if launch.index not in launches or launches[launch.index].stopped or not launch.stopped:
            launches[launch.index] = launch
    return tuple(launches[index] for index in sorted(launches))
