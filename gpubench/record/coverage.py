"""Which guards a measured row went through, as far as its record shows: what did not run proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

from gpubench.measure.checks import FEW_LOSSES, loss_trace
from gpubench.models import DeviceProfile, Execution, Launch, Measurement, Precision, Status, TaskKind


def guards_not_run(measurement: Measurement, device: DeviceProfile) -> tuple[str, ...]:
    """Name the guards that this row was due and of which one of its launches holds no trace.

    At fp32 on a CPU the row is its own reference; memory errors are only counted where ECC is on. What has a
    finding of its own (an unknown peak, an unproven strict precision) is not named again.
    """
    if measurement.status is not Status.OK:
        return ()
    found = [name for launch in measurement.launches for name in _missing(measurement, launch, device)]
    return tuple(dict.fromkeys(found))


def _missing(measurement: Measurement, launch: Launch, device: DeviceProfile) -> Iterator[str]:
    case = measurement.case
    train = case.task is TaskKind.TRAIN
    own_reference = device.is_cpu and case.precision is Precision.FP32
    if launch.switches is None:
        yield "fp32 switches read back"
    if not launch.precision_errors and case.precision is not Precision.FP32:
        yield "matrix product and convolution against float64"
    if launch.reference_error is None and not own_reference:
        yield "first loss against float32 on the CPU"
    if launch.graph_error is None and case.execution is not Execution.EAGER:
        yield f"{case.execution} against eager"
    if train and len(loss_trace((launch,))) < FEW_LOSSES:
        yield f"falling loss (it takes {FEW_LOSSES} losses)"
    if train and launch.parameters_moved is None:
        yield "moving parameters"
    if train and launch.skipped_steps is None and case.precision.facts.scales_gradients:
        yield "skipped steps"
    if launch.memory_errors is None and device.ecc_enabled:
        yield "memory errors"
