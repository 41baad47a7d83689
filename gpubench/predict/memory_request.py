"""What is asked of memory: one field an option of ``gpubench memory``."""

from __future__ import annotations

from typing import Annotated, Any

from gpubench.options import Option, said
from gpubench.predict.request import read_workload_or_profile
from gpubench.shared_options import (
    JOBS,
    WORKLOAD,
    AnyExecution,
    AnyPrecision,
    AnyTask,
    RecipeRequest,
    Results,
)

SEVERAL = "Several GPUs"


class MemoryRequest(RecipeRequest, frozen=True, kw_only=True):
    """Which step, on which GPUs, and how many of them share it."""

    workloads: Annotated[
        tuple[Any, ...],
        said(
            WORKLOAD,
            help="Workloads by name, or a model of your own: FILE[:NAME] or MODULE:NAME.",
            read=read_workload_or_profile,
            takes="a workload's name or path, as in vgg16",
            python="str | Path | WorkloadProfile",
            default="every standard one, in short",
        ),
    ] = ()
    gpus: Annotated[
        tuple[str, ...],
        Option("GPU key or name.", name="gpu", commas=True, default="every NVIDIA GPU, by size"),
    ] = ()
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
