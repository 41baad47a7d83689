"""The errors that gpubench raises deliberately, and every exit code.

A message is one line: what happened, the value seen; what to do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    NO = 1
    MISUSE = 2
    NO_DEVICE = 3
    EVERY_CASE_FAILED = 4
    STORAGE = 5
    UNDECIDED = 6
    INTERNAL = 70
    INTERRUPTED = 130


_WORDS = {
    ExitCode.DONE: "done",
    ExitCode.NO: "a check or comparison failed",
    ExitCode.MISUSE: "misuse",
    ExitCode.NO_DEVICE: "no usable device",
    ExitCode.EVERY_CASE_FAILED: "every case failed",
    ExitCode.STORAGE: "results could not be stored or another process is writing that run",
    ExitCode.UNDECIDED: "a comparison could not be decided",
    ExitCode.INTERNAL: "internal error",
    ExitCode.INTERRUPTED: "interrupted (finished cases are kept)",
}


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is due to Ctrl-C or SIGTERM.

    If that happens during the creation of a class, Python 3.11 raises a RuntimeError instead.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause is not None


def exit_codes() -> str:
    """Return every exit code with its description, as in the help and the docs."""
    return ", ".join(f"{code.value} {_WORDS[code]}" for code in ExitCode)


def seen_and_fix(message: str) -> tuple[str, str]:
    """Split a message at the first semicolon into what was seen and what to do.

    The second part is empty without a semicolon, and may contain further semicolons.
    """
    seen, _, fix = message.partition("; ")
    return seen, fix


class GpuBenchError(Exception):
    """Base of every expected failure.

    Attributes:
        seen: What happened.
        fix: What to do; empty if the message has no fix.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.NO

    def __init__(self, message: str = "", *, fix: str | None = None) -> None:
        """Pass the fix separately if the message quotes the user, because a name may contain a semicolon."""
        super().__init__(message if fix is None else f"{message}; {fix}")
        self.seen, self.fix = seen_and_fix(message) if fix is None else (message, fix)


class MisuseError(GpuBenchError):
    """A bad option, a bad input file, or settings that contradict each other."""

    exit_code = ExitCode.MISUSE


class WrongArgumentError(MisuseError, TypeError):
    """An unknown or missing argument of a Python function, or one of the wrong type."""


class NoDeviceError(GpuBenchError):
    """No usable device: driver, library, permission, or a torch that cannot reach the GPU."""

    exit_code = ExitCode.NO_DEVICE


class EveryCaseFailedError(GpuBenchError):
    """Nothing could be measured; the rows with their reasons are stored anyway."""

    exit_code = ExitCode.EVERY_CASE_FAILED


class StorageError(GpuBenchError):
    """Results could not be written or locked."""

    exit_code = ExitCode.STORAGE


class InterruptedRunError(GpuBenchError):
    """Ctrl-C or SIGTERM ended the run; finished cases are stored."""

    exit_code = ExitCode.INTERRUPTED
