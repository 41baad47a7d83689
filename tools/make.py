"""Make again what ships of traces: ``python -m tools.make capacity``, ``profiles [NAME ...]``, ``workloads``.

``capacity`` traces decoders of 1 to 70 billion and writes gpubench/data/capacity.json, each way to train or
run each of them; it takes a minute or two. ``profiles`` writes gpubench/data/workload_profiles.json: the
workloads that are named, or all, are traced again. ``workloads`` makes the table of docs/workloads.md.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from torch import nn

from gpubench.discovery import load_workload, workload_names
from gpubench.files import table_json, write_file
from gpubench.folders import data_path
from gpubench.measure.plan import batch_of
from gpubench.measure.request import RunRequest
from gpubench.models import MemoryLine, StepMemory, TaskKind, WorkloadProfile
from gpubench.predict.capacity import CAPACITY_FILE, MOST_UNITS, Member
from gpubench.profile import load_profiles
from gpubench.profile.cache import PROFILES_FILE
from gpubench.profile.trace import profile_workload, traced_steps
from gpubench.workload import Task, Workload, forward

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


# --- profiles of the workloads ------------------------------------------------------------------------------


def traced_again(names: Sequence[str]) -> list[WorkloadProfile]:
    """Return the profile of every workload, by name: those that are named are traced, all where none is.

    The versions of torch that end the source of a profile are kept; tests/packaging/torch_versions.py finds
    where they differ.
    """
    known = workload_names()
    kept = {name: profile for name, profile in load_profiles().items() if name in known}
    traced = {name: profile_workload(load_workload(name)) for name in names or known}
    for name, profile in traced.items():
        if name in kept and kept[name].source.startswith(f"{profile.source}; "):
            traced[name] = msgspec.structs.replace(profile, source=kept[name].source)
    return sorted((kept | traced).values(), key=lambda profile: profile.name)


# --- the table of docs/workloads.md -------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "workloads.md"
HEAD = (
    "| name | one sample | vocabulary | classes | parameters | trained by, rate | batches | on a CPU |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def _row(name: str) -> str:
    """The line of a workload in the table of the page."""
    workload, profile = load_workload(name), load_profiles()[name]
    sample, parameters, trained = profile.sample_shape, profile.parameters, profile.trainable_parameters
    trains = TaskKind.TRAIN in workload.tasks
    cells = [
        f"`{name}`",
        " x ".join(map(str, sample)) if len(sample) > 1 else f"{sample[0]} tokens",
        *(_words_and_classes(workload) if trains else "--"),
        (f"{parameters:,}" if parameters else "none")
        + (f", {trained:,} trained" if trains and trained != parameters else ""),
        "-" if workload.tiny is None or not trains else _rule(workload.tiny(1, 0)),
        ", ".join(map(str, workload.batches)),
        str(batch_of(RunRequest(workloads=(name,)), profile, on_cpu=True)),
    ]
    return f"| {' | '.join(cells)} |\n"


def _words_and_classes(workload: Workload) -> tuple[str, str]:
    with torch.device("meta"):
        task = workload.build(1, 0)
        scores = forward(task.model, task.batches[0][0])
    words = max((m.num_embeddings for m in task.model.modules() if isinstance(m, nn.Embedding)), default=None)
    classes = scores.shape[-1] if scores.ndim else words  # a model that gives its loss scores every word
    return "-" if words is None else f"{words:,}", f"{classes:,}"


def _rule(task: Task) -> str:
    made = task.optimizer([torch.zeros(1, requires_grad=True)])
    momentum = f", momentum {made.defaults['momentum']}" if made.defaults.get("momentum") else ""
    return f"{type(made).__name__} {made.defaults['lr']:g}{momentum}".replace("0.0001", "1e-4")


def page() -> str:
    """Return the page with its table made anew."""
    before, rest = PAGE.read_text(encoding="utf-8").split(HEAD)
    after = rest[rest.index("\n\n") :]
    return before + HEAD + "".join(map(_row, workload_names())).rstrip() + after


if __name__ == "__main__":
    parser = ArgumentParser(description="Make again what ships of traces.")
    parser.add_argument("table", choices=("capacity", "profiles", "workloads"))
    parser.add_argument("names", nargs="*", help="workloads whose profiles are traced; all by default")
    asked = parser.parse_args()
    if asked.table == "workloads":
        PAGE.write_text(page(), encoding="utf-8")
    elif asked.table == "profiles":
        write_file(data_path(PROFILES_FILE), table_json(traced_again(asked.names)))
    else:
        write_file(data_path(CAPACITY_FILE), table_json(tuple(traced())))
