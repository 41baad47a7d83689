"""What can this card do? The largest context of decoders of 1 to 70 billion parameters, each way.

From a shipped trace of each (data/capacity.json, which ``python -m gpubench.predict.capacity`` writes): a
step on one sequence, as lines over its length. Whether it fits is decided as everywhere, by the upper end.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import table_json, write_file
from gpubench.interval import Interval
from gpubench.models import CardMemory, GpuSpec, MemoryLine, StepMemory
from gpubench.models.record import Record
from gpubench.profile.allowance import card_of
from gpubench.profile.memory import device_of, largest_of
from gpubench.shipped import data_bytes, data_path

CAPACITY_FILE = "capacity.json"
UNIT_TOKENS = 1024
MOST_UNITS = 1024
"""No context beyond this times the unit is looked for: none of these models was made for a longer one."""

MOST_CONTEXT = UNIT_TOKENS * MOST_UNITS
WORDS = (
    "Where the upper end of a trace (95 %) fits, in steps of 1,024 tokens; K is 1,024. Training: one "
    "sequence, AdamW, all in bfloat16, every block computed again, the loss in 8 chunks; adapters of rank 16 "
    "on attention, QLoRA over a base in NF4. Decoding: one sequence, its prompt computed at once; an engine "
    "that takes it in pieces reaches further."
)


class Member(Record, frozen=True, kw_only=True):
    """One way to train or run one decoder: its traced step, a sample of which is 1,024 tokens of a sequence.

    Attributes:
        way: full, LoRA, QLoRA, or decoding at a number of bits.
    """

    model: str
    parameters: int
    way: str
    step: StepMemory


class Room(Record, frozen=True, kw_only=True):
    """What a card has room for.

    Attributes:
        context_tokens: Of one sequence, the largest whose upper end fits, by 1,024; 0 where none does.
        device: Memory in use at 1,024 tokens [B].
    """

    model: str
    parameters: int
    way: str
    context_tokens: int
    device: Interval


class Capacity(Record, frozen=True, kw_only=True):
    """What one card has room for, each model and each way."""

    gpu_key: str
    card: CardMemory
    rooms: tuple[Room, ...]

    def flat(self) -> dict[str, Any]:
        """Return the document of ``gpubench memory --gpu X --json``."""
        return {
            "gpu_key": self.gpu_key,
            "memory_bytes": round(self.card.listed_bytes),
            "usable_bytes": round(self.card.usable_bytes),
            "models": [
                {
                    "model": room.model,
                    "parameters": room.parameters,
                    "way": room.way,
                    "largest_context_tokens": room.context_tokens,
                    "device_bytes": round(room.device.value or 0),
                    "device_bytes_low": round(room.device.low or 0),
                    "device_bytes_high": round(room.device.high or 0),
                }
                for room in self.rooms
            ],
        }


@cache
def load_members() -> tuple[Member, ...]:
    """Read the shipped traces, by rising number of parameters."""
    return msgspec.json.decode(data_bytes(CAPACITY_FILE), type=tuple[Member, ...])


def capacity_of(spec: GpuSpec) -> Capacity:
    """Say what a card has room for.

    Raises:
        MisuseError: If its memory is not known.
    """
    card = card_of(spec)
    if card is None:
        raise MisuseError(f"{spec.key}: its memory is not known")
    return Capacity(
        gpu_key=spec.key,
        card=card,
        rooms=tuple(
            Room(
                model=member.model,
                parameters=member.parameters,
                way=member.way,
                context_tokens=UNIT_TOKENS * min(largest_of(member.step, card), MOST_UNITS),
                device=device_of(member.step, 1, card.card_class),
            )
            for member in load_members()
        ),
    )


FEW_LAYERS = (2, 4)
"""All layers are alike, so every figure is linear in their number: two numbers tell those of any other."""


def traced() -> Iterator[Member]:
    """Trace every member again by a few of its layers; this takes a minute or two, and torch."""
    from gpubench.discovery import workload_names
    from gpubench.profile.trace import traced_steps

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
