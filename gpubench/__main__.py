"""``python -m gpubench`` and the console script: loads and runs the command line."""

from __future__ import annotations

import signal
import sys

from gpubench.cli.last_words import fail, fail_unexpectedly
from gpubench.errors import ExitCode, is_interrupt


def main() -> None:
    """Run the command line; an interrupt during loading has the same effect as a later one."""
    if sys.stdout is None:  # closed: the next file opened would get its descriptor, and our output
        fail("standard output is closed: open it, or redirect it to /dev/null", ExitCode.STORAGE)
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


if __name__ == "__main__":
    main()
