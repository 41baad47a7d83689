"""Which Python files are the user's own: the line of theirs that an error came from, and their checksum."""

from __future__ import annotations

import sys
import sysconfig
import traceback
import zlib
from functools import cache
from pathlib import Path

from gpubench.files import read_bytes
from gpubench.units import MIB

MOST_SOURCE_BYTES = 64 * MIB
_INSTALLED = frozenset({"site-packages", "dist-packages"})
OWN_PREFIX = "gpubench_own_"
"""A file of the user's own is imported under this name and its own, so that it stands in nobody's way."""


def own_line(error: BaseException) -> str | None:
    """Return the last line of the user's own code on the way to an error, as ``net.py line 12``.

    None where the error passed through libraries only.
    """
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.suffix == ".py" and not _of_a_library(path, path.anchor):
            found = f"{path.name} line {line}"
    return found


def root_of(module: str) -> Path:
    """Return what belongs to an imported module: the folder of its package, or of its file.

    A lone file among installed packages has no folder of its own, and is returned itself.
    """
    top = sys.modules[module.partition(".")[0]]
    if folders := list(getattr(top, "__path__", ())):
        return Path(folders[0]).resolve()
    file = Path(str(top.__file__)).resolve()
    return file if file.parent.name in _INSTALLED else file.parent


def source_checksum(root: Path, own: Path | None = None) -> int:
    """Checksum of the sources imported so far from below a folder, each with its place in it.

    Args:
        root: The folder, or a single file.
        own: The model's file. Other files that were given as models of their own do not count.
    """
    total = 0
    for path in sorted(imported_below(root, own)):
        source = read_bytes(path, MOST_SOURCE_BYTES, follow_links=True)
        total = zlib.crc32(path.relative_to(root).as_posix().encode() + b"\0" + source, total)
    return total


def imported_below(root: Path, own: Path | None) -> set[Path]:
    """Return the files of imported modules that lie below a folder and belong to no library inside it."""
    found = set() if own is None else {own}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.startswith(OWN_PREFIX):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(root) and path.is_file() and not _of_a_library(path, root):
            found.add(path)
    return found


def _of_a_library(path: Path, root: Path | str) -> bool:
    """Whether a file is Python's, this package's, or installed below ``root``, where a venv may be."""
    inner = path.relative_to(root).parts if path.is_relative_to(root) else path.parts
    return bool(_INSTALLED.intersection(inner)) or any(path.is_relative_to(folder) for folder in _folders())


@cache
def _folders() -> tuple[Path, ...]:
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return (Path(__file__).resolve().parent, *(Path(folder).resolve() for folder in standard))
