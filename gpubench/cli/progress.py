"""Progress of a run on stderr: one living line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpubench import units
from gpubench.measure import messages
from gpubench.measure.plan import SEEDS
from gpubench.models import Measurement, Status

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

REFRESH_PER_S = 8.0


def watch() -> AbstractContextManager[Callable[[messages.Event], None]]:
    """Return the progress that fits stderr; ``TERM=dumb`` and pipes get plain lines."""
    living = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return LiveProgress() if living else nullcontext(say_event)


def say_event(event: messages.Event) -> None:
    """Say what has happened, if it is worth a line: one a finished case, none in between."""
    text = line_of(event)
    if text is not None:
        print(text, file=sys.stderr, flush=True)


class LiveProgress:
    """A line on the case at hand: its phase, its rounds, how sure the figure is so far, and the device."""

    def __init__(self) -> None:
        self._place = ""
        self._phase = ""
        self._rounds = 0
        self._width: float | None = None
        self._rate: float | None = None
        self._power_w: float | None = None
        self._temperature_c: float | None = None
        self._batch, self._unit = 0, ""
        self._most_s = 0.0
        self._began_s = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Take the last line of the terminal."""
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            console=Console(stderr=True, highlight=False),
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            get_renderable=self._line,
        )
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the line back."""
        if self._live is not None:
            self._live.__exit__(kind, value, trace)

    def __call__(self, event: messages.Event) -> None:
        """Change the line, and print above it what is worth keeping."""
        match event:
            case messages.RunPlanned():
                self._most_s, self._began_s = event.most_s, time.monotonic()
            case messages.CaseBegan():
                self._place = f"{event.number}/{event.total} {units.plain(event.case.label)}"
                self._phase, self._rounds, self._width, self._rate = "start", 0, None, None
                self._power_w = self._temperature_c = None
                self._batch = event.case.batch_size * event.case.gpu_count
                self._unit = units.per_second(event.case.sample_unit)
            case messages.PhaseBegan():
                self._phase, self._rounds = event.name, 0
            case messages.RoundEnded():
                self._rounds += 1
                self._width = event.half_width
                self._power_w, self._temperature_c = event.power_w, event.temperature_c
                self._rate = (
                    event.round.steps * self._batch / event.round.wall_s if event.round.wall_s else None
                )
        text = line_of(event)
        if text is not None and self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(text))

    def _line(self) -> Text:
        from rich.text import Text

        width = None if self._live is None else self._live.console.width
        return Text(_fitting(self._pieces(), width), style="cyan", no_wrap=True, overflow="ellipsis")

    def _pieces(self) -> list[tuple[int, str]]:
        """What the line says, from left to right, each with its place among what a narrow terminal drops."""
        rate = width = ""
        if self._rounds and self._rate is not None:
            rate = f"{units.format_number(self._rate)} {self._unit}"
            width = "" if self._width is None else f" ±{units.format_percent(self._width)}"
        return [
            (0, self._place),
            (2 if rate else 0, self._phase),
            (1, f"round {self._rounds}" if self._rounds else ""),
            (0, rate + width),
            (4, "" if self._power_w is None else f"{self._power_w:.0f} W"),
            (3, "" if self._temperature_c is None else f"{self._temperature_c:.0f} °C"),
            (0, _elapsed(time.monotonic() - self._began_s, self._most_s)),
        ]


def _elapsed(elapsed_s: float, most_s: float) -> str:
    """Say how long the run has taken, and how long its limits let it take.

    >>> _elapsed(95.4, 500.0), _elapsed(612.0, 500.0)
    ('1:35 of at most 8:20', '10:12')
    """
    elapsed = f"{elapsed_s // 60:.0f}:{elapsed_s % 60 // 1:02.0f}"
    return (
        elapsed if elapsed_s > most_s else f"{elapsed} of at most {most_s // 60:.0f}:{most_s % 60 // 1:02.0f}"
    )


def _fitting(pieces: list[tuple[int, str]], width: int | None) -> str:
    """Join pieces to a line, without those that a narrow terminal has no room for, the lowest above 0 first.

    >>> _fitting([(0, "case"), (2, "timed"), (1, "round 3"), (0, "9 images/s")], 24)
    'case  timed  9 images/s'
    """
    said = [(place, text) for place, text in pieces if text]
    for drop in sorted(place for place, _ in said if place):
        if width is None or len("  ".join(text for _, text in said)) <= width:
            break
        said = [(place, text) for place, text in said if place != drop]
    return "  ".join(text for _, text in said)


def line_of(event: messages.Event) -> str | None:
    """Return the line that an event leaves behind; None for those that only move the progress."""
    match event:
        case messages.RunPlanned(trainings=trainings) if trainings:
            what = f"{units.count(trainings, 'pair')} of workload and precision"
            return f"training {what} to a stated quality on {units.plain(event.device)}, {SEEDS} seeds each"
        case messages.RunPlanned():
            return (
                f"measuring {_count(event)} on {units.plain(event.device)}, budget {event.budget}: "
                f"at most {units.format_limit(event.most_s)} where steps are short"
            )
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
    """How much there is to do; of a run that goes on, how much of it is left."""
    if planned.left is not None:
        what = "cases" if planned.launches == 1 else "launches"
        return f"what is left, {planned.left} of {planned.cases * planned.launches} {what},"
    count = {0: "micro-benchmarks only", 1: "1 case"}.get(planned.cases, f"{planned.cases} cases")
    return count if planned.launches == 1 else f"{count} x {planned.launches} launches"


def outcome(measurement: Measurement, launch: int) -> str:
    """One line on a finished case: its figure, or why there is none."""
    label = units.plain(measurement.label)
    again = f" (launch {launch + 1})" if launch else ""
    if measurement.status is Status.OK:
        figure = measurement.interval.rate(measurement.case.sample_unit)
        alone = ", of one process" if measurement.within_one_process else ""
        return f"  {label}{again}: {figure}{alone}"
    reason = units.plain(measurement.reason or "no reason known")
    return f"  {label}{again}: {measurement.status.replace('_', ' ')}: {reason}"
