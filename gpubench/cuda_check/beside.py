"""The shipped readings beside what a check measured on a card of their kind: shown, never judged."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpubench.labels import micro_name
from gpubench.models import CudaCheck, QuickProof, Status
from gpubench.readings import CardReadings, h200_readings


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One figure here and there, in one unit."""

    name: str
    here: float
    there: float
    unit: str


def beside(check: CudaCheck) -> tuple[Beside, ...]:
    """Return what was measured in the quick run and read on such a card, too; nothing on any other card."""
    readings = h200_readings()
    if check.device.gpu_key != readings.gpu_key or check.quick is None:
        return ()
    return (*_steps(check.quick, readings), *_micro(check.quick, readings))


def _steps(run: QuickProof, readings: CardReadings) -> Iterator[Beside]:
    for row in run.measurements:
        case = row.case
        there = readings.step_time_s(
            case.workload, case.batch_size, case.precision, case.execution, case.task
        )
        if row.status is Status.OK and row.step_time_s is not None and there is not None:
            yield Beside(name=f"{row.label}, a step", here=row.step_time_s, there=there, unit="s")


def _micro(run: QuickProof, readings: CardReadings) -> Iterator[Beside]:
    for result in run.micro:
        there = readings.micro.get((result.name, result.precision, result.size))
        if there is not None:
            yield Beside(name=micro_name(result), here=result.value, there=there, unit=result.unit)
