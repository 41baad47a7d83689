"""The values of task, recipe and parallel mode."""

from __future__ import annotations

from enum import StrEnum


class TaskKind(StrEnum):
    """What a step does: one optimizer update, or one forward pass."""

    TRAIN = "train"
    INFER = "infer"


class WeightType(StrEnum):
    """The storage type of the weights; under AMP they stay float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"

    @property
    def bytes_each(self) -> float:
        """Size of one weight, including its share of its group's scales [B]."""
        return _BYTES_EACH[self]


# Each weight's share of the scale and zero point, both in bfloat16, of 128 weights.
_INT4_SCALE_BYTES = 4 / 128
_BYTES_EACH = {
    WeightType.FLOAT32: 4.0,
    WeightType.BFLOAT16: 2.0,
    WeightType.FLOAT16: 2.0,
    WeightType.INT8: 1.0,
    WeightType.INT4: 0.5 + _INT4_SCALE_BYTES,
    WeightType.NF4: 0.5 + 1 / 64 + 4 / (64 * 256),  # a byte of scale per 64 weights, a float32 per 256 scales
}


class Checkpointing(StrEnum):
    """Which activations are recomputed in the backward pass instead of saved."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Trainable(StrEnum):
    """What is trained: everything that the workload trains, or adapters on a frozen (quantized) base."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class Stack(StrEnum):
    """The software stack of a step, which determines its speed.

    ``torch`` is a workload's own code with torch's operators. ``plain`` is transformers, with adapters from
    PEFT and 4-bit weights from bitsandbytes; ``no-flash`` is the same on a torch without flash attention, as
    on Windows. ``fused`` uses the kernels of Liger or Unsloth.
    """

    TORCH = "torch"
    PLAIN = "plain"
    NO_FLASH = "no-flash"
    FUSED = "fused"


ADAPTER_BASES = {Trainable.LORA: WeightType.BFLOAT16, Trainable.QLORA: WeightType.NF4}
"""The weight type of a frozen base, by the kind of adapters."""


LOSS_CHUNKS = 8
"""Number of token chunks in which a loss is traced, and which gpubench suggests to save memory."""


class ParallelMode(StrEnum):
    """How several GPUs work together.

    ``ddp`` and ``fsdp`` are one job, with all weights on each GPU or a share of them. ``independent`` is one
    job per GPU, without communication.
    """

    SINGLE = "single"
    DDP = "ddp"
    FSDP = "fsdp"
    INDEPENDENT = "independent"
