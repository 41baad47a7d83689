"""A small run that tests store, change and damage."""

from __future__ import annotations

import pytest

from gpubench.measure.environment import environment
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Launch,
    Measurement,
    Precision,
    Round,
    Run,
    Status,
    TaskKind,
)


@pytest.fixture
def make_run():
    def make(**changes) -> Run:
        case = Case(
            workload="cnn",
            workload_version=1,
            task=TaskKind.TRAIN,
            precision=Precision.FP32,
            execution=Execution.EAGER,
            memory_format=None,
            batch_size=64,
            sample_unit="image",
        )
        launch = Launch(index=0, rounds=tuple(Round(steps=4, wall_s=w, loss=1.0) for w in (0.4, 0.41, 0.39)))
        fields = {
            "run_id": "20261120t000000z-abcd1234",
            "started_at": "2026-11-20T00:00:00Z",
            "budget": "quick",
            "seed": 0,
            "device": DeviceProfile(backend="cuda", name="NVIDIA H200", gpu_key="nvidia-h200-sxm-141gb"),
            "environment": environment(DeviceProfile(backend="cpu")),
            "measurements": (Measurement(case=case, status=Status.OK, launches=(launch,)),),
        }
        return Run(**(fields | changes))

    return make
