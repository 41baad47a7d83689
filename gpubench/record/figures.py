"""Derived figures of stored runs, such as spread and one-time costs, as JSON and a pandas DataFrame.

They are derived from the record and never stored. In JSON, for example in the output of ``run --json``, they
are next to the recorded fields. The frame is tidy: one row per measurement, one column per quantity, units in
the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench import executions, folders, options, stats
from gpubench.groups import grouped
from gpubench.models import Case, Measurement, Run
from gpubench.record.store import read_runs, say_problems

if TYPE_CHECKING:
    import pandas as pd

# --- spread ----------------------------------------------------------------------------------------------

SPREAD = (
    "rounds",
    "outliers",
    "step_time_median_s",
    "step_time_mad_s",
    "step_time_p5_s",
    "step_time_p95_s",
    "launch_step_time_min_s",
    "launch_step_time_max_s",
)
FENCE = 1.5
"""Distance from the quartiles, in interquartile ranges, beyond which a round is an outlier (Tukey 1977)."""
COLD_COSTS = (
    "import",
    "context",
    "build",
    "first_step",
    *(execution.facts.preparation for execution in executions.Execution if execution.facts.preparation),
)
"""The one-time costs, in the order in which they occur."""


def spread(measurement: Measurement) -> dict[str, float | int | None]:
    """Return how the seconds per step vary over rounds and launches: the statistics named in ``SPREAD``.

    Outliers are counted within each launch, since launches may differ in speed. They are never removed.
    """
    launches = [seconds for launch in measurement.launches if (seconds := launch.step_times_s)]
    steps = [value for seconds in launches for value in seconds]
    if not steps:
        return dict.fromkeys(SPREAD) | {"rounds": 0}
    return {
        "rounds": len(steps),
        "outliers": sum(outliers(seconds) for seconds in launches),
        "step_time_median_s": median(steps),
        "step_time_mad_s": stats.median_absolute_deviation(steps),
        "step_time_p5_s": stats.percentile(steps, 0.05),
        "step_time_p95_s": stats.percentile(steps, 0.95),
        "launch_step_time_min_s": min(measurement.launch_step_times_s),
        "launch_step_time_max_s": max(measurement.launch_step_times_s),
    }


def outliers(values: list[float]) -> int:
    """Count the values beyond Tukey's fences.

    >>> outliers([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 5.0])
    1
    """
    low, high = stats.percentile(values, 0.25), stats.percentile(values, 0.75)
    reach = FENCE * (high - low)
    return sum(not low - reach <= value <= high + reach for value in values)


def cold_costs(measurements: Iterable[Measurement]) -> dict[str, tuple[float, float]]:
    """Return the minimum and maximum of each one-time cost, in order of occurrence [s]."""
    launches = (launch for measurement in measurements for launch in measurement.launches)
    seen = grouped(
        (name, seconds)
        for launch in launches
        for name, seconds in launch.cold_s.items()
        if seconds is not None
    )
    return {name: (min(seen[name]), max(seen[name])) for name in COLD_COSTS if name in seen}


# --- JSON ------------------------------------------------------------------------------------------------

DERIVED = (
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "tokens_per_s",
    "step_time_s",
    "launch_step_times_s",
    "relative_half_width",
    "latency_p50_s",
    "latency_p95_s",
    "latency_p99_s",
    "gpu_busy",
    "peak_memory_bytes",
    "peak_reserved_bytes",
    "device_bytes",
    "energy_source",
    "mean_power_w",
    "joules_per_sample",
    "achieved_flops_per_s",
    "mfu",
    "hfu",
    "mfu_of_gemm",
)


def run_document(run: Run) -> dict[str, Any]:
    """Return the run with flat derived fields in each measurement; unknown values are null."""
    return {**msgspec.to_builtins(run), "measurements": list(map(measurement_document, run.measurements))}


def measurement_document(measurement: Measurement) -> dict[str, Any]:
    """Return one measurement with its derived figures, including token figures for a generation."""
    document = {
        **msgspec.to_builtins(measurement),
        **{name: getattr(measurement, name) for name in DERIVED},
        **spread(measurement),
        "ledger": msgspec.to_builtins(measurement.ledger),
    }
    if measurement.case.new_tokens:
        document |= {
            "first_token_s": measurement.first_token_s,
            "per_token_s": measurement.per_token_s,
            "token_latency_p50_s": measurement.token_latency_s(0.50),
            "token_latency_p99_s": measurement.token_latency_s(0.99),
            "decoded_tokens_per_s": measurement.decoded_tokens_per_s,
            "prefill_tokens_per_s": measurement.prefill_tokens_per_s,
        }
    return document


# --- frame -----------------------------------------------------------------------------------------------

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
_COLUMNS = [
    *("run_id", "started_at", "gpu_key", "backend", "device"),
    *Case.__struct_fields__,
    *("status", "reason", "batch_choice"),
    *_FIGURES,
    "launches",
    *SPREAD,
    *("findings", "budget", "protocol", "gpubench", "torch", "driver"),
]


@options.takes_options_of(options.ResultsRequest)
def load_runs(request: options.ResultsRequest) -> pd.DataFrame:
    """Return a frame with one row per stored measurement; unknown values are missing, never 0."""
    stored = read_runs(folders.results_root(request.results))
    say_problems(stored.problems)
    return frame(stored.runs)


def frame(runs: tuple[Run, ...]) -> pd.DataFrame:
    """Return one row per measurement of the given runs."""
    import pandas as pd

    return pd.DataFrame(
        [row(run, measurement) for run in runs for measurement in run.measurements], columns=_COLUMNS
    )


def row(run: Run, measurement: Measurement) -> dict[str, Any]:
    """Return the flat row of one measurement."""
    case = msgspec.structs.asdict(measurement.case)
    return {
        "run_id": run.run_id,
        "started_at": run.started_at,
        "gpu_key": run.device.gpu_key,
        "backend": run.device.backend,
        "device": run.device.name,
        **{name: str(value) if isinstance(value, str) else value for name, value in case.items()},
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
