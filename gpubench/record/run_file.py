"""One run, one JSON file. A file of bad content is set aside: kept under a name that overwrites nothing."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from pathlib import Path

import msgspec

from gpubench.errors import MisuseError, StorageError
from gpubench.files import BadContentError, create_file, decode_json, read_bytes
from gpubench.models import RUN_VERSION, Run
from gpubench.record import lock
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


def read_run(path: Path) -> Run:
    """Read one run, and check every rule that a stored record must hold.

    Raises:
        BadContentError: If its content is no JSON, no run, or contradicts itself.
        MisuseError: If it cannot be read now, is too large, a link, or of a later gpubench.
    """
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
    return msgspec.structs.replace(run, schema_version=RUN_VERSION)


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
