"""Stored runs as one tidy pandas frame: a row a measurement, a column a quantity, units in the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpubench.models import Case, Measurement, Run
from gpubench.record.spread import SPREAD, spread
from gpubench.record.store import read_runs, results_root, say_problems
from gpubench.shared_options import ResultsRequest
from gpubench.signatures import takes_options_of

if TYPE_CHECKING:
    import pandas as pd

_CASE_COLUMNS = Case.__struct_fields__
_FIGURES = (
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "tokens_per_s",
    "step_time_s",
    "relative_half_width",
    "gpu_busy",
    "joules_per_sample",
    "mean_power_w",
    "energy_source",
    "peak_memory_bytes",
    "peak_reserved_bytes",
    "device_bytes",
    "flops_per_sample",
    "hardware_flops_per_sample",
    "achieved_flops_per_s",
    "mfu",
    "hfu",
    "mfu_of_gemm",
)


@takes_options_of(ResultsRequest)
def load_runs(request: ResultsRequest) -> pd.DataFrame:
    """Return every stored measurement as one row; unknown is missing, never 0."""
    stored = read_runs(results_root(request.results))
    say_problems(stored.problems)
    return frame(stored.runs)


def frame(runs: tuple[Run, ...]) -> pd.DataFrame:
    """Return one row a measurement of the given runs."""
    import pandas as pd

    rows = [row(run, measurement) for run in runs for measurement in run.measurements]
    return pd.DataFrame(rows, columns=list(_columns()))


def row(run: Run, measurement: Measurement) -> dict[str, Any]:
    """Return the flat row of one measurement."""
    case = {name: getattr(measurement.case, name) for name in _CASE_COLUMNS}
    case = {name: str(value) if isinstance(value, str) else value for name, value in case.items()}
    return {
        "run_id": run.run_id,
        "started_at": run.started_at,
        "gpu_key": run.device.gpu_key,
        "backend": run.device.backend,
        "device": run.device.name,
        **case,
        "status": str(measurement.status),
        "reason": measurement.reason,
        "batch_choice": measurement.batch_choice,
        **{name: getattr(measurement, name) for name in _FIGURES},
        "launches": len(measurement.launches),
        **spread(measurement),
        "findings": " ".join(finding.kind for finding in measurement.findings),
        "budget": run.budget,
        "protocol": run.protocol,
        "gpubench": run.environment.gpubench,
        "torch": run.environment.torch,
        "driver": run.environment.driver,
    }


def _columns() -> tuple[str, ...]:
    return (
        *("run_id", "started_at", "gpu_key", "backend", "device"),
        *_CASE_COLUMNS,
        *("status", "reason", "batch_choice"),
        *_FIGURES,
        "launches",
        *SPREAD,
        *("findings", "budget", "protocol", "gpubench", "torch", "driver"),
    )
