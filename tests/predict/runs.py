"""Recorded runs written by hand: one device, and one measurement per case at the given throughput."""

from __future__ import annotations

from typing import Any

from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Finding,
    Launch,
    Measurement,
    Round,
    Run,
    Status,
)


def run_of(
    gpu_key: str | None,
    *readings: tuple[Case, float],
    backend: str = "nvidia",
    run_id: str = "run-1",
    findings: tuple[Finding, ...] = (),
    **of_launch: Any,
) -> Run:
    return Run(
        run_id=run_id,
        started_at="2026-11-20T12:00:00Z",
        budget="default",
        seed=0,
        device=DeviceProfile(backend=backend, gpu_key=gpu_key),
        environment=Environment(gpubench="0.1.0", python="3.12", os="Linux"),
        measurements=tuple(
            _measurement(case, samples_per_s, findings, of_launch) for case, samples_per_s in readings
        ),
    )


def _measurement(
    case: Case, samples_per_s: float, findings: tuple[Finding, ...], of_launch: dict[str, Any]
) -> Measurement:
    step_s = case.batch_size * case.gpu_count / samples_per_s
    rounds = tuple(
        Round(steps=10, wall_s=10 * step_s * wobble) for wobble in (0.999, 1.001, 1.0, 0.9995, 1.0005)
    )
    return Measurement(
        case=case,
        status=Status.OK,
        launches=(Launch(index=0, rounds=rounds, **of_launch),),
        findings=findings,
    )
