"""`gpubench rank`: options in, one call, a table or JSON out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli.common import JsonOption, ResultsOption, print_json, say

HUMAN_LIMIT = 20

JOB, WHICH, EVIDENCE, OUTPUT = "The job", "Which offers", "Evidence", "Output"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("rank")(verb)


def verb(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(help="Workloads; a path or MODULE:NAME is your own [default: cnn lstm vgg16]."),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="The same list, for your own model: FILE[:NAME].")
    ] = None,
    mix: Annotated[
        str | None, typer.Option(help="Shares of the samples, counted as money: vgg16=0.5,lstm=0.5.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="amp (best of each GPU), fp32, tf32, amp-fp16, amp-bf16.")
    ] = "amp",
    execution: Annotated[str, typer.Option(help="eager, graph or compile.")] = "graph",
    task: Annotated[str, typer.Option(help="train or infer.")] = "train",
    batch_size: Annotated[
        str | None, typer.Option(help="Samples per step on one GPU [default: main batch].")
    ] = None,
    samples: Annotated[float | None, typer.Option(help="Samples to train on.", rich_help_panel=JOB)] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Epochs; with --dataset-size.", rich_help_panel=JOB)
    ] = None,
    dataset_size: Annotated[
        float | None, typer.Option(help="Samples of an epoch.", rich_help_panel=JOB)
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            help="ddp: one job over all GPUs; independent: one job per GPU [default: ddp with a job].",
            rich_help_panel=JOB,
        ),
    ] = None,
    deadline_hours: Annotated[
        float | None, typer.Option(help="Keep what meets it even if slow.", rich_help_panel=JOB)
    ] = None,
    budget_usd: Annotated[
        float | None, typer.Option(help="Keep what stays within it even if slow.", rich_help_panel=JOB)
    ] = None,
    startup_minutes: Annotated[float, typer.Option(help="Billed before step 1.", rich_help_panel=JOB)] = 0.0,
    billing_minutes: Annotated[
        float | None, typer.Option(help="Unit of the bill [default: a second].", rich_help_panel=JOB)
    ] = None,
    spot_lost: Annotated[
        float, typer.Option(help="Share of work that interruptions make be done again.", rich_help_panel=JOB)
    ] = 0.0,
    storage_usd_per_month: Annotated[float, typer.Option(help="Storage.", rich_help_panel=JOB)] = 0.0,
    egress_usd: Annotated[float, typer.Option(help="Egress of the job.", rich_help_panel=JOB)] = 0.0,
    tax: Annotated[float, typer.Option(help="Tax as a share: 0.19.", rich_help_panel=JOB)] = 0.0,
    gpu: Annotated[
        list[str] | None, typer.Option(help="GPU key, name or part of it: h100.", rich_help_panel=WHICH)
    ] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Provider.", rich_help_panel=WHICH)] = None,
    region: Annotated[
        list[str] | None, typer.Option(help="Region, or its beginning.", rich_help_panel=WHICH)
    ] = None,
    spot: Annotated[
        bool, typer.Option("--spot", help="Rank spot prices too.", rich_help_panel=WHICH)
    ] = False,
    count: Annotated[int | None, typer.Option(help="Exactly so many GPUs.", rich_help_panel=WHICH)] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option(help="At most this price.", rich_help_panel=WHICH)
    ] = None,
    min_memory_gib: Annotated[
        float | None, typer.Option(help="At least this memory on one GPU.", rich_help_panel=WHICH)
    ] = None,
    max_price_age: Annotated[
        int | None, typer.Option(help="Leave out prices older than so many days.", rich_help_panel=WHICH)
    ] = None,
    offers: Annotated[
        Path | None, typer.Option(help="Your own price table.", rich_help_panel=EVIDENCE)
    ] = None,
    results: ResultsOption = None,
    reference: Annotated[
        str | None, typer.Option(help="GPU that speeds are multiples of.", rich_help_panel=EVIDENCE)
    ] = None,
    sort: Annotated[
        str, typer.Option(help="value, time, cost or throughput.", rich_help_panel=OUTPUT)
    ] = "value",
    limit: Annotated[
        int | None, typer.Option(help="Rows to show [default: 20; all in JSON].", rich_help_panel=OUTPUT)
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also list what is left out, and why.", rich_help_panel=OUTPUT)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rank GPUs and instances by training per dollar, and say how sure that is.

    Needs no GPU and no network: measured figures where you have them, predictions elsewhere.
    """
    from gpubench.recommend.rank import rank
    from gpubench.recommend.request import DEFAULT_REFERENCE_GPU, RankRequest, parse_batch, parse_mix
    from gpubench.specs import require_spec

    request = RankRequest(
        workloads=(*(workloads or ()), *(workload or ())),
        mix=parse_mix(mix) if mix else {},
        precision=precision,
        execution=execution,
        task=task,
        batch_size=parse_batch(batch_size),
        samples=samples,
        epochs=epochs,
        dataset_size=dataset_size,
        jobs=jobs,
        deadline_hours=deadline_hours,
        budget_usd=budget_usd,
        startup_minutes=startup_minutes,
        billing_minutes=billing_minutes,
        spot_lost=spot_lost,
        storage_usd_per_month=storage_usd_per_month,
        egress_usd=egress_usd,
        tax=tax,
        gpus=tuple(gpu or ()),
        providers=tuple(provider or ()),
        regions=tuple(region or ()),
        spot=spot,
        count=count,
        max_usd_per_hour=max_usd_per_hour,
        min_memory_gib=min_memory_gib,
        max_price_age_days=max_price_age,
        offers=offers,
        results=results,
        reference_gpu=require_spec(reference).key if reference else DEFAULT_REFERENCE_GPU,
        sort=sort,
        limit=limit if as_json else limit or HUMAN_LIMIT,
    )
    ranking = rank(request)
    if as_json:
        from gpubench.recommend.as_json import as_json as document

        print_json(document(ranking))
        return
    from gpubench.cli.rank_table import show

    show(ranking, explain=explain)
    say("Next: `gpubench run` measures the GPU here; `gpubench report` makes the page.")
