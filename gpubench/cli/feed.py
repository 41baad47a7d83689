"""`gpubench feed`: can this host prepare images as fast as a GPU takes them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli.common import JsonOption, ResultsOption, print_json, say
from gpubench.units import format_si, plain

if TYPE_CHECKING:
    from gpubench.recommend.feed import FeedReport

_WAYS = {
    "cpu_one_process": "one process",
    "cpu_workers": "{workers} DataLoader workers",
    "device_batch": "in whole batches of {batch_size}{where}",
}


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("feed")(verb)


def verb(
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="A GPU to feed; may be repeated. [default: the one here, else examples]"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="DataLoader workers. [default: one a CPU]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N, or a UUID.")] = "auto",
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether this host can prepare images as fast as a GPU trains on them (needs kornia)."""
    from gpubench.recommend.feed import FeedRequest, feed

    report = feed(FeedRequest(gpus=tuple(gpu or ()), workers=workers, device=device, results=results))
    if as_json:
        print_json(report)
        return
    if report.remark:
        say(report.remark)
    _print(report)


def _print(report: FeedReport) -> None:
    print(f"augmenting 500 x 375 photographs to 224 x 224, without decoding, on {plain(report.device)}")
    where = "" if report.pipeline.link_bytes_per_s is None else " on the device"  # a CPU has no link
    for rate in report.pipeline.rates:
        way = _WAYS[rate.way].format(workers=rate.workers, batch_size=rate.batch_size, where=where)
        print(f"  {way}: {rate.interval.text()} images/s")
    if report.pipeline.link_bytes_per_s is not None:
        print(f"  link from host to device: {format_si(report.pipeline.link_bytes_per_s, 'B/s')}")
    for feeding in report.feedings:
        needed = format_si(feeding.tensors_bytes_per_s, "B/s")
        eight_bit = format_si(feeding.photographs_bytes_per_s, "B/s")
        basis = f"{feeding.consumption.basis}, {feeding.consumption.case}"
        print(
            f"{plain(feeding.verdict, 600)} [{basis}; {needed} of tensors, {eight_bit} of 8-bit photographs]"
        )
    for line in report.refused:
        print(f"no figure for {plain(line)}")
