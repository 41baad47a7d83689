"""The result files: one JSON file a run, replaced whole; whatever is read is hostile until checked."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from gpubench.errors import GpuBenchError, MisuseError, StorageError
from gpubench.folders import default_results
from gpubench.models import SCHEMA_VERSION, Run
from gpubench.record.rules import beyond_belief, broken_rule
from gpubench.units import MIB, format_bytes, plain

MAX_FILE_BYTES = 64 * MIB
"""A run of 5 launches and 27 cases with 100 s of telemetry each takes 27 MiB; twice that is no run."""

_RUN_NAME = re.compile(r"\d{8}t\d{6}z-[^/]*\.json", re.IGNORECASE)
_SAFE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,78}[a-z0-9])?")
_RESERVED = frozenset({"con", "prn", "aux", "nul"})
_UNKNOWN_KEY = "unknown"


class NewerSchemaError(MisuseError):
    """The file was written by a later gpubench; it is whole, and must not be set aside."""


class StoredRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Every readable run of a results folder, oldest first, and a line for each file that is not."""

    runs: tuple[Run, ...]
    problems: tuple[str, ...] = ()


# --- where ---------------------------------------------------------------------------------------------


def results_root(option: Path | None = None) -> Path:
    """Where runs live: the option, $GPUBENCH_RESULTS, ./results where it exists, the user's data folder."""
    return default_results() if option is None else option


def run_path(root: Path, run: Run) -> Path:
    """Path of a run's file; a key or id that is no plain file name is refused or replaced.

    Raises:
        MisuseError: If the run id holds anything but small letters, digits, dots and dashes.
    """
    return root / "runs" / folder_name(run) / f"{_check_id(run)}.json"


def _check_id(run: Run, where: str = "") -> str:
    run_id = run.run_id.casefold()
    if not is_safe_name(run_id):
        raise MisuseError(
            f"{where}run id {plain(run.run_id)!r} is no plain file name: the file is not gpubench's"
        )
    return run_id


def folder_name(run: Run) -> str:
    """Folder of a run's device: its GPU key, ``cpu`` for a CPU, ``unknown`` where it has no safe key."""
    key = "cpu" if run.device.backend == "cpu" else (run.device.gpu_key or _UNKNOWN_KEY)
    return key if is_safe_name(key) else _UNKNOWN_KEY


def is_safe_name(name: str) -> bool:
    """Whether a name may become a file name on every system: an allow-list, not a list of dangers."""
    return (
        bool(_SAFE_NAME.fullmatch(name))
        and ".." not in name
        and name.split(".", maxsplit=1)[0] not in _RESERVED
    )


# --- writing --------------------------------------------------------------------------------------------


def check_writable(root: Path) -> None:
    """Prove before any time is spent that a result can be stored under ``root``.

    Raises:
        StorageError: If the folder cannot be made or written.
    """
    try:
        (root / "runs").mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root / "runs", prefix=".writable-") as probe:
            probe.write(b"gpubench")
            probe.flush()
    except OSError as error:
        raise StorageError(
            f"cannot write results to {root}: {_cause(error)}; make it writable or pass --results DIR"
        ) from error


def write_run(root: Path, run: Run) -> Path:
    """Store a run, replacing its earlier state whole: a reader sees the old file or the new one.

    Returns:
        The path of the file.

    Raises:
        StorageError: If it cannot be written; the old file is then untouched.
    """
    path = run_path(root, run)
    data = msgspec.json.encode(run) + b"\n"
    if len(data) > MAX_FILE_BYTES:
        raise StorageError(
            f"the run takes {format_bytes(len(data))}, over the limit of {format_bytes(MAX_FILE_BYTES)}; "
            "measure fewer cases in one run"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {_cause(error)}; free some space or pass --results DIR"
        ) from error
    return path


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file whole: whoever reads it sees the old one or the new one, whatever happens meanwhile.

    Raises:
        OSError: If it cannot be written; the old file is then untouched.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the file system offers that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- reading --------------------------------------------------------------------------------------------


def read_run(path: Path) -> Run:
    """Read one run and check every rule that a stored record must hold.

    Raises:
        MisuseError: If the file is missing, too large, a link, no JSON, no run, or contradicts itself;
            ``NewerSchemaError`` where a later gpubench wrote it.
    """
    data = _read_bytes(path)
    version = _schema_version(path, data)
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path.name} has schema {version}, this gpubench reads up to {SCHEMA_VERSION}: upgrade gpubench"
        )
    try:
        run = msgspec.json.decode(upgrade(data, version), type=Run)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MisuseError(f"{path.name} is no gpubench run: {plain(str(error))}") from error
    _check_id(run, f"{path.name}: ")
    if broken := broken_rule(run):
        raise MisuseError(f"{path.name} contradicts itself: {broken}")
    return run


def upgrade(data: bytes, version: int) -> bytes:
    """Bring an older file to the current schema, one step a version. Version 1 is the first."""
    if version < 1:
        raise MisuseError(f"schema version {version} never existed: the file is not gpubench's")
    return data


def read_runs(root: Path) -> StoredRuns:
    """Read every run of a folder; a broken file is set aside as ``.corrupt`` and the others are read.

    ``./results`` may be a folder of another project, so only a file that bears the name of a run is ever
    renamed, and without a folder ``runs`` no other file is read.
    """
    runs, problems = [], []
    own = (root / "runs").is_dir()
    for path in _run_files(root):
        if not own and not _is_run_name(path.name):
            continue
        try:
            runs.append(read_run(path))
        except NewerSchemaError as error:
            problems.append(str(error))
        except MisuseError as error:
            problems.append(f"{error}{_set_aside(path)}")
    return StoredRuns(runs=_oldest_first(runs), problems=tuple(problems))


@cache
def reference_runs() -> tuple[Run, ...]:
    """Return the runs that the package ships, for cards that a user does not own."""
    with as_file(files("gpubench").joinpath("data/reference")) as folder:
        return _oldest_first(read_run(path) for path in sorted(folder.glob("*.json")))


def add_runs(root: Path, sources: Iterable[Path]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Take in runs of other machines: files, or folders searched for them.

    Returns:
        The paths written, and a line for each file that was refused.
    """
    written, refused = [], []
    for source in sources:
        if not source.exists():
            raise MisuseError(f"{source} does not exist")
        for path in _run_files(source) if source.is_dir() else (source,):
            try:
                run = read_run(path)
                if broken := beyond_belief(run):
                    refused.append(f"{path.name} cannot be true: {broken}")
                    continue
                written.append(write_run(root, run))
            except StorageError:
                raise
            except GpuBenchError as error:
                refused.append(str(error))
    return tuple(written), tuple(refused)


def find_run(root: Path, name: str) -> Path:
    """Find a run by path, by id, or ``latest``.

    Raises:
        MisuseError: If there is none, or an abbreviated id fits several.
    """
    if Path(name).is_file():
        return Path(name)
    paths = sorted(_run_files(root), key=lambda path: path.stem)
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
    return _RUN_NAME.fullmatch(name) is not None


def _run_files(root: Path) -> Iterator[Path]:
    """Every run file of a results folder or of any folder of runs; links are not followed."""
    top = root / "runs" if (root / "runs").is_dir() else root
    for folder, names, paths in os.walk(top, followlinks=False):
        names.sort()
        for name in sorted(paths):
            if name.endswith(".json") and not name.startswith("."):
                yield Path(folder) / name


def _read_bytes(path: Path) -> bytes:
    """Read a regular file of bounded size without following a link at its end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise MisuseError(f"{path.name} is no regular file")
            if facts.st_size > MAX_FILE_BYTES:
                raise MisuseError(
                    f"{path.name} takes {format_bytes(facts.st_size)}, over the limit of "
                    f"{format_bytes(MAX_FILE_BYTES)} for one run"
                )
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        link = " (a symbolic link, which is not followed)" if path.is_symlink() else ""
        raise MisuseError(f"cannot read {path}: {_cause(error)}{link}") from error


class _Head(msgspec.Struct):
    schema_version: int


def _schema_version(path: Path, data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=_Head).schema_version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MisuseError(f"{path.name} is no gpubench run: {plain(str(error))}") from error


def _set_aside(path: Path) -> str:
    """Rename a broken run so that it is kept but not read again; say what was done."""
    if path.is_symlink() or not path.is_file() or not _is_run_name(path.name):
        return ""
    aside = path.with_name(path.name + ".corrupt")
    try:
        path.rename(aside)
    except OSError:
        return "; skipped"
    return f"; set aside as {aside.name}"


def _oldest_first(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=lambda run: (run.started_at, run.run_id)))


def _cause(error: OSError) -> str:
    return error.strerror or type(error).__name__
