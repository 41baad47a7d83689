"""Published MLPerf Training runs of the GPUs that are compared, and what each would cost to run today."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Filter, Paragraph, Table, number, table, text
from gpubench.folders import data_rows
from gpubench.labels import gpu_name, gpus, offer_name
from gpubench.predict.calibration import JOBS
from gpubench.predict.question import FITTED_VENDOR
from gpubench.readings import MLPERF_LICENSE, load_mlperf, newest_and_fastest, rounds
from gpubench.recommend.mlperf import PricedRun, priced
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.specs import load_specs
from gpubench.units import UNKNOWN, format_number, format_usd, plain


def part_in_predictions() -> str:
    """Say which figures of MLPerf a prediction rests on and which not, by the rows that are fitted."""
    specs = load_specs()
    jobs = [row for row in data_rows(JOBS) if row["gpu_key"] in specs]
    fitted = [row["harness"] for row in jobs if specs[row["gpu_key"]].vendor == FITTED_VENDOR]
    of_mlperf = fitted.count("mlperf")
    return (
        "No time to train enters a prediction or the ranking; throughput does: how a job scales over several "
        f"GPUs is fitted to {len(fitted)} published jobs, {of_mlperf} of them of MLPerf Training."
    )


def what() -> str:
    """Say what the table of published runs holds, up to which round, and what it is not."""
    known = [f"{name} ({month})" for name, month in rounds(load_mlperf())]
    span = " to ".join(dict.fromkeys((*known[:1], *known[-1:])))
    return (
        "Time to train to the stated quality, as submitters published it: their own software, tuned for "
        f"their own machine. Rounds: {span}; later ones are not in the table. {part_in_predictions()} "
        "The fastest run of the newest round of each GPU is shown; its cost is its hours times today's "
        "cheapest on-demand cloud price of as many GPUs, without start-up. Source: "
        f"{MLPERF_LICENSE}."
    )


def _render(data: ReportData) -> Block | None:
    if data.ranking is None:
        return None
    compared = {row.offer.gpu_key for row in data.ranking.rows}
    runs = tuple(run for run in newest_and_fastest(load_mlperf()) if run.gpu_key in compared)
    if not runs:
        return None
    shown = priced(runs, (row.offer for row in data.ranking.rows))
    return Block(title="Published MLPerf runs", parts=(Paragraph(text=what()), runs_table(shown)))


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
        number("Cost of a run", lambda p: format_usd(p.usd)),
        text("At the price of", _offer, optional=1),
        filters=(
            Filter(title="Benchmark", kind="choice", values=tuple(map(_benchmark, runs))),
            Filter(title="GPU", kind="choice", values=tuple(gpu_name(p.run.gpu_key) for p in runs)),
        ),
    )


def _benchmark(one: PricedRun) -> str:
    return one.run.benchmark.replace("_", " ")


def _offer(one: PricedRun) -> str:
    if one.offer is None:
        return UNKNOWN
    machines = "" if one.machines == 1 else f"{one.machines} x "
    return f"{machines}{offer_name(one.offer)}\n{one.offer.price_date}"


SECTION = Section(key="mlperf", render=_render, place=130)
