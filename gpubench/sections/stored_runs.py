"""The stored runs, one a line."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.parts import Part, table, text
from gpubench.labels import gpu_name
from gpubench.record.heads import Head
from gpubench.units import UNKNOWN


def stored(heads: Sequence[Head]) -> list[Part]:
    """Return one line a run, in the order given; nothing where there are none."""
    if not heads:
        return []
    return [
        table(
            "",
            heads,
            text("Run", lambda row: row.run_id),
            text("Started", lambda row: row.started_at, optional=2),
            text("Device", lambda row: gpu_name(row.gpu_key) if row.gpu_key else row.device or UNKNOWN),
            text("Budget", lambda row: row.budget, optional=1),
            text("Measured", _measured),
            text("Workloads", lambda row: " ".join(row.workloads)),
        )
    ]


def _measured(row: Head) -> str:
    end = ", interrupted" if row.interrupted else "" if row.finished else ", unfinished"
    return f"{row.measured} of {row.cases}{end}"
