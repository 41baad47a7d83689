"""Training of a small workload to a stated quality, from one seed: the step is the one that is measured."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpubench.foreign_code import one_line
from gpubench.measure.messages import QualityDone, TrainToQuality
from gpubench.measure.precision import switches_for
from gpubench.measure.quality_goals import EVALUATE_EVERY, GOALS, HELD_OUT, Goal
from gpubench.measure.step import Work, built, move
from gpubench.measure.telemetry import energy_of
from gpubench.models.run import SeedRun
from gpubench.workload import Task

if TYPE_CHECKING:
    from gpubench.measure.case import WorkerContext


def train_to_quality(order: TrainToQuality, context: WorkerContext) -> QualityDone:
    """Train from one seed until the quality is seen, or the steps are over; an exception becomes a reason."""
    try:
        with switches_for(order.case.precision):
            run = _train(order, context)
    except Exception as error:  # noqa: BLE001 - whatever stops a training is told in its row
        return QualityDone(reason=one_line(error))
    finally:
        context.hardware.release()
    return QualityDone(reason="stopped on request") if run is None else QualityDone(run=run)


def _train(order: TrainToQuality, context: WorkerContext) -> SeedRun | None:
    goal = GOALS[order.case.workload]
    context.phase("build")
    task, held_out = _task(order, goal)
    work = move(task, order.case, context.hardware.device)
    inputs, targets = (part.to(context.hardware.device) for part in held_out)
    clock, telemetry = context.clock(), context.telemetry
    steps, train_s, quality = 0, 0.0, math.nan

    def train() -> None:
        for index in range(steps, steps + EVALUATE_EVERY):
            work.step(index)

    began_s, began_j = clock.now_s(), telemetry.energy_j()
    while steps < goal.most_steps:
        if context.stopped():
            return None
        context.phase("timed")
        train_s += clock.time(train)
        steps += EVALUATE_EVERY
        quality = _quality(work, goal, inputs, targets)
        if goal.is_met_by(quality):
            break
    edges = (began_j, telemetry.energy_j())
    energy = energy_of(clock.now_s() - began_s, edges, (), context.power_limit_w())
    return SeedRun(
        seed=order.seed,
        reached=goal.is_met_by(quality),
        steps=steps,
        train_s=train_s,
        quality=quality if math.isfinite(quality) else None,
        energy_j=energy.joules,
    )


def _task(order: TrainToQuality, goal: Goal) -> tuple[Task, tuple[Tensor, Tensor]]:
    """Return the workload's own model on the data of its goal in the seed's order, and what is held out.

    Images of 8 x 8 are enlarged threefold and framed to 28 x 28, from 0 to 1; tokens are whole numbers.
    """
    task = built(order.case.workload, order.case, order.seed)
    inputs, targets = map(torch.from_numpy, goal.samples())
    if inputs.dim() == 2:
        samples = inputs.long()
    else:
        enlarged = (inputs.float() / 16).repeat_interleave(3, 1).repeat_interleave(3, 2)
        samples = torch.nn.functional.pad(enlarged, (2, 2, 2, 2))[:, None]
    labels = targets.long()
    held_out = torch.arange(len(samples)) % HELD_OUT == 0
    kept = torch.nonzero(~held_out).flatten()
    order_of = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(order.seed))]
    parts = (part for part in order_of.split(goal.batch_size) if len(part) == goal.batch_size)
    batches = tuple((samples[part], labels[part]) for part in parts)
    optimizer = partial(torch.optim.Adam, lr=goal.learning_rate)
    return dataclasses.replace(task, batches=batches, optimizer=optimizer), (
        samples[held_out],
        labels[held_out],
    )


def _quality(work: Work, goal: Goal, inputs: Tensor, targets: Tensor) -> float:
    """Accuracy or loss on the held-out samples, at the precision of the training."""
    with torch.no_grad(), work.autocast():
        outputs: Any = work.model(inputs)
        if goal.metric == "accuracy":
            return float((outputs.argmax(-1) == targets).float().mean())
        return float(work.loss(outputs, targets))
