"""Predictions in words: one line of reasons each, and the records of `predict show --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gpubench.findings import describe
from gpubench.models import Estimate
from gpubench.predict.calibration import load_calibration
from gpubench.predict.question import Refusal
from gpubench.units import format_interval, format_percent


def as_text(answers: Mapping[str, Estimate | Refusal]) -> str:
    """Figures with their reasons, the fastest first, then the refusals."""
    estimates = sorted(
        (a for a in answers.values() if isinstance(a, Estimate)), key=lambda e: -e.samples_per_s
    )
    lines = []
    for e in estimates:
        figure = format_interval(e.samples_per_s, e.low, e.high)
        lines += [f"{e.gpu_key}: {figure} {e.case.sample_unit}/s, {e.case.label}", f"  {reasons(e)}"]
    lines += [f"{a.gpu_key}: no prediction: {a.reason}" for a in answers.values() if isinstance(a, Refusal)]
    return "\n".join(lines)


def as_records(answers: Mapping[str, Estimate | Refusal]) -> dict[str, Any]:
    """The document of `predict show --json`."""
    calibration = load_calibration()
    return {
        "schema_version": 1,
        "calibrated": calibration.fitted,
        "estimates": [
            msgspec.to_builtins(a) | {"reasons": reasons(a)}
            for a in answers.values()
            if isinstance(a, Estimate)
        ],
        "refused": [msgspec.to_builtins(a) for a in answers.values() if isinstance(a, Refusal)],
    }


def reasons(estimate: Estimate) -> str:
    """Why this figure: basis, what binds the step, the calibration behind it, and what to beware of."""
    parts = [f"{estimate.basis}: {estimate.method}"]
    if estimate.basis == "predicted":
        calibration = load_calibration()
        parts.append(
            f"step bound by compute {format_percent(estimate.compute_share)}, "
            f"bandwidth {format_percent(estimate.bandwidth_share)}, "
            f"host {format_percent(estimate.host_share)}"
        )
        parts.append(f"calibrated {calibration.fitted} on {calibration.rows} published rows")
    parts += [describe(f) for f in estimate.findings]
    return "; ".join(parts)
