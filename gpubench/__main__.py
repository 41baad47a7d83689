"""``python -m gpubench``, and the console script: loads the command line and runs it."""

from __future__ import annotations

import signal
import sys

from gpubench.cli.last_words import last_words
from gpubench.errors import ExitCode, is_interrupt


def main() -> None:
    """Run the command line; what ends it while it is still being loaded ends it as it would later."""
    if sys.stdout is None:  # closed: the next file that is opened would take what is printed
        print("gpubench: standard output is closed: open it, or send it to /dev/null", file=sys.stderr)
        sys.exit(ExitCode.STORAGE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from gpubench.cli.app import main as run

        run()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - as modules were loaded: nobody is shown a traceback
        stopped = is_interrupt(error)
        words = " ".join(("interrupted" if stopped else last_words(error)).split())
        print("gpubench:", "".join(c if c.isprintable() else "?" for c in words), file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED if stopped else ExitCode.INTERNAL)


if __name__ == "__main__":
    main()
