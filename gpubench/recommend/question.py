"""The question of a ranking as it was understood, for those who read its document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpubench.recommend.objective import sorted_by
from gpubench.recommend.request import RankRequest

_NOT_ASKED = frozenset(
    {"asked", "settings", "results", "offers", "limit", "one_a_gpu", "seed", "draws", "as_of"}
)
"""Fields that say where things are, how much is shown, and the day, which the document has of its own."""


def as_understood(request: RankRequest, workloads: Sequence[str]) -> dict[str, Any]:
    """Return what was asked by the options' names in Python, defaults filled in; no path is among it.

    Args:
        request: A checked request.
        workloads: Its workloads by the names that their cases bear: a model of one's own is asked for by its
            file.
    """
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name not in _NOT_ASKED}
    by_name = zip(workloads, request.workload_names, strict=True)
    return fields | {
        "workloads": workloads,
        "mix": {name: request.mix[asked] for name, asked in by_name if request.mix},
        "jobs": "ddp" if request.one_job_over_all_gpus else "independent",
        "samples": request.job_samples,
        "spot_lost": request.spot_lost_share,
        "host_lost": request.host_lost_share,
        "startup_minutes": request.rented_startup_minutes,
        "billing_minutes": request.billing_unit_minutes,
        "sort": sorted_by(request),
    }
