"""Shorten a model of repeated blocks to two small copies, from which the whole model's trace is extrapolated.

Tracing a model of eighty blocks takes twenty times as long as tracing copies of two and three blocks, and is
repeated for every batch, precision and recipe. Nothing guarantees that all blocks do the same work, so one
step of the whole model is also traced up to its loss, and compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, eq
from typing import Any

import torch
from torch import nn

from gpubench.profile.growth import BATCHES
from gpubench.profile.liveness import steps_alike
from gpubench.profile.operators import on_meta
from gpubench.workload import Task, Workload

KEPT = (2, 3)
"""Number of periods (see ``Run``) kept in each of the two shorter models."""
LEAST_BLOCKS = 8
"""With fewer repeated blocks, the comparison costs as much time as the shorter models save."""
_MOST_PERIOD = 16  # blocks in a period


@dataclass(frozen=True)
class Run:
    """A run of blocks that repeat within one ``ModuleList`` or ``Sequential`` of a model.

    Attributes:
        path: Name of that module in the model.
        start: Index of the first repeated block.
        period: Number of blocks after which the pattern repeats.
        times: Number of periods.
    """

    path: str
    start: int
    period: int
    times: int

    @property
    def blocks(self) -> int:
        """Number of blocks in all periods."""
        return self.period * self.times


def with_shorter(workload: Workload) -> Workload:
    """Add the two shorter workloads from which this one can be traced, if they predict its own trace.

    Args:
        workload: Any workload.

    Returns:
        The workload with ``shorter`` set. It is unchanged if it has few repeated blocks, if it cannot be
        copied, or if a step of the whole model differs in operators or memory from what the shorter models
        predict.
    """
    if workload.shorter is not None:
        return workload
    whole = workload.built(_once)
    try:
        run = longest_run(on_meta(whole, BATCHES[0]).model)
        if run is None or run.blocks < LEAST_BLOCKS:
            return workload
        one, two = (whole.built(_shortened(run, kept)) for kept in KEPT)
        times = run.times - KEPT[0]
        agrees = steps_alike(whole, one, two, times)
    except Exception:  # noqa: BLE001 - foreign code: the trace of the whole model reports what is wrong
        return workload
    return replace(workload, shorter=(one, two, times)) if agrees else workload


def longest_run(model: nn.Module) -> Run | None:
    """Return the longest run of blocks that repeat in layer types and weight shapes; None if none do."""
    runs = [
        run
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        for run in _runs(path, [_structure(block) for block in module])
    ]
    return max(runs, key=attrgetter("blocks"), default=None)


def _structure(block: nn.Module) -> list[Any]:
    return [
        (
            name,
            type(module),
            [(key, each.shape, each.requires_grad) for key, each in module.named_parameters(recurse=False)],
        )
        for name, module in block.named_modules()
    ]


def _runs(path: str, kinds: Sequence[Any]) -> Iterator[Run]:
    for period in range(1, min(len(kinds) // (KEPT[-1] + 1), _MOST_PERIOD) + 1):
        start = 0
        # A block belongs to a run as long as it equals the block one period later
        for repeats, places in groupby(map(eq, kinds, kinds[period:])):
            count = len([*places])
            if repeats and count // period >= KEPT[-1]:
                yield Run(path, start, period, count // period + 1)
            start += count


def _once(build: Callable[..., Task]) -> Callable[..., Task]:
    # Building billions of weights takes as long as a trace, so a whole model is built only once, then copied.
    wholes: dict[Any, Task] = {}

    def built(batch_size: int, seed: int, **recipe: Any) -> Task:
        probe = torch.empty(0)  # fake, meta and real tensors must not mix
        mode = getattr(probe, "fake_mode", probe.device)
        key = batch_size, seed, mode, *recipe.items()
        if key not in wholes:
            wholes[key] = build(batch_size, seed, **recipe)
        return wholes[key]

    return built


def _shortened(run: Run, kept: int) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    def by(build: Callable[..., Task]) -> Callable[..., Task]:
        return lambda *args, **recipe: _copy(build(*args, **recipe), run, kept)

    return by


def _copy(task: Task, run: Run, kept: int) -> Task:
    # A loss or optimizer that captured the model still uses all of its blocks, so the comparison then fails.
    blocks = task.model.get_submodule(run.path)
    whole = blocks._modules  # noqa: SLF001 - the only way to shorten a list without changing its owner
    names, modules = [*whole], [*whole.values()]
    end = run.start + run.period * run.times
    few = [*modules[: run.start + run.period * kept], *modules[end:]]
    try:
        blocks._modules = dict(zip(names, few, strict=False))  # noqa: SLF001
        model, loss = copy.deepcopy((task.model, task.loss))
    finally:
        blocks._modules = whole  # noqa: SLF001
    again = task.again if kept == KEPT[0] else None  # checking a second step in one of the copies is enough
    return replace(task, model=model, loss=loss, again=again)
