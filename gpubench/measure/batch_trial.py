"""One trial of a batch size in the child: the way of a measurement up to its warm-up, to see if it fits."""

from __future__ import annotations

from gpubench.measure.case import Desk, failure, is_spent, try_steps
from gpubench.measure.messages import CaseDone, MeasureCase, TryBatch
from gpubench.measure.precision import switches_for
from gpubench.models import Launch, Status

STEPS = 4
"""The first steps make the optimizer's state and let cuDNN try its algorithms; the later ones are as all."""


def try_batch(order: TryBatch, desk: Desk) -> CaseDone:
    """Run a few steps of a case; the status says whether they ran, did not fit, or failed otherwise."""
    status, reason = Status.OK, None
    try:
        with switches_for(order.case.precision):
            try_steps(MeasureCase(reference=order.reference, case=order.case, launch=0), desk, STEPS)
    except Exception as error:  # noqa: BLE001 - the model is its author's code and may raise anything
        status, reason = failure(error, order.case.batch_size)
    return CaseDone(status=status, reason=reason, launch=Launch(index=0), spent=is_spent(status, desk))
