"""Keep what a failed model said where its owner finds it: the traceback, and the end of the output."""

from __future__ import annotations

import traceback

from gpubench.errors import StorageError
from gpubench.files import write_file
from gpubench.folders import user_data

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
