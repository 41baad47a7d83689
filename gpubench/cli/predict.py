"""`gpubench predict`: throughput on GPUs that are not here, with an interval and its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench import executions, precisions
from gpubench.cli.common import JsonOption, ResultsOption, print_json, say
from gpubench.errors import MisuseError

predict_app = typer.Typer(help="Predict throughput on GPUs that are not here.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.add_typer(predict_app, name="predict")


@predict_app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="WORKLOAD", help="A standard workload; a path or MODULE:NAME is your own."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="The same, for your own model: FILE[:NAME].")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help=f"{precisions.HELP}: the best of each GPU.")
    ] = "amp",
    gpu: Annotated[list[str] | None, typer.Option("--gpu", help="GPU key or name; again for more.")] = None,
    execution: Annotated[str, typer.Option("--execution", help=f"{executions.HELP}.")] = "graph",
    task: Annotated[str, typer.Option("--task", help="train or infer.")] = "train",
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch-size", help="Samples per step on one GPU, or max: the largest that each GPU holds."
        ),
    ] = None,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print figure, interval and reasons for each GPU, the fastest first."""
    from gpubench.blocks.terminal import show as print_parts
    from gpubench.predict.calibration import load_calibration
    from gpubench.predict.estimate import predict
    from gpubench.predict.explain import as_records
    from gpubench.recommend.request import parse_batch

    named = [each for each in (name, workload) if each is not None]
    if len(named) != 1:
        raise MisuseError(f"{len(named)} workloads named: give one, as in gpubench predict show vgg16")
    stale = load_calibration().stale
    if stale:
        say(f"the calibration is older than {', '.join(stale)}: run gpubench calibrate")

    answers = predict(
        named[0],
        gpus=gpu,
        precision=precision,
        execution=execution,
        task=task,
        batch_size=parse_batch(batch_size),
        results=results,
    )
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
    as_json: JsonOption = False,
) -> None:
    """Score predictions on the shipped measurements, each target held out of everything."""
    from gpubench.blocks.terminal import show as print_parts
    from gpubench.predict.evaluate import evaluate as run
    from gpubench.predict.evaluate import report, scored_table
    from gpubench.predict.pairs import HOLD_OUTS

    if hold_out not in HOLD_OUTS:
        raise MisuseError(f"unknown hold-out {hold_out!r}; known: {', '.join(HOLD_OUTS)}")
    document = {"hold_out": hold_out, **report(run(scored_table(hold_out), hold_out))}
    if as_json:
        print_json(document)
    else:
        from gpubench.sections.prediction import scored

        print_parts(*scored(document))


@predict_app.command()
def score(
    file: Annotated[Path, typer.Argument(help="CSV with the columns of the shipped measurements.")],
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
