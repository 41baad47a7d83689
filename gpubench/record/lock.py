"""One writer for each run: the kernel's lock on a file beside the device folders; it ends with its process.

Where a file system or a platform has no such lock, whoever made the file holds the run; one that a killed
process left behind is deleted by hand, as the message says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpubench.errors import StorageError
from gpubench.files import kind_of, remove_file
from gpubench.units import Seconds

if sys.platform != "win32":
    import fcntl

PATIENCE_S: Seconds = 2.0
"""Taking in a run, or setting a broken one aside, holds its lock for milliseconds; measuring, for minutes."""
GLANCE_S: Seconds = 0.2
"""Who asks whether a run is free holds its lock for a moment too, and two such must not refuse each other."""
LOOK_EVERY_S: Seconds = 0.05
LEFT_BEHIND_S: Seconds = 24 * 3600.0
"""No process that was killed is missed for so long; a run in between holds its lock."""
NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK})
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class RunLockedError(StorageError):
    """Another process writes this run."""


def lock_path(folder: Path, run_id: str) -> Path:
    """Return the lock file of a run, the same one whatever device folder the run lies in."""
    return folder / f".{run_id}.lock"


@contextmanager
def hold(folder: Path, run_id: str, *, patience_s: Seconds = PATIENCE_S) -> Iterator[None]:
    """Hold the lock of a run.

    Args:
        folder: Where the device folders lie; it must exist.
        run_id: A plain file name.
        patience_s: How long to wait for another holder [s].

    Raises:
        RunLockedError: If another process, or another thread of this one, holds it.
        StorageError: If the lock file cannot be written, or something else bears its name.
    """
    path = lock_path(folder, run_id)
    deadline_s = time.monotonic() + patience_s
    try:
        while (descriptor := _take(path)) is None:
            if time.monotonic() >= deadline_s:
                raise RunLockedError(
                    f"run {run_id} is being written by another process: wait until it ends, or end it; "
                    f"if no process writes it, delete {path}"
                )
            time.sleep(LOOK_EVERY_S)
    except OSError as error:
        raise StorageError(f"cannot lock run {run_id}: {path}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _is_at(path, descriptor):
                path.unlink()  # before the lock is let go, so that no one can lock it in between
        with contextlib.suppress(OSError):
            os.close(descriptor)
        if sys.platform == "win32":  # which removes no open file
            remove_file(path)


def clear_left_behind(folder: Path) -> None:
    """Remove the lock files that killed processes left more than a day ago; one that is held stays.

    A file that cannot be opened, locked or removed stays too: it costs nobody anything.
    """
    for path in folder.glob(".*.lock"):
        with contextlib.suppress(OSError, StorageError):
            if time.time() - path.lstat().st_mtime < LEFT_BEHIND_S:
                continue
            if (descriptor := _take(path)) is None:
                continue
            path.unlink()
            os.close(descriptor)


def _take(path: Path) -> int | None:
    """Make the lock file, or open the one that is there, and lock it; None where another holds the run.

    Raises:
        StorageError: If it is not a regular file.
        OSError: If it cannot be opened or locked.
    """
    try:
        descriptor, is_new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o644), True
    except FileExistsError:
        try:
            if not stat.S_ISREG((facts := path.lstat()).st_mode):
                raise StorageError(f"cannot lock run {path.stem[1:]}: {path} is {kind_of(facts)}: remove it")
            descriptor, is_new = os.open(path, os.O_RDWR | _FLAGS), False
        except FileNotFoundError:  # its holder has just removed it
            return None
    with contextlib.ExitStack() as unless_locked:
        unless_locked.callback(os.close, descriptor)
        if _is_locked(descriptor, is_new=is_new) and _is_at(path, descriptor):
            unless_locked.pop_all()
            return descriptor
    return None


def _is_locked(descriptor: int, *, is_new: bool) -> bool:
    """Whether the kernel has given its lock; without such locks, whether this process has made the file."""
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
