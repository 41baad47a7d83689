"""What can be said of a stored run without its rounds, and an index of it, for stores of thousands of runs.

The index lies in the user's cache, not in the store: it is a copy that saves time, and nothing rests on it
alone. An entry counts while file and ledger of the run are those it was made of, by size, times and number;
an index that is missing, damaged or of another version is made anew.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpubench.errors import GpuBenchError
from gpubench.files import BadContentError, decode_json, read_json, write_file
from gpubench.models import Run, Status
from gpubench.units import MIB, plain

NEWEST = 5
"""Runs that are read of each case, on each device, with each set of findings: a median of five is steady."""
_INDEX_BYTES = 64 * MIB
"""Some 60,000 runs of 17 cases."""
_VERSION = 3


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One case of a run: a digest of case and batch choice, how it ended, and which findings it has."""

    what: str
    status: str
    findings: tuple[str, ...]
    workload: str


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What a listing says of a run, and what tells whether a figure may rest on it.

    Attributes:
        cases: Those that have a row, and those that were planned and never reached.
    """

    run_id: str
    started_at: str
    finished: bool
    interrupted: bool
    cases: int
    budget: str
    torch: str | None
    backend: str
    device: str | None
    gpu_key: str | None
    device_id: str | None
    rows: tuple[Row, ...]

    @property
    def measured(self) -> int:
        """How many of its cases have a figure."""
        return sum(row.status == Status.OK for row in self.rows)

    @property
    def workloads(self) -> list[str]:
        """Those of its cases, each once, by name."""
        return sorted({row.workload for row in self.rows})


Facts: TypeAlias = tuple[tuple[int, int, int, int] | None, tuple[int, int, int, int] | None]
"""Size, times and number of a run's file and of its ledger; None for one that is not there."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """The head of a run, and the facts of the files that it was made of."""

    facts: Facts
    head: Head


class _Index(msgspec.Struct, frozen=True):
    version: int
    entries: dict[str, Entry]


class _Case(msgspec.Struct):
    workload: str


class _Finding(msgspec.Struct):
    kind: str


class _Measurement(msgspec.Struct):
    case: msgspec.Raw
    status: str
    batch_choice: str | None = None
    findings: tuple[_Finding, ...] = ()


class _Device(msgspec.Struct):
    backend: str
    name: str | None = None
    gpu_key: str | None = None
    device_id: str | None = None


class _Environment(msgspec.Struct):
    torch: str | None = None


class _File(msgspec.Struct):
    """The parts of a run's file that make its head; all others are passed over, ten times as fast."""

    schema_version: int
    run_id: str
    started_at: str
    budget: str
    device: _Device
    environment: _Environment
    measurements: tuple[_Measurement, ...]
    finished_at: str | None = None
    interrupted: bool = False
    planned: tuple[msgspec.Raw, ...] = ()


def head_of(data: bytes, path: Path) -> tuple[Head, int]:
    """Return the head of a run's file, and the schema that it is of.

    Raises:
        BadContentError: If it is no run.
    """
    file = decode_json(data, _File, path, what="a gpubench run")
    try:
        cases = [(*_case(bytes(m.case)), m) for m in file.measurements]
        rows = tuple(
            Row(
                f"{digest}{'+' if m.batch_choice == 'largest' else ''}",
                m.status,
                tuple(sorted({finding.kind for finding in m.findings})),
                workload,
            )
            for digest, workload, m in cases
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # parts that were passed over so far
        raise BadContentError(
            f"{plain(path.name, 300)} is not a gpubench run: {plain(str(error))}"
        ) from error
    device = file.device
    return (
        Head(
            file.run_id,
            file.started_at,
            file.finished_at is not None,
            file.interrupted,
            len({bytes(case) for case in (*file.planned, *(m.case for m in file.measurements))}),
            file.budget,
            file.environment.torch,
            device.backend,
            device.name,
            device.gpu_key,
            device.device_id,
            rows,
        ),
        file.schema_version,
    )


@lru_cache(maxsize=10_000)
def _case(case: bytes) -> tuple[str, str]:
    """Return a digest of a case as it is written, and its workload."""
    workload = msgspec.json.decode(case, type=_Case).workload
    return blake2b(case, digest_size=6).hexdigest(), workload


def head_of_run(run: Run, path: Path) -> Head:
    """Return the head of a run that was read."""
    return head_of(msgspec.json.encode(run), path)[0]


def read_heads(
    paths: Iterable[Path],
    root: Path,
    facts_of: Callable[[Path], Facts | None],
    read: Callable[[Path], Head | None],
) -> dict[Path, Head]:
    """Return the head of every run, from the index where that is as new as what is stored.

    Args:
        paths: The files.
        root: The results folder.
        facts_of: Tells one state of what is stored of a run from every other; None where that is not known.
        read: Reads the head of one file; None where it holds no run, which is then not asked of the index.
    """
    place = _index_path(root)
    try:
        known = read_index(place)
    except GpuBenchError:
        known = {}
    found: dict[str, Entry] = {}
    heads: dict[Path, Head] = {}
    for path in paths:
        facts = facts_of(path)
        entry = known.get(str(path))
        if facts is None or entry is None or entry.facts != facts:
            head = read(path)
            if head is None or facts is None:
                continue
            entry = Entry(facts, head)
        found[str(path)] = entry
        heads[path] = entry.head
    if found != known:
        write_index(place, found)
    return heads


def newest_of_each(heads: Mapping[Path, Head]) -> list[Path]:
    """Return the files of the newest runs of each case, on each device, with each set of findings.

    What a later one shadows in every respect changes no figure that rests on the newest.
    """
    by_age = sorted(heads.items(), key=lambda item: (item[1].started_at, item[1].run_id), reverse=True)
    seen: defaultdict[object, int] = defaultdict(int)
    chosen: list[Path] = []
    for path, head in by_age:
        device = (head.backend, head.device, head.gpu_key, head.device_id)
        groups: list[object] = [(device, row.what, row.status, row.findings) for row in head.rows] or [device]
        if any(seen[group] < NEWEST for group in groups):
            chosen.append(path)
        for group in groups:
            seen[group] += 1
    return chosen


def _index_path(root: Path) -> Path:
    import platformdirs

    name = blake2b(os.fsencode(root.absolute()), digest_size=12).hexdigest()
    return Path(platformdirs.user_cache_dir("gpubench", appauthor=False)) / "heads" / f"{name}.json"


def read_index(place: Path) -> dict[str, Entry]:
    """Read an index, of which nothing counts where it is of another version; errors as ``read_json``."""
    index = read_json(place, _Index, _INDEX_BYTES, what="an index of runs")
    return index.entries if index.version == _VERSION else {}


def write_index(place: Path, entries: dict[str, Entry]) -> None:
    """Write the index; where that fails, or a path is no UTF-8, the next reader makes it anew."""
    try:
        write_file(place, msgspec.json.encode(_Index(_VERSION, entries)), mode=0o600)
    except (GpuBenchError, UnicodeEncodeError):
        return
