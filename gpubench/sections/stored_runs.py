"""The stored runs, one a line."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.parts import Part, table, text
from gpubench.labels import gpu_name
from gpubench.models import Run
from gpubench.units import UNKNOWN


def stored(runs: Sequence[Run]) -> list[Part]:
    """Return one line a run, in the order given; nothing where there are none."""
    if not runs:
        return []
    return [
        table(
            "",
            runs,
            text("Run", lambda run: run.run_id),
            text("Started", lambda run: run.started_at, optional=2),
            text("Device", _device),
            text("Budget", lambda run: run.budget, optional=1),
            text("Measured", _measured),
            text("Workloads", lambda run: " ".join(run.workload_names)),
        )
    ]


def _device(run: Run) -> str:
    key = run.device.gpu_key
    return gpu_name(key) if key else run.device.name or UNKNOWN


def _measured(run: Run) -> str:
    end = ", interrupted" if run.interrupted else "" if run.finished_at else ", unfinished"
    return f"{run.measured_count} of {run.case_count}{end}"
