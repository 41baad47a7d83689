"""Calls into a driver that may never come back: they run on a thread of their own, each with a time limit.

Slow is not hung: a thread that keeps beginning calls is alive, however many there are. What bounds slow work
is a budget, after which it is told to begin no further call.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from gpubench.units import Seconds

T = TypeVar("T")

CALL_LIMIT_S = 5.0
"""Healthy driver calls take microseconds, those of a driver in trouble up to a second."""


class HungCallError(Exception):
    """A driver call did not return in time. Its thread is lost, and is asked nothing more.

    Attributes:
        call: What was called.
        limit_s: How long it was waited for [s].
    """

    def __init__(self, call: str, limit_s: Seconds) -> None:
        super().__init__(f"{call} took over {limit_s:g} s")
        self.call = call
        self.limit_s = limit_s


class _Doing(NamedTuple):
    call: str
    limit_s: Seconds
    until_s: Seconds


class Guard:
    """One daemon thread that makes the calls, so that a stuck one holds up neither us nor our exit."""

    def __init__(self, limit_s: Seconds = CALL_LIMIT_S) -> None:
        """Start no thread yet; ``limit_s`` bounds each call [s]."""
        self.limit_s = limit_s
        self.hung: HungCallError | None = None
        self._doing = _Doing("the driver", limit_s, math.inf)
        self._end_s = math.inf
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._one_at_a_time = threading.Lock()

    def call(self, function: Callable[[], T], budget_s: Seconds = math.inf) -> T:
        """Return what ``function`` returns or raise what it raises.

        Args:
            function: Work that announces each of its driver calls with ``begin``.
            budget_s: Time for all of its calls together; after it ``begin`` answers no [s].

        Raises:
            HungCallError: If one of its calls, or one before, did not come back in time.
        """
        with self._one_at_a_time:
            try:
                value, error = self._hand_over(function, budget_s)
            finally:
                self._end_s = math.inf
        if error is not None:
            raise error
        return value

    def begin(self, call: str, limit_s: Seconds | None = None) -> bool:
        """Announce a driver call; say whether there is time for it.

        Args:
            call: What is called, for the message should it hang.
            limit_s: For a call that may take longer than others [s].

        Raises:
            HungCallError: On a thread that was given up: it came back too late to go on.
        """
        self._refuse_if_hung()
        now = time.monotonic()
        if now >= self._end_s:
            return False
        limit_s = self.limit_s if limit_s is None else limit_s
        self._doing = _Doing(call, limit_s, now + limit_s)
        return True

    def close(self) -> None:
        """End the thread, unless it is stuck; then it ends should it ever come back."""
        self._work.put(None)

    def _hand_over(self, function: Callable[[], T], budget_s: Seconds) -> tuple[T, BaseException | None]:
        self._refuse_if_hung()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gpubench-driver-calls", daemon=True)
            self._thread.start()
        self._end_s = time.monotonic() + budget_s
        self._doing = _Doing("the driver", self.limit_s, time.monotonic() + self.limit_s)
        self._work.put(function)
        while True:
            doing = self._doing
            try:
                return self._done.get(timeout=max(0.0, doing.until_s - time.monotonic()))
            except queue.Empty:
                if self._doing is doing:  # else another call has begun meanwhile
                    break
        self.hung = HungCallError(doing.call, doing.limit_s)
        self.close()
        raise HungCallError(doing.call, doing.limit_s)

    def _refuse_if_hung(self) -> None:
        if self.hung is not None:
            raise HungCallError(self.hung.call, self.hung.limit_s)

    def _serve(self) -> None:
        while (function := self._work.get()) is not None:
            try:
                self._done.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                self._done.put((None, error))
