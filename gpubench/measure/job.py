"""The child process that stands for the processes of one job on this machine; ``child.Child`` starts it.

It is light, because each of those processes imports it again.
"""

from __future__ import annotations

from gpubench.measure.messages import Phase
from gpubench.parent import ParentChannel


def main() -> None:
    """Start the processes and watch over them until they or the parent end."""
    line = ParentChannel()
    line.send(Phase(name="import"))  # torch takes seconds
    from gpubench.measure.ranks import run_ranks

    run_ranks(line)


if __name__ == "__main__":
    main()
