"""Waits in tests for events instead of fixed times, with a clock that a loaded machine does not speed up."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import psutil

POLL_S = 0.02


def wait_until(happened: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something has happened; pytest's time limit reports if it never does.

    Args:
        happened: Polled repeatedly.
        process: The process that causes it; the wait fails when it has ended without the event.
    """
    while not happened():
        if process is not None and process.poll() is not None:
            out, err = process.communicate()
            raise AssertionError(f"exited with status {process.returncode} first:\n{out}\n{err}")
        time.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has read its status yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Stopwatch:
    """Time since its creation during which a processor was idle [s].

    A process that is ready to run does not wait while a processor is idle. This time is therefore at most the time
    that the processes under test spend waiting. On a quiet machine it is the wall time minus busy loops.
    """

    def __init__(self) -> None:
        self._began_s, self._idle_s = time.monotonic(), psutil.cpu_times().idle

    def free_s(self) -> float:
        """Return the time so far."""
        return min(time.monotonic() - self._began_s, psutil.cpu_times().idle - self._idle_s)
