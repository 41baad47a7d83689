"""The ledger of a run that is being measured: each finished launch is a line, through to the disk at once.

The run's file is derived from it, after every case; the ledger goes once the run is whole in its file. Where
the file is behind, or was damaged, the ledger is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import NOT_JSON, append_line, is_there, read_bytes, remove_file
from gpubench.models import Case, Launch, Measurement, Run, Status
from gpubench.models.measurement import UNFINISHED
from gpubench.models.record import Record
from gpubench.record.rules import refuse_later
from gpubench.units import MIB, plain

MAX_LEDGER_BYTES = 128 * MIB
"""A run as it began and all of its launches: twice the largest file of a run."""

_ENDING = ".launches.jsonl"

FINAL = frozenset({Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.INVALID, Status.FAILED})
"""A case that ended so would end so again."""


class Line(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One line: the run as it stood when the ledger was begun, or a row with its new launches alone."""

    run: Run | None = None
    row: Measurement | None = None


_L = TypeVar("_L")


class _Began(msgspec.Struct):
    schema_version: int


class _Line(msgspec.Struct):
    """What is sure to be readable of a line, whichever gpubench wrote it."""

    run: _Began | None = None


def ledger_path(path: Path) -> Path:
    """Return the ledger that lies beside the file of a run."""
    return path.with_name(f"{path.stem}{_ENDING}")


def is_ledger(name: str) -> bool:
    """Whether a file is named as ledgers are."""
    return name.endswith(_ENDING)


def file_name(name: str) -> str:
    """Return the name of the file that a ledger of this name lies beside."""
    return f"{name.removesuffix(_ENDING)}.json"


# --- writing --------------------------------------------------------------------------------------------


def append(path: Path, before: Run, row: Measurement) -> None:
    """Write what is new in a row, as far as it is finished; nothing where nothing is.

    Args:
        path: The file of the run.
        before: The run as it stood before this row.
        row: A case with all of its launches.

    Raises:
        StorageError: If it cannot be written.
    """
    known = next((m.launches for m in before.measurements if m.case == row.case), ())
    new = msgspec.structs.replace(row, launches=tuple(x for x in row.launches if x not in known))
    if finished_part(new) is None:
        return
    ledger, hint = ledger_path(path), "free some space or pass --results DIR"
    lines = (Line(row=new),) if _says_how_it_began(path) else (Line(run=before), Line(row=new))
    append_line(ledger, b"\n".join(map(msgspec.json.encode, lines)), hint=hint)


def _says_how_it_began(path: Path) -> bool:
    """Whether a line of the ledger does; where it cannot be read, one more does no harm."""
    try:
        return any(line.run is not None for line in _lines(path))
    except MisuseError:
        return False


def close(path: Path) -> None:
    """Remove the ledger of a run that is whole in its file."""
    remove_file(ledger_path(path))


# --- reading --------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[Line, ...]:
    """Return the lines of the ledger beside a file; none where there is no ledger.

    A line that cannot be read, such as the last one of a process that was killed, costs itself alone.

    Raises:
        MisuseError: If the ledger cannot be read now, or is of a later gpubench.
    """
    return tuple(line for line in _lines(path) if line != Line())


def _lines(path: Path) -> Iterator[Line]:
    ledger = ledger_path(path)
    if is_there(ledger):
        for line in read_bytes(ledger, MAX_LEDGER_BYTES, may_grow=True).split(b"\n"):
            if (began := _decoded(line, _Line).run) is not None:
                refuse_later(began.schema_version, plain(ledger.name, 300))
            yield _decoded(line, Line)


def told(lines: Sequence[Line], run: Run | None = None) -> Run | None:
    """Return the run that the lines of a ledger tell; what a later row of a case leaves out is kept.

    Args:
        lines: In their order. How the run began may stand after a row, where it could not be written before.
        run: What the rows are added to where no line says how the run began.

    Returns:
        None where neither does.
    """
    begun = next((line.run for line in lines if line.run is not None), run)
    told_rows = [line.row for line in lines if line.row is not None]
    if begun is None or not told_rows:
        return begun
    rows = {m.case: m for m in begun.measurements}
    for row in told_rows:
        earlier = rows.get(row.case)
        launches = row.launches if earlier is None else _together(earlier.launches, row.launches)
        rows[row.case] = msgspec.structs.replace(row, launches=launches)
    return msgspec.structs.replace(begun, measurements=tuple(rows.values()))


def _decoded(line: bytes, shape: type[_L]) -> _L:
    """Return what a line says; nothing where it cannot be read."""
    try:
        return msgspec.json.decode(line, type=shape)
    except NOT_JSON:
        return shape()


# --- what is finished -----------------------------------------------------------------------------------


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
        elif _indices(row.launches) - _indices(part.launches):
            launches = _together(row.launches, part.launches)
            rows[row.case] = msgspec.structs.replace(part, status=Status.OK, reason=None, launches=launches)
            gained.append(row.case)
    if gained:
        from gpubench.measure import checks  # a reader of finished runs judges nothing
    for case in gained:
        rows[case] = checks.judge_measurement(rows[case], run.launch_count or 1, tuple(rows.values()))
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


def _indices(launches: Iterable[Launch]) -> set[int]:
    return {launch.index for launch in launches}


def refuse_other(run: Run, other: Run, path: Path) -> None:
    """Refuse the ledger of another run; it was copied or renamed.

    Raises:
        MisuseError: If the ids differ.
    """
    if run.run_id.casefold() != other.run_id.casefold():
        raise MisuseError(
            f"{ledger_path(path).name} is of run {plain(other.run_id)}, not {plain(run.run_id)}: move it away"
        )
