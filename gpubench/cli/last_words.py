"""How the command line fails: with one line on stderr, and a log file if the error is unexpected.

This code also works while modules are still loading, and if no more files can be opened.
"""

import os
import sys
from typing import NoReturn

from gpubench.errors import ExitCode

MESSAGE_LIMIT = 2000  # characters


def fail(message: str, exit_code: int) -> NoReturn:
    """Print a line on stderr and exit; escape sequences in quoted text never reach the terminal."""
    line = "".join(c if c.isprintable() else "" for c in " ".join(message.split()))
    short = line if len(line) <= MESSAGE_LIMIT else f"{line[: MESSAGE_LIMIT - 1]}…"
    try:
        print("gpubench:", short, file=sys.stderr, flush=True)
    except OSError:  # the disk may be full; the exit code still reports the failure
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(exit_code)


def fail_unexpectedly(error: BaseException) -> NoReturn:
    """Report an unexpected error and log its traceback; call this while handling the error."""
    try:
        report = f"please report it with {_log()}"
    except Exception as why:  # noqa: BLE001 - a full disk, no folder for the log, no descriptor left to load a module
        report = f"please report it; no log could be written: {getattr(why, 'strerror', None) or why}"
    fail(f"internal error: {type(error).__name__}: {error}; {report}", ExitCode.INTERNAL)


def _log() -> str:
    import traceback
    from pathlib import Path
    from tempfile import gettempdir

    from gpubench import __version__
    from gpubench.files import create_file

    path = Path(gettempdir()) / f"gpubench-{os.urandom(6).hex()}.log"
    text = f"gpubench {__version__}\n{traceback.format_exc()}"
    create_file(path, text.encode(errors="replace"), mode=0o600)
    return str(path)
