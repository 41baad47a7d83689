"""The report: one self-contained HTML page, and the same figures for programs and notebooks.

The page shows the sections, JSON has everything, and CSV has one line per figure. Notebooks show rankings,
runs, predictions and memory as plotly figures, and a ranking also as blocks of the page without a script.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench.blocks.parts import (
    BASIS_LOOKS,
    BLUE,
    PALETTE,
    Block,
    Charts,
    Figure,
    Look,
    Mark,
    Part,
    as_html,
    as_markdown,
    base_layout,
    dots,
    environment,
    label,
    log_axis,
    printable,
    whiskers,
)
from gpubench.errors import MisuseError
from gpubench.files import write_file
from gpubench.folders import package_text, results_root
from gpubench.groups import first_of_each, grouped
from gpubench.interval import UNKNOWN_INTERVAL, Interval, flat
from gpubench.labels import FRONTIER, gpu_name, gpus_of, offer_name
from gpubench.models import Measurement, Pricing, Ranking, Row, Run
from gpubench.options import options_of, takes_options_of
from gpubench.recommend import rank
from gpubench.recommend.lines import (
    BOTH,
    CHANCE,
    COST,
    basis_text,
    hours_text,
    lines,
    precisions_of,
    seller,
)
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import head
from gpubench.record.figures import frame, run_document
from gpubench.record.sharing import shareable
from gpubench.report.calculator import FIRST, WORDS, calculator
from gpubench.report.request import ReportRequest, format_of
from gpubench.sections.compared import LOOKS
from gpubench.sections.data import (
    HEADINGS,
    PLACES,
    ReportData,
    block_of,
    gather,
    moment_words,
    of_ranking,
)
from gpubench.sentences import say
from gpubench.specs import load_specs
from gpubench.units import GIB, format_bytes, format_chance, format_usd, format_whole, per_second, plain

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure as Plot

    from gpubench.predict.answers import Predictions
    from gpubench.predict.memory_answer import MemoryAnswer

MOST_OFFERS = 1000
"""Maximum number of rows of a ranking in a page: each takes 0.4 kB when packed."""
MOST_ROWS = 40
"""Maximum number of machines in the table of a page without scripts."""


@takes_options_of(ReportRequest)
def report(request: ReportRequest) -> str:
    """Write the report on a run (the newest by default) and the ranking.

    Returns:
        The path of the file.

    Raises:
        MisuseError: If the question is invalid, or the format is unknown.
        StorageError: If the file cannot be written.
    """
    path = request.output
    hint = f"choose another place with {'-o FILE' if request.public is None else '--public DIR'}"
    if request.public is not None:
        if path is not None or request.format is not None:
            raise MisuseError("--public names its files itself: leave out -o and --format")
        path = request.public / "index.html"
    kind = request.format or format_of(path)
    whole = kind in {"json", "csv"}  # these formats cover every stored run and every ranked offer
    fields = {each.field: getattr(request, each.field) for each in options_of(RankRequest)}
    asked = RankRequest(**fields, asked=request.asked)
    data = request.data or gather(
        asked,
        run=request.run,
        every_run=whole,
        most_rows=None if whole else MOST_OFFERS,
        first=FIRST if kind == "html" else None,
    )
    if kind == "html" and not request.data and data.ranking is not None:
        data = _with_calculator(asked, data)
    if request.public is not None:  # without paths, serial numbers, doubtful rows and the user's models
        runs = [shareable(run)[0] for run in data.runs]
        data = replace(data, runs=tuple(run for run in runs if run.measurements or run.micro), problems=())
        write_file(request.public / "data.json", as_json(data).encode("utf-8", errors="replace"), hint=hint)
    if path is None:
        name = "ranking" if data.run is None else data.run.run_id
        safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[:80]
        path = results_root(request.results) / "reports" / f"{data.today.isoformat()}-{safe}.{kind}"
    # A name from a driver may have lone surrogates, which UTF-8 cannot encode; they become "?".
    text = render(data, kind).encode("utf-8", errors="replace")
    write_file(path, text, hint=hint)
    return str(path)


def _with_calculator(asked: RankRequest, data: ReportData) -> ReportData:
    ranking, market = data.ranking, asked
    # If --max-purchase-usd buys nothing, rentals are ranked, so the page must offer them too.
    rents = ranking is not None and any(row.offer.pricing is not Pricing.OWNED for row in ranking.rows)
    if rents and asked.max_purchase_usd is not None:
        market = msgspec.structs.replace(asked, max_purchase_usd=None, jobs_per_month=None)
    found = calculator(market)
    job = None if ranking is None else ranking.job
    if job is None or job.reference_hours is not None:  # on the page, a job is a number of samples
        workloads = asked.workloads if asked.workloads or asked.mix else (FIRST,)
        question = {"workloads": workloads, "samples": found["begin"]["samples"], "relative": False}
        asked = msgspec.structs.replace(asked, **question)
        ranking = rank.ranked(asked, lambda ranked: head(ranked, MOST_OFFERS))
    opening = () if ranking is None else ranking.said("asked")
    return replace(data, calculator=found | {"opening": opening}, ranking=ranking)


def render(data: ReportData, format: str = "html") -> str:  # noqa: A002 - the option's own name
    """Return the report as text in one of ``FORMATS``."""
    if format == "json":
        return as_json(data)
    if format == "csv":
        return as_csv(data)
    blocks = [
        (heading, printable(block))
        for key, (_, heading) in PLACES.items()
        if (block := block_of(key, data)) is not None
    ]
    if format == "md":
        return as_markdown(_title(data), _subtitle(data), [block for _, block in blocks])
    by_heading = grouped(blocks)
    return _html(data, [_heading(key, by_heading.get(key, ())) for key in HEADINGS])


@dataclass(frozen=True, kw_only=True)
class _Heading:
    """The content under one heading of the page, with its charts by id."""

    key: str
    title: str
    parts: tuple[Part, ...]
    figures: Mapping[str, Any]


def _heading(key: str, blocks: Sequence[Block]) -> _Heading:
    parts = tuple(part for block in blocks for part in block.parts)
    charts = [figure for part in parts if isinstance(part, Charts) for figure in part.figures]
    finding = next((f": {block.finding}" for block in blocks if block.finding), "")
    drawn = {f"chart-{key}-{i}": figure.figure for i, figure in enumerate(charts, start=1)}
    return _Heading(key=key, title=f"{HEADINGS[key]}{finding}", parts=parts, figures=drawn)


def _html(data: ReportData, headings: Sequence[_Heading]) -> str:
    figures = {id_: figure for heading in headings for id_, figure in heading.figures.items()}
    content, thinned = embedded(_best_of_each_machine(data))
    static = None
    if data.calculator is not None and data.ranking is not None:
        static = _static_answer(data.ranking, data.calculator["begin"]["model"])
    return environment().get_template("page.html.j2").render(
        static=static,
        few=_few_offers(data.calculator),
        cost=COST,
        chance=CHANCE,
        as_of=data.today.isoformat(),
        no_answer=data.ranking_problem and plain(data.ranking_problem, 400),
        calculator=None if static is None else packed(msgspec.json.encode(data.calculator)),
        title=_title(data),
        subtitle=_subtitle(data) if static is None else data.today.isoformat(),  # a section dates the run
        headings=[heading for heading in headings if heading.parts],
        figures=packed(json.dumps(figures, separators=(",", ":")).encode()),
        palette=PALETTE,
        raw=packed(msgspec.json.encode(content)),
        thinned=thinned,
        digits=MOST_DIGITS,
        plotly=_plotly() if figures else None,
        plotly_notice=package_text("report/vendor/plotly-LICENSE.txt"),
        stem=f"gpubench-{data.today.isoformat()}",
        version=data.version,
        css=_asset("page.css"),
        script=_asset("rank.js") + _asset("calculator.js") + _asset("page.js"),
    )  # fmt: skip


def _few_offers(calculator: Mapping[str, Any] | None) -> str:
    if calculator is None or len(calculator["offers"]) == calculator["offer_count"]:
        return ""
    shown, count = (format_whole(each) for each in (len(calculator["offers"]), calculator["offer_count"]))
    return say("few_offers", shown=shown, count=count)


def _best_of_each_machine(data: ReportData) -> ReportData:
    # Return the data with the best offer of each GPU, count and pricing, and a limited number of exclusions.
    if data.ranking is None:
        return data
    best = first_of_each(
        data.ranking.rows, lambda row: (row.offer.gpu_key, row.offer.gpu_count, row.offer.pricing)
    )
    few = data.ranking.excluded[:MOST_OFFERS]
    return replace(data, ranking=msgspec.structs.replace(data.ranking, rows=tuple(best), excluded=few))


# --- the answer in HTML, for readers without scripts and until the script has run ----------------------


def _static_answer(ranking: Ranking, model: str) -> dict[str, Any]:
    # Return the title, the answers and the best offer of each machine as texts, as the script shows them.
    heads = first_of_each(ranking.rows, lambda row: (row.offer.gpu_key, row.offer.gpu_count))
    job = "" if ranking.job is None else plain(ranking.job.words, 80)
    named = [line for line in lines(ranking) if line.answers]
    precision = precisions_of(each for line in named for each in line.choice.row.estimates)
    return {
        "title": say("title", model=plain(model, 60), job=job, precision=precision),
        "three": [
            (
                line.names,
                gpus_of(line.choice.offer),
                seller(line.choice.offer, line.choice.purchase_usd),
                _ranged(hours_text(line.choice.row)),
                _ranged(line.choice.row.cost_usd.by(format_usd)),
                basis_text(line.choice.row),
                BOTH.join(line.chances),
            )
            for line in named
        ],
        "said": [plain(each, 400) for each in ranking.said("asked", "caution")],
        "rows": [
            _cells(row) for at, row in enumerate(heads) if at < MOST_ROWS or row.estimate.basis == "measured"
        ],
    }


def _ranged(words: str) -> str:
    return words.replace(" to ", "\N{EN DASH}")  # so that the answers fit on one screen


def _cells(row: Row) -> tuple[str, ...]:
    spec = load_specs().get(row.offer.gpu_key)
    return (
        gpus_of(row.offer),
        seller(row.offer),
        hours_text(row),
        row.cost_usd.by(format_usd),
        f"{format_usd(row.usd_per_hour.value)}/h",
        format_bytes(None if spec is None else spec.memory_bytes),
        basis_text(row),
        format_chance(row.p_sensible),
    )


def _title(data: ReportData) -> str:
    models = {device.gpu_key or device.name for device in data.devices if not device.is_cpu}
    if data.device is None or data.run is None:
        return "Training per dollar"
    if len(models) > 1:
        return f"{len(models)} GPUs compared"
    return plain(data.device.name or "Unnamed device", 80)


def _subtitle(data: ReportData) -> str:
    if data.device is None or data.run is None:
        return data.today.isoformat()
    cut = ", interrupted" if data.run.interrupted else ""
    return f"{data.today.isoformat()}; measured {moment_words(data.run.started_at)}{cut}"


def _asset(name: str) -> Any:
    from markupsafe import Markup

    return Markup(package_text(f"report/templates/{name}"))  # noqa: S704 - a file of this package, no outside text


def packed(content: bytes) -> str:
    """Return content in gzip and base64 for the page's script, at a third of the size."""
    return b64encode(gzip.compress(content, compresslevel=9, mtime=0)).decode()


@cache
def _plotly() -> str:
    return packed(package_text("report/vendor/plotly-basic.min.js").encode())


# --- in a notebook --------------------------------------------------------------------------------------

# Maximum number of rows of the table, and of dots in the plot, of a ranking.
HEAD_ROWS, MOST_DOTS = 20, 40


def ranking_html(ranking: Ranking) -> str:
    """Return the summary and a table of the first rows, as HTML."""
    data = of_ranking(ranking, HEAD_ROWS, more_by="ranking.sentences")
    blocks = (block_of(key, data) for key in ("answer", "value"))
    shown = (Block(title=block.title, parts=block.brief) for block in blocks if block is not None)
    return "".join(as_html(block) for block in shown)


def ranking_figure(ranking: Ranking) -> Plot:
    """Return a plot of the job's hours and dollars, one dot per machine, with labels on the answers.

    Without a job, the axes are throughput and hourly price.
    """
    every = (*(answer.row for answer in ranking.answers.values()), *ranking.rows)
    best = first_of_each(every, lambda row: (row.offer.gpu_key, row.offer.gpu_count))
    rows, has_job = best[:MOST_DOTS], ranking.job is not None

    def coordinates(row: Row) -> tuple[Interval, Interval]:
        return (row.hours, row.cost_usd) if has_job else (ranking.throughput_of(row), row.usd_per_hour)

    titles = grouped((id(answer.row), WORDS["titles"][name]) for name, answer in ranking.answers.items())
    of_bases = (_dots(basis, look, rows, coordinates, titles) for basis, look in BASIS_LOOKS.items())
    traces = [trace for trace in of_bases if trace["x"]]
    if has_job:
        traces.insert(0, _staircase(rows))
    x, y = zip(*(coordinates(row) for row in rows), strict=True)
    axes = (
        ("time of the job, hours", "cost of the job, US dollars")
        if has_job
        else (ranking.throughput_unit, "US dollars an hour")
    )
    layout = base_layout() | {
        "xaxis": log_axis([each.value or 0.0 for each in x], axes[0], room=0.12),
        "yaxis": log_axis([each.value or 0.0 for each in y], axes[1], room=0.06),
        "showlegend": True,
    }
    return _plotted(Figure(figure={"data": traces, "layout": layout}, alt=axes[1], height_px=480))


def _dots(
    basis: str | None,
    look: Look,
    rows: Sequence[Row],
    coordinates: Callable[[Row], tuple[Interval, Interval]],
    titles: Mapping[int, Sequence[str]],
) -> dict[str, Any]:
    found = [row for row in rows if row.estimate.basis == basis]
    prefixes = [f"{', '.join(titles[id(row)])}: " if id(row) in titles else "" for row in found]
    names = [f"{prefix}{gpus_of(row.offer)}" for prefix, row in zip(prefixes, found, strict=True)]
    # the intervals of all rows would cover the chart, so only the answers show theirs
    shown = [coordinates(row) if id(row) in titles else (UNKNOWN_INTERVAL, UNKNOWN_INTERVAL) for row in found]
    return {
        "type": "scatter",
        "name": look.name,
        "mode": "markers+text",
        "x": [coordinates(row)[0].value for row in found],
        "y": [coordinates(row)[1].value for row in found],
        "text": [label(name) if id(row) in titles else "" for row, name in zip(found, names, strict=True)],
        "textposition": "middle right",
        "hovertext": [
            "<br>".join(
                (label(name), *(each.text() for each in coordinates(row)), label(offer_name(row.offer)))
            )
            for row, name in zip(found, names, strict=True)
        ],
        "hoverinfo": "text",
        "marker": {"color": look.color, "symbol": look.symbol, "size": 9},
        "error_x": whiskers([each[0] for each in shown], thickness=1.5),
        "error_y": whiskers([each[1] for each in shown], thickness=1.5),
    }


def _staircase(rows: Sequence[Row]) -> dict[str, Any]:
    # Return the line that no machine lies below. It has steps, because there is nothing between two machines.
    least, steps = math.inf, []
    for row in sorted(rows, key=lambda row: (row.hours.value or 0.0, row.cost_usd.value or 0.0)):
        usd = row.cost_usd.value or 0.0
        if usd < least and not row.estimate.is_a_guess:
            least = usd
            steps.append((row.hours.value, usd))
    return {
        "type": "scatter",
        "name": FRONTIER,
        "mode": "lines",
        "x": [hours for hours, _ in steps],
        "y": [usd for _, usd in steps],
        "line": {"shape": "hv", "color": BLUE, "width": 2},
        "hoverinfo": "skip",
    }


def run_frame(run: Run) -> DataFrame:
    """Return one row per measurement of the run."""
    return frame((run,))


def run_figure(run: Run) -> Plot:
    """Return a plot of the throughput of every case with its interval, on one logarithmic axis.

    Raises:
        MisuseError: If no case of the run has a figure.
    """
    rows = [m for m in run.measurements if m.samples_per_s is not None]
    if not rows:
        raise MisuseError(f"run {run.run_id} has no case with a figure, so there is nothing to plot")
    marks = [
        Mark(
            row=label(m.label, 60),
            interval=m.interval,
            hover=label(m.interval.text(digits=m.digits)),
            kind=m.case.precision,
        )
        for m in rows
    ]
    return _plotted(dots(marks, LOOKS, "samples/s", "Throughput", row_px=22, logarithmic=True))


def predictions_figure(answers: Predictions) -> Plot:
    """Return a plot of the predicted throughput of every GPU with its interval, on one logarithmic axis.

    Raises:
        MisuseError: If there is no estimate.
    """
    if not answers.estimates:
        raise MisuseError("there is no estimate, so there is nothing to plot")
    marks = [
        Mark(
            row=label(gpu_name(e.gpu_key)), interval=e.interval, hover=label(e.interval.text()), kind=e.basis
        )
        for e in answers.estimates
    ]
    unit = per_second(answers.estimates[0].case.sample_unit)
    return _plotted(dots(marks, BASIS_LOOKS, unit, "Throughput", row_px=22, logarithmic=True))


def memory_figure(answers: Sequence[MemoryAnswer]) -> Plot:
    """Return a plot of the memory in use in each case, with its bounds [GiB]."""
    marks = [
        Mark(row=label(each.label), interval=each.need.device.over(GIB), hover=label(each.fits_on()))
        for each in answers
    ]
    looks = {None: Look(name="in use on the device", color=BLUE)}
    return _plotted(dots(marks, looks, "GiB in use on the device", "Memory"))


def _plotted(figure: Figure) -> Plot:
    from plotly.graph_objects import Figure as Plot

    return Plot(figure.figure).update_layout(height=figure.height_px, template="plotly_white")


# --- for programs ---------------------------------------------------------------------------------------

REPORT_VERSION = 2
"""Version of the report's own keys; the runs and the ranking within it have their own versions."""
# Maximum number of telemetry samples in a page, about 0.1 MB when packed; the result files have all of them.
_MOST_SAMPLES = 1_000

CSV_COLUMNS = (
    "kind",
    "gpu_key",
    "device",
    "workload",
    "workload_version",
    "task",
    "precision",
    "execution",
    "memory_format",
    "batch_size",
    "gpu_count",
    "sample_unit",
    "framework",
    "weight_type",
    "checkpointing",
    "trainable",
    "parallel_mode",
    "node_count",
    "loss_chunks",
    "prompt_tokens",
    "new_tokens",
    "cache_tokens",
    "context_tokens",
    "stack",
    "threads",
    "status",
    "reason",
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "basis",
    "step_time_s",
    "gpu_busy",
    "mfu",
    "joules_per_sample",
    "peak_memory_bytes",
    "rank",
    "provider",
    "instance",
    "region",
    "pricing",
    "price_usd_per_hour",
    "price_date",
    "expected_usd_per_hour",
    "samples_per_usd",
    "samples_per_usd_low",
    "samples_per_usd_high",
    "usd_per_million_samples",
    "p_best",
    "score",
    "reference_hours_per_usd",
    "hours",
    "cost_usd",
    "dominated_by",
    "findings",
    "run_id",
    "batch_choice",
    "hfu",
)
"""Columns of the CSV, listed here so that a new field elsewhere cannot change a file that others read."""

MOST_DIGITS = 12
"""Significant digits of a figure inside a page. They resolve a nanosecond in a quarter of an hour, which is
finer than any clock; the last five of a float's 17 digits would only take up space."""

_FIGURES = (
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "step_time_s",
    "gpu_busy",
    "joules_per_sample",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "batch_choice",
)
_ROW_FIGURES = (
    "rank",
    "samples_per_s",
    "samples_per_usd",
    "usd_per_million_samples",
    "p_best",
    "score",
    "reference_hours_per_usd",
    "hours",
    "cost_usd",
    "dominated_by",
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def embedded(data: ReportData, most_samples: int = _MOST_SAMPLES) -> tuple[dict[str, Any], int]:
    """Return ``document`` for a page, with only the runs that the page uses.

    Long telemetry is thinned, and figures are rounded to ``MOST_DIGITS``.

    Returns:
        The document, and n: it keeps every n-th telemetry sample.
    """
    results = (*data.everything, *(pair.result for pair in data.thread_pairs), *data.failures)
    used = {id(result.run): result.run for result in results}.values()
    total = sum(len(x.telemetry) for run in used for m in run.measurements for x in m.launches)
    step = max(1, math.ceil(total / most_samples))
    runs = [run_document(run) for run in used]
    for run in runs:
        for measurement in run["measurements"]:
            for launch in measurement["launches"]:
                launch["telemetry"] = launch["telemetry"][::step]
    text = msgspec.json.encode(document(data, runs))
    return json.loads(text, parse_float=lambda figure: float(f"{float(figure):.{MOST_DIGITS}g}")), step


def document(data: ReportData, runs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the data of the report as plain JSON values.

    Args:
        data: The report.
        runs: Its runs as JSON; None for the documents of ``run --json``, with every raw round.
    """
    everything = {
        "schema_version": REPORT_VERSION,
        "gpubench": data.version,
        "made_on": data.today.isoformat(),
        "runs": [run_document(run) for run in data.runs] if runs is None else runs,
        "ranking": None if data.ranking is None else msgspec.to_builtins(rank.document(data.ranking)),
        "ranking_problem": data.ranking_problem,
        "problems": list(data.problems),
    }
    cleaned: dict[str, Any] = _storable(everything)
    return cleaned


def _storable(value: Any) -> Any:
    # Replace values that JSON in UTF-8 cannot represent: NaN and infinity by null, lone surrogates by "?".
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list | tuple) else value


def as_json(data: ReportData) -> str:
    """Return ``document`` as JSON text."""
    return msgspec.json.format(msgspec.json.encode(document(data)), indent=2).decode() + "\n"


def as_csv(data: ReportData) -> str:
    """Return one line per measured case and per ranked offer; ``kind`` distinguishes them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, restval="", lineterminator="\r\n")
    writer.writeheader()
    for run in data.runs:
        for measurement in run.measurements:
            writer.writerow(_guarded(_measurement_cells(run, measurement)))
    for row in () if data.ranking is None else data.ranking.rows:
        writer.writerow(_guarded(_offer_cells(row)))
    return text.getvalue()


def guard(text: str) -> str:
    """Add a leading quote to a name that a spreadsheet would read as a formula.

    >>> guard("=1+1"), guard("  @x"), guard("a100"), guard("")
    ("'=1+1", "'  @x", 'a100', '')
    """
    kept = text if text.startswith(("\t", "\r")) else plain(text, 1000)
    read = unicodedata.normalize("NFKC", kept)  # as a spreadsheet in an East Asian locale may
    dangerous = read.startswith(_FORMULA_STARTS) or read.lstrip().startswith(_FORMULA_STARTS)
    return f"'{plain(kept, 1000)}" if dangerous else kept


def _guarded(cells: dict[str, Any]) -> dict[str, Any]:
    return {k: guard(v) if isinstance(v, str) else v for k, v in cells.items() if v is not None}


def _measurement_cells(run: Run, m: Measurement) -> dict[str, Any]:
    return {
        "kind": "measurement",
        "gpu_key": run.device.gpu_key,
        "device": run.device.name,
        **msgspec.to_builtins(m.case),
        "status": m.status.value,
        "reason": m.reason,
        **{name: getattr(m, name) for name in _FIGURES},
        "basis": "measured",
        "findings": " ".join(finding.kind.value for finding in m.findings),
        "run_id": run.run_id,
    }


def _offer_cells(row: Row) -> dict[str, Any]:
    figures = flat({name: getattr(row, name) for name in _ROW_FIGURES})
    return {
        "kind": "offer",
        **msgspec.to_builtins(row.estimate.case),
        **{
            name: getattr(row.offer, name)
            for name in ("gpu_key", "gpu_count", "provider", "instance", "region")
        },
        "pricing": row.offer.pricing.value,
        "price_usd_per_hour": row.offer.price_usd_per_hour,
        "price_date": row.offer.price_date,
        "basis": row.estimate.basis,
        "expected_usd_per_hour": row.usd_per_hour.value,
        **{name: value for name, value in figures.items() if name in CSV_COLUMNS},
        "findings": " ".join(finding.kind.value for finding in row.findings),
    }
