"""The requests of ``gpubench predict`` and ``gpubench memory``, with a field for each option."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from gpubench.measure.request import read_workload
from gpubench.options import (
    FILE,
    GPU,
    JOBS,
    WORKLOAD,
    AnyExecution,
    AnyPrecision,
    AnyTask,
    AtLeastOne,
    GpuBatch,
    Option,
    Positive,
    RecipeRequest,
    Results,
    with_help,
)

if TYPE_CHECKING:
    from gpubench.models import WorkloadProfile


def read_workload_or_profile(value: Any, name: str) -> "str | WorkloadProfile":
    """Return the name of a workload, or a profile unchanged.

    Raises:
        TypeError: If it is neither.
    """
    from gpubench.models import WorkloadProfile

    return value if isinstance(value, WorkloadProfile) else read_workload(value, name)


_ANY = with_help(
    WORKLOAD,
    read=read_workload_or_profile,
    takes="a workload's name or path, such as vgg16",
    python="str | Path | WorkloadProfile",
)
SEVERAL = "Several GPUs"


class PredictRequest(RecipeRequest, frozen=True, kw_only=True):
    """The workload, its settings, and the GPUs to answer for."""

    workload: Annotated[
        Any,
        with_help(_ANY, help="A standard workload, or a model of your own: FILE[:NAME] or MODULE:NAME."),
    ]
    gpus: Annotated[tuple[str, ...], with_help(GPU, default="every known GPU")] = ()
    precision: AnyPrecision = None
    execution: AnyExecution = "graph"
    task: AnyTask = "train"
    batch_size: GpuBatch = None
    power_limit: Annotated[
        Positive | None,
        Option("Power limit of one GPU: show what it costs in time and saves in energy [W]."),
    ] = None
    sort: Annotated[
        str, Option("Order: the fastest first, or the least energy per sample.", choices=("speed", "energy"))
    ] = "speed"
    results: Results = None
    asked: tuple[str, ...] = ()


class MemoryRequest(RecipeRequest, frozen=True, kw_only=True):
    """The step, the GPUs, and the number of GPUs that share it."""

    workloads: Annotated[
        tuple[Any, ...],
        with_help(
            _ANY,
            help="Workloads by name, or a model of your own: FILE[:NAME] or MODULE:NAME.",
            default="every standard workload, in brief",
        ),
    ] = ()
    gpus: Annotated[tuple[str, ...], with_help(GPU, default="every NVIDIA GPU, by size")] = ()
    batch_size: Annotated[
        AtLeastOne | None,
        Option("Samples per step on one GPU.", default="the main batch"),
    ] = None
    accumulate: Annotated[
        AtLeastOne,
        Option("Micro-batches that the batch is split into; their gradients are summed."),
    ] = 1
    precision: AnyPrecision = None
    execution: AnyExecution = "graph"
    task: AnyTask = "train"
    count: Annotated[Annotated[int, msgspec.Meta(ge=1, le=2**20)], Option("GPUs of one job.", SEVERAL)] = 1
    jobs: Annotated[
        str | None, with_help(JOBS, help="All weights on each GPU, or a share of them.", panel=SEVERAL)
    ] = None
    results: Results = None
    asked: tuple[str, ...] = ()


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's measurements to score."""

    file: Annotated[
        Path,
        Option(
            "CSV with the columns of the shipped measurements, or, with --sealed, of the cases.",
            place=True,
            bare=True,
            metavar="FILE",
        ),
    ]
    sealed: Annotated[
        Path | None, Option("Sealed forecasts to compare the readings with.", metavar="FILE")
    ] = None


class SealRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The cases to forecast, and the file to write."""

    cases: Annotated[
        Path,
        Option(
            "CSV of cases: a column for each option of predict show that affects speed.",
            place=True,
            bare=True,
            metavar="FILE",
        ),
    ]
    output: Annotated[Path | None, with_help(FILE, help="File to write the seal to.", default="stdout")] = (
        None
    )


class CalibrateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's own runs, to be added to the published rows."""

    own: Annotated[
        Path, Option("Results folder with the GPU runs to add to the published rows.", name="with")
    ]
