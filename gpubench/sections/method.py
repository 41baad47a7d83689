"""How the figures were measured: protocol, launches, rounds, environment, findings, and failed cases."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from gpubench.blocks.parts import Block, Bullets, Cell, Column, Paragraph, Part, Table, number, table, text
from gpubench.effects import Result
from gpubench.findings import Finding, FindingKind, describe
from gpubench.groups import grouped
from gpubench.measure.checks import unique
from gpubench.models import Launch, Measurement, Run, StartState
from gpubench.record.figures import cold_costs, spread
from gpubench.sections.data import (
    IN_USE,
    RESERVED,
    ReportData,
    case_words,
    distinguishing_settings,
    layout_words,
    moment_words,
    title_of,
)
from gpubench.spread import PARTS
from gpubench.units import (
    UNKNOWN,
    count,
    format_bytes,
    format_duration,
    format_number,
    format_percent,
    format_si,
    plain,
    span,
)

MOST_RUNS = 6

_WORDS = (
    "Throughput is samples over wall time of the accepted rounds. A round is a timed block of several "
    "steps, with the device synchronized at both ends; a launch is a fresh process. A 95 % interval covers "
    "the variation within and between launches. Batches are prebuilt and already on the device: these "
    "figures exclude the input pipeline (`gpubench feed` measures it). The HTML report embeds the raw rounds."
)


def _render(data: ReportData) -> Block | None:
    if data.run is None:
        nothing = Paragraph(text="Nothing was measured here, so there is no method to report.")
        return Block(title="How it was measured", parts=(nothing, *_unread(data)))
    parts: list[Part] = [
        Paragraph(text=_WORDS),
        _runs_table((data.used_runs or (data.run,))[:MOST_RUNS]),
        *_brief(data),
        *([_rounds_table(data.results), _ledger_table(data.results)] if data.results else []),
        *_telemetry_table(data.results),
        *_unread(data),
    ]
    cases = f"{count(len(data.results), 'case')} on this kind of device, each with its raw rounds"
    return Block(
        title="How it was measured", finding=cases, parts=tuple(parts), brief=_brief(data, numbered=True)
    )


def _unread(data: ReportData) -> list[Part]:
    # Return the unreadable result files, each with the reason.
    if not data.problems:
        return []
    return [
        Paragraph(text=f"{count(len(data.problems), 'result file')} could not be read:", tone="warning"),
        Bullets(items=tuple(plain(problem, 300) for problem in data.problems)),
    ]


def _runs_table(runs: Sequence[Run]) -> Table:
    # Return the facts of the runs, one column per run, so that differences are visible.
    facts = [_run_facts(run) for run in runs]
    terms = [term for term in facts[0] if any(fact[term] != UNKNOWN for fact in facts)]
    return Table(
        caption="Protocol and environment",
        columns=(Column(title="Run"), *(Column(title=plain(run.run_id, 60)) for run in runs)),
        rows=tuple((term, *(fact[term] for fact in facts)) for term in terms),
    )


def _run_facts(run: Run) -> dict[str, str]:
    env, start = run.environment, run.start or StartState()
    link = (
        f"generation {start.pcie_generation}, {count(start.pcie_width, 'lane')}"
        if start.pcie_generation and start.pcie_width
        else ""
    )
    return {
        "Protocol": plain(run.protocol, 40),
        "Budget": plain(run.budget, 40),
        "Started": moment_words(run.started_at),
        "Finished": _end(run),
        "Device": _text(run.device.name),
        "gpubench": _text(env.gpubench),
        "Commit": _text(env.git_commit),
        "torch": _text(env.torch),
        "CUDA, cuDNN": " / ".join(_text(x) for x in (env.cuda, env.cudnn))
        if env.cuda or env.cudnn
        else UNKNOWN,
        "cudnn.benchmark": UNKNOWN if env.cudnn_benchmark is None else str(env.cudnn_benchmark),
        "Driver": _text(env.driver),
        "Python": _text(env.python),
        "Operating system": _text(env.os),
        "Container": _text(env.container),
        "CPU": _text(env.cpu),
        "CPU threads": UNKNOWN
        if env.cpu_threads is None
        else f"{env.cpu_threads} of {env.cpu_count or UNKNOWN}",
        "Host memory": format_bytes(env.ram_bytes),
        "Seed": str(run.seed),
        "CPU governor": _text(env.cpu_governor),
        "Temperature at start": UNKNOWN if start.temperature_c is None else f"{start.temperature_c:.0f} °C",
        "Idle power": UNKNOWN if start.idle_power_w is None else f"{format_number(start.idle_power_w)} W",
        "Persistence mode": {True: "on", False: "off", None: UNKNOWN}[start.persistence_mode],
        "PCI Express at start": link or UNKNOWN,
        "Variables": ", ".join(f"{plain(k, 60)}={plain(v, 60)}" for k, v in sorted(env.variables.items()))
        or UNKNOWN,
    }


def _end(run: Run) -> str:
    if run.finished_at is not None and not run.interrupted:
        return moment_words(run.finished_at)
    end = f"interrupted {moment_words(run.finished_at)}" if run.finished_at else "not finished"
    return f"{end}; finished cases are kept; gpubench run --resume {plain(run.run_id, 60)} continues"


def _text(value: str | None) -> str:
    return UNKNOWN if value is None else plain(value, 120)


def _seen(data: ReportData) -> dict[FindingKind, list[tuple[Finding, str]]]:
    # Return the findings of each kind, each with the run, case or micro-benchmark that it is about.
    runs = data.used_runs or data.device_runs[:1]
    by_place = (
        *(("the run", run.findings) for run in runs),
        *((r.measurement.label, r.measurement.findings) for r in (*data.results, *data.failures)),
        *((f"{m.name} {m.precision or ''} {m.size}", m.findings) for run in runs for m in run.micro),
    )
    return grouped(
        (finding.kind, (finding, plain(" ".join(place.split()), 100)))
        for place, findings in by_place
        for finding in findings
    )


def cases(data: ReportData) -> list[Part]:
    """Return one line per measured case for a terminal; its findings are numbers in a list printed below."""
    numbers = {kind: number for number, kind in enumerate(_seen(data), 1)}
    differing = distinguishing_settings([result.case for result in data.results])
    executions = {result.case.execution for result in data.results}
    one_way = f", {next(iter(executions)).value}" if len(executions) == 1 else ""
    is_alone = all(result.measurement.within_one_process for result in data.results)

    def named(r: Result) -> str:
        execution = "" if one_way else f" {r.case.execution.value}"
        batch = ", ".join((r.batch_words, *differing(r.case)))
        return f"{title_of(r)} {r.case.precision.value}{execution} {batch}"

    of_cases = table(
        f"Every measured case on this device{one_way}{', from one process' if is_alone else ''}",
        data.results,
        text("Case", named),
        number(
            "Throughput, 95 % interval",
            lambda r: r.measurement.interval.rate(r.case.sample_unit, r.measurement.digits),
        ),
        number("Step", lambda r: format_duration(r.measurement.step_time_s)),
        number("Peak allocated", lambda r: format_bytes(r.measurement.peak_memory_bytes), optional=6),
        number("Of peak FLOP/s", lambda r: format_percent(r.measurement.mfu), optional=6),
        number("Tokens/s", lambda r: format_number(r.measurement.tokens_per_s), optional=7),
        text("Layout", lambda r: layout_words(r.case).removeprefix(", ") or UNKNOWN, optional=8),
        number("Device busy", lambda r: format_percent(r.measurement.gpu_busy), optional=9),
        number("Of best GEMM here", lambda r: format_percent(r.measurement.mfu_of_gemm), optional=9),
        None
        if is_alone
        else number("Launches", lambda r: str(len(r.measurement.launch_step_times_s)), optional=1),
        text(
            "Findings",
            lambda r: " ".join(map(str, sorted({numbers[f.kind] for f in r.measurement.findings}))) or "none",
        ),
    )
    return [of_cases] if data.results else []


def _brief(data: ReportData, *, numbered: bool = False) -> tuple[Part, ...]:
    # Return the failed cases, the worst value of each kind of finding, and the one-time costs.
    said = []
    for found in _seen(data).values():
        (worst,) = unique(finding for finding, _ in found)  # all are of one kind
        place = next(place for finding, place in found if finding == worst)
        several = f"worst of {len(found)}: " if len(found) > 1 and place != "the run" else ""
        said.append(describe(worst, None if place == "the run" else f"{several}{place}"))
    paid = cold_costs(result.measurement for result in data.results)
    costs = ", ".join(
        f"{name.replace('_', ' ')} {span([*map(format_duration, ends)])}" for name, ends in paid.items()
    )
    failures = table(
        "Tried but not measured",
        data.failures,
        text("Case", lambda r: case_words(r.case)),
        text("Status", lambda r: r.measurement.status.value.replace("_", " ")),
        text("Reason", lambda r: plain(r.measurement.reason or "reason unknown", 300)),
        marks=tuple("bad" for _ in data.failures),
    )
    return (
        *((failures,) if data.failures else ()),
        *((Bullets(items=tuple(plain(line, 400) for line in said), numbered=numbered),) if said else ()),
        *((Paragraph(text=f"One-time costs, not part of the steps: {costs}."),) if costs else ()),
    )


def _rounds_table(results: Sequence[Result]) -> Table:
    return table(
        "Launches, rounds, spread and switches of every case",
        [(result.measurement, spread(result.measurement)) for result in results],
        text("Case", lambda row: plain(row[0].label, 100)),
        number("Launches", lambda row: str(len(row[0].launches))),
        number("Rounds, steps in each", lambda row: _rounds(row[0])),
        number("Median round", lambda row: format_duration(row[1]["step_time_median_s"])),
        number("MAD", lambda row: format_duration(row[1]["step_time_mad_s"])),
        number("Each launch", lambda row: ", ".join(map(format_duration, row[0].launch_step_times_s))),
        number(RESERVED, lambda row: format_bytes(row[0].peak_reserved_bytes)),
        number(IN_USE, lambda row: format_bytes(row[0].device_bytes)),
        text("TF32 as read back", lambda row: _switches(row[0].launches)),
        folded=True,
    )


def _rounds(m: Measurement) -> str:
    rounds = [each for launch in m.launches for each in launch.accepted]
    steps = sorted({each.steps for each in rounds})
    between = span([*map(str, steps)]) or UNKNOWN
    return f"{len(rounds)} × {between}\n{format_duration(sum(each.wall_s for each in rounds))}"


def _ledger_table(results: Sequence[Result]) -> Table:
    def share(name: str) -> Cell[Measurement]:
        return number(
            name.capitalize(),
            lambda m: format_percent({part.name: part.half_width for part in m.ledger}.get(name)),
        )

    return table(
        "Error of each figure by source (95 %); host and card: if another of the same kind is used",
        [result.measurement for result in results],
        text("Case", lambda m: plain(m.label, 100)),
        *map(share, PARTS),
        folded=True,
    )


def _telemetry_table(results: Sequence[Result]) -> list[Part]:
    watched = [
        result.measurement
        for result in results
        if any(x.timed_telemetry for x in result.measurement.launches)
    ]
    found = table(
        "Telemetry during the timed rounds",
        watched,
        text("Case", lambda m: plain(m.label, 100)),
        number("Core clock", lambda m: _median_and_range(_read(m, "sm_clock_hz"), "Hz")),
        number("Power", lambda m: _median_and_range(_read(m, "power_w"), "W")),
        number("Temperature", lambda m: _temperatures(_read(m, "temperature_c"))),
        number("Energy per sample", lambda m: format_si(m.joules_per_sample, "J")),
        text("Clock events, share of samples", _events),
        folded=True,
    )
    return [found] if watched else []


def _read(m: Measurement, name: str) -> list[Any]:
    # Return the known values of one field of the telemetry samples.
    samples = (sample for launch in m.launches for sample in launch.timed_telemetry)
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def _median_and_range(values: Sequence[float], unit: str) -> str:
    if not values:
        return UNKNOWN
    return (
        f"{format_si(median(values), unit)}\n{format_si(min(values), unit)} to {format_si(max(values), unit)}"
    )


def _temperatures(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f} °C" if values else UNKNOWN


def _events(m: Measurement) -> str:
    samples = _read(m, "clock_event_reasons")
    if not samples:
        return UNKNOWN
    counts = Counter(plain(reason, 40) for reasons in samples for reason in reasons)
    shares = [f"{reason} {format_percent(n / len(samples))}" for reason, n in counts.most_common()]
    return ", ".join(shares) or f"none in {count(len(samples), 'sample')}"


def _switches(launches: tuple[Launch, ...]) -> str:
    # Return whether TF32 was on, according to its five switches.
    states = set()
    for s in (launch.switches for launch in launches if launch.switches is not None):
        read = (s.conv_fp32_precision, s.rnn_fp32_precision, s.matmul_fp32_precision)
        on = {s.cudnn_allow_tf32, s.matmul_allow_tf32, *(x == "tf32" for x in read if x is not None)}
        states.add("mixed" if len(on) > 1 else {True: "on", False: "off"}[on.pop()])
    if len(states) > 1:
        return "differs between launches"
    return states.pop() if states else UNKNOWN


SECTIONS = {"method": _render}
