"""Run a child process whose output, time and children are bounded, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

TAIL_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_DRAIN_S = 5.0


@dataclass(frozen=True)
class Ended:
    """How a child ended; ``exit_code`` is None when its time was up, negative for a signal."""

    exit_code: int | None
    tail: str


def run_bounded(
    arguments: Sequence[str], *, time_limit_s: float, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a program in a process group of its own and wait for it, at most so long.

    Of what it prints only the end is kept. When its time is up, or this process is interrupted, the whole
    group is killed, so that no grandchild is left behind.
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
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(child.stdout, tail), daemon=True)
    reader.start()
    exit_code: int | None = None
    try:
        exit_code = child.wait(time_limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    reader.join(_DRAIN_S)
    if not reader.is_alive():
        child.stdout.close()
    return Ended(exit_code=exit_code, tail=bytes(tail).decode(errors="replace"))


def _keep_tail(stream: IO[bytes], tail: bytearray) -> None:
    while chunk := stream.read(_CHUNK_BYTES):
        tail += chunk
        del tail[:-TAIL_BYTES]
