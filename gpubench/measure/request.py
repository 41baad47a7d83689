"""A request for a measurement, with one field for each option of ``gpubench run``."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, get_args

import msgspec

from gpubench import executions, precisions
from gpubench.executions import Framework
from gpubench.measure.budget import BudgetName
from gpubench.options import (
    BATCH,
    EXECUTION,
    JOB_MODES,
    JOBS,
    WORKLOAD,
    AnyTask,
    AtLeastOne,
    Batch,
    Option,
    Positive,
    RecipeRequest,
    Results,
    with_help,
)
from gpubench.recipes import ParallelMode


def read_workload(value: Any, _: str) -> str:
    """Return the name of a workload, or the file or module of a user's own model.

    Raises:
        TypeError: If it is neither a string nor a path.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError
    from gpubench.discovery import workload_named  # slow, so not loaded for every help page

    return workload_named(os.fsdecode(value))


SuiteName = Literal["default", "modern"]
MicroChoice = Literal["also", "only", "none"]
ALLOWANCES = ("shared", "throttled")
# Half of NumPy's limit for a seed, because batches after the first use larger seeds.
MOST_SEED = 2**31 - 1


class RunRequest(RecipeRequest, frozen=True, kw_only=True):
    """A request in the user's terms; ``plan`` turns it into cases.

    Attributes:
        workloads: Empty means those of the suite.
        suite: The workloads if none is requested; None means the default suite.
        precisions: Empty means those of the suite or the workload, or else fp32 and the device's best AMP
            precision; ``amp`` means only that AMP precision.
        executions: Empty means those of the suite, or else graph on a GPU that supports it and eager
            elsewhere; ``publish`` measures all.
        batch_size: None means the workload's main batch (a small one on a CPU).
        gpus: Number of GPUs per machine that work at once; one of them is also measured alone.
        jobs: How several GPUs work: in one job that averages gradients, in one that also shards the model, or
            each in its own job; None means the workload's usual mode.
        strong: Whether one batch is split over the GPUs, instead of a full batch on each.
        nnodes: Number of machines, from torchrun.
        frameworks: The frameworks that run the steps, each in its own processes.
        thread_scaling: Whether each case is also timed on 1, 2, 4 ... threads of the CPU.
        budget: None means ``default`` on a GPU and ``quick`` on a CPU.
        time_limit_s: Limit of the whole run, divided among the remaining cases [s].
        micro: Whether micro-benchmarks are run along with cases, alone, or not at all.
        to_quality: Whether workloads are trained to a quality target instead of timed step by step.
        resume: A run to continue, with its cases, budget and seed.
        asked: Names of the options that were given; empty if the request was constructed directly.
    """

    workloads: Annotated[
        tuple[str, ...],
        with_help(
            WORKLOAD,
            read=read_workload,
            help="Workloads by name, all of them (all), or a model of your own: FILE[:NAME] or MODULE:NAME.",
            default="those of --suite",
        ),
    ] = ()
    suite: Annotated[
        SuiteName | None,
        Option(
            "If no workload is given: cnn, lstm, vgg16 and resnet50 (default), or resnet50, vit_b16, "
            "bert_base and llama_1b, eager and compiled (modern).",
            choices=get_args(SuiteName),
            default="default",
        ),
    ] = None
    precisions: Annotated[
        tuple[str, ...],
        Option(
            "Precision; amp is the device's best mixed precision.",
            name="precision",
            choices=precisions.CHOICES,
            commas=True,
            default="fp32 and amp",
        ),
    ] = ()
    executions: Annotated[
        tuple[str, ...],
        with_help(
            EXECUTION,
            name="execution",
            choices=executions.CHOICES,
            commas=True,
            default="graph on a GPU, else eager",
        ),
    ] = ()
    frameworks: Annotated[
        tuple[str, ...],
        Option(
            "What runs the steps: torch itself, or Keras 3 on one of its backends.",
            name="framework",
            choices=tuple(Framework),
            commas=True,
        ),
    ] = (Framework.TORCH.value,)
    task: AnyTask = "train"
    batch_size: Annotated[
        Batch,
        with_help(BATCH, help="Samples per step; max finds the largest that fits."),
    ] = None
    device: Annotated[str, Option("Device: auto, cpu, cuda, cuda:N, or a UUID.")] = "auto"
    gpus: Annotated[
        AtLeastOne,
        Option("Also time N GPUs (on a CPU: N processes) at once, in eager mode; see --jobs.", metavar="N"),
    ] = 1
    jobs: Annotated[
        str | None,
        with_help(
            JOBS,
            help="With --gpus or torchrun: one job over all GPUs (ddp, or fsdp, which shards the model), or "
            "one on each at once.",
            choices=(*JOB_MODES, ParallelMode.INDEPENDENT),
        ),
    ] = None
    thread_scaling: Annotated[
        bool, Option("On a CPU: also time each case on 1, 2, 4 ... of its threads, up to all.")
    ] = False
    strong: Annotated[
        bool, Option("Split one batch over the GPUs of the job, instead of giving each its own.")
    ] = False
    budget: Annotated[
        BudgetName | None,
        Option("One launch, 2 % intervals. The default on a CPU.", name="quick", sets="quick"),
        Option("Eight launches of 30 s, 0.5 % intervals, every execution.", name="publish", sets="publish"),
    ] = None
    time_limit_s: Annotated[
        Positive | None,
        Option("Limit of the whole run, divided among its cases [s].", name="time_limit", metavar="S"),
    ] = None
    seed: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=MOST_SEED)],
        Option("Fixes weights, inputs and the order of the cases.", way="setting"),
    ] = 0
    allow: Annotated[
        tuple[str, ...],
        Option(
            "Measure even if something else uses the GPU (shared); rank rows even if the GPU "
            "throttled (throttled).",
            choices=ALLOWANCES,
            commas=True,
        ),
    ] = ()
    micro: Annotated[
        MicroChoice, Option("Micro-benchmarks: with the workloads (also), alone (only), or none.")
    ] = "also"
    to_quality: Annotated[
        bool, Option("Train cnn and lstm to a quality target instead: steps, time and energy per seed.")
    ] = False
    resume: Annotated[
        str | None, Option("Resume a run that was cut off; finished cases are kept.", metavar="RUN")
    ] = None
    results: Results = None
    nnodes: int = 1
    asked: tuple[str, ...] = ()

    @property
    def gpu_count(self) -> int:
        """The number of GPUs that work at once, over all machines."""
        return self.gpus * self.nnodes

    @property
    def own(self) -> tuple[str, ...]:
        """The user's own models among the workloads."""
        from gpubench.user_model import is_own

        return tuple(reference for reference in self.workloads if is_own(reference))
