"""The case: what identifies a number."""

from __future__ import annotations

from enum import StrEnum

from gpubench.models.record import Record


class Precision(StrEnum):
    """``fp32`` is IEEE, TF32 off in matmul, convolution and RNN; AMP is autocast, at fp16 with GradScaler."""

    FP32 = "fp32"
    TF32 = "tf32"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"

    @property
    def is_amp(self) -> bool:
        """Whether autocast is on."""
        return self in {Precision.AMP_FP16, Precision.AMP_BF16}


class Execution(StrEnum):
    """``graph`` is the whole step in one CUDA graph; ``compile`` is torch.compile."""

    EAGER = "eager"
    GRAPH = "graph"
    COMPILE = "compile"


class TaskKind(StrEnum):
    """One optimiser update a step, or one forward pass."""

    TRAIN = "train"
    INFER = "infer"


class MemoryFormat(StrEnum):
    """Layout of image tensors."""

    CHANNELS_LAST = "channels_last"
    CONTIGUOUS = "contiguous"


class Case(Record, frozen=True, kw_only=True):
    """The identity of a number. Two figures whose cases differ are never compared without saying so."""

    workload: str
    workload_version: int
    task: TaskKind
    precision: Precision
    execution: Execution
    memory_format: MemoryFormat | None
    batch_size: int
    sample_unit: str
    gpu_count: int = 1

    @property
    def label(self) -> str:
        """Short name for people: ``vgg16 amp-bf16 graph batch 64``."""
        task = "" if self.task is TaskKind.TRAIN else f" {self.task}"
        count = "" if self.gpu_count == 1 else f" on {self.gpu_count} GPUs"
        return f"{self.workload}{task} {self.precision} {self.execution} batch {self.batch_size:,}{count}"
