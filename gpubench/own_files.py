"""Files of a model of the user's own: which Python files are theirs, their checksum, and what a config says.

A Hugging Face ``config.json`` is read as it stands, without torch and transformers: in no time.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import NOT_JSON, read_bytes
from gpubench.units import MIB, plain

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


MOST_CONFIG_BYTES = 4 * MIB
CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")
"""Under which of them a model says for how many tokens it was made, the first that is there."""


def read_config(path: Path, name: str) -> dict[str, Any]:
    """Read what a config says.

    Raises:
        MisuseError: One line: there is no such file, or it describes no model, or one that cannot be.
    """
    if not path.exists():
        where = plain(str(path), 300)
        raise MisuseError(f"{name}: there is no {where}: give a model's config.json, or its folder")
    try:
        fields = msgspec.json.decode(read_bytes(path, MOST_CONFIG_BYTES, follow_links=True))
    except NOT_JSON as error:
        said = f"{type(error).__name__}: {error}"
        raise MisuseError(f"{name}: {plain(path.name)} is no JSON: {plain(said, 200)}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise MisuseError(f'{name}: {plain(path.name)} has no "model_type": it is not the config of a model')
    heads, shared = (_number(_of_text(fields), f"num_{which}_heads") for which in ("attention", "key_value"))
    if heads is not None and shared is not None and heads % shared:
        raise MisuseError(f"{name}: {heads} attention heads cannot share {shared} key-value heads alike")
    return fields


def stated_context(fields: Mapping[str, Any]) -> int | None:
    """Return the most tokens that the model was made for, where the file itself says it."""
    said = (_number(_of_text(fields), key) for key in CONTEXT_NAMES)
    return next((value for value in said if value is not None), None)


def check_context(name: str, tokens: int, context: int | None) -> None:
    """Refuse sequences that the model was not made for.

    Raises:
        MisuseError: With both numbers.
    """
    if context is not None and tokens > context:
        raise MisuseError(
            f"{name}: sequences of {tokens:,} tokens: the context of the model is {context:,} tokens"
        )


def _of_text(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes what reads the tokens."""
    inner = fields.get("text_config")
    return inner if isinstance(inner, dict) else fields


def _number(fields: Mapping[str, Any], key: str) -> int | None:
    """A number above 0; None of anything else, of which transformers knows more."""
    value = fields.get(key)
    return value if type(value) is int and value > 0 else None
