"""What others took of the host's processors while rounds were timed, by the kernel's own counters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Self

from gpubench.probe.host import read_text

PROC = Path("/proc")
_IDLE, _IOWAIT, _STEAL = 3, 4, 7
"""Columns of the first line of ``stat``, by proc(5); guests (8, 9) are part of what comes before."""


class Others(NamedTuple):
    """CPU time of others over that of all the host's threads, 0 to 1; None where it is not known.

    Attributes:
        load: Of other processes of this host.
        steal: Of other guests of the machine that this host is a guest of.
    """

    load: float | None = None
    steal: float | None = None


class HostTimes(NamedTuple):
    """The CPU times of the host and of this process at one moment, in ticks of the kernel.

    Attributes:
        host: Since boot, a column for each kind; None where there is no such file (macOS, Windows).
        own: Of this process and its children that have ended.
        processes: How many on this host work alike: the others of a job are no strangers.
    """

    host: tuple[int, ...] | None
    own: float
    processes: int = 1

    @classmethod
    def now(cls, processes: int = 1) -> Self:
        """Read both."""
        try:
            line = (read_text(PROC / "stat") or "").split("\n", 1)[0].split()
            host = tuple(map(int, line[1:9])) if line[0] == "cpu" and len(line) > _STEAL + 1 else None
            ticks_per_s = os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, AttributeError):
            return cls(None, 0.0, processes)
        return cls(host, sum(os.times()[:4]) * ticks_per_s, processes)

    def others_since(self) -> Others:
        """Return what others took from then to now."""
        after = HostTimes.now()
        if self.host is None or after.host is None:
            return Others()
        spent = [new - old for old, new in zip(self.host, after.host, strict=True)]
        total = sum(spent)
        if total <= 0:
            return Others()
        busy = total - spent[_IDLE] - spent[_IOWAIT] - spent[_STEAL]
        own = self.processes * (after.own - self.own)
        return Others(min(1.0, max(0.0, (busy - own) / total)), max(0.0, spent[_STEAL] / total))
