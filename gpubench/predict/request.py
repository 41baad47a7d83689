"""What a prediction is asked: one field an option of ``gpubench predict show``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from gpubench.options import Option, said
from gpubench.shared_options import (
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


class PredictRequest(RecipeRequest, frozen=True, kw_only=True):
    """Which workload at what, and the GPUs to answer for: every known one where none is named."""

    workload: Annotated[
        Any,
        said(
            WORKLOAD,
            help="A standard workload, or a model of your own: FILE[:NAME] or MODULE:NAME.",
            read=read_workload_or_profile,
            takes="a workload's name or path, as in vgg16",
            python="str | Path | WorkloadProfile",
        ),
    ]
    gpus: Annotated[
        tuple[str, ...], Option("GPU key or name.", name="gpu", commas=True, default="every GPU known")
    ] = ()
    precision: AnyPrecision = None
    execution: AnyExecution = "graph"
    task: AnyTask = "train"
    batch_size: GpuBatch = None
    results: Results = None
    asked: tuple[str, ...] = ()
