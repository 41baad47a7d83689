"""Run a child process whose output, time and children are bounded, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

TAIL_BYTES = 64 * 1024
OUTPUT_LIMIT_BYTES = 8 * 1024**2
"""Warnings and progress bars print thousands of bytes; who prints millions fills a disk or hides a loop."""
_CHUNK_BYTES = 64 * 1024
_DRAIN_S = 5.0


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes:
        exit_code: None when its time was up, negative for a signal.
        tail: The end of what it printed.
        flooded: It printed more than the limit, and was ended for that.
    """

    exit_code: int | None
    tail: str
    flooded: bool = False


def run_bounded(
    arguments: Sequence[str], *, time_limit_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a program in a process group of its own and wait for it, at most so long.

    Of what it prints only the end is kept. When its time is up, when it has printed too much, or when this
    process is interrupted, the whole group is killed, so that no grandchild is left behind.
    """
    child = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    assert child.stdout is not None
    tail, flooded = bytearray(), threading.Event()
    reader = threading.Thread(target=_keep_tail, args=(child, tail, flooded), daemon=True)
    reader.start()
    exit_code: int | None = None
    try:
        exit_code = child.wait(time_limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _kill(child)
        child.wait()
    reader.join(_DRAIN_S)
    if not reader.is_alive():
        child.stdout.close()
    return Ended(exit_code=exit_code, tail=bytes(tail).decode(errors="replace"), flooded=flooded.is_set())


def _keep_tail(child: subprocess.Popen[bytes], tail: bytearray, flooded: threading.Event) -> None:
    assert child.stdout is not None
    size = 0
    while chunk := child.stdout.read(_CHUNK_BYTES):
        tail += chunk
        del tail[:-TAIL_BYTES]
        size += len(chunk)
        if size > OUTPUT_LIMIT_BYTES and not flooded.is_set():
            flooded.set()
            _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
