"""The input of a report, collected once, and the list of its sections."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from gpubench import __version__
from gpubench.blocks.parts import Block, Paragraph, Part
from gpubench.effects import Effect, Result, on_all_threads, results_of, thread_effects
from gpubench.errors import GpuBenchError
from gpubench.models import (
    BuyOrRent,
    Case,
    DeviceProfile,
    GpuSpec,
    Ranking,
    Run,
    Status,
)
from gpubench.models.run import newest_first
from gpubench.options import options_of
from gpubench.profile import traced_once
from gpubench.specs import load_specs
from gpubench.today import day_of


@dataclass(frozen=True)
class ReportData:
    """The input of the sections: frozen, and complete without a GPU, a network or torch.

    Attributes:
        today: The day of the report, from which ages of prices are computed.
        runs: This user's stored runs, newest first.
        ranking: None if no ranking could be made; ``ranking_problem`` then says why.
        problems: Result files that could not be read, one line each.
        about: Id of the run that determines the page's device; None for the newest with a usable row.
        buy_or_rent: Owning compared with renting, for the user's cards or those to buy.
        specs: The specification table by GPU key.
        most_offers: Maximum rows of the ranking on a terminal; None for all.
        every_offer: Whether each row is an offer, or the best offer of a GPU.
        more_by: The option that shows the notes omitted on a terminal; None if all are shown.
        calculator: The data of the page's script; None without a calculator.
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
        """The run that the page calls "here": the requested one, else the newest usable one."""
        if self.about is not None:
            return next((run for run in self.runs if run.run_id == self.about), None)
        usable = (run for run in self.runs if any(m.status is Status.OK for m in run.measurements))
        return next(usable, self.runs[0] if self.runs else None)

    @cached_property
    def device(self) -> DeviceProfile | None:
        """The device of ``run``, which represents its model."""
        return None if self.run is None else self.run.device

    @cached_property
    def device_runs(self) -> tuple[Run, ...]:
        """The runs made on ``device``, newest first."""
        return tuple(run for run in self.runs if self.device is not None and same(run.device, self.device))

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The newest usable measurement of each case on this device, a CPU with all its threads."""
        return on_all_threads(newest(self.device_runs, usable=True))

    @cached_property
    def thread_pairs(self) -> tuple[Effect, ...]:
        """Each case of the CPU and the same on one thread, from the newest run with both."""
        found: dict[Case, Effect] = {}
        cpu = next((device for device in self.devices if device.is_cpu), None)
        for run in (run for run in self.runs if cpu is not None and same(run.device, cpu)):
            for pair in thread_effects(results_of(run)):
                found.setdefault(pair.of.case, pair)
        return tuple(found.values())

    @cached_property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Every measured device: the page's device first, then the others by their newest run."""
        found: list[DeviceProfile] = [] if self.device is None else [self.device]
        for run in self.runs:
            if not any(same(run.device, device) for device in found):
                found.append(run.device)
        return tuple(found)

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
        """Cases that were tried on this device without success, with the latest reason."""
        measured = {result.case for result in self.results}
        return tuple(x for x in newest(self.device_runs, usable=False) if x.case not in measured)

    @cached_property
    def used_runs(self) -> tuple[Run, ...]:
        """The runs behind ``results``, newest first."""
        used = {result.run.run_id for result in self.results}
        return tuple(run for run in self.device_runs if run.run_id in used)

    @cached_property
    def spec(self) -> GpuSpec | None:
        """The specification row of the device; None for a CPU and for a card that is not in the table."""
        key = None if self.device is None else self.device.gpu_key
        return None if key is None else self.specs.get(key)

    @property
    def is_cpu(self) -> bool:
        """Whether the measurements were made on a CPU."""
        return self.device is not None and self.device.is_cpu


def of_ranking(
    ranking: Ranking,
    most_offers: int | None = None,
    *,
    every_offer: bool = False,
    more_by: str | None = None,
) -> ReportData:
    """Data with only a ranking: this many rows on a terminal, one per GPU or per offer."""
    return ReportData(
        today=date.min,
        ranking=ranking,
        buy_or_rent=ranking.buy_or_rent[:most_offers],
        most_offers=most_offers,
        every_offer=every_offer,
        more_by=more_by,
    )


def of_run(run: Run) -> ReportData:
    """Data with only a run."""
    return ReportData(today=date.min, runs=(run,))


def same(one: DeviceProfile, other: DeviceProfile) -> bool:
    """Whether two records are about the same model of device."""
    return (one.backend, one.gpu_key, one.name) == (other.backend, other.gpu_key, other.name)


@traced_once()
def gather(
    results: Path | None = None,
    as_of: date | None = None,
    *,
    run: str | None = None,
    every_run: bool = False,
    most_rows: int | None = None,
    first: str | None = None,
    **question: Any,
) -> ReportData:
    """Read the runs of a results folder and rank the offers with them.

    If a default ranking fails, the reason replaces it and the rest of the page stays.

    Args:
        results: Results folder; None for the user's (see ``folders.results_root``).
        as_of: The day from which ages are computed, and the last day of prices; None for today.
        run: The run that determines the page's device: a path, an id, or ``latest``; None for the newest
            usable one.
        every_run: Whether to read runs that later runs supersede in every case; no section needs them.
        most_rows: Maximum offers of the ranking, besides those always kept; None for all.
        first: The default workload of the ranking; None for that of ``rank``.
        question: Fields of ``recommend.request.RankRequest``: workloads, precision, samples, own ...

    Raises:
        MisuseError: If the question is invalid; a requested ranking is never silently omitted.
    """
    from gpubench.folders import results_root
    from gpubench.recommend.rank import ranked
    from gpubench.recommend.request import RankRequest
    from gpubench.recommend.rows import head
    from gpubench.record.run_file import read_run
    from gpubench.record.store import find_run, newest_runs, read_runs

    today = day_of(as_of)
    place: dict[str, Any] = {"results": results, "as_of": None if as_of is None else today}
    root = results_root(results)
    stored = read_runs(root) if every_run else newest_runs(root)
    chosen = None if run is None else read_run(find_run(root, run))
    ranking, problem = None, None
    asked = tuple(each.name for each in options_of(RankRequest) if each.field in question)
    named = {} if first is None or {"workloads", "mix"} & question.keys() else {"workloads": (first,)}
    try:
        ranking = ranked(
            RankRequest(**place | question | named, asked=asked),
            None if most_rows is None else lambda found: head(found, most_rows),
        )
    except GpuBenchError as error:
        if question:
            raise
        problem = str(error)
    if ranking is not None:
        today = date.fromisoformat(ranking.as_of)  # later than the clock, if the clock is behind the prices
    runs = {run.run_id: run for run in (*stored.runs, *((chosen,) if chosen else ()))}
    return ReportData(
        today=today,
        runs=newest_first(runs.values()),
        about=None if chosen is None else chosen.run_id,
        problems=tuple(stored.problems),
        ranking=ranking,
        ranking_problem=problem,
        buy_or_rent=() if ranking is None else ranking.buy_or_rent,
    )


def at_named_batches(results: Iterable[Result]) -> list[Result]:
    """Drop the rows at the largest batch that fits, if there are others, because their batch differs."""
    known = list(results)
    return [r for r in known if not r.measurement.at_largest_batch] or known


def place(result: Result) -> tuple[bool, float]:
    """The sort key of results: invalid ones first, then in ascending order of speed."""
    return result.leads, result.measurement.samples_per_s or 0.0


def newest(runs: Iterable[Run], *, usable: bool) -> tuple[Result, ...]:
    """The newest usable (or unusable) measurement of each case; ``runs`` are sorted newest first."""
    found: dict[Case, Result] = {}
    for run in runs:
        for measurement in run.measurements:
            ok = measurement.status is Status.OK and measurement.samples_per_s is not None
            if ok is usable:
                found.setdefault(measurement.case, Result(run=run, measurement=measurement))
    return tuple(found.values())


# --- the sections ---------------------------------------------------------------------------------------

HEADINGS = {
    "throughput": "Throughput",
    "roofline": "Roofline",
    "device": "The device",
    "method": "How it was measured",
    "accuracy": "Accuracy of the predictions",
    "prices": "Prices",
}
"""The headings below the answer, in their order."""

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
"""The sections in order: the module of each, and its heading."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Content under a heading of the page.

    Attributes:
        key: Letters, digits and hyphens; the section's address on the page.
        render: Returns the block, or None if there is nothing to show.
        heading: One of ``HEADINGS``; None for a section that is part of the page's answer.
    """

    key: str
    render: Callable[[ReportData], Block | None] = field(repr=False)
    heading: str | None = None


@cache
def section_of(key: str) -> Section:
    """Return a section, importing only its module."""
    module, heading = PLACES[key]
    render = import_module(f"gpubench.sections.{module}").SECTIONS[key]
    return Section(key=key, heading=heading, render=render)


def brief(data: ReportData, *keys: str) -> list[Part]:
    """Return the terminal's version of some of the page's sections."""
    found = (section_of(key).render(data) for key in keys)
    return [part for block in found if block is not None for part in block.brief]


def unexplained(parts: Iterable[Part]) -> list[Part]:
    """Drop the notes that explain the tables, for a terminal that shows only the tables."""
    return [part for part in parts if not (isinstance(part, Paragraph) and part.tone == "note")]


def own_sections() -> tuple[Section, ...]:
    """Return every section in order."""
    return tuple(map(section_of, PLACES))
