"""``python -m gpubench`` is the console script."""

from gpubench.cli.app import main

main()
