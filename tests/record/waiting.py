"""A pytest plugin that records the steps of a workload and the waits for the device, in order."""

from __future__ import annotations

import pytest

from gpubench.measure import guards, step
from gpubench.measure.loop import Clock

SEEN: list[str] = []
_prepare = guards.prepare


def _noted(work):
    advance = _prepare(work)
    return lambda index: (SEEN.append("step"), advance(index))[1]


guards.prepare = _noted
step.Hardware.clock = lambda self: Clock(synchronize=lambda: SEEN.append("wait"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    print("seen:", *SEEN[SEEN.index("step") :])
