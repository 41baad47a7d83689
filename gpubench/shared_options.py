"""The options that several verbs share, each declared once."""

from __future__ import annotations

from datetime import date
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from gpubench import executions, precisions
from gpubench.errors import MisuseError
from gpubench.options import Option, shown_value, with_help
from gpubench.recipes import Checkpointing, ParallelMode, TaskKind, WeightType
from gpubench.units import plain


def read_day(value: date | str, name: str) -> date | str:
    """Return a day as it was given; ``today.day_of`` reads it.

    Raises:
        TypeError: If it is no day and no text.
    """
    del name
    if not isinstance(value, date | str):
        raise TypeError
    return value


RESULTS = Option(
    "Results folder.", default="$GPUBENCH_RESULTS, ./results if it is there, else the user's data folder"
)
Results: TypeAlias = Annotated[Path | None, RESULTS]

Day: TypeAlias = date | str
DAY = Option(read=read_day, takes="a day (YYYY-MM-DD, or a date)", python="date | str", metavar="YYYY-MM-DD")
CLASSIC = ("cnn", "lstm", "vgg16")
"""Measured and ranked by where no workload is named."""
WORKLOAD = Option(
    name="workload",
    place=True,
    takes="a name or a path",
    python="str | Path",
    metavar="NAME|FILE[:NAME]",
)
JOB_MODES = (ParallelMode.DDP, ParallelMode.FSDP)
"""How one job is shared: all weights on each GPU, or a share of them."""
JOBS = Option(choices=JOB_MODES, default="fsdp for a model that is made for it, else ddp", old=("parallel",))


Device: TypeAlias = Annotated[str, Option("Device: auto, cpu, cuda, cuda:N, or a UUID.")]


LARGEST_NUMBER = 2**40
"""More samples than any step holds, and few enough for every figure of them."""


def read_batch(value: Any, name: str) -> Any:
    """Read a batch size: a whole number, or ``max``.

    Raises:
        MisuseError: If a text is neither, or the number is outside of 1 to ``LARGEST_NUMBER``.
        TypeError: If it is something else.
    """
    if value is None or value == "max":
        return value
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise TypeError
    try:
        size = int(value)
    except ValueError:
        raise MisuseError(f"{name} {plain(str(value))!r} is neither a whole number nor max") from None
    if size < 1:
        raise MisuseError(f"{name} {shown_value(size)} must be at least 1, or max")
    if size > LARGEST_NUMBER:
        raise MisuseError(f"{name} {shown_value(size)} is more than any step holds")
    return size


BATCH = Option(
    read=read_batch,
    takes="a whole number or max",
    python='int | Literal["max"]',
    metavar="N|max",
    default="the workload's main batch",
)


AnyPrecision: TypeAlias = Annotated[
    str | None,
    Option(
        "Precision; amp is the best of each GPU.",
        choices=precisions.CHOICES,
        default="amp, or the workload's own",
    ),
]
EXECUTION = Option("How a step is executed.", choices=executions.OF_TORCH)
AnyExecution: TypeAlias = Annotated[str, EXECUTION]
AnyTask: TypeAlias = Annotated[str, Option("Training or inference.", choices=tuple(TaskKind))]
GPU = Option("GPU key or name.", name="gpu", commas=True)
PROVIDER = Option("Provider.", name="provider", commas=True)
REGION = Option("Region, or its first letters.", name="region")
GPU_COUNT = Option("Exact number of GPUs.")
MOST_USD_PER_HOUR = Option("Highest price of the instance [USD/h].")
"""0 keeps what is free."""
GpuBatch: TypeAlias = Annotated[
    int | Literal["max"] | None,
    with_help(BATCH, help="Samples per step on one GPU; max is the largest that each GPU holds."),
]


Chunks: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65_536)]
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
RECIPE = "Language models"
_OWN = "the workload's own"


class RecipeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of how a workload is trained or run; None leaves it as the workload has it."""

    weight_type: Annotated[
        str | None,
        Option(
            "Data type of the weights.", RECIPE, choices=tuple(WeightType), default="that of the precision"
        ),
    ] = None
    checkpointing: Annotated[
        str | None,
        Option(
            "Activations that are computed again in the backward pass.",
            RECIPE,
            choices=tuple(Checkpointing),
            default=_OWN,
        ),
    ] = None
    loss_chunks: Annotated[
        Chunks | None, Option("Chunks of tokens that the loss is computed in.", RECIPE, default=_OWN)
    ] = None
    prompt_tokens: Annotated[
        Tokens | None, Option("Tokens of a prompt, of a workload that generates.", RECIPE, default=_OWN)
    ] = None
    new_tokens: Annotated[
        Annotated[int, msgspec.Meta(ge=2, le=2**24)] | None,
        Option("Tokens generated after the prompt.", RECIPE, default=_OWN),
    ] = None
    context_tokens: Annotated[
        Tokens | None,
        Option("Tokens of one sequence that is trained on.", RECIPE, name="context", default=_OWN),
    ] = None
    trainable: Annotated[
        str | None,
        Option("Train adapters over a frozen base.", RECIPE, name="lora", sets="lora"),
        Option("Train adapters over a frozen base in 4 bits.", RECIPE, name="qlora", sets="qlora"),
    ] = None


def asked_recipe(request: RecipeRequest) -> dict[str, Any]:
    """Return what a request says of the recipe, by field."""
    values = {name: getattr(request, name) for name in RecipeRequest.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


class ResultsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a function that only reads stored results."""

    results: Annotated[Path | None, with_help(RESULTS, place=True)] = None
