"""The result files: one JSON file a run, replaced whole; whatever is read is hostile until checked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path

import msgspec

from gpubench.errors import MisuseError, StorageError
from gpubench.files import (
    BadContentError,
    cause_of,
    is_there,
    many_objects,
    read_bytes,
    remove_file,
    require_writable,
    write_file,
)
from gpubench.folders import data_path, require_folder, results_root
from gpubench.models import Run
from gpubench.record import lock
from gpubench.record.merging import merged
from gpubench.record.run_file import MAX_FILE_BYTES, is_safe_name, new_aside, read_run, set_aside
from gpubench.units import format_bytes, plain

NEWEST = 500
"""Runs that are read of each device, by the time in their names: half a second of reading."""

_RUN_NAME = re.compile(r"\d{8}t\d{6}z-[^/]*\.json", re.IGNORECASE)
_UNKNOWN_KEY = "unknown"


class StoredRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Every readable run of a results folder, oldest first, and a line for each file that is not.

    ``passed_over`` says so where older runs of a device were not read; None where all were.
    """

    runs: tuple[Run, ...]
    problems: tuple[str, ...] = ()
    passed_over: str | None = None


# --- where ---------------------------------------------------------------------------------------------


def run_path(root: Path, run: Run) -> Path:
    """Path of a run's file; a key or id that is not a plain file name is refused or replaced.

    Raises:
        MisuseError: If the run id holds anything but small letters, digits, dots and dashes.
    """
    return root / "runs" / folder_name(run) / f"{id_of(run)}.json"


def id_of(run: Run) -> str:
    """Return a run's id as its file bears it: whatever the case of its letters, it is one run.

    Raises:
        MisuseError: If it holds anything but letters, digits, dots and dashes.
    """
    run_id = run.run_id.casefold()
    if not is_safe_name(run_id):
        raise MisuseError(f"run id {plain(run.run_id)!r} is not a plain file name: no file of gpubench's")
    return run_id


def stored_paths(root: Path, run: Run) -> tuple[Path, ...]:
    """Return the files of the runs that are stored under a run's id, in whichever device's folder.

    A run has one id in any case of its letters. Its folder may differ: a file may have been moved, or its
    device have been given another key.

    Raises:
        StorageError: If a folder cannot be looked into, so that the answer is not known.
    """
    name, top = f"{id_of(run)}.json", root / "runs"
    try:
        with os.scandir(top) as entries:
            places = (top, *(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)))
        return tuple(place / name for place in sorted(places) if is_there(place / name))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise StorageError(f"cannot look for run {id_of(run)} in {top}: {cause_of(error)}") from error
    except MisuseError as error:
        raise StorageError(str(error)) from error


def _top(root: Path) -> Path:
    """Folder of the device folders: ``runs`` where there is one, else a folder that is one itself."""
    return root / "runs" if _has_runs(root) else root


def _has_runs(root: Path) -> bool:
    """Whether there is a folder ``runs``; where that cannot be seen, listing ``root`` says why."""
    try:
        return (root / "runs").is_dir()
    except OSError:
        return False


def folder_name(run: Run) -> str:
    """Folder of a run's device: its GPU key, ``cpu`` for a CPU, ``unknown`` where it has no safe key."""
    key = "cpu" if run.device.is_cpu else (run.device.gpu_key or _UNKNOWN_KEY)
    return key if is_safe_name(key) else _UNKNOWN_KEY


# --- writing --------------------------------------------------------------------------------------------


def check_writable(root: Path) -> Path:
    """Prove before any time is spent that a result can be stored under ``root``.

    Returns:
        The folder of runs, or the nearest one above it that is there.

    Raises:
        StorageError: If the folder cannot be made or written, or holds a link where a device's folder stands:
            what is stored through it would never be read again.
    """
    folder = root / "runs"
    there = require_writable(folder, hint="make it writable or pass --results DIR")
    if there != folder.absolute():
        return there
    for each in sorted(folder.iterdir()):
        if each.is_symlink() and not each.is_file():
            raise StorageError(
                f"{plain(str(each))} is a link, and runs are not read through links",
                fix="put the folder itself in its place, or pass --results DIR",
            )
    return there


@contextmanager
def writing(root: Path, run: Run) -> Iterator[None]:
    """Hold the lock of a run: between its first and its last measurement nobody else writes it.

    Raises:
        RunLockedError: If another process, or another thread, holds it.
        StorageError: If the folder or the lock file cannot be written.
    """
    run_id, folder = id_of(run), root / "runs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write results to {root}: {cause_of(error)}") from error
    lock.clear_left_behind(folder)
    with lock.hold(folder, run_id):
        yield


def refuse_if_written(root: Path, run: Run) -> None:
    """Refuse a run that another process is writing, before any time is spent; ``writing`` is what decides.

    Raises:
        RunLockedError: If another process holds its lock.
        StorageError: If the lock file cannot be written.
    """
    if _has_runs(root):
        with lock.hold(root / "runs", id_of(run), patience_s=lock.GLANCE_S):
            return


def file_of(root: Path, run: Run) -> Path:
    """Return where a run is stored, or will be: it stays in the folder that it lies in.

    Raises:
        StorageError: If a folder cannot be looked into, so that the answer is not known.
    """
    path, stored = run_path(root, run), stored_paths(root, run)
    return path if path in stored or not stored else stored[0]


def write_run(root: Path, run: Run, *, held: bool = False) -> Path:
    """Store a run: a reader sees the old file or the new one, and no finished launch goes.

    What is stored under its id and finished, and is unknown to ``run``, is kept beside it. A stored file of
    bad content is set aside.

    Args:
        root: The results folder.
        run: As it is to be stored.
        held: Whether the caller holds the run's lock; else it is held while the file is replaced.

    Returns:
        The path of the file.

    Raises:
        RunLockedError: If another process is writing this run.
        StorageError: If it cannot be written, or what is stored cannot be read; that is then untouched.
    """
    if not held:
        with writing(root, run):
            return write_run(root, run, held=True)
    path = file_of(root, run)
    run, is_bad = _with_stored(run, path)
    data = msgspec.json.encode(run) + b"\n"
    if len(data) > MAX_FILE_BYTES:
        raise StorageError(
            f"the run takes {format_bytes(len(data))}, over the limit of {format_bytes(MAX_FILE_BYTES)}; "
            "measure fewer cases in one run"
        )
    _replace(path, data, is_bad=is_bad)
    return path


def _replace(path: Path, data: bytes, *, is_bad: bool) -> None:
    """Write the file of a run; where a bad one is in its place, that is copied to ``NAME.corrupt`` before.

    Raises:
        StorageError: If it cannot be written; what was there is then untouched.
    """
    hint = "free some space or pass --results DIR"
    if not is_bad:
        write_file(path, data, hint=hint)
        return
    try:
        aside = new_aside(path, read_bytes(path, MAX_FILE_BYTES))
    except (MisuseError, OSError) as error:
        why = cause_of(error) if isinstance(error, OSError) else error
        raise StorageError(f"{path.name} is damaged, and no copy of it can be kept: {why}; {hint}") from error
    try:
        write_file(path, data, hint=hint)
    except StorageError:
        remove_file(aside)
        raise


def _with_stored(run: Run, path: Path) -> tuple[Run, bool]:
    """Return a run with what is stored of it besides, and whether the file that is there is bad.

    Raises:
        StorageError: If that cannot be told.
    """
    try:
        if path.is_symlink() or not is_there(path):  # a link holds no run: it is replaced, not followed
            return run, False
        stored = read_run(path)
    except BadContentError:
        return run, True
    except (MisuseError, OSError) as error:
        raise StorageError(
            f"run {id_of(run)} cannot be replaced, because what is stored cannot be read: {error}"
        ) from error
    return merged(run, stored), False


# --- reading --------------------------------------------------------------------------------------------


def read_runs(root: Path) -> StoredRuns:
    """Read every run of a folder; a file of proven bad content is set aside as ``.corrupt``.

    A file that cannot be read now stays where it is and is named. A folder may be of another project, so only
    a file below ``runs`` that bears the name of a run is ever renamed, and without a folder ``runs`` no other
    file is read.

    Raises:
        MisuseError: If ``root`` is there and is no folder.
    """
    problems: list[str] = []
    return _read_all(root, _own_files(root, problems.append), problems)


def newest_runs(root: Path) -> StoredRuns:
    """Read what figures rest on: every run, or of a device with very many the newest.

    Where runs are passed over, ``passed_over`` says so. Errors as ``read_runs``.
    """
    problems: list[str] = []
    of_device: dict[Path, list[Path]] = {}
    for path in _own_files(root, problems.append):
        of_device.setdefault(path.parent, []).append(path)
    newest = [
        path for paths in of_device.values() for path in sorted(paths, key=attrgetter("name"))[-NEWEST:]
    ]
    stored = _read_all(root, newest, problems)
    total = sum(map(len, of_device.values()))
    if total == len(newest):
        return stored
    passed_over = f"{total:,} runs are stored; figures rest on the newest {NEWEST} of each device"
    return msgspec.structs.replace(stored, passed_over=passed_over)


def own_runs(results: Path | None) -> tuple[Run, ...]:
    """Return what figures rest on of a results folder; what of it they do not rest on is said on stderr.

    Args:
        results: None is the default folder.

    Raises:
        MisuseError: If it is there and is no folder.
    """
    stored = newest_runs(results_root(results))
    say_problems([*stored.problems, *([stored.passed_over] if stored.passed_over else [])])
    return stored.runs


def say_problems(problems: Iterable[str]) -> None:
    """Say on stderr what was not read, a line each: for answers that have no place for it."""
    for problem in problems:
        print(f"gpubench: {plain(problem, 2000)}", file=sys.stderr)


def _own_files(root: Path, on_problem: Callable[[str], None]) -> list[Path]:
    require_folder(root)
    own = _has_runs(root)
    return [path for path in run_files(root, on_problem) if own or _is_run_name(path.name)]


def _read_all(root: Path, paths: Iterable[Path], problems: list[str]) -> StoredRuns:
    with many_objects():
        read = (_read_or_say(root, path, problems) for path in paths)
        runs = [run for run in read if run is not None]
    return StoredRuns(runs=_oldest_first(runs), problems=tuple(problems))


def _read_or_say(root: Path, path: Path, problems: list[str]) -> Run | None:
    """Read a file; None where that cannot be, with a line that says why, and bad content set aside."""
    try:
        return read_run(path)
    except BadContentError as error:
        own = _has_runs(root) and _is_run_name(path.name)
        done = set_aside(root / "runs", path) if own else ""
        problems.append(f"{error}{done}")
    except MisuseError as error:
        problems.append(str(error))
    return None


@cache
def reference_runs() -> tuple[Run, ...]:
    """Return the runs that the package ships, for cards that a user does not own."""
    return _oldest_first(read_run(path) for path in sorted(data_path("reference").glob("*.json")))


def reference_for(run: Run) -> Run:
    """Return the shipped run that has the most cases of a run."""
    cases = {each.case for each in run.measurements}
    return max(reference_runs(), key=lambda each: len(cases & {one.case for one in each.measurements}))


def find_run(root: Path, name: str) -> Path:
    """Find a run by path, by id, or ``latest``.

    Raises:
        MisuseError: If there is none, or an abbreviated id fits several.
    """
    if os.path.isfile(name):  # noqa: PTH113 - a name that is too long for one is no file, and no error
        return Path(name)
    problems: list[str] = []
    paths = sorted(run_files(root, problems.append), key=lambda path: path.stem)
    if problems:
        raise MisuseError(problems[0])
    dated = [path for path in paths if _is_run_name(path.name)]
    if name == "latest" and dated:
        return dated[-1]
    found = [path for path in paths if path.stem.startswith(name.casefold())]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} runs begin with {plain(name)!r}" if found else f"no run {plain(name)!r}"
    raise MisuseError(f"{problem} in {root}: see `gpubench results list`")


def _is_run_name(name: str) -> bool:
    """Whether a file is named as ``write_run`` names them: <UTC>-<id>.json."""
    return _RUN_NAME.fullmatch(name) is not None and is_safe_name(name.casefold().removesuffix(".json"))


def run_files(root: Path, on_problem: Callable[[str], None]) -> Iterator[Path]:
    """Every run file of a results folder or of any folder of runs; links are not followed.

    A folder inside that has ``runs`` of its own is another results folder, such as the example in this
    project's: its runs are nobody's here until it is named. A folder that cannot be listed is named to
    ``on_problem``: its runs must not be missing in silence.
    """

    def report(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            on_problem(f"cannot list {error.filename}: {cause_of(error)}")

    top = _top(root)
    for folder, names, paths in os.walk(top, onerror=report, followlinks=False):
        below = [] if Path(folder) != top else names  # a run lies in its device's folder, or beside those
        names[:] = sorted(name for name in below if not _has_runs(Path(folder, name)))
        for name in sorted(paths):
            if name.endswith(".json") and not name.startswith("."):
                yield Path(folder) / name


def _oldest_first(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=attrgetter("started_at", "run_id")))
