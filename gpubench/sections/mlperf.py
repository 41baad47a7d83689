"""Published MLPerf Training runs of the GPUs that are compared, and what each would cost to run today."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Filter, Paragraph, Table, number, table, text
from gpubench.labels import gpu_name, gpus, offer_name
from gpubench.mlperf import LICENSE, load_mlperf, newest_and_fastest
from gpubench.recommend.mlperf import PricedRun, priced
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.units import UNKNOWN, format_number, format_usd, plain

WHAT = (
    "Time to train to the stated quality, as submitters published it: their own software, tuned for their "
    "own machine. No time of theirs enters a prediction or the ranking. The fastest run of the newest round "
    "of each GPU is shown; its cost is its hours times today's cheapest on-demand cloud price of as many "
    f"GPUs, without start-up. Source: {LICENSE}."
)


def _render(data: ReportData) -> Block | None:
    if data.ranking is None:
        return None
    compared = {row.offer.gpu_key for row in data.ranking.rows}
    runs = tuple(run for run in newest_and_fastest(load_mlperf()) if run.gpu_key in compared)
    if not runs:
        return None
    shown = priced(runs, (row.offer for row in data.ranking.rows))
    return Block(title="Published MLPerf runs", parts=(Paragraph(text=WHAT), runs_table(shown)))


def runs_table(runs: Sequence[PricedRun]) -> Table:
    """Return published runs as a table, in the order given."""
    return table(
        "MLPerf Training: minutes to the stated quality",
        runs,
        text("Benchmark", _benchmark),
        text("GPUs", lambda p: gpus(p.run.gpu_key, p.run.gpus)),
        number("Minutes", lambda p: format_number(p.run.minutes)),
        number("Runs", lambda p: str(p.run.runs), optional=3),
        text("Round", lambda p: f"{p.run.round}\n{p.run.date}"),
        text("Submitter", lambda p: f"{plain(p.run.submitter, 40)}\n{plain(p.run.system, 60)}", optional=2),
        number("Cost of a run", _cost),
        text("At the price of", _offer, optional=1),
        filters=(
            Filter(
                title="Benchmark",
                kind="choice",
                values=tuple(p.run.benchmark.replace("_", " ") for p in runs),
            ),
            Filter(title="GPU", kind="choice", values=tuple(gpu_name(p.run.gpu_key) for p in runs)),
        ),
    )


def _benchmark(one: PricedRun) -> str:
    return one.run.benchmark.replace("_", " ")


def _cost(one: PricedRun) -> str:
    return UNKNOWN if one.usd is None else format_usd(one.usd)


def _offer(one: PricedRun) -> str:
    if one.offer is None:
        return UNKNOWN
    machines = "" if one.machines == 1 else f"{one.machines} x "
    return f"{machines}{offer_name(one.offer)}\n{one.offer.price_date}"


SECTION = Section(key="mlperf", render=_render, place=130)
