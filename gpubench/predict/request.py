"""What predictions, their scores, the calibration and memory are asked: a field for each option."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from gpubench.options import Option, said
from gpubench.shared_options import (
    GPU,
    JOBS,
    WORKLOAD,
    AnyExecution,
    AnyPrecision,
    AnyTask,
    GpuBatch,
    RecipeRequest,
    Results,
    read_workload,
)

if TYPE_CHECKING:
    from gpubench.models import WorkloadProfile


def read_workload_or_profile(value: Any, name: str) -> str | WorkloadProfile:
    """Return the name of a workload, or a profile as it is.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(value, str | os.PathLike):
        return read_workload(value, name)
    from gpubench.models import WorkloadProfile

    if not isinstance(value, WorkloadProfile):
        raise TypeError
    return value


_ANY = said(
    WORKLOAD,
    read=read_workload_or_profile,
    takes="a workload's name or path, as in vgg16",
    python="str | Path | WorkloadProfile",
)
SEVERAL = "Several GPUs"


class PredictRequest(RecipeRequest, frozen=True, kw_only=True):
    """Which workload at what, and the GPUs to answer for: every known one where none is named."""

    workload: Annotated[
        Any,
        said(_ANY, help="A standard workload, or a model of your own: FILE[:NAME] or MODULE:NAME."),
    ]
    gpus: Annotated[tuple[str, ...], said(GPU, default="every GPU known")] = ()
    precision: AnyPrecision = None
    execution: AnyExecution = "graph"
    task: AnyTask = "train"
    batch_size: GpuBatch = None
    results: Results = None
    asked: tuple[str, ...] = ()


class MemoryRequest(RecipeRequest, frozen=True, kw_only=True):
    """Which step, on which GPUs, and how many of them share it."""

    workloads: Annotated[
        tuple[Any, ...],
        said(
            _ANY,
            help="Workloads by name, or a model of your own: FILE[:NAME] or MODULE:NAME.",
            default="every standard one, in short",
        ),
    ] = ()
    gpus: Annotated[tuple[str, ...], said(GPU, default="every NVIDIA GPU, by size")] = ()
    batch_size: Annotated[
        int | None,
        Option("Samples per step on one GPU.", least=1, default="the main batch"),
    ] = None
    accumulate: Annotated[
        int,
        Option("Micro-batches that the batch is cut into, whose gradients are summed.", least=1),
    ] = 1
    precision: AnyPrecision = None
    execution: AnyExecution = "graph"
    task: AnyTask = "train"
    count: Annotated[int, Option("GPUs of one job.", SEVERAL, least=1, most=2**20)] = 1
    jobs: Annotated[
        str | None, said(JOBS, help="All weights on each GPU, or a share of them.", panel=SEVERAL)
    ] = None
    results: Results = None
    asked: tuple[str, ...] = ()


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the user's own."""

    file: Annotated[
        Path,
        Option("CSV with the columns of the shipped measurements.", place=1, bare=True, metavar="FILE"),
    ]


class CalibrateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's own runs, which join the published rows."""

    own: Annotated[
        Path, Option("Results folder whose GPU runs are added to the published rows.", name="with")
    ]
