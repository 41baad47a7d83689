"""Calls into a driver that may never come back: they run on a thread of their own, with a time limit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

CALL_LIMIT_S = 5.0
"""Healthy driver calls take microseconds; the slowest known, a first init without persistence, 3 s."""


class HungCallError(Exception):
    """A driver call did not return in time. Its thread is lost, and the driver is not asked again."""


class Guard:
    """One daemon thread that makes the calls, so that a stuck one holds up neither us nor our exit."""

    def __init__(self, limit_s: float = CALL_LIMIT_S) -> None:
        """Start no thread yet; ``limit_s`` bounds each call [s]."""
        self.limit_s = limit_s
        self.hung = False
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._one_at_a_time = threading.Lock()

    def call(self, function: Callable[[], T]) -> T:
        """Return what ``function`` returns or raise what it raises, within the limit.

        Raises:
            HungCallError: If this call, or one before it, did not come back in time.
        """
        with self._one_at_a_time:
            value, error = self._hand_over(function)
        if error is not None:
            raise error
        return value

    def _hand_over(self, function: Callable[[], T]) -> tuple[T, BaseException | None]:
        if self.hung:
            raise HungCallError
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gpubench-driver-calls", daemon=True)
            self._thread.start()
        self._work.put(function)
        try:
            return self._done.get(timeout=self.limit_s)
        except queue.Empty:
            self.hung = True
            raise HungCallError from None

    def close(self) -> None:
        """End the thread, unless it is stuck."""
        self._work.put(None)

    def _serve(self) -> None:
        while (function := self._work.get()) is not None:
            try:
                self._done.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                self._done.put((None, error))
