"""Who watches a run while it measures, and how it is stopped from outside."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpubench.measure import events, messages
from gpubench.measure.child import Child
from gpubench.units import Seconds

STOPPING_S = 2.0
"""After SIGTERM a round may end within this time; a third second is for storing and saying what there is."""


@contextmanager
def answering(answer: Callable[[int], None], *signals: signal.Signals) -> Iterator[None]:
    """Answer signals, told by their numbers, where this is the thread that may listen to them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda n, _: answer(n)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


OnEvent = Callable[[events.Event], None]


def say_nothing(event: events.Event) -> None:
    """Watch nothing."""
    del event


class Control:
    """How a run is stopped from outside: once politely, twice at once. Safe to call from a signal handler."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.aborted = threading.Event()
        self.stop_by_s: Seconds = float("inf")
        self.child: Child | None = None

    def stop(self, within_s: Seconds = float("inf")) -> None:
        """Finish the round at hand, then end; with ``within_s``, end by then whatever happens."""
        if self.stopping.is_set():
            self.abort()
            return
        self.stop_by_s = time.monotonic() + within_s
        self.stopping.set()
        if self.child is not None:
            self.child.end_by_s = self.stop_by_s
            self.child.send(messages.Stop())

    def abort(self) -> None:
        """End now: kill the child and what it started."""
        self.aborted.set()
        self.stopping.set()
        if self.child is not None:
            self.child.kill()
