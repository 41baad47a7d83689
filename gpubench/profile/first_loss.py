"""Look at the loss of one real batch: on the meta device, where models are traced, no number has a value."""

from __future__ import annotations

from gpubench.errors import MisuseError
from gpubench.models import TaskKind, WorkloadProfile
from gpubench.profile.trace import refusal, require_finite
from gpubench.units import format_number, format_si
from gpubench.workload import Workload, forward, lacks_memory, one_line, seeded

SAMPLES = 2
MOST_PARAMETERS = 200e6
"""Drawing so many weights takes a CPU of two cores about 2 s and 0.8 GB."""
MOST_FORWARD_FLOPS = 200e9
"""Such a CPU does about 150 GFLOP/s."""
MOST_KEPT_BYTES = 2e9
_SEED = 0


def check_first_loss(workload: Workload, profile: WorkloadProfile) -> str | None:
    """Run one forward pass and its loss on the CPU, for real; return why not where it was not done.

    Raises:
        MisuseError: If the loss is no finite number, or the pass fails on real values.
    """
    if TaskKind.TRAIN not in workload.tasks:
        return None
    flops = SAMPLES * profile.forward_flops_per_sample
    kept = SAMPLES * profile.saved_bytes_per_sample
    if profile.parameters > MOST_PARAMETERS or flops > MOST_FORWARD_FLOPS or kept > MOST_KEPT_BYTES:
        millions = format_number(profile.parameters / 1e6)
        return (
            f"its loss was not looked at: {millions} million parameters and {format_si(flops, 'FLOP')} are "
            "too much to run here at once; gpubench run looks at it"
        )
    try:
        _first_loss(workload)
    except Exception as error:  # a model of the user's own may raise anything; the cause is kept
        if lacks_memory(error) or isinstance(error, NotImplementedError):
            return f"its loss was not looked at, because it cannot run on this CPU: {one_line(error)}"
        raise MisuseError(refusal(workload.name, error)) from error
    return None


def _first_loss(workload: Workload) -> None:
    task = workload.build(SAMPLES, _SEED)
    inputs, targets = task.batches[0]
    task.model.train()
    with seeded(_SEED):
        outputs = forward(task.model, inputs)
        require_finite(task.loss(outputs, targets))
