"""Tests that need an NVIDIA GPU: `pytest -m gpu tests/gpu`. Without one, each test is skipped with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpubench.errors import GpuBenchError
from gpubench.models import DeviceProfile
from gpubench.probe.select import select_device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(autouse=True)
def _every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests use the host's threads as for a user, not one thread as the other tests do."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture(scope="session")
def gpu() -> DeviceProfile:
    try:
        return select_device("cuda")[0]
    except GpuBenchError as error:
        pytest.skip(str(error))
