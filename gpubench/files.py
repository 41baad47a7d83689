"""All file access of the package.

Reading: a regular file of limited size is read completely. Its kind is checked before it is opened, so no
    pipe blocks a command and no device is opened. Links are followed only for a file that the user names
    (``follow_links``), not for a file found in a folder.

Writing: a new file with an unpredictable name in the same folder is renamed over the old one. A reader sees
    the old or the new file, and a planted link is replaced, not followed. A pipe, a character device or an
    inherited descriptor (``/dev/stdout``) is written directly.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from gpubench.errors import MisuseError, StorageError
from gpubench.units import MIB, Bytes, Seconds, format_bytes, plain

TABLE_BYTES = 64 * MIB
"""Limit for a table of prices or measurements: about 500,000 rows."""

ABANDONED_AFTER_S: Seconds = 600.0
"""A partial file older than this is treated as abandoned: its process was presumably killed."""

NOT_JSON = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""The errors that decoding JSON may raise for any input."""

_T = TypeVar("_T")
_PARTIAL = re.compile(r"\.gpubench-[0-9a-f]{16}\.tmp")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_DESCRIPTOR = re.compile(r"/dev/std(out|err)|(?:/dev/fd|/proc/self/fd)/(\d{1,4})")
_KINDS = {
    stat.S_IFLNK: "a link, which is not followed",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class BadContentError(MisuseError):
    """A file was read completely, and its content is invalid.

    Other errors do not mean that the file is broken: it may be unreadable, or written by a newer gpubench.
    """


# --- reading ----------------------------------------------------------------------------------------------


def is_there(path: Path) -> bool:
    """Return whether a path exists, even as a broken link.

    A name that is too long for the file system does not exist.

    Raises:
        MisuseError: If the file system reports any other error.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return False
        raise MisuseError(f"cannot look for {_shown(path)}: {cause_of(error)}") from error
    return True


def read_bytes(path: Path, most_bytes: Bytes, *, follow_links: bool = False) -> bytes:
    """Read a regular file completely.

    Raises:
        MisuseError: If it is missing, unreadable, not a regular file, over ``most_bytes``, or changed during
            the read.
    """
    try:
        _require_regular(path, path.stat(follow_symlinks=follow_links), most_bytes)
        descriptor = os.open(path, os.O_RDONLY | _OPEN | _NO_WAIT | (0 if follow_links else _NO_LINK))
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            _require_regular(path, facts, most_bytes)
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # a name with a NUL byte raises ValueError
        raise MisuseError(f"cannot read {_shown(path)}: {cause_of(error)}") from error
    if len(data) != facts.st_size:
        raise MisuseError(f"{_name(path)} changed while it was being read: try again")
    return data


def read_text(path: Path, most_bytes: Bytes, *, follow_links: bool = False) -> str:
    """Read a file of UTF-8 text, with or without a byte order mark.

    Raises:
        BadContentError: If it is not UTF-8 text.
        MisuseError: As in ``read_bytes``.
    """
    return decode_text(read_bytes(path, most_bytes, follow_links=follow_links), path)


def decode_text(data: bytes, path: Path) -> str:
    """Decode UTF-8 text from a file; errors as in ``read_text``."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadContentError(
            f"{_name(path)} is not UTF-8 text (byte {error.start:,}): save it as UTF-8"
        ) from error


def read_json(
    path: Path, shape: type[_T], most_bytes: Bytes, *, what: str, hint: str = "", follow_links: bool = False
) -> _T:
    """Read a JSON file of a given shape; errors as in ``read_bytes`` and ``decode_json``."""
    data = read_bytes(path, most_bytes, follow_links=follow_links)
    return decode_json(data, shape, path, what=what, hint=hint)


def decode_json(data: bytes | str, shape: type[_T], path: Path, *, what: str, hint: str = "") -> _T:
    """Decode JSON from a file.

    Args:
        data: The JSON document.
        shape: The type to decode it into.
        path: The document's file, for the message.
        what: What the document should be, such as ``a price snapshot``.
        hint: What to do if it is invalid.

    Raises:
        BadContentError: If the document is not JSON, or does not have that shape.
    """
    try:
        return msgspec.json.decode(data, type=shape)
    except NOT_JSON as error:
        end = f"; {hint}" if hint else ""
        raise BadContentError(f"{_name(path)} is not {what}: {plain(str(error))}{end}") from error


def _require_regular(path: Path, facts: os.stat_result, most_bytes: Bytes) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise MisuseError(f"cannot read {_name(path)}: it is not a regular file, but {kind_of(facts)}")
    if facts.st_size > most_bytes:
        raise MisuseError(
            f"{_name(path)} takes {format_bytes(facts.st_size)}, over the limit of {format_bytes(most_bytes)}"
        )


def kind_of(facts: os.stat_result) -> str:
    """Return the kind of a file that is not regular, such as ``a pipe``."""
    return _KINDS.get(stat.S_IFMT(facts.st_mode), "of another kind")


@contextlib.contextmanager
def many_objects() -> Iterator[None]:
    """Pause the garbage collector while many objects are read.

    All of them stay alive and none is in a reference cycle, so a collection would free nothing. The pause
    cuts the time to read 10,000 runs to a third, and a price table to half.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# --- writing ----------------------------------------------------------------------------------------------


def table_json(value: Any, *, order: Literal["sorted"] | None = None) -> bytes:
    """Encode a table for people to read and compare, with as much on each line as fits."""
    return f"{_laid_out(msgspec.to_builtins(value, order=order), 0)}\n".encode()


_LINE_CHARACTERS = 160


def _laid_out(value: Any, depth: int) -> str:
    line = msgspec.json.format(msgspec.json.encode(value), indent=0).decode()
    if not isinstance(value, dict | list | tuple) or depth + len(line) <= _LINE_CHARACTERS:
        return line
    if isinstance(value, dict):
        rows = [f'"{key}": {_laid_out(each, depth + 1)}' for key, each in value.items()]
    else:
        rows = [_laid_out(each, depth + 1) for each in value]
    start, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    return line[0] + start + f",{start}".join(rows) + end + line[-1]


def write_file(path: Path, data: bytes, *, mode: int = 0o666, hint: str = "") -> None:
    """Write a file (atomically, if it is a regular one), and create its folder if missing.

    Args:
        path: The file. A regular file keeps its mode, and a link is replaced.
        data: The new content.
        mode: Mode of a new file, reduced by the user's umask.
        hint: What to do if it cannot be written, for the message.

    Raises:
        StorageError: If it cannot be written; an old regular file is then unchanged.
    """
    try:
        descriptor = _open_special(path)
        if descriptor is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, data, mode)
        else:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
    except (OSError, ValueError) as error:
        end = f"; {hint}" if hint else ""
        raise StorageError(f"cannot write {_shown(path)}: {cause_of(error)}{end}") from error


def create_file(path: Path, data: bytes = b"", *, mode: int = 0o666) -> None:
    """Write a new file and flush it to disk; an existing file or link with its name is not changed.

    Raises:
        FileExistsError: If the name is taken.
        OSError: If it cannot be written; the partial file is then removed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN | _NO_LINK, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        remove_file(path)
        raise


def remove_file(path: Path) -> None:
    """Remove a file that is no longer needed; failure is harmless."""
    with contextlib.suppress(OSError):
        path.unlink()


def require_writable(folder: Path, *, hint: str) -> Path:
    """Check that files can be written to a folder, or that it can be created; nothing is left behind.

    Returns:
        The folder, or its nearest existing parent.

    Raises:
        StorageError: If neither is possible.
    """
    try:
        there = folder.absolute()
        nearest = next(place for place in (there, *there.parents) if place.exists())
        probe = _temporary(nearest)
        create_file(probe, b"gpubench")
        probe.unlink()
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot write to {_shown(folder)}: {cause_of(error)}", fix=hint) from error
    return nearest


def cause_of(error: OSError | ValueError) -> str:
    """Return the system's reason without the path, which the surrounding message names."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__


def _open_special(path: Path) -> int | None:
    """Open a special file for writing in place; None for a regular file, a link, or a missing file.

    An inherited descriptor is used directly, although its name is a link: if the shell redirected it to a
    regular file, that file must be neither replaced nor rewritten from offset 0.
    """
    if found := _DESCRIPTOR.fullmatch(path.as_posix()):
        number = {"out": 1, "err": 2}.get(found[1]) or int(found[2])
        return os.dup(number)
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
        return None
    if not (stat.S_ISFIFO(facts.st_mode) or stat.S_ISCHR(facts.st_mode)):
        raise ValueError(f"it is {kind_of(facts)}")
    descriptor = os.open(path, os.O_WRONLY | _OPEN | _NO_LINK | _NO_WAIT)  # ENXIO if nobody reads the pipe
    os.set_blocking(descriptor, True)
    return descriptor


def _replace(path: Path, data: bytes, mode: int) -> None:
    kept = path.lstat().st_mode & 0o777 if path.is_file() and not path.is_symlink() else None
    temporary = _temporary(path.parent)
    create_file(temporary, data, mode=mode if kept is None else kept)
    try:
        if kept is not None and temporary.stat().st_mode & 0o777 != kept:
            temporary.chmod(kept)
        temporary.replace(path)
    except BaseException:
        remove_file(temporary)
        raise
    _sync_folder(path.parent)
    _sweep(path.parent)


def _temporary(folder: Path) -> Path:
    # The name is unpredictable, and readers of results skip names that begin with a dot.
    return folder / f".gpubench-{os.urandom(8).hex()}.tmp"


def _sweep(folder: Path) -> None:
    # Remove partial files that killed processes left in a folder; failure is harmless.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        now_s = time.time()
        for entry in entries:
            if not _PARTIAL.fullmatch(entry.name):
                continue
            if now_s - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_AFTER_S:
                remove_file(Path(entry.path))


def _sync_folder(folder: Path) -> None:
    # Flush the rename to disk, so it survives a power cut, if the file system supports that.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _name(path: Path) -> str:
    # Messages about a file's content may end up in a report for others, so they omit its folder. A path
    # without a name, ``.`` or ``/``, is shown as given.
    return plain(path.name or str(path), 300)


def _shown(path: Path) -> str:
    return plain(str(path), 1000)
