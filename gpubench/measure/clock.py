"""The one clock: it waits for the device at both edges of what it times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpubench.units import Seconds


def _nothing_to_wait_for() -> None:
    """A CPU has finished a step when the call returns."""


def _now_ns() -> int:
    return time.perf_counter_ns()


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A synchronizing clock; both parts are injected, so that a test can script time.

    Without the synchronize, issuing work is timed instead of the work: a step of 47.5 ms on an H200
    then "takes" 7.2 ms.
    """

    synchronize: Callable[[], None] = _nothing_to_wait_for
    now_ns: Callable[[], int] = _now_ns

    def time(self, work: Callable[[], None]) -> Seconds:
        """Return the wall time of ``work`` and of all the device work that it issued [s]."""
        self.synchronize()
        start = self.now_ns()
        work()
        self.synchronize()
        return (self.now_ns() - start) * 1e-9

    def now_s(self) -> Seconds:
        """Return the monotonic time [s]; only differences mean anything."""
        return self.now_ns() * 1e-9
