"""``python -m gpubench`` and the console script: loads and runs the command line."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from typing import Any

from gpubench.cli.last_words import fail, fail_unexpectedly
from gpubench.errors import ExitCode, is_interrupt

AGAIN_AFTER_S = 0.01


def main() -> None:
    """Run the command line; an interrupt during loading has the same effect as a later one."""
    if sys.stdout is None:  # closed: the next file opened would get its descriptor, and our output
        fail("standard output is closed: open it, or redirect it to /dev/null", ExitCode.STORAGE)
    sys.unraisablehook = _interrupt_again
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from gpubench.cli.app import main as run

        run()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - while loading modules: users see no traceback
        if is_interrupt(error):
            fail("interrupted", ExitCode.INTERRUPTED)
        fail_unexpectedly(error)


def _interrupt_again(ignored: Any) -> None:
    # Python ignores every exception in callbacks and destructors, and each import has callbacks
    if is_interrupt(ignored.exc_value):
        # After this function, where it would be ignored too. A shell's background process may ignore SIGINT.
        again = threading.Timer(AGAIN_AFTER_S, _thread.interrupt_main, (signal.SIGTERM,))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)


if __name__ == "__main__":
    main()
