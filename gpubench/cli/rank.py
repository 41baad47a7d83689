"""`gpubench rank`: options in, one call, a table or JSON out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench import executions, precisions
from gpubench.cli.common import JsonOption, ResultsOption, print_json, say

if TYPE_CHECKING:
    from gpubench.models import Ranking

HUMAN_LIMIT = 20
TRY_MINUTES = 15.0

JOB, WHICH, CARD = "The job", "Which offers", "Which GPUs"
BUYING, EVIDENCE, OUTPUT = "Buying", "Evidence", "Output"


def _option(panel: str, text: str, *names: str) -> object:
    return typer.Option(*names, help=text, rich_help_panel=panel)


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("rank")(verb)


def verb(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(help="Workloads; a path or MODULE:NAME is your own (default: cnn lstm vgg16)."),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="The same list, for your own model: FILE[:NAME].")
    ] = None,
    mix: Annotated[
        str | None, typer.Option(help="Shares of the samples, counted as money: vgg16=0.5,lstm=0.5.")
    ] = None,
    precision: Annotated[str, typer.Option(help=f"{precisions.HELP}: the best of each GPU.")] = "amp",
    execution: Annotated[str, typer.Option(help=f"{executions.HELP}.")] = "graph",
    task: Annotated[str, typer.Option(help="train or infer.")] = "train",
    max_latency_ms: Annotated[
        float | None, typer.Option(help="With --task infer: the time one batch may take, even if slow.")
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(help="Samples per step on one GPU, or max (default: the main batch).")
    ] = None,
    samples: Annotated[float | None, _option(JOB, "Samples to train on, in all.")] = None,
    epochs: Annotated[float | None, _option(JOB, "Epochs; with --dataset-size.")] = None,
    dataset_size: Annotated[float | None, _option(JOB, "Samples of an epoch.")] = None,
    jobs: Annotated[
        str | None,
        _option(JOB, "ddp: one job over all GPUs; independent: a job for each (default: ddp with a job)."),
    ] = None,
    deadline_hours: Annotated[float | None, _option(JOB, "Keep what meets it even if slow.")] = None,
    budget_usd: Annotated[float | None, _option(JOB, "Keep what stays within it even if slow.")] = None,
    startup_minutes: Annotated[float, _option(JOB, "Billed before the first step.")] = 0.0,
    billing_minutes: Annotated[float | None, _option(JOB, "Unit of the bill (default: a second).")] = None,
    spot_lost: Annotated[
        float, _option(JOB, "Share of the work done again after spot interruptions, below 1: 0.2.")
    ] = 0.0,
    storage_usd_per_month: Annotated[float, _option(JOB, "Storage while the job runs.")] = 0.0,
    egress_usd: Annotated[float, _option(JOB, "Egress of the job.")] = 0.0,
    tax: Annotated[float, _option(JOB, "Tax as a share: 0.19.")] = 0.0,
    gpu: Annotated[list[str] | None, _option(WHICH, "GPU: key, name, or part of it (h100).")] = None,
    provider: Annotated[list[str] | None, _option(WHICH, "Provider.")] = None,
    region: Annotated[list[str] | None, _option(WHICH, "Region, or how it begins.")] = None,
    spot: Annotated[bool, _option(WHICH, "Rank spot prices too.", "--spot")] = False,
    reserved: Annotated[bool, _option(WHICH, "Rank commitments too.", "--reserved")] = False,
    count: Annotated[int | None, _option(WHICH, "Exactly so many GPUs.")] = None,
    max_usd_per_hour: Annotated[float | None, _option(WHICH, "At most this price.")] = None,
    max_price_age: Annotated[int | None, _option(WHICH, "Leave out prices older than so many days.")] = None,
    min_memory_gib: Annotated[float | None, _option(CARD, "At least this memory on one GPU.")] = None,
    memory_type: Annotated[str | None, _option(CARD, "HBM, GDDR, GDDR6 ...")] = None,
    min_bandwidth_gbps: Annotated[float | None, _option(CARD, "At least this memory bandwidth.")] = None,
    min_cores: Annotated[
        int | None, _option(CARD, "At least so many CUDA cores or stream processors.")
    ] = None,
    min_tensor_cores: Annotated[int | None, _option(CARD, "At least so many tensor cores.")] = None,
    line: Annotated[
        list[str] | None, _option(CARD, "GeForce, RTX, data center, Jetson, Radeon, Instinct ...")
    ] = None,
    architecture: Annotated[list[str] | None, _option(CARD, "Hopper, Ada Lovelace, Blackwell ...")] = None,
    max_watts: Annotated[float | None, _option(CARD, "At most this board power of one GPU.")] = None,
    ecc: Annotated[bool, _option(CARD, "Memory that corrects errors.", "--ecc")] = False,
    fp64: Annotated[bool, _option(CARD, "FP64 at a quarter of FP32 or better.", "--fp64")] = False,
    nvlink: Annotated[bool, _option(CARD, "NVLink or its like.", "--nvlink")] = False,
    cooling: Annotated[str | None, _option(CARD, "active, passive, liquid or module.")] = None,
    rent: Annotated[bool, _option(BUYING, "Only what is for rent.", "--rent")] = False,
    buy: Annotated[bool, _option(BUYING, "Only what is owned or for sale.", "--buy")] = False,
    own: Annotated[
        list[str] | None,
        _option(BUYING, "Yours, or a quote: '2x RTX 4090, 3800 USD, host 1500 USD, 3 years, 60 %, 380 W'."),
    ] = None,
    host_usd: Annotated[
        float, _option(BUYING, "The machine around the cards, where a quote has none.")
    ] = 0.0,
    years: Annotated[float, _option(BUYING, "Life.")] = 3.0,
    utilisation: Annotated[str | None, _option(BUYING, "Share of hours at work: 0.5 or 0.3-0.8.")] = None,
    resale: Annotated[str | None, _option(BUYING, "Share of the price at the end: 0.2-0.5.")] = None,
    tariff: Annotated[str | None, _option(BUYING, "USD per kWh: 0.15 or 0.1-0.3.")] = None,
    pue: Annotated[float, _option(BUYING, "Energy drawn over energy used.")] = 1.0,
    circuit_watts: Annotated[float | None, _option(BUYING, "What the socket gives the GPUs.")] = None,
    own_fan: Annotated[bool, _option(BUYING, "Only cards that cool themselves.", "--own-fan")] = False,
    offers: Annotated[Path | None, _option(EVIDENCE, "Your own price table.")] = None,
    results: ResultsOption = None,
    as_of: Annotated[
        str | None, _option(EVIDENCE, "Rank as on this day (YYYY-MM-DD): later prices are left out.")
    ] = None,
    accept_outliers: Annotated[
        bool,
        _option(EVIDENCE, "Rank prices far below what every other provider asks too.", "--accept-outliers"),
    ] = False,
    reference: Annotated[str | None, _option(EVIDENCE, "GPU that speeds are multiples of.")] = None,
    sort: Annotated[str, _option(OUTPUT, "value (with a job its cost), time, cost or throughput.")] = "value",
    limit: Annotated[int | None, _option(OUTPUT, "Rows to show (default: 20; in JSON all).")] = None,
    factors: Annotated[bool, _option(OUTPUT, "Also list memory, cores, ECC, watts.", "--factors")] = False,
    explain: Annotated[bool, _option(OUTPUT, "Also list what is left out, and why.", "--explain")] = False,
    try_count: Annotated[
        int | None, _option(OUTPUT, "Write SkyPilot tasks that measure the best N; with --out.", "--try")
    ] = None,
    out: Annotated[Path | None, _option(OUTPUT, "Folder of the task files.")] = None,
    try_minutes: Annotated[float, _option(OUTPUT, "Time limit of each.")] = TRY_MINUTES,
    as_json: JsonOption = False,
) -> None:
    """Rank GPUs and instances by training per dollar, and say how sure that is.

    Needs no GPU and no network: measured figures where you have them, predictions elsewhere.
    """
    from gpubench.recommend.rank import rank
    from gpubench.recommend.request import (
        DEFAULT_REFERENCE_GPU,
        RankRequest,
        parse_batch,
        parse_mix,
        parse_range,
        rent_or_buy,
    )
    from gpubench.recommend.trial import check_trial, write_trials
    from gpubench.specs import require_spec

    defaults = RankRequest()
    request = RankRequest(
        workloads=(*(workloads or ()), *(workload or ())),
        mix=parse_mix(mix) if mix else {},
        precision=precision,
        execution=execution,
        task=task,
        max_latency_ms=max_latency_ms,
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
        reserved=reserved,
        count=count,
        max_usd_per_hour=max_usd_per_hour,
        max_price_age_days=max_price_age,
        min_memory_gib=min_memory_gib,
        memory_type=memory_type,
        min_bandwidth_gbps=min_bandwidth_gbps,
        min_cores=min_cores,
        min_tensor_cores=min_tensor_cores,
        lines=tuple(line or ()),
        architectures=tuple(architecture or ()),
        max_watts=max_watts,
        ecc=ecc,
        fp64=fp64,
        nvlink=nvlink,
        cooling=cooling,
        rent_or_buy=rent_or_buy(rent=rent, buy=buy),
        own=tuple(own or ()),
        host_usd=host_usd,
        years=years,
        utilisation=parse_range(utilisation, "--utilisation") if utilisation else defaults.utilisation,
        resale=parse_range(resale, "--resale") if resale else defaults.resale,
        tariff=parse_range(tariff, "--tariff") if tariff else defaults.tariff,
        pue=pue,
        circuit_watts=circuit_watts,
        own_fan=own_fan,
        offers=offers,
        accept_outliers=accept_outliers,
        results=results,
        as_of=as_of,
        reference_gpu=require_spec(reference).key if reference else DEFAULT_REFERENCE_GPU,
        sort=sort,
        limit=None if try_count else limit if as_json else limit or HUMAN_LIMIT,
    )
    check_trial(try_count, out, try_minutes)
    ranking = rank(request)
    if try_count is not None and out is not None:
        names = request.workload_names
        files, passed = write_trials(ranking.rows, try_count, out, minutes=try_minutes, workloads=names)
        for reason in passed:
            say(f"passed over {reason}")
        for file in files:
            say(f"wrote {file}")
        say(f"Next: sh {files[-1]} rents, measures, fetches, takes down and ranks again.")
    if as_json:
        from gpubench.recommend.as_json import as_json as document

        print_json(document(ranking))
        return
    print_ranking(ranking, limit or HUMAN_LIMIT, explain=explain, factors=factors)
    say(
        "Next: `gpubench run` measures the GPU here, or the CPU where there is none; "
        "`gpubench report` makes the page."
    )


def print_ranking(ranking: Ranking, limit: int, *, explain: bool = False, factors: bool = False) -> None:
    """Print the verdict, so many rows, buying against renting, and what was asked for besides."""
    from gpubench.blocks.terminal import show
    from gpubench.sections.data import of_ranking
    from gpubench.sections.section import brief
    from gpubench.sections.value import beaten_table, excluded_table, factor_table

    data, rows = of_ranking(ranking, limit), ranking.rows[:limit]
    beside = [factor_table(data, rows)] if factors else []
    left_out = [beaten_table(data, rows), excluded_table(data, ranking)] if explain else []
    show(*brief(data, "verdict", "value", "owning"), *beside, *left_out)
