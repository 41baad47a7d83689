"""How it was measured: protocol, launches, rounds, environment, findings, and every case that failed."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.block import Block
from gpubench.blocks.parts import (
    Bullets,
    Cell,
    Column,
    Fact,
    Facts,
    Paragraph,
    Part,
    Table,
    number,
    table,
    text,
)
from gpubench.effects import Result
from gpubench.findings import Finding, FindingKind, describe, what_and_action
from gpubench.measure.checks import unique
from gpubench.models import Launch, Measurement, Run, StartState
from gpubench.record.figures import cold_costs, spread
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import ALLOCATED, IN_USE, RESERVED, case_words, moment_words
from gpubench.spread import PARTS
from gpubench.units import (
    UNKNOWN,
    capitalized,
    count,
    format_bytes,
    format_duration,
    format_number,
    format_percent,
    plain,
)

MOST_PLACES, MOST_RUNS = 6, 6

_WORDS = (
    (
        "step",
        "one update of the weights (forward pass, loss, backward pass, optimizer) or one inference pass",
    ),
    ("round", "a timed block of several steps, with one synchronization of the device at each edge"),
    ("launch", "a fresh process; one process cannot see what differs between processes"),
    (
        "interval",
        "95 %, with the correlation of rounds counted in; within or between launches, the wider",
    ),
    ("finding", "a flag with the value seen and the limit; flagged rows are kept, and say so"),
)


def _render(data: ReportData) -> Block | None:
    if data.run is None:
        nothing = Paragraph(text="Nothing was measured here, so there is no method to report.")
        return Block(title="How it was measured", parts=(nothing, *_unread(data)))
    parts: list[Part] = [
        Paragraph(
            text=(
                "Throughput is samples over wall time of the accepted rounds. Batches are prebuilt and "
                "already on the device: the input pipeline is not part of these figures. Raw rounds are "
                "embedded at the foot of this page, so every figure can be derived again."
            )
        ),
        Facts(rows=tuple(Fact(term=term, value=words) for term, words in _WORDS)),
        _runs_table((data.used_runs or (data.run,))[:MOST_RUNS]),
        _findings(data),
    ]
    if data.results:
        parts += [_rounds_table(data.results), _spread_table(data.results), _ledger_table(data.results)]
    if costs := _cold(data):
        parts.append(
            table(
                "Paid once, apart from the steps: least to most over cases and launches",
                list(costs.items()),
                text("Cost", lambda item: item[0].replace("_", " ")),
                number("Time", lambda item: _range(*item[1])),
                folded=True,
            )
        )
    if data.failures:
        parts.append(_failures_table(data.failures))
    parts += _unread(data)
    cases = f"{count(len(data.results), 'case')} on this kind of device, every one with its raw rounds"
    return Block(title="How it was measured", finding=cases, parts=tuple(parts), brief=_brief(data))


def _unread(data: ReportData) -> list[Part]:
    """The result files that could not be read, each with its reason; nothing where all were."""
    if not data.problems:
        return []
    return [
        Paragraph(text=f"{count(len(data.problems), 'result file')} could not be read:", tone="warning"),
        Bullets(items=tuple(plain(problem, 300) for problem in data.problems)),
    ]


def _runs_table(runs: Sequence[Run]) -> Table:
    """One column of facts a run; several runs stand side by side, so that what differs is seen."""
    facts = [_run_facts(run) for run in runs]
    terms = [term for term in facts[0] if any(fact[term] != UNKNOWN for fact in facts)]
    return Table(
        caption="Protocol and environment",
        columns=(Column(title="Run"), *(Column(title=plain(run.run_id, 60)) for run in runs)),
        rows=tuple((term, *(fact[term] for fact in facts)) for term in terms),
    )


def _run_facts(run: Run) -> dict[str, str]:
    e, s = run.environment, run.start or StartState()
    link = (
        f"generation {s.pcie_generation}, {s.pcie_width} lanes" if s.pcie_generation and s.pcie_width else ""
    )
    return {
        "Protocol": plain(run.protocol, 40),
        "Budget": plain(run.budget, 40),
        "Started": moment_words(run.started_at),
        "Finished": _end(run),
        "Device": _text(run.device.name),
        "gpubench": _text(e.gpubench),
        "Commit": _text(e.git_commit),
        "torch": _text(e.torch),
        "CUDA, cuDNN": " / ".join(_text(x) for x in (e.cuda, e.cudnn)) if e.cuda or e.cudnn else UNKNOWN,
        "cudnn.benchmark": UNKNOWN if e.cudnn_benchmark is None else str(e.cudnn_benchmark),
        "Driver": _text(e.driver),
        "Python": _text(e.python),
        "Operating system": _text(e.os),
        "Container": _text(e.container),
        "CPU": _text(e.cpu),
        "CPU threads": UNKNOWN if e.cpu_threads is None else f"{e.cpu_threads} of {e.cpu_count or UNKNOWN}",
        "Host memory": format_bytes(e.ram_bytes),
        "Seed": str(run.seed),
        "CPU governor": _text(e.cpu_governor),
        "Temperature at start": UNKNOWN if s.temperature_c is None else f"{s.temperature_c:.0f} °C",
        "Idle power": UNKNOWN if s.idle_power_w is None else f"{format_number(s.idle_power_w)} W",
        "Persistence mode": UNKNOWN if s.persistence_mode is None else "on" if s.persistence_mode else "off",
        "PCI Express at start": link or UNKNOWN,
        "Variables": ", ".join(f"{plain(k, 60)}={plain(v, 60)}" for k, v in sorted(e.variables.items()))
        or UNKNOWN,
    }


def _end(run: Run) -> str:
    """When the run came to its end; of one that did not, how to go on."""
    if run.finished_at is not None and not run.interrupted:
        return moment_words(run.finished_at)
    end = f"interrupted {moment_words(run.finished_at)}" if run.finished_at else "not finished"
    return f"{end}; finished cases are kept, gpubench run --resume {plain(run.run_id, 60)} goes on"


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else plain(value, 120)


def _seen(data: ReportData) -> dict[FindingKind, list[tuple[Finding, str]]]:
    """Every finding by its kind, with where it was seen."""
    seen: dict[FindingKind, list[tuple[Finding, str]]] = {}
    runs = data.used_runs or data.device_runs[:1]
    for place, findings in (
        *(("the run", run.findings) for run in runs),
        *((r.measurement.label, r.measurement.findings) for r in (*data.results, *data.failures)),
        *((f"{m.name} {m.precision or ''} {m.size}", m.findings) for run in runs for m in run.micro),
    ):
        for finding in findings:
            seen.setdefault(finding.kind, []).append((finding, plain(" ".join(place.split()), 100)))
    return seen


def _findings(data: ReportData) -> Part:
    """Each kind of finding once: what it says, where it was seen with which value, what to do."""
    seen = _seen(data)
    if not seen:
        return Paragraph(text="No finding was raised: nothing was seen that would cast doubt on a row.")
    return table(
        "Findings, and what to do about each",
        sorted(seen.items()),
        text("What was seen", lambda row: capitalized(what_and_action(row[0])[0])),
        text("Finding", lambda row: str(row[0])),
        text("Where", lambda row: _places(row[1])),
        text("What to do", lambda row: what_and_action(row[0])[1]),
    )


def _places(found: Sequence[tuple[Finding, str]]) -> str:
    """Where a kind of finding was seen, each with its value and limit; the table of cases names every one."""
    places: dict[str, None] = {}
    for finding, place in found:
        value, limit = (
            x if x is None else plain(x, 80) if isinstance(x, str) else f"{x:.3g}"
            for x in (finding.value, finding.limit)
        )
        against = "" if limit is None else f", limit {limit}"
        places[place if value is None else f"{place} ({value}{against})"] = None
    more = len(places) - MOST_PLACES
    return "; ".join([*list(places)[:MOST_PLACES], *([f"and {more} more"] if more > 0 else [])])


def _brief(data: ReportData) -> tuple[Part, ...]:
    """What failed, each kind of finding with the worst of its values, and what was paid once."""
    said = []
    for found in _seen(data).values():
        (worst,) = unique(finding for finding, _ in found)
        place = next(place for finding, place in found if finding == worst)
        several = f"worst of {len(found)}: " if len(found) > 1 and place != "the run" else ""
        said.append(describe(worst, None if place == "the run" else f"{several}{place}"))
    costs = ", ".join(f"{name.replace('_', ' ')} {_range(*ends)}" for name, ends in _cold(data).items())
    paid = (Paragraph(text=f"Paid once, apart from the steps: {costs}.", tone="note"),) if costs else ()
    return (
        *((_failures_table(data.failures),) if data.failures else ()),
        *((Bullets(items=tuple(plain(line, 400) for line in said)),) if said else ()),
        *paid,
    )


def _cold(data: ReportData) -> dict[str, tuple[float, float]]:
    """What is paid once, apart from the steps: nothing of it is in a throughput."""
    return cold_costs(result.measurement for result in data.results)


def _rounds_table(results: Sequence[Result]) -> Table:
    return table(
        "Launches, rounds and switches of every case",
        [result.measurement for result in results],
        text("Case", lambda m: plain(m.label, 100)),
        number("Launches", lambda m: str(len(m.launches))),
        number("Rounds, steps in each", _rounds),
        number("Left out", lambda m: str(sum(len(x.rounds) - len(x.accepted) for x in m.launches))),
        number("Warm-up", lambda m: format_duration(sum(r.wall_s for x in m.launches for r in x.warmup))),
        number("Timed", lambda m: format_duration(sum(r.wall_s for x in m.launches for r in x.accepted))),
        number(
            "Half-width",
            lambda m: (
                "unknown" if m.relative_half_width is None else f"± {format_percent(m.relative_half_width)}"
            ),
        ),
        number(ALLOCATED, lambda m: format_bytes(m.peak_memory_bytes)),
        number(RESERVED, lambda m: format_bytes(m.peak_reserved_bytes)),
        number(IN_USE, lambda m: format_bytes(m.device_bytes)),
        text("TF32 as read back", lambda m: _switches(m.launches)),
        folded=True,
    )


def _rounds(m: Measurement) -> str:
    steps = [r.steps for launch in m.launches for r in launch.accepted]
    if not steps:
        return f"0 × {UNKNOWN}"
    least, most = min(steps), max(steps)
    return f"{len(steps)} × {least}" if least == most else f"{len(steps)} × {least} to {most}"


def _spread_table(results: Sequence[Result]) -> Table:
    return table(
        "Spread of every case: seconds per step over rounds, and of each launch",
        [(result.measurement, spread(result.measurement)) for result in results],
        text("Case", lambda row: plain(row[0].label, 100)),
        number("Median round", lambda row: format_duration(row[1]["step_time_median_s"])),
        number("MAD", lambda row: format_duration(row[1]["step_time_mad_s"])),
        number(
            "5th to 95th percentile", lambda row: _range(row[1]["step_time_p5_s"], row[1]["step_time_p95_s"])
        ),
        number("Outliers", lambda row: f"{row[1]['outliers']} of {row[1]['rounds']}"),
        number("Each launch", lambda row: ", ".join(map(format_duration, row[0].launch_step_times_s))),
        folded=True,
    )


def _ledger_table(results: Sequence[Result]) -> Table:
    def share(name: str) -> Cell[Measurement]:
        return number(name.capitalize(), lambda m: _half_width(m, name))

    return table(
        "What each figure may be wrong by (95 %); host and card are those of another of the kind",
        [result.measurement for result in results],
        text("Case", lambda m: plain(m.label, 100)),
        *map(share, PARTS),
        folded=True,
    )


def _half_width(m: Measurement, name: str) -> str:
    known = {part.name: part.half_width for part in m.ledger}.get(name)
    return UNKNOWN if known is None else format_percent(known)


def _range(least: float | None, most: float | None) -> str:
    return format_duration(least) if least == most else f"{format_duration(least)} to {format_duration(most)}"


def _switches(launches: tuple[Launch, ...]) -> str:
    """Whether TF32 was in force, as the five switches say."""
    states = set()
    for s in (launch.switches for launch in launches if launch.switches is not None):
        read = (s.conv_fp32_precision, s.rnn_fp32_precision, s.matmul_fp32_precision)
        told = {s.cudnn_allow_tf32, s.matmul_allow_tf32, *(x == "tf32" for x in read if x is not None)}
        states.add("mixed" if len(told) > 1 else "on" if told.pop() else "off")
    return (states.pop() if len(states) == 1 else "differs between launches") if states else UNKNOWN


def _failures_table(failures: Sequence[Result]) -> Table:
    return table(
        "Tried and not measured",
        failures,
        text("Case", lambda r: case_words(r.case)),
        text("Status", lambda r: r.measurement.status.value.replace("_", " ")),
        text("Reason", lambda r: plain(r.measurement.reason or "no reason was stored", 300)),
        marks=tuple("bad" for _ in failures),
    )


SECTION = Section(key="method", render=_render, place=170, heading="method")
