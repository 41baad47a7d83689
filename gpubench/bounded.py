"""Run a child process whose output, time and children are bounded, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

import msgspec

from gpubench.children import GuardedProcess, die_with_parent

TAIL_BYTES = 64 * 1024
OUTPUT_LIMIT_BYTES = 8 * 1024**2
"""Warnings and progress bars print thousands of bytes; who prints millions fills a disk or hides a loop."""
ANSWER_LIMIT_BYTES = 16 * 1024**2
_CHUNK_BYTES = 64 * 1024
_DRAIN_S = 5.0

_Answer = TypeVar("_Answer")


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
    command: Sequence[str],
    *,
    time_limit_s: float,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Ended:
    """Run a program in a process group of its own and wait for it, at most so long.

    Of what it prints only the end is kept. When its time is up, when it has printed too much, or when this
    process is interrupted or ends in any other way, the whole group is killed: no grandchild is left behind.
    """
    child = GuardedProcess(command, environment=environment, pass_fds=pass_fds)
    output = child.process.stdout
    assert output is not None
    tail, flooded = bytearray(), threading.Event()
    reader = threading.Thread(target=_keep_tail, args=(child, output, tail, flooded), daemon=True)
    reader.start()
    exit_code: int | None = None
    try:
        exit_code = child.process.wait(time_limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        child.signal_group(signal.SIGKILL)
        child.process.wait()
        child.dismiss_guard()
    reader.join(_DRAIN_S)
    if not reader.is_alive():
        output.close()
    return Ended(exit_code=exit_code, tail=bytes(tail).decode(errors="replace"), flooded=flooded.is_set())


def ask_child(
    module: str,
    arguments: Sequence[str],
    answer_type: type[_Answer],
    *,
    time_limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> tuple[_Answer | None, Ended]:
    """Run a module of gpubench as ``run_bounded`` does, and read the answer that it leaves.

    The answer comes in a file without a name, which vanishes with the last process that has it open.

    Args:
        module: Run as ``python -m MODULE ANSWER_FD PARENT_PID ARGUMENTS``; it calls ``die_with_parent`` and
            ``leave_answer``.
        arguments: What it is told.
        answer_type: What it answers.
        time_limit_s: For all it does.
        environment: All its variables; None for this process's own.

    Returns:
        The answer, None where it left none or a broken one; and how it ended.
    """
    with tempfile.TemporaryFile() as file:
        # -P: a random.py in the current folder is no part of this, and would be run for the library
        command = [sys.executable, "-P", "-m", module, str(file.fileno()), str(os.getpid()), *arguments]
        ended = run_bounded(
            command, time_limit_s=time_limit_s, environment=environment, pass_fds=(file.fileno(),)
        )
        return _read_answer(file, answer_type), ended


def arguments_of_child() -> tuple[int, list[str]]:
    """In the child: be bound to the parent, and return where the answer goes and what the child is told."""
    answer_fd, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent_pid)
    os.set_inheritable(answer_fd, False)
    return answer_fd, sys.argv[3:]


def leave_answer(answer_fd: int, answer: msgspec.Struct) -> None:
    """In the child: leave the answer, once."""
    with os.fdopen(answer_fd, "wb") as file:
        file.write(msgspec.json.encode(answer))


def _read_answer(file: IO[bytes], answer_type: type[_Answer]) -> _Answer | None:
    file.seek(0)
    data = file.read(ANSWER_LIMIT_BYTES + 1)
    if len(data) > ANSWER_LIMIT_BYTES:
        return None
    try:
        return msgspec.json.decode(data, type=answer_type)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _keep_tail(child: GuardedProcess, output: IO[bytes], tail: bytearray, flooded: threading.Event) -> None:
    size = 0
    while chunk := output.read(_CHUNK_BYTES):
        tail += chunk
        del tail[:-TAIL_BYTES]
        size += len(chunk)
        if size > OUTPUT_LIMIT_BYTES and not flooded.is_set():
            flooded.set()
            child.signal_group(signal.SIGKILL)
