"""Runs third-party code, the user's or a library's, reports its errors, and finds its files."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpubench.errors import MisuseError
from gpubench.files import read_bytes
from gpubench.units import KIB, MIB

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MOST_SOURCE_BYTES = 64 * MIB
OWN_PREFIX = "gpubench_own_"
"""Prefix of the module name of a user's file, so that the module hides no other one."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it
# Shared memory with less free space counts as full; a lock takes one page.
LEAST_SHARED_BYTES = 64 * KIB
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LONGEST_ERROR = 300
TOO_LARGE = "(seen on torch's meta device: there is not enough memory here to build it on the CPU)"
ON_THE_CPU = "build on the CPU, because gpubench moves the model itself"
# What to do about an error, by a part of its message. Without a driver, a CUDA build says only "NVIDIA".
_HINTS = {
    "cuda": ON_THE_CPU,
    "nvidia": ON_THE_CPU,
    "relative import": "name a file of a package as a module, package.module:build",
}
# The exit code of a parser of command lines, and what to do about it
_WRONG_ARGUMENTS = 2
_NO_ARGUMENTS = "; it is run without command-line arguments: give each of them a default"
_NO_MEMORY = (
    "can't allocate memory",  # torch on a CPU
    "out of memory",  # torch's allocators, and the CUDA runtime below them
    "ALLOC_FAILED",  # cuBLAS, and cuDNN up to 8
    "ALLOCATION_FAILED",  # cuDNN 9
    "unable to find an engine to execute",  # torch, when cuDNN had no memory for any of its algorithms
    "Unable to find a valid cuDNN algorithm",  # the same in older releases
)


def import_foreign(what: str, load: Callable[[], Any]) -> Any:
    """Run third-party code; any error becomes one line, with the cause chained.

    A script that parses its command line sees an empty one instead of ours.

    Raises:
        MisuseError: If the code raised anything, or called ``sys.exit``.
    """
    ours, sys.argv = sys.argv, [what]
    try:
        return load()
    except MisuseError:
        raise
    except SystemExit as error:
        hint = _NO_ARGUMENTS if error.code == _WRONG_ARGUMENTS else ""
        raise MisuseError(f"{what}: {one_line(error)} while it is loaded or built{hint}") from error
    except Exception as error:  # third-party code may raise anything; the cause is chained
        hint = next((f"; {do}" for sign, do in _HINTS.items() if sign in str(error).lower()), "")
        raise MisuseError(f"{what}: {one_line(error)}{hint}") from error
    finally:
        sys.argv = ours


def load_plugin(kind: str, point: EntryPoint) -> Any:
    """Load a plug-in of another package; any error becomes one line that names the package.

    Args:
        kind: The kind of plug-in in words: "workload", "price source".
        point: The entry point of the plug-in.

    Raises:
        MisuseError: If the plug-in cannot be loaded.
    """
    package = "" if point.dist is None else f" of the package {point.dist.name}"
    return import_foreign(f"the {kind} {point.name}{package} ({point.value})", point.load)


def one_line(error: BaseException) -> str:
    """Return an exception in one line: its type, its message, and the line of the user's code that raised it.

    An error from gpubench itself keeps its message.
    """
    if isinstance(error, MisuseError):
        return str(error) if error.__cause__ is None else one_line(error.__cause__)
    if isinstance(error, SyntaxError):
        if error.lineno is None or "codec can't decode" in error.msg:
            return f"its source is not text in UTF-8 ({error.msg})"
        return f"syntax error in line {error.lineno} of {Path(error.filename or '?').name}: {error.msg}"
    if isinstance(error, ValueError) and "null bytes" in str(error):  # a SyntaxError from Python 3.11.4 on
        return f"its source is not text in UTF-8 ({error})"
    if isinstance(error, SystemExit):
        text = f"calls sys.exit({error.code!r})"
    else:
        text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    if shared_memory_problem := _of_shared_memory(error):
        text = f"{text}: {SHARED_MEMORY} {shared_memory_problem}"
    text = text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 1] + "…"
    return with_line(text, error)


def _of_shared_memory(error: BaseException) -> str | None:
    """Return the shared-memory problem behind an error in a model's workers; None for any other cause.

    Python's own error messages do not mention shared memory.
    """
    is_named = "shared memory" in str(error)
    names_no_file = getattr(error, "filename", "") is None  # the OSError of a lock has no file name
    if not (is_named or names_no_file) or not SHARED_MEMORY.is_dir():
        return None
    if not os.access(SHARED_MEMORY, os.W_OK):
        return "cannot be written"
    is_full = is_named or shutil.disk_usage(SHARED_MEMORY).free < LEAST_SHARED_BYTES
    return "is full" if is_full and "No space left" in str(error) else None


def own_line(error: BaseException) -> str | None:
    """Return the last line of the user's code in a traceback, as ``net.py line 12``.

    None if the traceback has only library code.
    """
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.suffix == ".py" and not _of_a_library(path, path.anchor):
            found = f"{path.name} line {line}"
    return found


def with_line(words: str, error: BaseException) -> str:
    """Return the words, followed by the last line of the user's code in the traceback, if any."""
    return f"{words} ({place})" if (place := own_line(error)) else words


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error or its cause means that the host or the device ran out of memory."""
    if error is None:
        return False
    ran_out = isinstance(error, RuntimeError) and says_no_memory(str(error))
    return ran_out or isinstance(error, MemoryError) or lacks_memory(error.__cause__)


def says_no_memory(words: str) -> bool:
    """Return whether an error message of torch, CUDA, cuDNN or cuBLAS means that memory ran out.

    >>> says_no_memory("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
    True
    >>> says_no_memory("CUDA error: invalid argument")
    False
    """
    return any(known in words for known in _NO_MEMORY)


# --- files -----------------------------------------------------------------------------------------------


def root_of(module: str) -> Path:
    """Return the root of an imported module: the folder of its package, or of its file.

    For a single-file module among installed packages, the file itself is returned.
    """
    top = sys.modules[module.partition(".")[0]]
    if folders := list(getattr(top, "__path__", ())):
        return Path(folders[0]).resolve()
    file = Path(str(top.__file__)).resolve()
    return file if file.parent.name in _INSTALLED else file.parent


def source_checksum(root: Path, own: Path | None = None) -> int:
    """Return a checksum of the sources imported so far from a folder, with their relative paths.

    Args:
        root: The folder, or a single file.
        own: The model's file. Files of other models are excluded.
    """
    total = 0
    for path in sorted(imported_below(root, own)):
        source = read_bytes(path, MOST_SOURCE_BYTES, follow_links=True)
        total = zlib.crc32(path.relative_to(root).as_posix().encode() + b"\0" + source, total)
    return total


# torch alone loads thousands of files, and resolving a path follows the links of every folder above it.
_real_path = cache(os.path.realpath)


def imported_below(root: Path, own: Path | None) -> set[Path]:
    """Return the files of imported modules in a folder, excluding libraries inside it."""
    loaded = {
        _real_path(module.__file__)
        for name, module in list(sys.modules.items())
        if isinstance(getattr(module, "__file__", None), str) and not name.startswith(OWN_PREFIX)
    }
    within = f"{str(root).rstrip(os.sep)}{os.sep}"
    below = [Path(file) for file in loaded if f"{file}{os.sep}".startswith(within)]
    found = {path for path in below if path.is_file() and not _of_a_library(path, root)}
    return found if own is None else found | {own}


def _of_a_library(path: Path, root: Path | str) -> bool:
    # Whether a file belongs to Python, this package, or a library installed below ``root``.
    inner = path.relative_to(root).parts if path.is_relative_to(root) else path.parts
    return bool(_INSTALLED.intersection(inner)) or any(map(path.is_relative_to, _library_folders()))


@cache
def _library_folders() -> tuple[Path, ...]:
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return (Path(__file__).resolve().parent, *(Path(folder).resolve() for folder in standard))
