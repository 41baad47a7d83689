"""Why each prediction is what it is: a line of reasons, and the records of `predict show --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gpubench.findings import describe
from gpubench.models import Estimate
from gpubench.predict.calibration import load_calibration
from gpubench.predict.pairs import chip_of
from gpubench.predict.question import Refusal
from gpubench.specs import load_specs
from gpubench.units import format_percent


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
        rows = calibration.of(estimate.case.task).rows
        parts.append(
            f"step bound by compute {format_percent(estimate.compute_share)}, "
            f"bandwidth {format_percent(estimate.bandwidth_share)}, "
            f"host {format_percent(estimate.host_share)}"
        )
        parts.append(f"{evidence_on(estimate)}, {rows} in all, calibrated {calibration.fitted}")
    parts += [describe(f) for f in estimate.findings]
    return "; ".join(parts)


def evidence_on(estimate: Estimate) -> str:
    """Return how many published rows of its GPU the calibration holds; without any, whose are nearest."""
    fitted = load_calibration().of(estimate.case.task)
    if apart := fitted.apart_by_gpu.get(estimate.gpu_key):
        return f"{apart} published rows of this GPU (judged apart)"
    rows = fitted.rows_by_gpu
    own = rows.get(estimate.gpu_key, 0)
    return f"{own or 'no'} published rows of this GPU{'' if own else _nearest(estimate.gpu_key, rows)}"


def _nearest(gpu_key: str, rows: Mapping[str, int]) -> str:
    """The relative with the most published rows, in words; nothing where there is none."""
    specs = load_specs()
    kin = [key for key in rows if chip_of(key) == chip_of(gpu_key)] or [
        key for key in rows if specs[key].compute_capability == specs[gpu_key].compute_capability
    ]
    if not kin:
        return ""
    nearest = max(kin, key=lambda key: (rows[key], key))
    return f" (nearest: {rows[nearest]} of {specs[nearest].short_name})"
