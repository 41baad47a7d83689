"""The seam to pytest-benchmark: our rounds replayed on a virtual clock, so that its tools work unchanged.

There is no public way to hand it a time. It does read a callable ``timer`` twice a round and takes the
difference: a clock that our target sets to the measured value gives exactly that value. Only ``pedantic``
mode works so; its calibration would see no time pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import msgspec

from gpubench.models import DeviceProfile, Finding, Measurement, Run
from gpubench.record.figures import DERIVED
from gpubench.units import Seconds


class VirtualClock:
    """A timer that reads whatever a measured round took."""

    def __init__(self) -> None:
        self._now_s: Seconds = 0.0

    def __call__(self) -> Seconds:
        """Return the virtual time [s]."""
        return self._now_s

    def replay(self, samples: tuple[Seconds, ...]) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return ``setup`` and ``target`` for one pedantic benchmark of ``len(samples)`` rounds.

        ``setup`` sets the clock to zero before each round, so that no sum of rounds costs a digit.
        """
        left = iter(samples)

        def setup() -> None:
            self._now_s = 0.0

        def target() -> None:
            self._now_s = next(left)

        return setup, target


def samples_of(measurement: Measurement) -> tuple[Seconds, ...]:
    """Mean seconds per step of every accepted round, of every launch in turn."""
    return tuple(seconds for launch in measurement.launches for seconds in launch.step_times_s)


def extra_info(
    measurement: Measurement, device: DeviceProfile, run_findings: Sequence[Finding] = ()
) -> dict[str, Any]:
    """Return what pytest-benchmark stores beside the samples: device, case, interval, energy, findings.

    ``run_findings`` are of the device before the first case (shared, capped); they hold for every case.
    """
    return {
        "device": {name: getattr(device, name) for name in ("backend", "name", "gpu_key", "device_id")},
        "case": msgspec.to_builtins(measurement.case),
        "unit": "seconds per step",
        "steps_per_round": [launch.rounds[0].steps for launch in measurement.launches if launch.rounds],
        **{name: getattr(measurement, name) for name in DERIVED},
        "findings": msgspec.to_builtins(measurement.findings),
        "run_findings": msgspec.to_builtins(tuple(run_findings)),
    }


def machine_info(run: Run) -> dict[str, Any]:
    """Return the device and its software for ``machine_info``.

    ``--benchmark-compare`` asks for it before anything is measured and compares it with the stored one, so it
    holds nothing that only a measuring process can tell, and no id that is another in each fresh container;
    torch is named as it is installed.
    """
    environment = msgspec.structs.replace(run.environment, torch=metadata.version("torch"))
    return {
        "device": msgspec.to_builtins(msgspec.structs.replace(run.device, device_id=None)),
        "environment": msgspec.to_builtins(environment),
        "protocol": run.protocol,
        "budget": run.budget,
    }


def case_id(measurement_or_case: Any) -> str:
    """Id of a case such as ``vgg16-amp-bf16-eager-batch64``, so that ``-k "vgg16 and amp"`` selects it."""
    case = getattr(measurement_or_case, "case", measurement_or_case)
    return f"{case.workload}-{case.precision}-{case.execution}-batch{case.batch_size}"
