"""One trial of a case in the child: the way of a measurement up to its warm-up, to see if it fits."""

from __future__ import annotations

from gpubench.measure.case import WorkerContext, is_spent, try_steps
from gpubench.measure.execution import NotPreparedError
from gpubench.measure.launch import LaunchRecorder, failure
from gpubench.measure.messages import CaseDone, MeasureCase, TryBatch
from gpubench.measure.precision import switches_for
from gpubench.measure.quantize import NotQuantizedError
from gpubench.models import Status
from gpubench.profile.log import traceback_of

STEPS = 4
"""The first steps make the optimizer's state and let cuDNN try its algorithms; the later ones are as all."""


def try_batch(order: TryBatch, context: WorkerContext) -> CaseDone:
    """Run a few steps of a case; the status says whether they ran, did not fit, or failed otherwise.

    The launch holds what a measurement holds before its first timed round: errors, switches, peak memory.
    """
    status, reason, trace = Status.OK, None, None
    seen = LaunchRecorder(index=0)
    try:
        with switches_for(order.case.precision) as seen.switches:
            case = MeasureCase(reference=order.reference, case=order.case, launch=0)
            try_steps(case, context, STEPS, seen)
    except (NotPreparedError, NotQuantizedError) as error:
        status, reason = Status.UNSUPPORTED, str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as in a measurement
        status, reason = failure(error, order.case.batch_size, context.at)
        trace = traceback_of(error)
    return CaseDone(
        status=status,
        reason=reason,
        launch=seen.launch(),
        spent=is_spent(status, context),
        traceback=trace,
    )
