"""Texts of the report on cases, offers and evidence; every text is safe to print without escaping."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from gpubench.blocks.parts import Cell, Fact, Paragraph, Part, T, table, text
from gpubench.effects import Effect, Result
from gpubench.findings import FindingKind
from gpubench.interval import stacked
from gpubench.models import (
    Case,
    Framework,
    Measurement,
    MemoryFormat,
    Offer,
    Pricing,
    Ranking,
    Row,
    TaskKind,
)
from gpubench.offers.dates import dated
from gpubench.units import (
    format_usd,
    listing,
    per_second,
    plain,
)

MOST_OF_A_NOTE = 400
"""Maximum characters of a note of a ranking."""


def per_s_unit(ranking: Ranking) -> str:
    """The unit of ``Ranking.throughput_of``."""
    unit = plain(ranking.throughput_unit, 60)
    return f"× {unit[2:]}" if unit.startswith("x ") else unit


def cases_words(cases: Iterable[Case]) -> str:
    """The cases that a ranking compares, in one line.

    >>> cases_words(())
    'no case'
    """
    known = tuple(cases)
    if not known:
        return "no case"
    if len(known) == 1:
        return case_words(known[0])
    batches = sorted({case.batch_size for case in known})
    precisions = dict.fromkeys(case.precision.words for case in known)
    return (
        f"{listing(dict.fromkeys(case.workload for case in known))}, "
        f"{listing(dict.fromkeys('training' if case.task == 'train' else 'inference' for case in known))}, "
        f"{' or '.join(precisions)}, {listing(dict.fromkeys(case.execution.value for case in known))}, "
        f"batch {listing(f'{batch:,}' for batch in batches)}"
    )


def workload_name(case: Case) -> str:
    """The name of a workload in a sentence or a table; a user's own model may have any name."""
    return plain(case.workload, 40)


def kinds_words(kinds: Iterable[FindingKind]) -> str:
    """Distinct kinds of finding for a cell of a table."""
    return ", ".join(sorted(set(kinds))) or "none"


ALLOCATED, RESERVED, IN_USE = "Allocated by tensors", "Reserved by torch", "In use on the device"
"""The three ways to count memory."""

FINDINGS: Cell[Result | Effect] = text("Findings", lambda shown: kinds_words(shown.doubts))
"""The column of doubts about a figure, or about either of two."""


def rate_of(measurement: Measurement) -> str:
    """A measured throughput with its unit, the ends of its interval on a second line of its cell.

    It has no more digits than the interval supports.
    """
    return stacked(measurement.interval.rate(measurement.case.sample_unit, measurement.digits))


def case_words(case: Case) -> str:
    """A case in words: task, precision, execution, batch, layout."""
    gpus = "" if case.gpu_count == 1 else f", {case.gpu_count} GPUs"
    return (
        f"{workload_name(case)}, {'training' if case.task == 'train' else 'inference'}, "
        f"{case.precision.words}, {case.execution}, batch {case.batch_size:,}{layout_words(case)}{gpus}"
        f"{''.join(f', {word}' for word in case.setup_words)}"
    )


def title_of(result: Result) -> str:
    """Workload, framework, task, and whether the batch was searched, as the subject of a chart or a row."""
    case = result.case
    best = ", best batch" if result.measurement.at_largest_batch else ""
    task = "" if case.task is TaskKind.TRAIN else ", inference"
    framework = "" if case.framework is Framework.TORCH else f", {case.framework.value}"
    return f"{workload_name(case)}{framework}{task}{best}"


def layout_words(case: Case) -> str:
    """The layout of images if it is not the usual one."""
    return ", channels_last" if case.memory_format is MemoryFormat.CHANNELS_LAST else ""


def told_apart(cases: Iterable[Case]) -> Callable[[Case], tuple[str, ...]]:
    """Return a function that names what distinguishes a case besides precision, execution and batch.

    Settings that all cases of a workload have in common are omitted.
    """
    of_workload: dict[str, list[tuple[str, ...]]] = {}
    for case in cases:
        of_workload.setdefault(case.workload, []).append(_job_and_recipe(case))

    def apart(case: Case) -> tuple[str, ...]:
        others = of_workload.get(case.workload, [])
        return tuple(word for word in _job_and_recipe(case) if not all(word in each for each in others))

    return apart


def _job_and_recipe(case: Case) -> tuple[str, ...]:
    gpus = () if case.gpu_count == 1 else (f"{case.gpu_count} GPUs",)
    return (*gpus, *case.setup_words)


def measured_facts(results: Iterable[Result]) -> tuple[Fact, ...]:
    """The heaviest workload measured here, at its fastest, as a single figure.

    A figure with a doubtful finding is used only if there is no other, and an invalid one never.
    """

    def weight(result: Result) -> tuple[bool, float, float]:
        m = result.measurement
        return (not result.doubts, m.flops_per_sample or 0.0, m.samples_per_s or 0.0)

    heaviest = max((result for result in results if result.leads), key=weight, default=None)
    if heaviest is None:
        return ()
    m = heaviest.measurement
    point, ends = m.interval.apart(m.digits)
    alone = " of one process" if m.within_one_process else ""
    flagged = f"; flagged {listing(heaviest.doubts)}" if heaviest.doubts else ""
    return (
        Fact(
            term="Measured here",
            value=f"{point} {per_second(m.case.sample_unit)}",
            detail=f"95 % interval{alone} {ends or 'unknown'}; {case_words(m.case)}{flagged}",
        ),
    )


def price_date_words(row: Row) -> str:
    """The date of a price and its age, and the listed price if the expected price differs.

    A partial date counts as its oldest day.
    """
    offer = row.offer
    if offer.pricing is Pricing.OWNED:
        return "cost of a useful hour"
    listed = "" if row.is_expected_as_listed else f"asked {format_usd(row.listed_usd_per_hour)}, "
    return f"{listed}{dated(plain(offer.price_date, 20), row.price_age_days)}"


def in_stock_words(offer: Offer) -> str:
    """Whether hardware was in stock, and when."""
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
    """A table and its explanation; nothing if it has no rows."""
    return [Paragraph(text=what, tone="note"), table(caption, rows, *columns)] if rows else []
