"""One trial of a batch size in the child: a few steps, only to see whether they fit in memory."""

from __future__ import annotations

import copy

import torch

from gpubench.measure.case import Desk, failure
from gpubench.measure.execution import prepare
from gpubench.measure.messages import CaseDone, TryBatch
from gpubench.measure.precision import switches_for
from gpubench.measure.step import move
from gpubench.models import Launch, Status
from gpubench.workload import Task

STEPS = 4
"""The first steps make the optimizer's state and let cuDNN try its algorithms; the later ones are as all."""


def try_batch(order: TryBatch, desk: Desk) -> CaseDone:
    """Run a few steps of a case; the status says whether they ran, did not fit, or failed otherwise."""
    status, reason = Status.OK, None
    try:
        with switches_for(order.case.precision):
            _steps(order, desk)
    except torch.cuda.OutOfMemoryError as error:
        status, reason = Status.OUT_OF_MEMORY, f"batch {order.case.batch_size}: {error}"
    except Exception as error:  # noqa: BLE001 - the model is its author's code and may raise anything
        status, reason = failure(error, order.case.batch_size)
    desk.hardware.release()
    return CaseDone(status=status, reason=reason, launch=Launch(index=0))


def _steps(order: TryBatch, desk: Desk) -> None:
    desk.phase("build")
    task = desk.task(order.reference, order.case.batch_size)
    copied = Task(
        model=copy.deepcopy(task.model), batches=task.batches, loss=task.loss, optimizer=task.optimizer
    )
    work = move(copied, order.case, desk.hardware.device)
    desk.phase("first steps")
    for index in range(STEPS):
        work.edge_loss(work.step(index), index)
    advance = prepare(work)
    for index in range(STEPS):
        work.edge_loss(advance(index), index)
