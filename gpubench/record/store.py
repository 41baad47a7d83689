"""The results folder: one JSON file per run, replaced atomically; its contents are untrusted until checked.

A run has one writer, which holds a kernel lock on a file in ``runs``, next to the folders of the devices; the
lock ends with the process. On a file system or platform without kernel locks, the process that created that
file holds the run. If a killed process leaves the lock file behind, the user must delete it, as the message
says.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path

import msgspec

from gpubench.errors import GpuBenchError, MisuseError, StorageError
from gpubench.files import (
    BadContentError,
    cause_of,
    create_file,
    is_there,
    kind_of,
    many_objects,
    remove_file,
    require_writable,
    write_file,
)
from gpubench.folders import data_path, require_folder, results_root
from gpubench.groups import grouped
from gpubench.models import Run
from gpubench.record.run_file import MAX_FILE_BYTES, is_safe_name, read_run, why_invalid
from gpubench.units import Seconds, format_bytes, format_duration, plain

if sys.platform != "win32":
    import fcntl

PATIENCE_S: Seconds = 2.0
"""How long to wait for a lock [s]: an import holds it for milliseconds, a measurement for minutes."""
LOOK_EVERY_S: Seconds = 0.05  # how often to try again meanwhile
# Errors by which a file system says that it has no locks.
NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK})
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


# --- locking -------------------------------------------------------------------------------------------


def lock_path(folder: Path, run_id: str) -> Path:
    """Return the lock file of a run, which is the same for all device folders."""
    return folder / f".{run_id}.lock"


class RunLockedError(StorageError):
    """Another process is writing this run."""


@contextmanager
def hold(folder: Path, run_id: str, *, patience_s: Seconds = PATIENCE_S) -> Iterator[None]:
    """Hold the lock of a run.

    Args:
        folder: Where the device folders are; it must exist.
        run_id: A plain file name.
        patience_s: How long to wait for another holder [s].

    Raises:
        RunLockedError: If another process, or another thread of this one, holds the lock.
        StorageError: If the lock file cannot be written, or its name is taken by something else.
    """
    path = lock_path(folder, run_id)
    deadline_s = time.monotonic() + patience_s
    try:
        while (descriptor := _take(path)) is None:
            if time.monotonic() >= deadline_s:
                raise RunLockedError(
                    f"run {run_id} is being written by another process: wait until it ends, or end it; "
                    f"if no process is writing it, delete {path}"
                )
            time.sleep(LOOK_EVERY_S)
    except OSError as error:
        raise StorageError(f"cannot lock run {run_id}: {path}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _is_at(path, descriptor):
                path.unlink()  # before the lock is released, so nobody can lock the file in between
        with contextlib.suppress(OSError):
            os.close(descriptor)
        if sys.platform == "win32":  # which cannot remove an open file
            remove_file(path)


def _take(path: Path) -> int | None:
    """Create or open the lock file and lock it; None if another process holds the run.

    Raises:
        StorageError: If the lock file is not a regular file.
        OSError: If the lock file cannot be opened or locked.
    """
    try:
        descriptor, is_new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o644), True
    except FileExistsError:
        try:
            if not stat.S_ISREG((facts := path.lstat()).st_mode):
                raise StorageError(f"cannot lock run {path.stem[1:]}: {path} is {kind_of(facts)}: remove it")
            descriptor, is_new = os.open(path, os.O_RDWR | _FLAGS), False
        except FileNotFoundError:  # the previous holder has just removed it
            return None
    with contextlib.ExitStack() as unless_locked:
        unless_locked.callback(os.close, descriptor)
        if _is_locked(descriptor, is_new=is_new) and _is_at(path, descriptor):
            unless_locked.pop_all()
            return descriptor
    return None


def _is_locked(descriptor: int, *, is_new: bool) -> bool:
    # Return whether the kernel granted the lock. Without kernel locks: whether this process made the file.
    if sys.platform == "win32":
        return is_new
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return is_new
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


SETTLED_S: Seconds = 10.0
"""A file written more recently than this may not be complete yet [s]."""
NEWEST = 500
"""Number of newest runs to read per device, by the time in their names; reading them takes half a second."""

_RUN_NAME = re.compile(r"\d{8}t\d{6}z-[^/]*\.json", re.IGNORECASE)
_UNKNOWN_KEY = "unknown"


class StoredRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The readable runs of a results folder, oldest first, and a line for each unreadable file.

    ``passed_over`` says that older runs of a device were not read; None if all were.
    """

    runs: tuple[Run, ...]
    problems: tuple[str, ...] = ()
    passed_over: str | None = None


# --- paths ---------------------------------------------------------------------------------------------


def run_path(root: Path, run: Run) -> Path:
    """Return the path of a run's file in the folder of its device.

    The folder is named after the GPU key, ``cpu`` for a CPU, or ``unknown`` without a safe key.

    Raises:
        MisuseError: If the run id contains anything but letters, digits, dots and dashes.
    """
    key = "cpu" if run.device.is_cpu else (run.device.gpu_key or _UNKNOWN_KEY)
    return root / "runs" / (key if is_safe_name(key) else _UNKNOWN_KEY) / f"{id_of(run)}.json"


def id_of(run: Run) -> str:
    """Return the normalized id of a run; ids are not case-sensitive.

    Raises:
        MisuseError: If the id contains anything but letters, digits, dots and dashes.
    """
    run_id = run.run_id.casefold()
    if not is_safe_name(run_id):
        raise MisuseError(f"run id {plain(run.run_id)!r} is not a plain file name: it is not from gpubench")
    return run_id


def stored_paths(root: Path, run: Run) -> tuple[Path, ...]:
    """Return the files stored under a run's id, in all device folders.

    Ids are not case-sensitive. A file may be in the folder of another device, because it was moved or because
    the key of its device changed.

    Raises:
        StorageError: If a folder cannot be searched, so the answer is unknown.
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


def _has_runs(root: Path) -> bool:
    # Return whether a folder ``runs`` exists. If that cannot be determined, listing ``root`` reports why.
    try:
        return (root / "runs").is_dir()
    except OSError:
        return False


# --- writing --------------------------------------------------------------------------------------------


def check_writable(root: Path) -> Path:
    """Check, before measuring, that a result can be stored under ``root``.

    Returns:
        The folder of runs, or its nearest existing parent.

    Raises:
        StorageError: If the folder cannot be created or written, or a device folder in it is a link: runs
            stored through a link would never be read.
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
    """Hold the lock of a run, so nobody else writes it between its first and last measurement.

    Raises:
        RunLockedError: If another process, or another thread of this one, holds the lock.
        StorageError: If the folder or the lock file cannot be written.
    """
    run_id, folder = id_of(run), root / "runs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write results to {root}: {cause_of(error)}") from error
    with hold(folder, run_id):
        yield


def write_run(root: Path, run: Run) -> Path:
    """Store a run. The caller must hold its lock; a reader sees either the old file or the new one.

    A run that is already stored stays in its folder.

    Raises:
        StorageError: If the run cannot be written; the old file is then unchanged.
    """
    path, stored, data = run_path(root, run), stored_paths(root, run), msgspec.json.encode(run) + b"\n"
    if stored and path not in stored:
        path = stored[0]
    if len(data) > MAX_FILE_BYTES:
        raise StorageError(
            f"the run takes {format_bytes(len(data))}, over the limit of {format_bytes(MAX_FILE_BYTES)}; "
            "measure fewer cases in one run"
        )
    write_file(path, data, hint="free some space or pass --results DIR")
    return path


# --- reading --------------------------------------------------------------------------------------------


def read_runs(root: Path, *, newest: int | None = None) -> StoredRuns:
    """Read every run of a folder; a file with invalid content is set aside as ``.corrupt``.

    A file that cannot be read now stays in place and is reported. The folder may belong to another project,
    so only files below ``runs`` that are named like a run are ever renamed. If there is no folder ``runs``,
    only files that are named like a run are read.

    Args:
        root: The folder.
        newest: Number of newest runs to read per device; None for all. If runs are skipped, ``passed_over``
            says so.

    Raises:
        MisuseError: If ``root`` exists and is not a folder.
    """
    require_folder(root)
    is_ours = _has_runs(root)
    problems: list[str] = []
    files = [path for path in run_files(root, problems.append) if is_ours or _is_run_name(path.name)]
    of_device = grouped((path.parent, path) for path in files).values()
    first = None if newest is None else -newest
    chosen = [path for paths in of_device for path in sorted(paths, key=attrgetter("name"))[first:]]
    with many_objects():
        runs = [run for path in chosen if (run := _read_or_say(root, path, problems)) is not None]
    skipped = f"{len(files):,} runs are stored; figures are based on the newest {newest} of each device"
    return StoredRuns(
        runs=_oldest_first(runs),
        problems=tuple(problems),
        passed_over=skipped if len(chosen) < len(files) else None,
    )


def newest_runs(root: Path) -> StoredRuns:
    """Read the runs that figures are based on: all of them, or the newest of a device with very many.

    Errors are those of ``read_runs``.
    """
    return read_runs(root, newest=NEWEST)


def own_runs(results: Path | None) -> tuple[Run, ...]:
    """Return the runs that figures are based on, and report the omitted ones on stderr.

    Args:
        results: The results folder; None for the default.

    Raises:
        MisuseError: If the path exists and is not a folder.
    """
    stored = newest_runs(results_root(results))
    say_problems([*stored.problems, *([stored.passed_over] if stored.passed_over else [])])
    return stored.runs


def say_problems(problems: Iterable[str]) -> None:
    """Print a line on stderr for each file that was not read, for output that has no place for it."""
    for problem in problems:
        print(f"gpubench: {plain(problem, 2000)}", file=sys.stderr)


def _read_or_say(root: Path, path: Path, problems: list[str]) -> Run | None:
    """Read a file; if that fails, add the reason to ``problems``. A file with bad content is set aside."""
    try:
        return read_run(path)
    except BadContentError as error:
        is_ours = _has_runs(root) and _is_run_name(path.name)
        problems.append(f"{error}{_set_aside(root / 'runs', path) if is_ours else ''}")
    except MisuseError as error:
        problems.append(str(error))
    return None


def _set_aside(folder: Path, path: Path) -> str:
    """Rename a run with bad content to ``NAME.corrupt``, ``NAME.2.corrupt`` and so on, and report it.

    The file is checked again under the run's lock, so only a bad file is renamed.

    Args:
        folder: The folder of the locks.
        path: A file with the name of a run.

    Returns:
        The end of a sentence about the file.
    """
    try:
        if time.time() - path.lstat().st_mtime < SETTLED_S:
            return f"; left in place, because it was written in the last {format_duration(SETTLED_S)}"
        with hold(folder, path.stem.casefold(), patience_s=0):
            with contextlib.suppress(BadContentError):
                read_run(path)
                return "; left in place, because it has just been replaced"
            aside = _free_name(path)  # reserves the name: no earlier file is overwritten
            try:
                path.replace(aside)
            except OSError:
                aside.unlink()
                raise
    except GpuBenchError as error:
        return f"; left in place: {error}"
    except OSError as error:
        return f"; left in place, because it cannot be renamed: {error.strerror}"
    return f"; set aside as {aside.name}"


def _free_name(path: Path) -> Path:
    # Create an empty file under the first free ``.corrupt`` name of a bad file.
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}{'' if number == 1 else f'.{number}'}.corrupt")
        with contextlib.suppress(FileExistsError):
            create_file(aside, b"")
            break
    return aside


@cache
def reference_runs() -> tuple[Run, ...]:
    """Return the runs shipped with the package, for cards that a user does not own."""
    return _oldest_first(read_run(path) for path in sorted(data_path("reference").glob("*.json")))


def reference_for(run: Run) -> Run:
    """Return the shipped run that has the most cases in common with a run."""
    cases = {each.case for each in run.measurements}
    return max(reference_runs(), key=lambda each: len(cases & {one.case for one in each.measurements}))


def find_run(root: Path, name: str) -> Path:
    """Find a run by path, by id, or ``latest``; a folder means its newest run.

    Raises:
        MisuseError: If there is none, or an abbreviated id matches several.
    """
    if os.path.isfile(name):  # noqa: PTH113 - Path.is_file fails for a name that is too long
        return Path(name)
    if name != "latest" and os.path.isdir(name):  # noqa: PTH112 - as above
        root, name = Path(name), "latest"
    problems: list[str] = []
    paths = sorted(run_files(root, problems.append), key=lambda path: path.stem)
    if problems:
        raise MisuseError(problems[0])
    dated = [path for path in paths if _is_run_name(path.name)]
    if name == "latest" and dated:
        return dated[-1]
    found = [path for path in paths if path.stem.casefold().startswith(name.casefold())]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} runs begin with {plain(name)!r}" if found else f"no run {plain(name)!r}"
    raise MisuseError(f"{problem} in {root}: see `gpubench results list`")


def read_named(results: Path | None, name: str) -> Run:
    """Read a run of a results folder by path, by id, or ``latest``."""
    return read_run(find_run(results_root(results), name))


def _is_run_name(name: str) -> bool:
    # Return whether a file has a name from ``write_run``: <UTC>-<id>.json.
    return _RUN_NAME.fullmatch(name) is not None and is_safe_name(name.casefold().removesuffix(".json"))


def run_files(root: Path, on_problem: Callable[[str], None]) -> Iterator[Path]:
    """Yield every run file of a results folder or of any folder of runs, without following links.

    A subfolder with its own ``runs``, like the example in this project, is a separate results folder and is
    skipped. A folder that cannot be listed is reported to ``on_problem``.
    """

    def report(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            on_problem(f"cannot list {error.filename}: {cause_of(error)}")

    top = root / "runs" if _has_runs(root) else root
    for folder, names, paths in os.walk(top, onerror=report, followlinks=False):
        below = [] if Path(folder) != top else names  # only ``top`` and the device folders have runs
        names[:] = sorted(name for name in below if not _has_runs(Path(folder, name)))
        for name in sorted(paths):
            if name.endswith(".json") and not name.startswith("."):
                yield Path(folder) / name


def _oldest_first(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=attrgetter("started_at", "run_id")))


# --- importing runs from other machines -----------------------------------------------------------------


class ConflictError(StorageError):
    """A file stored under a run's id differs from the run, or cannot be compared with it."""


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an import, file by file.

    Attributes:
        written: The newly stored runs.
        present: The runs that were already stored with the same content.
        refused: A line for each file that contains no run that can be imported.
        conflicts: A line for each run that was not stored, because a file under its id has different
            content, cannot be read, or is being written.
    """

    written: list[Path] = []
    present: list[Path] = []
    refused: list[str] = []
    conflicts: list[str] = []


def add_runs(root: Path, sources: Iterable[Path]) -> Added:
    """Import runs from other machines: files, or folders to search. Stored runs never change.

    Raises:
        MisuseError: If a source does not exist.
        StorageError: If a run cannot be written.
    """
    added = Added()
    for source in sources:
        if not source.exists():
            raise MisuseError(f"{source} does not exist")
        for path in run_files(source, added.refused.append) if source.is_dir() else (source,):
            try:
                run = read_run(path)
                if broken := why_invalid(run):
                    added.refused.append(f"{path.name} cannot be true: {broken}")
                    continue
                with writing(root, run):
                    if (stored := stored_copy(root, run)) is not None:
                        added.present.append(stored)
                    else:
                        added.written.append(write_run(root, _with_origin(run, path)))
            except (ConflictError, RunLockedError) as error:
                added.conflicts.append(f"{path.name}: {error}")
            except StorageError:
                raise
            except GpuBenchError as error:
                added.refused.append(str(error))
    return added


def stored_copy(root: Path, run: Run) -> Path | None:
    """Return the path of the same run if it is already stored; None if its id is free.

    Raises:
        ConflictError: If the file under its id differs, or cannot be read to compare.
        StorageError: If the folders cannot be searched.
    """
    found = stored_paths(root, run)
    for path in found:
        try:
            other = read_run(path)
        except MisuseError as error:
            raise ConflictError(
                f"run {id_of(run)} is already stored, but cannot be compared: {error}; "
                f"make {path} readable, or move it away"
            ) from error
        if _content(other) != _content(run):
            raise ConflictError(
                f"run {id_of(run)} is already stored with different content, which stays unchanged: "
                f"to replace it, move {path} away first"
            )
    return found[0] if found else None


def _with_origin(run: Run, path: Path) -> Run:
    # Return a run that says who shared it (shared/NAME/RUN-ID.json), or else which file it comes from.
    *_, folder, name, file = ("", "", *path.resolve().parts)
    source = f"shared by {name}" if folder == "shared" else file
    return msgspec.structs.replace(run, added_from=run.added_from or plain(source, 80))


def _content(run: Run) -> bytes:
    # Two files are the same run if they differ only in layout, in the case of the id, or in ``added_from``.
    normalized = msgspec.structs.replace(run, run_id=run.run_id.casefold(), added_from=None)
    return msgspec.json.encode(normalized)
