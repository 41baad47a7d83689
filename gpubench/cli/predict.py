"""`gpubench predict`: throughput on GPUs that are not here, with an interval and its reasons."""

from __future__ import annotations

from typing import Annotated

import typer

from gpubench.cli.common import JsonOption, ResultsOption, print_json

predict_app = typer.Typer(help="Predict throughput on GPUs that are not here.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.add_typer(predict_app, name="predict")


@predict_app.command()
def show(
    workload: Annotated[
        str, typer.Option("--workload", help="A standard workload, or FILE[:NAME] of your own.")
    ],
    precision: Annotated[
        str, typer.Option("--precision", help="fp32, tf32, amp-fp16, amp-bf16, or amp: the best of each GPU.")
    ] = "amp",
    gpu: Annotated[list[str] | None, typer.Option("--gpu", help="GPU key or name; again for more.")] = None,
    execution: Annotated[str, typer.Option("--execution", help="eager, graph or compile.")] = "graph",
    task: Annotated[str, typer.Option("--task", help="train or infer.")] = "train",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Samples per step on one GPU.")
    ] = None,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print figure, interval and reasons for each GPU, the fastest first."""
    from gpubench.predict.estimate import predict
    from gpubench.predict.explain import as_records, as_text

    answers = predict(
        workload,
        gpus=gpu,
        precision=precision,
        execution=execution,
        task=task,
        batch_size=batch_size,
        results=results,
    )
    if as_json:
        print_json(as_records(answers))
    else:
        typer.echo(as_text(answers))
