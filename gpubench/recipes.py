"""The values of task, recipe and parallel mode, each list once."""

from __future__ import annotations

from enum import StrEnum


class TaskKind(StrEnum):
    """One optimizer update a step, or one forward pass."""

    TRAIN = "train"
    INFER = "infer"


class WeightType(StrEnum):
    """In which type the weights are stored; under AMP they stay float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"

    @property
    def bytes_each(self) -> float:
        """What one weight takes, with its share of the scales of its group [B]."""
        return _BYTES_EACH[self]


_SCALE_OF_128 = 4 / 128
"""Scale and zero point in bfloat16 for each 128 weights."""
_BYTES_EACH = {
    WeightType.FLOAT32: 4.0,
    WeightType.BFLOAT16: 2.0,
    WeightType.FLOAT16: 2.0,
    WeightType.INT8: 1.0,
    WeightType.INT4: 0.5 + _SCALE_OF_128,
    WeightType.NF4: 0.5 + 1 / 64 + 4 / (64 * 256),  # a byte for each 64, a float32 for each 256 of those
}


class Checkpointing(StrEnum):
    """Which activations are computed again in the backward pass instead of kept."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Trainable(StrEnum):
    """What is trained: all that the workload trains, or adapters over a frozen (quantized) base."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class Stack(StrEnum):
    """The software stack of a step; a level of speed belongs to one.

    ``torch`` is the operators of torch, as a workload has them. ``plain`` is transformers, with adapters by
    PEFT and 4 bits by bitsandbytes; ``no-flash`` is the same where torch has no flash attention, as on
    Windows. ``fused`` are the kernels of Liger or Unsloth.
    """

    TORCH = "torch"
    PLAIN = "plain"
    NO_FLASH = "no-flash"
    FUSED = "fused"


ADAPTER_BASES = {Trainable.LORA: WeightType.BFLOAT16, Trainable.QLORA: WeightType.NF4}
"""The type of the layers of a frozen base, by what is trained over it."""


LOSS_CHUNKS = 8
"""Default number of token chunks tried for a loss."""


class ParallelMode(StrEnum):
    """How several GPUs work at once.

    ``ddp`` and ``fsdp`` are one job: all weights on each GPU, or a share of them. ``independent`` are as many
    jobs as GPUs, which exchange nothing.
    """

    SINGLE = "single"
    DDP = "ddp"
    FSDP = "fsdp"
    INDEPENDENT = "independent"
