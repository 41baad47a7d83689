"""The workloads as a pytest-benchmark suite: ``pytest workloads``.

gpubench measures each case with its own clock; pytest-benchmark is shown the rounds and does the rest
(tables, ``--benchmark-json``, ``--benchmark-compare``, ``--benchmark-compare-fail``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpubench.measure.plan import PlannedCase
from gpubench.models import DeviceProfile, Finding, Measurement, Status
from gpubench.record.pytest_json import VirtualClock, extra_info, samples_of

CLOCK = VirtualClock()


@pytest.mark.benchmark(timer=CLOCK)
def test_workload(
    benchmark: Any,
    gpubench_case: PlannedCase,
    gpubench_measure: Callable[[PlannedCase], Measurement],
    gpubench_device: DeviceProfile,
    gpubench_findings: tuple[Finding, ...],
) -> None:
    """Measure one case and replay its rounds."""
    measurement = gpubench_measure(gpubench_case)
    if measurement.status is Status.UNSUPPORTED:
        pytest.skip(measurement.reason or "unsupported")
    assert measurement.status is Status.OK, f"{measurement.status}: {measurement.reason}"
    samples = samples_of(measurement)
    benchmark.extra_info.update(extra_info(measurement, gpubench_device, gpubench_findings))
    benchmark.group = measurement.case.workload
    setup, target = CLOCK.replay(samples)
    benchmark.pedantic(target, setup=setup, rounds=len(samples), iterations=1)
