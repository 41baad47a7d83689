"""``python -m gpubench``, and the console script: loads the command line and runs it."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line; what ends it while it is still being loaded ends it as it would later."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from gpubench.cli.app import main as run

        run()
    except BaseException as error:
        from gpubench.errors import ExitCode, is_interrupt

        if not is_interrupt(error):
            raise
        print("gpubench: interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
