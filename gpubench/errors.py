"""The errors that gpubench raises on purpose, and every exit code that a shell sees.

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
    ExitCode.NO: "a check or comparison said no",
    ExitCode.MISUSE: "misuse",
    ExitCode.NO_DEVICE: "no usable device",
    ExitCode.EVERY_CASE_FAILED: "every case failed",
    ExitCode.STORAGE: "results could not be stored or another process is writing that run",
    ExitCode.UNDECIDED: "a comparison could not be decided",
    ExitCode.INTERNAL: "internal error",
    ExitCode.INTERRUPTED: "interrupted (finished cases are kept)",
}


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is Ctrl-C or SIGTERM, or what Python made of one.

    While a class is being made, as modules are loaded, Python 3.11 turns it into a RuntimeError.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause is not None


def exit_codes() -> str:
    """Return every exit code with its words, as help and README list them."""
    return ", ".join(f"{code.value} {_WORDS[code]}" for code in ExitCode)


def seen_and_fix(message: str) -> tuple[str, str]:
    """Part a message into what was seen and what to do, which is empty if it names nothing.

    The first semicolon parts them: what to do may have more.
    """
    seen, _, fix = message.partition("; ")
    return seen, fix


class GpuBenchError(Exception):
    """Base of every expected failure.

    Attributes:
        seen: What happened.
        fix: What to do; empty if the message names nothing.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.NO

    def __init__(self, message: str = "", *, fix: str | None = None) -> None:
        """Give the fix apart where the message names what the user wrote: a name may have a semicolon."""
        super().__init__(message if fix is None else f"{message}; {fix}")
        self.seen, self.fix = seen_and_fix(message) if fix is None else (message, fix)


class MisuseError(GpuBenchError):
    """A bad option, a bad input file, or settings that contradict each other."""

    exit_code = ExitCode.MISUSE


class WrongArgumentError(MisuseError, TypeError):
    """An argument of a Python function that it does not have, or whose type is wrong."""


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
