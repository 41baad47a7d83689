"""`gpubench predict`: throughput on GPUs that are not here, with an interval and its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli.common import JsonOption, print_json, say
from gpubench.cli.options import options_of
from gpubench.errors import MisuseError
from gpubench.predict.request import PredictRequest

predict_app = typer.Typer(help="Predict throughput on GPUs that are not here.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.add_typer(predict_app, name="predict")


@predict_app.command()
@options_of(PredictRequest)
def show(request: PredictRequest, as_json: JsonOption = False) -> None:
    """Print throughput, interval and reasons for each GPU, the fastest first."""
    from gpubench.blocks.terminal import show as print_parts
    from gpubench.predict.calibration import load_calibration
    from gpubench.predict.estimate import predict
    from gpubench.predict.explain import as_records

    stale = load_calibration().stale
    if stale:
        say(f"the calibration is older than {', '.join(stale)}: run gpubench calibrate")
    answers = predict(request)
    if as_json:
        print_json(as_records(answers))
    else:
        from gpubench.sections.prediction import answered

        print_parts(*answered(answers))


@predict_app.command()
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
    from gpubench.blocks.terminal import show as print_parts
    from gpubench.models import TaskKind
    from gpubench.predict.evaluate import evaluate as run
    from gpubench.predict.evaluate import report, scored_table
    from gpubench.predict.pairs import HOLD_OUTS
    from gpubench.predict.scaling_fit import scaling_figures

    if hold_out not in HOLD_OUTS:
        raise MisuseError(f"unknown hold-out {hold_out!r}; known: {', '.join(HOLD_OUTS)}")
    if task not in tuple(TaskKind):
        raise MisuseError(f"unknown task {task!r}; known: {', '.join(TaskKind)}")
    kind = TaskKind(task)
    outcome = run(scored_table(hold_out, kind), hold_out, kind)
    document = {"hold_out": hold_out, "task": task, **report(outcome), "several_gpus": scaling_figures()}
    if as_json:
        print_json(document)
    else:
        from gpubench.sections.prediction import scored

        print_parts(*scored(document))


@predict_app.command()
def score(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with the columns of the shipped measurements.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Score the calibration on measurements of your own; nothing is learned from them."""
    from gpubench.blocks.terminal import show as print_parts
    from gpubench.predict.score import score as run

    document = run(file)
    if as_json:
        print_json(document)
    else:
        from gpubench.sections.prediction import scored

        print_parts(*scored(document))
