"""How it was measured: protocol, launches, rounds, environment, findings, and every case that failed."""

from __future__ import annotations

from collections.abc import Iterable

from gpubench.effects import Result
from gpubench.findings import Finding, FindingKind, describe
from gpubench.models import Launch, Measurement, Run, StartState, Switches
from gpubench.record.spread import cold_costs, spread
from gpubench.report.data import ReportData
from gpubench.report.section import Block, Bullets, Column, Fact, Facts, Paragraph, Part, Section, Table
from gpubench.report.words import case_words, moment_words
from gpubench.units import UNKNOWN, count, format_bytes, format_duration, format_number, format_percent, plain

MOST_PLACES = 6

_WORDS = (
    (
        "step",
        "one update of the weights (forward pass, loss, backward pass, optimiser) or one inference pass",
    ),
    ("round", "a timed block of several steps, with one synchronisation of the device at each edge"),
    ("launch", "a fresh process; one process cannot see what differs between processes"),
    (
        "interval",
        "95 %, with the correlation of rounds counted in; within or between launches, the wider",
    ),
    ("finding", "a flag with the value seen and the limit; flagged rows are kept, and say so"),
)


def _render(data: ReportData) -> Block | None:
    if data.run is None:
        return Block(
            title="How it was measured",
            parts=(Paragraph(text="Nothing was measured here, so there is no method to report."),),
        )
    parts: list[Part] = [
        Paragraph(
            text=(
                "Throughput is samples over wall time of the accepted rounds. Batches are prebuilt and "
                "already on the device: the input pipeline is not part of these figures. Raw rounds are "
                "embedded at the foot of this page, so every figure can be derived again."
            )
        ),
        Facts(rows=tuple(Fact(term=term, value=words) for term, words in _WORDS)),
        _runs_table(data.used_runs or (data.run,)),
        *_findings(data),
    ]
    if data.results:
        parts += [_rounds_table(data.results), _spread_table(data.results), *_cold_costs(data.results)]
    if data.failures:
        parts.append(_failures_table(data.failures))
    if data.problems:
        parts.append(
            Paragraph(text=f"{count(len(data.problems), 'result file')} could not be read:", tone="warning")
        )
        parts.append(Bullets(items=tuple(plain(problem, 300) for problem in data.problems)))
    return Block(title="How it was measured", parts=tuple(parts))


def _runs_table(runs: Iterable[Run]) -> Table:
    """One column of facts a run; several runs stand side by side, so that what differs is seen."""
    listed_runs = tuple(runs)[:6]
    facts = [_run_facts(run) for run in listed_runs]
    terms = [term for term in facts[0] if any(fact[term] != UNKNOWN for fact in facts)]
    return Table(
        caption="Protocol and environment",
        columns=(Column(title="Run"), *(Column(title=plain(run.run_id, 60)) for run in listed_runs)),
        rows=tuple((term, *(fact[term] for fact in facts)) for term in terms),
    )


def _run_facts(run: Run) -> dict[str, str]:
    e = run.environment
    return {
        "Protocol": plain(run.protocol, 40),
        "Budget": plain(run.budget, 40),
        "Started": moment_words(run.started_at),
        "Finished": moment_words(run.finished_at)
        if run.finished_at
        else "not finished; finished cases are kept",
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
        **_start_facts(run.start),
        "Variables": ", ".join(f"{plain(k, 60)}={plain(v, 60)}" for k, v in sorted(e.variables.items()))
        or UNKNOWN,
    }


def _start_facts(start: StartState | None) -> dict[str, str]:
    """The device before the run; unknown throughout where the driver did not tell."""
    s = start or StartState()
    link = (
        f"generation {s.pcie_generation}, {s.pcie_width} lanes" if s.pcie_generation and s.pcie_width else ""
    )
    return {
        "Temperature at start": UNKNOWN if s.temperature_c is None else f"{s.temperature_c:.0f} °C",
        "Idle power": UNKNOWN if s.idle_power_w is None else f"{format_number(s.idle_power_w)} W",
        "Persistence mode": UNKNOWN if s.persistence_mode is None else "on" if s.persistence_mode else "off",
        "PCI Express at start": link or UNKNOWN,
    }


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else plain(value, 120)


def _findings(data: ReportData) -> list[Part]:
    """Each kind of finding once: what it says, where it was seen with which value, what to do."""
    seen: dict[FindingKind, list[str]] = {}
    for run in data.used_runs:
        for finding in run.findings:
            seen.setdefault(finding.kind, []).append(_where("the run", finding))
    for result in data.results:
        for finding in result.measurement.findings:
            seen.setdefault(finding.kind, []).append(_where(plain(result.measurement.label, 100), finding))
    if not seen:
        return [Paragraph(text="No finding was raised: nothing was seen that would cast doubt on a row.")]
    rows = []
    for kind, where in sorted(seen.items()):
        name, _, words = describe(Finding(kind=kind)).partition(": ")
        what, _, action = words.partition("; ")
        rows.append((name, what, _places(where), action))
    return [
        Table(
            caption="Findings, and what to do about each",
            columns=tuple(
                Column(title=title) for title in ("Finding", "What was seen", "Where", "What to do")
            ),
            rows=tuple(rows),
        )
    ]


def _places(where: list[str]) -> str:
    """At most so many places: the table of cases names the findings of every one."""
    places = list(dict.fromkeys(where))
    more = len(places) - MOST_PLACES
    return "; ".join(places[:MOST_PLACES]) + (f"; and {more} more" if more > 0 else "")


def _where(place: str, finding: Finding) -> str:
    if finding.value is None:
        return place
    limit = "" if finding.limit is None else f", limit {_show(finding.limit)}"
    return f"{place} ({_show(finding.value)}{limit})"


def _show(value: float | str) -> str:
    return plain(value, 80) if isinstance(value, str) else f"{value:.3g}"


def _rounds_table(results: Iterable[Result]) -> Table:
    return Table(
        caption="Launches, rounds and switches of every case",
        columns=(
            Column(title="Case"),
            Column(title="Launches", numeric=True),
            Column(title="Rounds, steps in each", numeric=True),
            Column(title="Left out", numeric=True),
            Column(title="Warm-up", numeric=True),
            Column(title="Timed", numeric=True),
            Column(title="Half-width", numeric=True),
            Column(title="Peak memory", numeric=True),
            Column(title="TF32 as read back"),
        ),
        rows=tuple(_round_cells(result.measurement) for result in results),
        folded=True,
    )


def _round_cells(m: Measurement) -> tuple[str, ...]:
    accepted = [r for launch in m.launches for r in launch.accepted]
    kept = [r for launch in m.launches for r in launch.rounds]
    steps = sorted({r.steps for r in accepted})
    spread = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}" if steps else UNKNOWN
    return (
        plain(m.label, 100),
        str(len(m.launches)),
        f"{len(accepted)} × {spread}",
        str(len(kept) - len(accepted)),
        format_duration(sum(r.wall_s for launch in m.launches for r in launch.warmup)),
        format_duration(sum(r.wall_s for r in accepted)),
        "unknown" if m.relative_half_width is None else f"± {format_percent(m.relative_half_width)}",
        format_bytes(m.peak_memory_bytes),
        _switches(m.launches),
    )


def _spread_table(results: Iterable[Result]) -> Table:
    return Table(
        caption="Spread of every case: seconds per step over rounds, and over launches",
        columns=(
            Column(title="Case"),
            Column(title="Median round", numeric=True),
            Column(title="MAD", numeric=True),
            Column(title="5th to 95th percentile", numeric=True),
            Column(title="Outliers", numeric=True),
            Column(title="Launches, least to most", numeric=True),
        ),
        rows=tuple(_spread_cells(result.measurement) for result in results),
        folded=True,
    )


def _spread_cells(m: Measurement) -> tuple[str, ...]:
    of = spread(m)
    return (
        plain(m.label, 100),
        format_duration(of["step_time_median_s"]),
        format_duration(of["step_time_mad_s"]),
        _range(of["step_time_p5_s"], of["step_time_p95_s"]),
        f"{of['outliers']} of {of['rounds']}",
        _range(of["launch_step_time_min_s"], of["launch_step_time_max_s"]),
    )


def _cold_costs(results: Iterable[Result]) -> list[Part]:
    """What is paid once, apart from the steps: nothing of it is in a throughput."""
    costs = cold_costs(result.measurement for result in results)
    if not costs:
        return []
    rows = tuple((name.replace("_", " "), _range(least, most)) for name, (least, most) in costs.items())
    caption = "Paid once, apart from the steps: least to most over cases and launches"
    columns = (Column(title="Cost"), Column(title="Time", numeric=True))
    return [Table(caption=caption, columns=columns, rows=rows, folded=True)]


def _range(least: float | None, most: float | None) -> str:
    return format_duration(least) if least == most else f"{format_duration(least)} to {format_duration(most)}"


def _switches(launches: tuple[Launch, ...]) -> str:
    """Whether TF32 was in force, as the five switches say."""
    known = [launch.switches for launch in launches if launch.switches is not None]
    if not known:
        return UNKNOWN
    states = {_tf32(switches) for switches in known}
    return states.pop() if len(states) == 1 else "differs between launches"


def _tf32(s: Switches) -> str:
    read = (s.conv_fp32_precision, s.rnn_fp32_precision, s.matmul_fp32_precision)
    on = {s.cudnn_allow_tf32, s.matmul_allow_tf32, *(value == "tf32" for value in read if value is not None)}
    return "mixed" if len(on) > 1 else "on" if on.pop() else "off"


def _failures_table(failures: Iterable[Result]) -> Table:
    rows = tuple(
        (
            case_words(result.case),
            result.measurement.status.value.replace("_", " "),
            plain(result.measurement.reason or "no reason was stored", 300),
        )
        for result in failures
    )
    return Table(
        caption="Tried and not measured",
        columns=(Column(title="Case"), Column(title="Status"), Column(title="Reason")),
        rows=rows,
        marks=tuple("bad" for _ in rows),
    )


SECTION = Section(key="method", render=_render)
