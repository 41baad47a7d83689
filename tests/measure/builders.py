"""Builders for the tests and the scripts of this folder: a case, a run, and the context of a measuring process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpubench.measure.launcher import Launcher
from gpubench.measure.plan import Plan
from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Execution,
    Measurement,
    Precision,
    Run,
    TaskKind,
)

if TYPE_CHECKING:
    from gpubench.measure.case import WorkerContext

USUAL_CASE = {
    "workload": "cnn",
    "workload_version": 1,
    "task": TaskKind.TRAIN,
    "precision": Precision.FP32,
    "execution": Execution.EAGER,
    "memory_format": None,
    "batch_size": 64,
    "sample_unit": "image",
}


def case_of(workload: str = "cnn", **changes: Any) -> Case:
    """Return an eager training step in fp32, with these changes."""
    return Case(**USUAL_CASE | {"workload": workload} | changes)


def run_of(*measurements: Measurement, backend: str = "cuda", **changes: Any) -> Run:
    """Return a run of these rows on a device of which only the backend is known, with these changes."""
    usual = {
        "run_id": "20261120t000000z-abcd1234",
        "started_at": "2026-11-20T00:00:00Z",
        "budget": "default",
        "seed": 0,
        "device": DeviceProfile(backend=backend),
        "environment": Environment(gpubench="0", python="3.11", os="linux"),
        "measurements": measurements,
    }
    return Run(**usual | changes)


def context_of(profile: DeviceProfile, **changes: Any) -> WorkerContext:
    """Return the context of a measuring process on the CPU; ``budget`` and ``telemetry`` must be given."""
    import torch

    from gpubench.measure.case import WorkerContext
    from gpubench.measure.step import Hardware

    usual = {"hardware": Hardware(device=torch.device("cpu")), "seed": 0, "profile": profile}
    return WorkerContext(**usual | changes)


def run_all(plan: Plan, device: DeviceProfile, **options: Any) -> list[Measurement]:
    """Measure every case of a plan in child processes."""
    return list(Launcher(plan, device, **options).run())


def endless(plan: Plan) -> Plan:
    """Return a plan with intervals that are never narrow enough, so only the tested event ends a case."""
    budget = msgspec.structs.replace(plan.budget, timed_s=600.0, target=0.0)
    return msgspec.structs.replace(plan, budget=budget)
