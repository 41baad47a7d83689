"""Trace again what a card has room for of decoders of 1 to 70 billion: ``python -m tools.make_capacity``.

Writes gpubench/data/capacity.json, each way to train or run each of them; it takes a minute or two.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from gpubench.discovery import workload_names
from gpubench.files import table_json, write_file
from gpubench.folders import data_path
from gpubench.models import MemoryLine, StepMemory
from gpubench.predict.capacity import CAPACITY_FILE, MOST_UNITS, Member
from gpubench.profile.trace import traced_steps

FEW_LAYERS = (2, 4)
"""All layers are alike, so every figure is linear in their number: two numbers tell those of any other."""


def traced() -> Iterator[Member]:
    """Trace every member again by a few of its layers; a minute or two."""
    workload_names()  # from here on their package is found in a checkout too
    family = importlib.import_module("gpubench_workloads._family")
    for model, sizes in family.FAMILY.items():
        few = [dict(family.ways(replace(sizes, layers=layers))) for layers in FEW_LAYERS]
        for way in few[0]:
            print(model, way, flush=True)
            low, high = (traced_steps(each[way]) for each in few)
            share = (sizes.layers - FEW_LAYERS[0]) / (FEW_LAYERS[1] - FEW_LAYERS[0])
            step = _between(_likely(low[1][0]), _likely(high[1][0]), share)
            parameters = round(low[0] + share * (high[0] - low[0]))
            yield Member(model=model, parameters=parameters, way=way, step=step)


def _likely(step: StepMemory) -> StepMemory:
    """The step with only those of its lines that are the highest at some length."""
    highest = {step.peak(units) for units in range(1, MOST_UNITS + 1)}
    lines = tuple(line for line in step.lines if line in highest)
    return msgspec.structs.replace(step, lines=lines)


def _between(low: StepMemory, high: StepMemory, share: float) -> StepMemory:
    """The step of so many layers more, from those of two numbers of layers."""
    assert len(low.lines) == len(high.lines), "another course with other layers: trace the whole"
    assert not low.points, "no line over the length: read off points, which other layers change"
    assert low.keeping is None, "its outputs count: they are no line over the layers here"

    def at(one: float, two: float) -> float:
        return one + share * (two - one)

    def line(one: MemoryLine, two: MemoryLine) -> MemoryLine:
        return MemoryLine(
            fixed_bytes=at(one.fixed_bytes, two.fixed_bytes),
            bytes_per_sample=at(one.bytes_per_sample, two.bytes_per_sample),
            gradient_bytes=at(one.gradient_bytes, two.gradient_bytes),
        )

    return msgspec.structs.replace(
        low,
        lines=tuple(line(one, two) for one, two in zip(low.lines, high.lines, strict=True)),
        weights_bytes=at(low.weights_bytes, high.weights_bytes),
        trained_bytes=at(low.trained_bytes, high.trained_bytes),
        optimizer_bytes=at(low.optimizer_bytes, high.optimizer_bytes),
        saved=None,
    )


if __name__ == "__main__":
    write_file(data_path(CAPACITY_FILE), table_json(tuple(traced())))
