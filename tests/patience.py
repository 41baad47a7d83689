"""Waiting in tests: for what happens, not for a time; and time that a loaded machine does not make longer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import psutil

POLL_S = 0.02


def wait_until(happened: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something has happened; that it never does is for the time limit of pytest to say.

    Args:
        happened: Asked again and again.
        process: Whose doing it is; once it has ended without, the wait is over.
    """
    while not happened():
        if process is not None and process.poll() is not None:
            out, err = process.communicate()
            raise AssertionError(f"ended with status {process.returncode} first:\n{out}\n{err}")
        time.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has asked for its status yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Stopwatch:
    """Time in which a processor was free, from the making of the watch [s].

    A process that is ready to run is not kept waiting while a processor is idle. So this is no more than what
    the processes under test let pass by themselves: on a quiet machine the wall time, beside busy loops less.
    """

    def __init__(self) -> None:
        self._began_s, self._idle_s = time.monotonic(), psutil.cpu_times().idle

    def free_s(self) -> float:
        """Return the time so far."""
        return min(time.monotonic() - self._began_s, psutil.cpu_times().idle - self._idle_s)
