"""A plugin of pytest that notes steps of a workload and waits for the device, in their order."""

from __future__ import annotations

import pytest

from gpubench.measure import execution, hardware
from gpubench.measure.loop import Clock

SEEN: list[str] = []
_prepare = execution.prepare


def _noted(work):
    advance = _prepare(work)
    return lambda index: (SEEN.append("step"), advance(index))[1]


execution.prepare = _noted
hardware.Hardware.clock = lambda self: Clock(synchronize=lambda: SEEN.append("wait"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    print("seen:", *SEEN[SEEN.index("step") :])
