"""What is stored of one run: its JSON file, and beside it the ledger of launches that the file may lack.

Whoever reads or replaces a run asks here, in small stores and large ones alike: whether the two make a run,
which run, its head, and by which facts a copy of that head is told to be as new as they are. A file of bad
content is set aside: kept under a name that overwrites nothing, and not read again.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from pathlib import Path

import msgspec

from gpubench.errors import MisuseError, StorageError
from gpubench.files import BadContentError, create_file, decode_json, is_there, read_bytes
from gpubench.models import SCHEMA_VERSION, Run
from gpubench.record import ledger, lock
from gpubench.record.heads import Facts, Head, head_of, head_of_run
from gpubench.record.rules import broken_rule, refuse_later
from gpubench.units import MIB, Seconds, format_duration, plain

MAX_FILE_BYTES = 64 * MIB
"""A run of 5 launches and 27 cases with 100 s of telemetry each takes 27 MiB; twice that is no run."""

SETTLED_S: Seconds = 10.0
"""A file that was written more recently may be the first half of one that is being copied here."""

_SAFE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,78}[a-z0-9])?")
_RESERVED = frozenset({"con", "prn", "aux", "nul"})


class _Version(msgspec.Struct):
    schema_version: int


def is_safe_name(name: str) -> bool:
    """Whether a name may become a file name on every system: an allow-list, not a list of dangers."""
    return (
        bool(_SAFE_NAME.fullmatch(name))
        and ".." not in name
        and name.split(".", maxsplit=1)[0] not in _RESERVED
    )


def files_of(path: Path) -> tuple[Path, ...]:
    """Return which are there of a run's JSON file, ``path``, and its ledger.

    Raises:
        MisuseError: If that cannot be told.
    """
    return tuple(filter(is_there, (path, ledger.ledger_path(path))))


def facts_of(path: Path) -> Facts | None:
    """Return size, times and number of a run's file and its ledger; None where that cannot be told."""
    try:
        facts = (_facts(path), _facts(ledger.ledger_path(path)))
    except OSError:
        return None
    return None if facts == (None, None) else facts


def _facts(path: Path) -> tuple[int, int, int, int] | None:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return None
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def read_run(path: Path) -> Run:
    """Read one run, with what its ledger has besides, and check every rule that a stored record must hold.

    Args:
        path: Its JSON file, which need not be there where its ledger is.

    Raises:
        BadContentError: If its content is no JSON, no run, or contradicts itself, and no ledger replaces it.
        MisuseError: If it cannot be read now, is too large, a link, or of a later gpubench.
    """
    return stored_run(path)[0]


def stored_run(path: Path) -> tuple[Run, bool]:
    """Return the run, and whether its file is bad and only its ledger tells it; errors as ``read_run``."""
    lines = ledger.read(path)  # first: whoever finishes the run replaces the file, then removes the ledger
    name = ledger.ledger_path(path).name
    there = files_of(path)
    if not lines and there in {(), (path,)}:
        return _read_file(path), False
    run, bad = None, None
    if path in there:
        try:
            run = _read_file(path)
        except BadContentError as error:
            bad = error
    told = ledger.told(lines, run)
    if told is None:
        raise bad or MisuseError(
            f"{name} does not say how its run began, and {path.name} is missing: move it away"
        )
    if run is None:
        try:
            return _checked(told, path.with_name(name)), bad is not None
        except BadContentError as error:
            raise bad or MisuseError(f"{error}; move it away") from error
    ledger.refuse_other(run, told, path)
    whole = ledger.merged(run, told)
    if whole.measurements != run.measurements and (broken := broken_rule(whole)):
        raise MisuseError(f"{name} contradicts {path.name}: {broken}; move it away")
    return whole, False


def read_head(path: Path) -> Head:
    """Return the head of a run; errors as ``read_run``, but a rule may be broken where no ledger is."""
    if is_there(ledger.ledger_path(path)):
        return head_of_run(read_run(path), path)
    head, version = head_of(read_bytes(path, MAX_FILE_BYTES), path)
    refuse_later(version, plain(path.name, 300))
    return head


def _read_file(path: Path) -> Run:
    data = read_bytes(path, MAX_FILE_BYTES)
    version = decode_json(data, _Version, path, what="a gpubench run").schema_version
    refuse_later(version, plain(path.name, 300))
    return _checked(decode_json(data, Run, path, what="a gpubench run"), path)


def _checked(run: Run, path: Path) -> Run:
    run = upgraded(run, path)
    if not is_safe_name(run.run_id.casefold()):
        raise BadContentError(f"{path.name}: run id {plain(run.run_id)!r} is not a plain file name")
    if broken := broken_rule(run):
        raise BadContentError(f"{path.name} contradicts itself: {broken}")
    return run


def upgraded(run: Run, path: Path) -> Run:
    """Bring a run to the current schema. A case of version 1 is one of version 2 at its defaults."""
    if run.schema_version < 1:
        raise BadContentError(
            f"{path.name}: schema version {run.schema_version} never existed: the file is not gpubench's"
        )
    return msgspec.structs.replace(run, schema_version=SCHEMA_VERSION)


# --- bad content -----------------------------------------------------------------------------------------


def set_aside(folder: Path, path: Path) -> str:
    """Rename a run of bad content to ``NAME.corrupt``, or ``NAME.2.corrupt`` and so on; say what was done.

    Under the run's lock, and after another look: what is renamed is what was found bad.

    Args:
        folder: Where the locks lie.
        path: Named as runs are.

    Returns:
        The end of a sentence about the file.
    """
    try:
        if time.time() - path.lstat().st_mtime < SETTLED_S:
            return f"; left in place, because it was written in the last {format_duration(SETTLED_S)}"
        with lock.hold(folder, path.stem.casefold(), patience_s=0):
            if not _is_bad(path):
                return "; left in place, because it has just been replaced"
            aside = new_aside(path)  # an empty file to rename over, so that no earlier one is lost
            try:
                path.replace(aside)
            except OSError:
                aside.unlink()
                raise
    except StorageError as error:
        return f"; left in place: {error}"
    except OSError as error:
        return f"; left in place, because it cannot be renamed: {error.strerror}"
    return f"; set aside as {aside.name}"


def _is_bad(path: Path) -> bool:
    """Whether the content of a file, read whole, is proven bad."""
    try:
        read_run(path)
    except BadContentError:
        return True
    except MisuseError:
        pass
    return False


def new_aside(path: Path, content: bytes = b"") -> Path:
    """Write a new file under the first free one of the names that a bad file is set aside under.

    Raises:
        OSError: If it cannot be written.
    """
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}{'' if number == 1 else f'.{number}'}.corrupt")
        with contextlib.suppress(FileExistsError):
            create_file(aside, content)
            break
    return aside
