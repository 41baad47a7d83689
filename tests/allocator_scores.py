"""Compares two predictions of reserved memory: a replay of torch's caching allocator, and the fitted ratio.

The replay feeds the allocations and frees of a trace, in order, to the fake device's allocator, which imitates
torch's. The replay lacks the scratch space of cuDNN and the driver's placement of segments.
``python tests/allocator_scores.py`` writes its table to docs/memory-evidence.md; it takes a few minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from definitions.test_memory_readings import MODELS
from memory_cases import ALONE, case_of, own_readings
from scipy import optimize
from strict_cuda.memory import Block, Memory

from gpubench.discovery import load_workload
from gpubench.models import CardClass, Case, Execution, MemoryNeed, Recipe, TaskKind
from gpubench.profile import liveness, load_profiles
from gpubench.profile.allowance import load_allowance
from gpubench.profile.growth import BATCHES
from gpubench.profile.memory_figures import scratch_of
from gpubench.profile.quick_fakes import gpu_without_values
from gpubench.tensors import storage_id
from gpubench.units import GIB, MIB
from gpubench.workload import Workload, seeded
from tools.evaluate import DOCS, as_table, put
from tools.make import load_readings

EVENT = tuple[int, int]
"""ID of a storage, and its size in bytes if it is allocated, or 0 if it is freed."""


class Order(NamedTuple):
    """The allocations and frees of a step, in order.

    Attributes:
        weights, states, batches: Size of each storage that exists before the step [B]; the states are those of
            the optimizer.
        events: Allocations and frees during the step.
    """

    weights: tuple[int, ...]
    states: tuple[int, ...]
    batches: tuple[int, ...]
    events: tuple[EVENT, ...]


class _Recording(liveness.Storages):
    """Storages that record when each one is allocated and freed."""

    last: _Recording

    def __init__(self) -> None:
        super().__init__()
        self.adopted: list[list[int]] = []
        self.events: list[EVENT] = []
        self.numbers: dict[int, int] = {}
        self.is_stepping = False
        _Recording.last = self

    def adopt(self, tensors: Iterable[Any]) -> None:
        tensors = [*tensors]
        before = {key: self._alive.get(key, (None,))[0] for key in map(storage_id, tensors)}
        super().adopt(tensors)
        made = [key for key, size in before.items() if size != self._alive[key][0]]
        if not self.is_stepping:
            self.adopted.append([self._alive[key][0] for key in made])
            return
        for key in made:
            if key in self.numbers:
                self.events.append((self.numbers.pop(key), 0))
            self.numbers[key] = len(self.events)
            self.events.append((self.numbers[key], self._alive[key][0]))

    def followed(self, calls: list[Any] | None = None) -> Any:
        self.is_stepping = True
        return super().followed(calls)

    def _gone(self, key: int, what: object) -> None:
        super()._gone(key, what)
        if key in self.numbers:
            self.events.append((self.numbers.pop(key), 0))


def order_of(
    workload: Workload,
    batch_size: int,
    *,
    is_amp: bool,
    keep_gradients: bool = False,
    recipe: Recipe | None = None,
) -> Order:
    """Trace a training step and record its order of allocations."""
    with gpu_without_values() as mode, mock.patch.object(liveness, "Storages", _Recording):
        task = liveness._Tracer(workload, recipe or workload.recipe, mode).at(batch_size).task
        with seeded(0):
            optimizer = liveness.with_state(task, liveness.GPU_OPTIONS)
            liveness.step_trace(task, optimizer, is_amp=is_amp, keep_gradients=keep_gradients)
    found = _Recording.last
    weights, states, batches, *_ = (*found.adopted, [], [])
    return Order(tuple(weights), tuple(states), tuple(batches), tuple(found.events))


STEPS = 3
"""Number of eager steps; the first has no optimizer state yet, and the second reuses what the first left."""


def reserved_bytes(order: Order, scratch: Sequence[int], *, in_graph: bool) -> int:
    """Return the most memory that the allocator reserves in a replay of a whole process [B].

    The process allocates weights, batches and scratch space, then runs eager steps. With a graph, the peak is
    that of the capture, which starts with an empty cache.
    """
    memory = Memory(total=2**50)
    for size in (*order.weights, *order.batches, *scratch):
        memory.take(size)
    last = max((place for place, (_, size) in enumerate(order.events) if size), default=-1) + 1
    for step in range(STEPS):
        alive = _play(memory, order.events[:last], {}, None)
        if step == 0:
            for size in order.states:
                memory.take(size)
        _play(memory, order.events[last:], alive, None)
        for block in alive.values():
            memory.give(block)
    if in_graph:
        memory.empty_cache()
        memory.begin_capture("graph")
        memory.peak_reserved = memory.reserved
        _play(memory, order.events, {}, "graph")
    return memory.peak_reserved


def _play(
    memory: Memory, events: Iterable[EVENT], alive: dict[int, Block], capture: object
) -> dict[int, Block]:
    for number, size in events:
        if size:
            alive[number] = memory.take(size, capture=capture)
        elif number in alive:
            memory.give(alive.pop(number))
    return alive


def between(small: Order, large: Order, batch_size: int) -> Order | None:
    """Interpolate the size of each storage linearly to another batch size; None if the orders do not match."""
    low, high = BATCHES
    parts = zip(small[:3], large[:3], strict=True)
    if [bool(size) for _, size in small.events] != [bool(size) for _, size in large.events]:
        return None

    def at(one: int, two: int) -> int:
        return max(0, round(one + (two - one) * (batch_size - low) / (high - low)))

    before = [tuple(at(one, two) for one, two in zip(*each, strict=True)) for each in parts]
    events = tuple(
        (number, max(1, at(one, two)) if one else 0)
        for (number, one), (_, two) in zip(small.events, large.events, strict=True)
    )
    return Order(*before, events)


class Outcome(NamedTuple):
    """One reading, and both predictions without the fitted fixed part [B].

    Attributes:
        read: Reserved memory, or memory in use.
        ratio: The traced peak times the fitted factor; scratch space is added for gpubench's own readings.
        played: The allocator's maximum in the replay; cuDNN's likely scratch space is added for gpubench's own
            readings.
    """

    model: str
    words: str
    read: float
    ratio: float
    played: float


@cache
def own_outcomes() -> tuple[Outcome, ...]:
    """Return gpubench's own sound readings of eager steps and graphs with their predictions."""
    read = [(each.case, each.reserved, each.need) for each in own_readings() if each.is_sound]
    for each in ALONE:
        if each.limit_bytes is None and each.execution is not Execution.COMPILE:
            profile = load_profiles()[each.workload]
            fields = {"execution": each.execution}
            case = case_of(profile, TaskKind.TRAIN, each.precision, each.batch_size, **fields)
            read.append((case, each.reserved_bytes, each.need))
    return tuple(_own_outcome(*each) for each in read)


def _own_outcome(case: Case, read: float, need: MemoryNeed) -> Outcome:
    workload, profile = load_workload(case.workload), load_profiles()[case.workload]
    recipe = profile.recipe.at(case.precision)
    built = workload.at(recipe) if workload.settings else workload
    order = order_of(built, case.batch_size, is_amp=case.precision.is_amp, recipe=recipe)
    scratch = scratch_of(profile, case, CardClass.HBM)
    blas = int(scratch.blas) // 2
    played = reserved_bytes(order, [blas, blas], in_graph=case.execution is Execution.GRAPH)
    return Outcome(
        model=case.workload,
        words=f"{case.precision} {case.batch_size} {case.execution}",
        read=read,
        ratio=(need.reserved.value or 0.0) - scratch.fixed,
        played=played + scratch.likely - scratch.blas,
    )


@cache
def published_outcomes() -> tuple[Outcome, ...]:
    """Return the published readings of memory in use on NVIDIA's cards with their predictions."""
    rows = load_readings()
    rows = rows[rows.is_fitted & (rows.card_class != CardClass.OTHER)]
    found = []
    for (model, precision), alike in rows.groupby(["model", "precision"]):
        how = {"is_amp": precision == "amp", "keep_gradients": MODELS[model].keep_gradients}
        orders = [order_of(MODELS[model].workload, n, **how) for n in BATCHES]
        factor = load_allowance().classes[CardClass.HBM].factor
        for row in alike.itertuples():
            order = between(*orders, row.batch_size)
            order = order or order_of(MODELS[model].workload, row.batch_size, **how)
            played = reserved_bytes(order, [], in_graph=False)
            words = f"{precision} {row.batch_size} {row.card_class}"
            found.append(Outcome(model, words, row.memory_bytes, factor * row.traced_bytes, played))
    return tuple(found)


class Judged(NamedTuple):
    """One reading, and the error of each prediction when the fit leaves out its model."""

    of: Outcome
    ratio: float
    played: float


def judged(outcomes: Sequence[Outcome]) -> list[Judged]:
    """Return the errors after adding to each prediction the fixed part fitted to the other models' readings."""
    fixed = {
        model: [_fixed_bytes([each for each in outcomes if each.model != model], name) for name in FIGURES]
        for model in {each.model for each in outcomes}
    }
    return [
        Judged(
            each,
            *(
                abs((getattr(each, name) + more) / each.read - 1)
                for name, more in zip(FIGURES, fixed[each.model], strict=True)
            ),
        )
        for each in outcomes
    ]


FIGURES = ("ratio", "played")


def _fixed_bytes(outcomes: Sequence[Outcome], name: str) -> float:
    """Return the fixed part that minimizes the squared logarithmic errors; each model counts once."""
    told = np.array([getattr(each, name) for each in outcomes])
    read = np.array([each.read for each in outcomes])
    models = [each.model for each in outcomes]
    weight = np.array([1 / models.count(model) for model in models])

    def misfit(fixed: float) -> float:
        return float(np.sum(weight * np.log((told + fixed * MIB) / read) ** 2))

    return MIB * float(optimize.minimize_scalar(misfit, bounds=(0, 4096), method="bounded").x)


def rows() -> list[tuple[str, str, str, str]]:
    """Return the rows of the table: a kind of reading, how many there are, and the mean error of each prediction."""
    own, published = judged(own_outcomes()), published_outcomes()
    classes = {
        kind: judged([each for each in published if each.words.endswith(kind)]) for kind in ("hbm", "gddr")
    }
    groups = {
        "reserved, gpubench on an H100": own,
        "of which above 1 GiB": [each for each in own if each.of.read > GIB],
        "of which eager steps of `llama_1b`": [each for each in own if each.of.model == "llama_1b"],
        **{f"memory in use, {kind.upper()}": of_class for kind, of_class in classes.items()},
    }
    return [
        (
            words,
            str(len(group)),
            *(f"{100 * fmean(getattr(each, name) for each in group):.1f} %" for name in FIGURES),
        )
        for words, group in groups.items()
    ]


def table() -> str:
    """Return the table as it appears on the page."""
    return as_table([("readings", "number", "fitted ratio", "allocator replayed"), *rows()])


if __name__ == "__main__":
    put(table(), DOCS / "memory-evidence.md")
