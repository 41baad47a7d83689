"""What a prediction is asked: one field an option of ``gpubench predict show``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from gpubench import executions, precisions
from gpubench.options import Option, said
from gpubench.shared_options import BATCH, TASKS, WORKLOAD, Results, read_workload

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


class PredictRequest(msgspec.Struct, frozen=True, kw_only=True):
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
    gpus: Annotated[tuple[str, ...], Option("GPU key or name.", name="gpu", default="every GPU known")] = ()
    precision: Annotated[
        str, Option("Precision; amp is the best of each GPU.", choices=precisions.CHOICES)
    ] = "amp"
    execution: Annotated[str, Option("How a step is executed.", choices=executions.CHOICES)] = "graph"
    task: Annotated[str, Option("Training or inference.", choices=TASKS)] = "train"
    batch_size: Annotated[
        int | Literal["max"] | None,
        said(BATCH, help="Samples per step on one GPU; max is the largest that each GPU holds."),
    ] = None
    results: Results = None
