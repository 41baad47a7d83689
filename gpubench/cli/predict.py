"""`gpubench predict`: throughput on GPUs that are not here, with an interval and its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli.common import JsonOption, answer, say
from gpubench.cli.options import options_of
from gpubench.errors import MisuseError
from gpubench.predict.request import PredictRequest

verb = typer.Typer(help="Predict throughput on GPUs that are not here.", no_args_is_help=True)


@verb.command()
@options_of(PredictRequest)
def show(request: PredictRequest, as_json: JsonOption = False) -> None:
    """Print throughput, interval and reasons for each GPU, the fastest first."""
    from gpubench.predict.answers import as_records
    from gpubench.predict.calibration import load_calibration
    from gpubench.predict.estimate import predict
    from gpubench.sections.prediction import answered

    stale = load_calibration().stale
    if stale:
        say(f"the calibration is older than {', '.join(stale)}: run gpubench calibrate")
    answers = predict(request)
    answer(as_json, lambda: as_records(answers), lambda: answered(answers))


@verb.command()
def evaluate(
    hold_out: Annotated[
        str,
        typer.Option(
            "--hold-out",
            help="What the fit never sees: harness (and the GPU), stranger (harness and architecture), gpu, "
            "family (one chip), architecture, model, vendor.",
        ),
    ] = "harness",
    task: Annotated[str, typer.Option("--task", help="What is scored: train or infer.")] = "train",
    as_json: JsonOption = False,
) -> None:
    """Score predictions on the shipped measurements, each target held out of everything."""
    from gpubench.models import TaskKind
    from gpubench.predict.conformal import HOLD_OUTS
    from gpubench.predict.evaluate import evaluate as run
    from gpubench.predict.evaluate import scored_table
    from gpubench.predict.scaling_fit import scaling_figures
    from gpubench.predict.scores import report
    from gpubench.sections.prediction import scored

    if hold_out not in HOLD_OUTS:
        raise MisuseError(f"unknown hold-out {hold_out!r}; known: {', '.join(HOLD_OUTS)}")
    if task not in tuple(TaskKind):
        raise MisuseError(f"unknown task {task!r}; known: {', '.join(TaskKind)}")
    kind = TaskKind(task)
    outcome = run(scored_table(hold_out, kind), hold_out, kind)
    document = {"hold_out": hold_out, "task": task, **report(outcome), "several_gpus": scaling_figures()}
    answer(as_json, lambda: document, lambda: scored(document))


@verb.command()
def score(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with the columns of the shipped measurements.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Score the calibration on measurements of your own; nothing is learned from them."""
    from gpubench.predict.evaluate import score as run
    from gpubench.sections.prediction import scored

    document = run(file)
    answer(as_json, lambda: document, lambda: scored(document))
