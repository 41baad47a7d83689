"""What is said of an error that nobody expected: one line, and where a log with the traceback is.

It may come while modules are loaded, or where no file can be opened any more: nothing here needs one.
"""

from __future__ import annotations

import os


def last_words(error: BaseException) -> str:
    """Return the line; call while the error is being handled."""
    try:
        report = f"please report it with {_log()}"
    except Exception as why:  # noqa: BLE001 - a full disk, no folder for it, no descriptor left to load a module
        report = f"please report it; no log could be written: {getattr(why, 'strerror', None) or why}"
    return f"internal error: {type(error).__name__}: {error}; {report}"


def _log() -> str:
    """Write the traceback of the error in hand to a file of its own, and return its path."""
    import traceback
    from pathlib import Path
    from tempfile import gettempdir

    from gpubench import __version__
    from gpubench.files import create_file

    path = Path(gettempdir()) / f"gpubench-{os.urandom(6).hex()}.log"
    text = f"gpubench {__version__}\n{traceback.format_exc()}"
    create_file(path, text.encode(errors="replace"), mode=0o600)
    return str(path)
