"""Errors of third-party code in one line; Python's own errors about shared memory name no file."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from gpubench import foreign_code
from gpubench.foreign_code import one_line
from gpubench.units import GIB

FULL = OSError(errno.ENOSPC, "No space left on device")
TORCH_FULL = RuntimeError(
    "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
)


@pytest.fixture
def shared(monkeypatch, tmp_path):
    """``shared(writable=..., free=...)`` sets whether shared memory can be written, and its free bytes."""
    monkeypatch.setattr(foreign_code, "SHARED_MEMORY", tmp_path)

    def set_to(*, writable, free):
        monkeypatch.setattr(os, "access", lambda path, mode: writable)
        monkeypatch.setattr(foreign_code.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))

    return set_to


def test_shared_memory_that_cannot_be_written_is_named(shared, tmp_path):
    shared(writable=False, free=GIB)
    said = one_line(OSError(errno.EROFS, "Read-only file system"))
    assert said == f"OSError: [Errno 30] Read-only file system: {tmp_path} cannot be written"


@pytest.mark.parametrize(("error", "free"), [(FULL, 0), (TORCH_FULL, GIB)])
def test_shared_memory_that_is_full_is_named(shared, tmp_path, error, free):
    """Torch may request more than is left; one of Python's locks needs a page."""
    shared(writable=True, free=free)
    assert one_line(error).endswith(f": {tmp_path} is full")


def test_a_full_disk_elsewhere_is_not_called_shared_memory(shared, tmp_path):
    shared(writable=True, free=GIB)
    assert str(tmp_path) not in one_line(FULL)
    shared(writable=True, free=0)
    assert str(tmp_path) not in one_line(OSError(errno.ENOSPC, "No space left on device", "results.json"))
    assert str(tmp_path) not in one_line(OSError(errno.ECONNREFUSED, "Connection refused"))
