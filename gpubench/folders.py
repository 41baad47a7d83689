"""Locations of files: the tables shipped with the package, and the user's folders.

``GPUBENCH_DATA`` is a folder that replaces ``gpubench/data`` completely, so two sets of tables are never
mixed. It is for tests and for trying out a changed table; child processes inherit it. Set it before gpubench
reads its first table, because tables stay loaded until the process ends. The user's folders also contain the
log of a failed model: the traceback and the end of the output.
"""

from __future__ import annotations

import csv
import os
import traceback
from pathlib import Path
from typing import TypeVar

import msgspec

from gpubench.errors import MisuseError, StorageError
from gpubench.files import TABLE_BYTES, decode_json, decode_text, read_bytes, read_text, write_file
from gpubench.units import plain

FOLDER_VARIABLE = "GPUBENCH_DATA"

_Shape = TypeVar("_Shape")
_T = TypeVar("_T", bound=msgspec.Struct)


def data_path(name: str = "") -> Path:
    """Return the path of a table in the data folder; without a name, of the folder itself."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return (Path(folder) if folder else package_path("data")) / name


def package_path(name: str) -> Path:
    """Return the path of a package file that GPUBENCH_DATA does not replace, such as a template."""
    return Path(__file__).resolve().parent / name


def package_text(name: str) -> str:
    """Return the text of a package file that GPUBENCH_DATA does not replace."""
    return read_text(package_path(name), TABLE_BYTES, follow_links=True)


def data_bytes(name: str) -> bytes:
    """Return the content of a table in the data folder.

    Raises:
        MisuseError: If the table cannot be read, as when $GPUBENCH_DATA names a folder that lacks it.
    """
    try:
        return read_bytes(data_path(name), TABLE_BYTES, follow_links=True)
    except MisuseError as error:
        if not os.environ.get(FOLDER_VARIABLE):
            raise
        raise MisuseError(
            f"{error}; unset {FOLDER_VARIABLE}, or point it to a folder with every table of gpubench/data"
        ) from error


def data_text(name: str) -> str:
    """Return a table in the data folder as text; errors as in ``data_bytes``, or if it is not UTF-8."""
    return decode_text(data_bytes(name), data_path(name))


def data_json(name: str, shape: type[_Shape]) -> _Shape:
    """Return a JSON table in the data folder.

    Raises:
        MisuseError: As in ``data_bytes``, or if the content does not have that shape.
    """
    hint = f"install gpubench again, or unset {FOLDER_VARIABLE} if it is set"
    return decode_json(data_bytes(name), shape, data_path(name), what="a table of this gpubench", hint=hint)


def data_rows(name: str) -> csv.DictReader[str]:
    """Return the rows of a CSV table in the data folder by column; errors as in ``data_bytes``."""
    return csv.DictReader(data_text(name).splitlines(), restval="")


def data_table(name: str, shape: type[_T]) -> list[_T]:
    """Return the rows of a CSV table in the data folder as structs; columns are named after the fields.

    A blank or missing cell is unknown, or an empty tuple; a tuple's items are separated by semicolons.

    Raises:
        MisuseError: As in ``data_bytes``, or if a cell has the wrong type; the message names the line.
    """
    lists = {field.name for field in msgspec.structs.fields(shape) if field.type == tuple[str, ...]}
    reader = data_rows(name)
    found = []
    for row in reader:
        cells: dict[str, object] = {
            field: [item for item in cell.split(";") if item] if field in lists else cell or None
            for field, cell in row.items()
        }
        try:
            found.append(msgspec.convert(cells, shape, strict=False))
        except msgspec.ValidationError as error:
            raise MisuseError(f"{name}, line {reader.line_num}: {error}") from None
    return found


def results_root(option: Path | str | None = None) -> Path:
    """Return the results folder: option, $GPUBENCH_RESULTS, ./results if it exists, else the user's own."""
    if option is not None:
        return Path(option)
    if named := os.environ.get("GPUBENCH_RESULTS"):
        return Path(named)
    if (here := Path("results")).is_dir():
        return here
    return user_data() / "results"


def user_data() -> Path:
    """Return this user's data folder for gpubench."""
    import platformdirs

    return platformdirs.user_data_path("gpubench", appauthor=False)


def require_folder(root: Path) -> None:
    """Reject a path that is not a folder, because a pipe or a file would silently give no results.

    Raises:
        MisuseError: If the path exists and is not a folder.
    """
    if os.path.exists(root) and not os.path.isdir(root):  # noqa: PTH110, PTH112 - these raise nothing for a long name
        raise MisuseError(f"{plain(str(root), 1000)} is not a folder: name one, such as --results DIR")


TRACEBACK_CHARACTERS = 64 * 1024
"""Size limit of a traceback: infinite recursion gives megabytes, with the error at the end."""


def traceback_of(error: BaseException) -> str:
    """Return the end of an error's traceback."""
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]


def write_log(name: str, trace: str | None, output: str) -> str:
    """Write a log to the user's data folder, and return its content and path in words, for a message.

    For example ``traceback in /home/ann/.local/share/gpubench/logs/net.py.log``. The path is only for the
    terminal; no stored record contains it. If the log cannot be written, the words say why.
    """
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    path = user_data() / "logs" / f"{safe}.log"
    text = (trace or "")[-TRACEBACK_CHARACTERS:]
    try:
        write_file(path, f"{text}\n--- end of the output ---\n{output}".encode(errors="replace"))
    except StorageError as error:
        return f"no log: {error}"
    return f"{'traceback' if trace else 'its output is'} in {path}"
