"""Driver calls on their own thread: hung calls, slow calls, and the end of the thread.

Calls that must not time out get at least a second, because a loaded machine delays threads.
"""

from __future__ import annotations

import threading
import time

import pytest

from gpubench.probe.nvml import Guard, HungCallError


def test_a_call_may_have_a_separate_limit() -> None:
    guard = Guard(limit_s=1.0)

    def work() -> str:
        guard.begin("start", 30.0)
        time.sleep(1.2)
        return "started"

    assert guard.call(work) == "started"
    guard.close()


def test_an_abandoned_thread_makes_no_more_calls_and_ends_when_its_call_returns() -> None:
    guard, over, asked = Guard(limit_s=0.1), threading.Event(), []

    def work() -> None:
        guard.begin("stuck")
        over.wait(30)
        guard.begin("next")
        asked.append("next")

    with pytest.raises(HungCallError):
        guard.call(work)
    over.set()
    assert guard._thread is not None
    guard._thread.join(10)
    assert not guard._thread.is_alive()
    assert asked == []


def test_an_error_of_the_work_reaches_the_caller() -> None:
    guard = Guard()
    with pytest.raises(ZeroDivisionError):
        guard.call(lambda: 1 // 0)
    guard.close()
