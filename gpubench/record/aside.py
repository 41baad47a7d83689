"""Setting a broken file aside: kept under a name that overwrites nothing, and not read again."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from gpubench.errors import StorageError
from gpubench.files import create_file
from gpubench.record import lock
from gpubench.units import Seconds, format_duration

SETTLED_S: Seconds = 10.0
"""A file that was written more recently may be the first half of one that is being copied here."""


def set_aside(folder: Path, path: Path, is_bad: Callable[[Path], bool]) -> str:
    """Rename a run of bad content to ``NAME.corrupt``, or ``NAME.2.corrupt`` and so on; say what was done.

    Under the run's lock, and after another look: what is renamed is what was found bad.

    Args:
        folder: Where the locks lie.
        path: Named as runs are.
        is_bad: Whether the content of a file, read whole, is proven bad.

    Returns:
        The end of a sentence about the file.
    """
    try:
        if time.time() - path.lstat().st_mtime < SETTLED_S:
            return f"; left in place, because it was written in the last {format_duration(SETTLED_S)}"
        with lock.hold(folder, path.stem.casefold(), patience_s=0):
            if not is_bad(path):
                return "; left in place, because it has just been replaced"
            aside = _move_aside(path)
    except StorageError as error:
        return f"; left in place: {error}"
    except OSError as error:
        return f"; left in place, because it cannot be renamed: {error.strerror}"
    return f"; set aside as {aside.name}"


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


def _move_aside(path: Path) -> Path:
    """Rename a file of bad content over an empty one, so that no earlier one is lost; return its new name."""
    aside = new_aside(path)
    try:
        return path.replace(aside)
    except OSError:
        aside.unlink()
        raise
