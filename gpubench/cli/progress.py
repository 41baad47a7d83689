"""Progress of a run on stderr: one updating line on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpubench import units
from gpubench.measure import messages
from gpubench.measure.plan import SEEDS
from gpubench.models import Measurement, Status


@contextmanager
def watch() -> Iterator[messages.OnEvent]:
    """Yield a handler for the events of a run; ``TERM=dumb`` and pipes get plain lines."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield _say_event
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    progress = ProgressLine()

    def note(event: messages.Event) -> None:
        progress.note(event)
        # A table below the cases lists the micro-benchmarks
        text = None if isinstance(event, messages.MicroEnded) else line_of(event)
        if text is not None:
            live.console.print(Text(text))

    def line() -> Any:
        return Text(progress.line(), style="cyan", no_wrap=True, overflow="ellipsis")

    console = Console(stderr=True, highlight=False)
    with Live(console=console, refresh_per_second=8.0, transient=True, get_renderable=line) as live:
        yield note


def _say_event(event: messages.Event) -> None:
    # Print a line for an event that has one, such as a finished case.
    if (text := line_of(event)) is not None:
        print(text, file=sys.stderr, flush=True)


class ProgressLine:
    """The progress line: times, the current case with its rate so far, power and temperature, and the phase.

    A narrow terminal cuts off the end of the line.
    """

    def __init__(self) -> None:
        self._last: dict[type, Any] = {}
        self._rounds = 0
        self._rounds_s = 0.0
        self._began_s = time.monotonic()

    def note(self, event: messages.Event) -> None:
        """Keep the last event of each kind; a new case or phase has no rounds yet."""
        self._last[type(event)] = event
        if isinstance(event, messages.RoundDone):
            self._rounds += 1
            self._rounds_s += event.round.wall_s
        if isinstance(event, messages.CaseBegan | messages.Phase):
            self._rounds = 0
        if isinstance(event, messages.CaseBegan):
            self._last.pop(messages.RoundDone, None)

    def line(self) -> str:
        """Return the line to show now."""
        kinds = (messages.RunPlanned, messages.CaseBegan, messages.Phase, messages.RoundDone)
        planned, began, phase, done = (self._last.get(kind) for kind in kinds)
        pieces = [_minutes(time.monotonic() - self._began_s)]
        most_s = max((each.most_s for each in (planned, began) if each), default=0.0)
        if most_s:
            most = _minutes(most_s)
            limit = f", past {most}: slow steps" if self._rounds_s > most_s else f" of at most {most}"
            pieces.append(f"rounds {_minutes(self._rounds_s)}{limit}")
        if began:
            pieces.append(f"{began.number}/{began.total} {units.plain(began.case.label)}")
        if began and done and self._rounds and done.round.wall_s:
            rate = done.round.steps * began.case.batch_size * began.case.gpu_count / done.round.wall_s
            width = "" if done.half_width is None else f" ±{units.format_percent(done.half_width)}"
            pieces.append(f"{units.format_number(rate)} {units.per_second(began.case.sample_unit)}{width}")
        if done and done.power_w is not None:
            pieces.append(f"{done.power_w:.0f} W")
        if done and done.temperature_c is not None:
            pieces.append(f"{done.temperature_c:.0f} °C")
        if phase:
            pieces.append(f"{phase.name}, round {self._rounds}" if self._rounds else phase.name)
        return "  ".join(pieces)


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60 // 1:02.0f}"


def line_of(event: messages.Event) -> str | None:
    """Return the permanent line for an event; None if it only updates the progress line."""
    match event:
        case messages.RunPlanned(trainings=trainings) if trainings:
            what = f"{units.count(trainings, 'pair')} of workload and precision"
            return f"training {what} to a target quality on {units.plain(event.device)}, {SEEDS} seeds each"
        case messages.RunPlanned():
            most = f": rounds for at most {units.format_limit(event.most_s)} if steps are short"
            where = f"{units.plain(event.device)}, budget {event.budget}"
            return f"measuring {_count(event)} on {where}{most if event.most_s else ''}"
        case messages.CaseEnded():
            kept = f" ({units.plain(event.kept, 500)})" if event.kept else ""
            return outcome(event.measurement, event.launch) + kept
        case messages.MicroEnded():
            result = event.result
            precision = f" {result.precision}" if result.precision else ""
            value = units.format_quantity(result.value, result.unit)
            return f"  {result.name}{precision} {result.size}: {value}"
        case messages.Remark():
            return units.plain(event.text, 2000)
        case _:
            return None


def _count(planned: messages.RunPlanned) -> str:
    # Say how many cases will be measured; in a resumed run, how many remain.
    if planned.left is not None:
        what = "cases" if planned.launches == 1 else "launches"
        return f"the remaining {planned.left} of {planned.cases * planned.launches} {what}"
    count = {0: "micro-benchmarks only", 1: "1 case"}.get(planned.cases, f"{planned.cases} cases")
    return count if planned.launches == 1 else f"{count} x {planned.launches} launches"


def outcome(measurement: Measurement, launch: int) -> str:
    """Return the line for a finished case: its result, or why it has none."""
    label = units.plain(measurement.label)
    again = f" (launch {launch + 1})" if launch else ""
    if measurement.status is Status.OK:
        if launch and measurement.samples_per_s and measurement.step_time_s:
            # The figure is over all launches so far; this is the rate of the last one
            last = measurement.samples_per_s * measurement.step_time_s / measurement.launch_step_times_s[-1]
            again = f" (launch {launch + 1}: {units.format_number(last, 4)})"
        figure = measurement.interval.rate(measurement.case.sample_unit, measurement.digits)
        alone = ", from one process" if measurement.within_one_process else ""
        return f"  {label}{again}: {figure}{alone}"
    reason = units.plain(measurement.reason or "reason unknown")
    return f"  {label}{again}: {measurement.status.replace('_', ' ')}: {reason}"
