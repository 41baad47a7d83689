"""The case: what identifies a number."""

from __future__ import annotations

from enum import StrEnum

from gpubench.executions import Execution
from gpubench.models.record import Record
from gpubench.precisions import Precision


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
