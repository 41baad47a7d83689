"""The capacity of a card: the longest context that fits, for decoders of 1 to 70 billion parameters.

For each decoder and way of using it (training or decoding), the package ships traces of a step on one
sequence (data/capacity.json, written by ``python -m tools.make capacity``). A trace gives the memory as a
linear function of the sequence length. A context fits if the upper end of its memory's interval fits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gpubench.errors import MisuseError
from gpubench.folders import data_json
from gpubench.interval import Interval
from gpubench.models import CardMemory, GpuSpec, Precision, StepMemory
from gpubench.models.record import Record
from gpubench.predict.question import NO_SPEED, why_no_speed
from gpubench.profile.allowance import card_of
from gpubench.profile.memory import device_of, largest_of

CAPACITY_FILE = "capacity.json"
UNIT_TOKENS = 1024
MOST_UNITS = 1024
"""Longest context to try, in units of ``UNIT_TOKENS``; no decoder in the file has a longer one."""

MOST_CONTEXT = UNIT_TOKENS * MOST_UNITS
EXPLANATION = (
    "Longest context that fits, judged by the upper end of the 95 % interval, in steps of 1,024 tokens; K is "
    "1,024. "
    "Training: one sequence, AdamW, all in bfloat16, all blocks recomputed, the loss in 8 chunks; adapters "
    "of rank 16 on attention, QLoRA with an NF4 base. Decoding: one sequence, its prompt in a single pass; "
    "an engine that splits the prompt reaches longer contexts."
)


class DecoderTrace(Record, frozen=True, kw_only=True):
    """The memory of one decoder, trained or used in one way.

    Attributes:
        way: Full training, LoRA, QLoRA, or decoding at a number of bits.
        step: The memory of the step; a sample is 1,024 tokens of one sequence.
    """

    model: str
    parameters: int
    way: str
    step: StepMemory


class Room(Record, frozen=True, kw_only=True):
    """The capacity of a card for one decoder and way of using it.

    Attributes:
        context_tokens: The longest sequence that fits, in steps of 1,024; 0 if none does.
        device: Memory in use at 1,024 tokens [B].
    """

    model: str
    parameters: int
    way: str
    context_tokens: int
    device: Interval


class Capacity(Record, frozen=True, kw_only=True):
    """The capacity of one card, for each decoder and way of using it.

    Attributes:
        speed_untold: Why no speed is predicted for these models; None if it is predicted.
    """

    gpu_key: str
    card: CardMemory
    rooms: tuple[Room, ...]
    speed_untold: str | None = None

    def flat(self) -> dict[str, Any]:
        """Return the document of ``gpubench memory --gpu X --json``."""
        return {
            "gpu_key": self.gpu_key,
            "memory_bytes": round(self.card.listed_bytes),
            "usable_bytes": round(self.card.usable_bytes),
            "speed_untold": self.speed_untold,
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
def load_traces() -> tuple[DecoderTrace, ...]:
    """Read the shipped traces, sorted by number of parameters."""
    return data_json(CAPACITY_FILE, tuple[DecoderTrace, ...])


def capacity_of(spec: GpuSpec) -> Capacity:
    """Return the capacity of a card.

    Raises:
        MisuseError: If the card's memory is unknown.
    """
    card = card_of(spec)
    if card is None:
        raise MisuseError(f"{spec.key}: its memory is not known")
    no_speed = why_no_speed(spec, Precision.BF16)
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
            for member in load_traces()
        ),
        speed_untold=no_speed and f"{no_speed}: {NO_SPEED}",
    )
