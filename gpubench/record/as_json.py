"""A run as ``run --json`` prints it: the stored record, with each measurement's derived figures beside it."""

from __future__ import annotations

from typing import Any

import msgspec

from gpubench.models import Measurement, Run
from gpubench.record.spread import spread

DERIVED = (
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "tokens_per_s",
    "step_time_s",
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
    """Return the run with derived fields flat in each measurement; unknown is null."""
    document: dict[str, Any] = msgspec.to_builtins(run)
    document["measurements"] = [measurement_document(m) for m in run.measurements]
    return document


def measurement_document(measurement: Measurement) -> dict[str, Any]:
    """Return one measurement with its derived figures."""
    stored: dict[str, Any] = msgspec.to_builtins(measurement)
    derived = {name: getattr(measurement, name) for name in DERIVED}
    return stored | derived | spread(measurement) | _generation(measurement)


def _generation(measurement: Measurement) -> dict[str, Any]:
    """What a generation takes, token by token; nothing of a case that generates none."""
    if measurement.case.new_tokens == 0:
        return {}
    return {
        "first_token_s": measurement.first_token_s,
        "per_token_s": measurement.per_token_s,
        "token_latency_p50_s": measurement.token_latency_s(0.50),
        "token_latency_p99_s": measurement.token_latency_s(0.99),
        "decoded_tokens_per_s": measurement.decoded_tokens_per_s,
        "prefill_tokens_per_s": measurement.prefill_tokens_per_s,
    }
