"""The workloads as a pytest-benchmark suite: ``pytest workloads``.

pytest-benchmark times training steps in its own rounds and provides tables, ``--benchmark-json``,
``--benchmark-compare`` and ``--benchmark-compare-fail``. Its clock is not aware of GPUs, so each step waits
for the device.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from gpubench.measure.plan import PlannedCase
from gpubench.session.session import Prepared


def test_workload(benchmark: Any, gpubench_case: PlannedCase, gpubench_prepared: Prepared) -> None:
    """Time the step of one case."""
    from gpubench.measure.capability import NotHereError
    from gpubench.measure.guards import prepare
    from gpubench.measure.step import built, move, open_hardware, seed_all, switches_for

    benchmark.group = gpubench_case.case.workload  # pytest-benchmark reads it while timing
    case, seed = gpubench_case.case, gpubench_prepared.plan.seed
    hardware = open_hardware(gpubench_prepared.device)
    hardware.release()  # memory of the previous case
    clock, index, loss = hardware.clock(), 0, math.nan
    with switches_for(case.precision):
        seed_all(seed)
        work = move(built(gpubench_case.reference, case, seed), case, hardware.device)
        work.step(0)  # creates the optimizer state, and lets cuDNN choose its algorithms
        try:
            advance = prepare(work)
        except NotHereError as error:
            pytest.skip(f"{error}")

        def step() -> None:
            nonlocal index, loss
            result = advance(index)
            clock.synchronize()
            loss, index = result, index + 1

        benchmark(step)
        assert math.isfinite(work.edge_loss(loss, index - 1))
    benchmark.extra_info.update(
        case=msgspec.to_builtins(case),
        unit="seconds per step",
        samples_per_step=case.batch_size,
        run_findings=msgspec.to_builtins(gpubench_prepared.findings),
    )
