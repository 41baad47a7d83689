"""Where this user's files lie: results (runs, prices, reports), and what gpubench keeps beside them.

Among it what a failed model said, where its owner finds it: the traceback, and the end of the output.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from gpubench.errors import MisuseError, StorageError
from gpubench.files import write_file
from gpubench.units import plain


def default_results() -> Path:
    """Return $GPUBENCH_RESULTS, else ./results where it exists, else a folder in the user's data."""
    if named := os.environ.get("GPUBENCH_RESULTS"):
        return Path(named)
    if (here := Path("results")).is_dir():
        return here
    return user_data() / "results"


def user_data() -> Path:
    """Return the folder of what gpubench keeps for this user."""
    import platformdirs

    return platformdirs.user_data_path("gpubench", appauthor=False)


def require_folder(root: Path) -> None:
    """Refuse what is there and is no folder of results: from a pipe or a file nothing would be read, unsaid.

    Raises:
        MisuseError: If something else bears its name.
    """
    if os.path.exists(root) and not os.path.isdir(root):  # noqa: PTH110, PTH112 - no error of a name too long
        raise MisuseError(
            f"{plain(str(root), 1000)} is not a folder: name one, such as --results DIR"
        )


TRACEBACK_CHARACTERS = 64 * 1024
"""A model that calls itself without end leaves a traceback of megabytes; what failed is at its end."""


def traceback_of(error: BaseException) -> str:
    """Return the end of an error's traceback."""
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]


def write_log(name: str, trace: str | None, output: str) -> str:
    """Write the log of this name in the user's data folder, and return what is where, for a message.

    Such as ``traceback in /home/ann/.local/share/gpubench/logs/net.py.log``. The path is for the terminal
    alone: no stored record bears it.
    """
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    path = user_data() / "logs" / f"{safe}.log"
    text = (trace or "")[-TRACEBACK_CHARACTERS:]
    try:
        write_file(path, f"{text}\n--- output, at most its end ---\n{output}".encode(errors="replace"))
    except StorageError as error:
        return f"no log: {error}"
    return f"{'traceback' if trace else 'its output is'} in {path}"
