"""What the sections share: the input of a report, the list of sections, and texts about cases and offers.

The input is collected once. Every text can be printed without escaping.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from importlib import import_module
from typing import Any

import msgspec

from gpubench import __version__
from gpubench.blocks.parts import Block, Cell, Fact, Paragraph, Part, T, table, text
from gpubench.effects import Effect, Result, on_all_threads, results_of, thread_effects
from gpubench.errors import GpuBenchError
from gpubench.findings import FindingKind
from gpubench.groups import first_of_each, grouped
from gpubench.interval import stacked
from gpubench.models import (
    BuyOrRent,
    Case,
    DeviceProfile,
    Framework,
    GpuSpec,
    Measurement,
    MemoryFormat,
    Offer,
    Pricing,
    Ranking,
    Row,
    Run,
    Status,
    TaskKind,
    newest_first,
)
from gpubench.offers.dates import dated
from gpubench.profile import traced_once
from gpubench.recommend.request import RankRequest
from gpubench.specs import load_specs
from gpubench.today import day_of
from gpubench.units import format_usd, listing, per_second, plain


@dataclass(frozen=True)
class ReportData:
    """The input of the sections: frozen, and complete without a GPU, a network or torch.

    Attributes:
        today: The date of the report; the age of a price is counted back from it.
        runs: This user's stored runs, newest first.
        ranking: None if no ranking could be made; ``ranking_problem`` then says why.
        problems: Result files that could not be read, one line each.
        about: Id of the run whose device the page is about; None for the newest usable run, see ``run``.
        buy_or_rent: Owning compared with renting, for the user's cards or for cards to buy.
        specs: The specification table by GPU key.
        most_offers: Maximum number of rows of the ranking on a terminal; None for all.
        every_offer: Whether each row is an offer, instead of the best offer of a GPU.
        more_by: How to see the notes that a terminal omits, such as an option; None if all are shown.
        calculator: The data for the script of the page; None without a calculator.
    """

    today: date
    runs: tuple[Run, ...] = ()
    ranking: Ranking | None = None
    ranking_problem: str | None = None
    problems: tuple[str, ...] = ()
    buy_or_rent: tuple[BuyOrRent, ...] = ()
    about: str | None = None
    specs: Mapping[str, GpuSpec] = field(default_factory=load_specs)
    version: str = __version__
    most_offers: int | None = 20
    every_offer: bool = False
    more_by: str | None = None
    calculator: Mapping[str, Any] | None = None

    @cached_property
    def run(self) -> Run | None:
        """The run that the page calls "here": as requested, else the newest with a usable measurement."""
        if self.about is not None:
            return next((run for run in self.runs if run.run_id == self.about), None)
        usable = (run for run in self.runs if any(m.status is Status.OK for m in run.measurements))
        return next(usable, self.runs[0] if self.runs else None)

    @cached_property
    def device(self) -> DeviceProfile | None:
        """The device of ``run``, which represents all devices of its model."""
        return None if self.run is None else self.run.device

    @cached_property
    def device_runs(self) -> tuple[Run, ...]:
        """The runs made on ``device``, newest first."""
        return tuple(run for run in self.runs if self.device is not None and same(run.device, self.device))

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The newest usable measurement of each case on this device; on a CPU, only cases on all threads."""
        return on_all_threads(newest(self.device_runs, usable=True))

    @cached_property
    def thread_pairs(self) -> tuple[Effect, ...]:
        """Each case of the CPU, paired with the same case on one thread, from the newest run with both."""
        cpu = next((device for device in self.devices if device.is_cpu), None)
        runs = (run for run in self.runs if cpu is not None and same(run.device, cpu))
        pairs = (pair for run in runs for pair in thread_effects(results_of(run)))
        return tuple(first_of_each(pairs, lambda pair: pair.result.case))

    @cached_property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Every measured device: the page's device first, then the others by their newest run."""
        first = [] if self.device is None else [self.device]
        return tuple(first_of_each([*first, *(run.device for run in self.runs)], _model))

    @cached_property
    def everything(self) -> tuple[Result, ...]:
        """The newest usable measurement of each case on each device, the page's device first."""
        return tuple(
            result
            for device in self.devices
            for result in on_all_threads(
                newest((run for run in self.runs if same(run.device, device)), usable=True)
            )
        )

    @cached_property
    def failures(self) -> tuple[Result, ...]:
        """The newest failure of each case that was never measured on this device."""
        measured = {result.case for result in self.results}
        return tuple(x for x in newest(self.device_runs, usable=False) if x.case not in measured)

    @cached_property
    def used_runs(self) -> tuple[Run, ...]:
        """The runs behind ``results``, newest first."""
        used = {result.run.run_id for result in self.results}
        return tuple(run for run in self.device_runs if run.run_id in used)

    @cached_property
    def spec(self) -> GpuSpec | None:
        """The specifications of the device; None for a CPU and for a card that is not in the table."""
        key = None if self.device is None else self.device.gpu_key
        return None if key is None else self.specs.get(key)


def of_ranking(
    ranking: Ranking,
    most_offers: int | None = None,
    *,
    every_offer: bool = False,
    more_by: str | None = None,
) -> ReportData:
    """Return data with only a ranking; a terminal shows ``most_offers`` of its rows."""
    return ReportData(
        today=date.min,
        ranking=ranking,
        buy_or_rent=ranking.buy_or_rent[:most_offers],
        most_offers=most_offers,
        every_offer=every_offer,
        more_by=more_by,
    )


def of_run(run: Run) -> ReportData:
    """Return data with only a run."""
    return ReportData(today=date.min, runs=(run,))


def same(one: DeviceProfile, other: DeviceProfile) -> bool:
    """Return whether two devices are the same model."""
    return _model(one) == _model(other)


def _model(device: DeviceProfile) -> tuple[str | None, ...]:
    return device.backend, device.gpu_key, device.name


@traced_once()
def gather(
    asked: RankRequest,
    *,
    run: str | None = None,
    every_run: bool = False,
    most_rows: int | None = None,
    first: str | None = None,
) -> ReportData:
    """Read the runs of a results folder, and rank the offers using these runs.

    If the default ranking fails, the page shows the reason instead.

    Args:
        asked: The question, with the results folder and the day.
        run: The run whose device the page is about: a path, an id, or ``latest``; None as in
            ``ReportData.about``.
        every_run: Whether to also read runs that no section shows, because newer runs repeat all their cases.
        most_rows: Maximum number of offers in the ranking, besides those that are always kept; None for all.
        first: The workload to rank if the question names none; None for the default of ``rank``.

    Raises:
        MisuseError: If the question is invalid; a requested ranking is never silently omitted.
    """
    from gpubench.folders import results_root
    from gpubench.recommend.rank import ranked
    from gpubench.recommend.rows import head
    from gpubench.record.run_file import read_run
    from gpubench.record.store import find_run, newest_runs, read_runs

    today, root = day_of(asked.as_of), results_root(asked.results)
    stored = read_runs(root) if every_run else newest_runs(root)
    chosen = None if run is None else read_run(find_run(root, run))
    ranking, problem, question = None, None, asked
    if first is not None and not (asked.workloads or asked.mix):
        question = msgspec.structs.replace(asked, workloads=(first,))
    try:
        ranking = ranked(question, None if most_rows is None else lambda found: head(found, most_rows))
    except GpuBenchError as error:
        if asked.question.keys() - {"results", "as_of"}:
            raise
        problem = str(error)
    if ranking is not None:
        today = date.fromisoformat(ranking.as_of)  # later than today's date if some prices are newer
    runs = {run.run_id: run for run in (*stored.runs, *filter(None, [chosen]))}
    return ReportData(
        today=today,
        runs=newest_first(runs.values()),
        about=None if chosen is None else chosen.run_id,
        problems=tuple(stored.problems),
        ranking=ranking,
        ranking_problem=problem,
        buy_or_rent=() if ranking is None else ranking.buy_or_rent,
    )


def without_largest_batch(results: Iterable[Result]) -> list[Result]:
    """Drop results at the largest batch that fits, because their batches differ; keep them if all are."""
    known = list(results)
    return [r for r in known if not r.measurement.at_largest_batch] or known


def newest(runs: Iterable[Run], *, usable: bool) -> tuple[Result, ...]:
    """Return the newest usable (or unusable) measurement of each case; ``runs`` are sorted newest first."""
    results = (
        Result(run=run, measurement=m)
        for run in runs
        for m in run.measurements
        if usable is (m.status is Status.OK and m.samples_per_s is not None)
    )
    return tuple(first_of_each(results, lambda result: result.case))


# --- the sections ---------------------------------------------------------------------------------------

HEADINGS = {
    "throughput": "Throughput",
    "roofline": "Roofline",
    "device": "The device",
    "method": "How it was measured",
    "accuracy": "Accuracy of the predictions",
    "prices": "Prices",
}
"""The headings below the answer, in order."""

PLACES: Mapping[str, tuple[str, str | None]] = {
    "answer": ("answer", None),
    "device": ("device", "device"),
    "value": ("answer", None),
    "measured": ("measured", "throughput"),
    "roofline": ("compared", "roofline"),
    "owning": ("prices", "prices"),
    "evidence": ("prediction", "accuracy"),
    "prediction": ("prediction", "accuracy"),
    "method": ("method", "method"),
    "prices": ("prices", "prices"),
    "footnotes": ("prices", "prices"),
}
"""The sections in order, each with its module and its key in ``HEADINGS`` (None for a part of the answer)."""


def block_of(key: str, data: ReportData) -> Block | None:
    """Return the content of a section, importing only its module; None if there is nothing to show."""
    module, _ = PLACES[key]
    block: Block | None = import_module(f"gpubench.sections.{module}").SECTIONS[key](data)
    return block


def brief(data: ReportData, *keys: str) -> list[Part]:
    """Return the terminal's version of these sections."""
    found = (block_of(key, data) for key in keys)
    return [part for block in found if block is not None for part in block.brief]


def unexplained(parts: Iterable[Part]) -> list[Part]:
    """Drop the notes that explain the tables, because a terminal shows only the tables."""
    return [part for part in parts if not (isinstance(part, Paragraph) and part.tone == "note")]


# --- texts ----------------------------------------------------------------------------------------------

MOST_OF_A_NOTE = 400
"""Maximum number of characters in a note on a ranking."""


def per_s_unit(ranking: Ranking) -> str:
    """Return the unit of ``Ranking.throughput_of``."""
    unit = plain(ranking.throughput_unit, 60)
    return f"× {unit[2:]}" if unit.startswith("x ") else unit


def cases_words(cases: Sequence[Case]) -> str:
    """Return the cases of a ranking in one line."""
    if len(cases) == 1:
        return case_words(cases[0])
    batches = sorted({case.batch_size for case in cases})
    precisions = dict.fromkeys(case.precision.words for case in cases)
    return (
        f"{listing(dict.fromkeys(case.workload for case in cases))}, "
        f"{listing(dict.fromkeys('training' if case.task == 'train' else 'inference' for case in cases))}, "
        f"{' or '.join(precisions)}, {listing(dict.fromkeys(case.execution.value for case in cases))}, "
        f"batch {listing(f'{batch:,}' for batch in batches)}"
    )


def workload_name(case: Case) -> str:
    """Return a printable name of a workload; a user's own model may have any name."""
    return plain(case.workload, 40)


def kinds_words(kinds: Iterable[FindingKind]) -> str:
    """Return the distinct kinds of findings for a table cell."""
    return ", ".join(sorted(set(kinds))) or "none"


ALLOCATED, RESERVED, IN_USE = "Allocated by tensors", "Reserved by torch", "In use on the device"
"""Labels of the three ways to count memory."""

FINDINGS: Cell[Result | Effect] = text("Findings", lambda shown: kinds_words(shown.doubts))
"""The column of doubts about a figure, or about the two figures of a ratio."""


def rate_of(measurement: Measurement) -> str:
    """Return a measured throughput with its unit, and its interval on a second line of the cell.

    The throughput has no more digits than the interval supports.
    """
    return stacked(measurement.interval.rate(measurement.case.sample_unit, measurement.digits))


def case_words(case: Case) -> str:
    """Return a case in words: task, precision, execution, batch, layout."""
    gpus = "" if case.gpu_count == 1 else f", {case.gpu_count} processes"
    return (
        f"{workload_name(case)}, {'training' if case.task == 'train' else 'inference'}, "
        f"{case.precision.words}, {case.execution}, batch {case.batch_size:,}{layout_words(case)}{gpus}"
        f"{''.join(f', {word}' for word in case.setup_words)}"
    )


def title_of(result: Result) -> str:
    """Return the title of a chart or a row: workload, framework, task, "best batch" for the largest."""
    case = result.case
    best = ", best batch" if result.measurement.at_largest_batch else ""
    task = "" if case.task is TaskKind.TRAIN else ", inference"
    framework = "" if case.framework is Framework.TORCH else f", {case.framework.value}"
    return f"{workload_name(case)}{framework}{task}{best}"


def layout_words(case: Case) -> str:
    """Return ", channels_last" if images have that layout; nothing for torch's default layout."""
    return ", channels_last" if case.memory_format is MemoryFormat.CHANNELS_LAST else ""


def distinguishing_settings(cases: Iterable[Case]) -> Callable[[Case], tuple[str, ...]]:
    """Return a function that names the settings that differ between the cases of a workload.

    Precision, execution and batch are not among them, because they are always shown.
    """
    of_workload = grouped((case.workload, _job_and_recipe(case)) for case in cases)

    def differing(case: Case) -> tuple[str, ...]:
        others = of_workload.get(case.workload, [])
        return tuple(word for word in _job_and_recipe(case) if not all(word in each for each in others))

    return differing


def _job_and_recipe(case: Case) -> tuple[str, ...]:
    gpus = () if case.gpu_count == 1 else (f"{case.gpu_count} processes",)
    return (*gpus, *case.setup_words)


def measured_facts(results: Iterable[Result]) -> tuple[Fact, ...]:
    """Return the throughput of the heaviest workload measured here, in its fastest case.

    A doubtful figure is used only if there is no other. Empty if no figure may lead (``Result.leads``).
    """

    def weight(result: Result) -> tuple[bool, float, float]:
        m = result.measurement
        return (not result.doubts, m.flops_per_sample or 0.0, m.samples_per_s or 0.0)

    heaviest = max((result for result in results if result.leads), key=weight, default=None)
    if heaviest is None:
        return ()
    m = heaviest.measurement
    point, ends = m.interval.parts(m.digits)
    alone = " from one process" if m.within_one_process else ""
    flagged = f"; flagged {listing(heaviest.doubts)}" if heaviest.doubts else ""
    return (
        Fact(
            term="Measured here",
            value=f"{point} {per_second(m.case.sample_unit)}",
            detail=f"95 % interval{alone} {ends or 'unknown'}; {case_words(m.case)}{flagged}",
        ),
    )


def price_date_words(row: Row) -> str:
    """Return the date and age of a price, and the listed price if it differs from the expected one.

    A partial date counts as its earliest day. Owned hardware has a computed cost and no price.
    """
    offer = row.offer
    if offer.pricing is Pricing.OWNED:
        return "cost of a useful hour"
    listed = "" if row.is_expected_as_listed else f"listed at {format_usd(row.listed_usd_per_hour)}, "
    return f"{listed}{dated(plain(offer.price_date, 20), row.price_age_days)}"


def in_stock_words(offer: Offer) -> str:
    """Return whether hardware was in stock, and when."""
    return f"{'in stock' if offer.in_stock else 'not seen in stock'} on {offer.stock_date}"


def moment_words(stamp: str) -> str:
    """Format a stored time to the minute.

    >>> moment_words("2026-11-20T09:30:00Z"), moment_words("yesterday")
    ('2026-11-20 09:30 UTC', 'yesterday')
    """
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return plain(stamp, 40)
    zone = "" if moment.tzinfo is None else " UTC"
    return (moment.astimezone(UTC) if zone else moment).strftime("%Y-%m-%d %H:%M") + zone


def explained(what: str, caption: str, rows: Sequence[T], *columns: Cell[T]) -> list[Part]:
    """Return a table and its explanation, or nothing if the table has no rows."""
    return [Paragraph(text=what, tone="note"), table(caption, rows, *columns)] if rows else []
