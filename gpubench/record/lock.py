"""One writer for each run: a lock that ends with its process, in a file that says whose it is.

The lock is the kernel's (``flock``), so none outlives a crash. What stands in the file is for the message and
for what the kernel cannot know: a writer on another host of a shared file system that passes no locks on, and
any writer on a file system that has none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from gpubench.errors import StorageError
from gpubench.files import NOT_JSON, kind_of
from gpubench.probe.system import read_text
from gpubench.units import Seconds, plain, utc_stamp

if sys.platform != "win32":
    import fcntl

PATIENCE_S: Seconds = 2.0
"""Taking in a run, or setting a broken one aside, holds its lock for milliseconds; measuring, for minutes."""
LOOK_EVERY_S: Seconds = 0.05
CLOCK_TOLERANCE_S: Seconds = 5.0
"""A process's start is derived from the boot time, which shifts a little when the clock is set."""
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "afs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs"}
)
"""Whether such a lock reaches other hosts is a matter of how each of them has mounted it."""
NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK})
_HOLDER_BYTES = 4096
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class RunLockedError(StorageError):
    """Another process writes this run."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes a run, as the lock file says it.

    Attributes:
        boot_id: Of the kernel, which several containers with names of their own may share.
        process_started_s: When the process began, in Unix time; a PID alone is given out again [s].
        since: When it took the lock, in UTC.
    """

    pid: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    host: str
    boot_id: str | None = None
    process_started_s: float | None = None
    since: str


class RunLock(msgspec.Struct, frozen=True, kw_only=True):
    """Proof that this process holds the lock of a run; ``remark`` says what it cannot guard against."""

    path: Path
    remark: str | None = None


def lock_path(folder: Path, run_id: str) -> Path:
    """Return the lock file of a run, the same one whatever device folder the run lies in."""
    return folder / f".{run_id}.lock"


@contextmanager
def hold(folder: Path, run_id: str, *, patience_s: Seconds = PATIENCE_S) -> Iterator[RunLock]:
    """Hold the lock of a run.

    Args:
        folder: Where the device folders lie; it must exist.
        run_id: A plain file name.
        patience_s: How long to wait for another holder.

    Raises:
        RunLockedError: If another process, or another thread of this one, holds it. The message says who.
        StorageError: If the lock file cannot be written.
    """
    path = lock_path(folder, run_id)
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            descriptor, remark = _acquire(path, run_id)
            break
        except RunLockedError:
            if time.monotonic() >= deadline_s:
                raise
        except OSError as error:
            raise StorageError(f"cannot lock run {run_id}: {path}: {error.strerror}") from error
        time.sleep(LOOK_EVERY_S)
    try:
        yield RunLock(path=path, remark=remark)
    finally:
        with contextlib.suppress(OSError):
            if _is_at(path, descriptor):
                path.unlink()  # before the lock is let go, so that no one can lock it in between
        with contextlib.suppress(OSError):
            os.close(descriptor)


def refuse_if_held(folder: Path, run_id: str) -> None:
    """Refuse early, by what the lock file says, what ``hold`` would refuse later; takes no lock.

    Raises:
        RunLockedError: If the lock file names a living process, or one of another host.
        StorageError: If something else bears its name.
    """
    path = lock_path(folder, run_id)
    try:
        holder = holder_of(path)
    except OSError:
        return
    if holder is not None and (_is_elsewhere(holder, by_kernel=True) or _is_alive(holder)):
        raise RunLockedError(_refusal(run_id, holder, path))


def holder_of(path: Path) -> Holder | None:
    """Return who is named in a lock file; None where it says nothing.

    Raises:
        StorageError: If it is not a regular file.
        OSError: If it cannot be opened or read.
    """
    descriptor = _open(path, os.O_RDONLY)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _acquire(path: Path, run_id: str) -> tuple[int, str | None]:
    """Open and lock the file; a holder that went meanwhile has taken the file along, so look again."""
    while True:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            by_kernel = _lock(descriptor, path, run_id)
            if _is_at(path, descriptor):
                return descriptor, _sign(descriptor, path, run_id, by_kernel=by_kernel)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _sign(descriptor: int, path: Path, run_id: str, *, by_kernel: bool) -> str | None:
    """Write this process's name into the file, unless it bears that of a holder whom the kernel cannot see.

    Returns:
        A remark where the file is all there is.
    """
    holder = _read(descriptor)
    if holder is not None and (
        _is_elsewhere(holder, by_kernel=by_kernel) or (not by_kernel and _is_alive(holder))
    ):
        raise RunLockedError(_refusal(run_id, holder, path))
    mine = msgspec.json.encode(_this_process()) + b"\n"
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, mine)
    if by_kernel:
        return _on_network(path.parent)
    time.sleep(LOOK_EVERY_S)  # of those who wrote at the same moment, all but the last see it now
    last = _read(descriptor)
    if last is not None and last.pid != os.getpid():
        raise RunLockedError(_refusal(run_id, last, path))
    return f"{path.parent} keeps no file locks: only {path.name} tells other writers of this run"


def _on_network(folder: Path) -> str | None:
    """Say that a folder is on a network file system; the name in the lock file is then what others heed."""
    import psutil

    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    kind = file_system_of(folder.resolve(), mounts)
    if kind not in NETWORK_FILE_SYSTEMS:
        return None
    return f"{folder} is on a network file system ({kind}): do not write one run from two hosts at once"


def file_system_of(folder: Path, mounts: Mapping[str, str]) -> str | None:
    """Return the type of the file system that a folder lies on.

    Args:
        folder: Absolute, without links.
        mounts: Type by mount point.

    >>> file_system_of(Path("/home/ann/results"), {"/": "ext4", "/home": "nfs4", "/home/annex": "xfs"})
    'nfs4'
    """
    points = (str(place) for place in (folder, *folder.parents))
    return next((mounts[point] for point in points if point in mounts), None)


def _open(path: Path, flags: int) -> int:
    """Open a lock file, waiting for nobody.

    Raises:
        StorageError: If it is not a regular file.
        OSError: If it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | _FLAGS, 0o644)
    except OSError:
        with contextlib.suppress(
            OSError
        ):  # where nothing lies there, what kept it from being made is the cause
            _require_regular(path, path.lstat())  # a link, or a socket
        raise
    try:
        _require_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise StorageError(f"cannot lock run {path.stem[1:]}: {path} is {kind_of(facts)}: remove it")


def _lock(descriptor: int, path: Path, run_id: str) -> bool:
    """Take the kernel's lock; False where the file system, or the platform, has none."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunLockedError(_refusal(run_id, _read(descriptor), path)) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _read(descriptor: int) -> Holder | None:
    """Return who is named in the file; None where it is empty or was cut off while it was written."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        return msgspec.json.decode(os.read(descriptor, _HOLDER_BYTES), type=Holder)
    except NOT_JSON:
        return None


def _this_process() -> Holder:
    import psutil

    return Holder(
        pid=os.getpid(),
        host=platform.node(),
        boot_id=_boot_id(),
        process_started_s=psutil.Process().create_time(),
        since=utc_stamp(),
    )


def _boot_id() -> str | None:
    return read_text(Path("/proc/sys/kernel/random/boot_id")) or None


def _is_elsewhere(holder: Holder, *, by_kernel: bool) -> bool:
    """Whether the holder may live where neither this kernel's locks nor its list of processes reach."""
    if holder.host == platform.node():
        return False
    same_kernel = holder.boot_id is not None and holder.boot_id == _boot_id()
    return not (by_kernel and same_kernel)


def _is_alive(holder: Holder) -> bool:
    """Whether the process is still there, and is the one that took the lock."""
    import psutil

    try:
        process = psutil.Process(holder.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        started_s = process.create_time()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    then_s = holder.process_started_s
    return then_s is None or abs(started_s - then_s) <= CLOCK_TOLERANCE_S


def _refusal(run_id: str, holder: Holder | None, path: Path) -> str:
    """Say who holds the lock since when, and what to do."""
    if holder is None:
        return f"run {run_id} is being written by another process: wait until it ends"
    since = plain(holder.since, 40)
    who = f"run {run_id} is being written by process {holder.pid} on {{}} since {since}"
    if holder.host != platform.node():
        host = f"host {plain(holder.host, 80)}"
        return f"{who.format(host)}: wait until it ends; if it is gone, delete {path}"
    if not _is_alive(holder):
        return (
            f"run {run_id} is held by a process that process {holder.pid}, which took it at {since} and has "
            f"ended, left behind: end it (it keeps {path} open)"
        )
    return f"{who.format('this host')}: wait until it ends, or end it"
