"""What is told before a run of cases that may not fit; they are tried all the same: the device decides."""

from __future__ import annotations

from collections.abc import Mapping

from gpubench.measure.plan import Plan
from gpubench.models import DeviceProfile, WorkloadProfile
from gpubench.profile.allowance import card_of_device
from gpubench.profile.memory import judge


def doubts(made: Plan, profiles: Mapping[str, WorkloadProfile], device: DeviceProfile) -> tuple[str, ...]:
    """One line for each case of a plan that does not surely fit the device; none where it was searched.

    Args:
        made: The plan.
        profiles: By the reference of the workload.
        device: Where. A CPU swaps, and is not judged.
    """
    card = card_of_device(device)
    if card is None or made.on_cpu:
        return ()
    lines = []
    for planned in made.cases:
        case = planned.case
        if planned.batch_choice != "largest":
            fit = judge(profiles[planned.reference], case, card)
            if not fit.fits:
                lines.append(f"{case.workload} {case.precision} batch {case.batch_size}: {fit.text()}")
    return tuple(dict.fromkeys(lines))
