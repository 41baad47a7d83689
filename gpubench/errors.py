"""The errors that gpubench raises on purpose; each knows the exit code that a shell sees.

A message is one line: what happened, the value seen, what to do.
"""

from __future__ import annotations

from typing import ClassVar


class GpuBenchError(Exception):
    """Base of every expected failure. Exit code 1 unless a child says otherwise."""

    exit_code: ClassVar[int] = 1


class MisuseError(GpuBenchError):
    """A bad option, a bad input file, or settings that contradict each other."""

    exit_code = 2


class WrongArgumentError(MisuseError, TypeError):
    """An argument of a Python function that it does not have, or whose type is wrong."""


class NoDeviceError(GpuBenchError):
    """No usable device: driver, library, permission, or a torch that cannot reach the GPU."""

    exit_code = 3


class EveryCaseFailedError(GpuBenchError):
    """Nothing could be measured; the rows with their reasons are stored all the same."""

    exit_code = 4


class StorageError(GpuBenchError):
    """Results could not be written or locked."""

    exit_code = 5


class InterruptedRunError(GpuBenchError):
    """Ctrl-C or SIGTERM ended the run; finished cases are stored."""

    exit_code = 130
