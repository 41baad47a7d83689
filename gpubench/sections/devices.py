"""All measured devices side by side: the same case, and nothing else, compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpubench.blocks.block import Block
from gpubench.blocks.charts import BLUE, Look, Mark, bars, label
from gpubench.blocks.parts import Charts, Figure, Paragraph, number, table, text
from gpubench.effects import Result, ratio
from gpubench.interval import Interval, faster_words, stacked
from gpubench.models import Case, DeviceProfile
from gpubench.sections.data import ReportData, newest, pace, place, same
from gpubench.sections.section import Section
from gpubench.sections.words import case_words, kinds_words, workload_name
from gpubench.units import UNKNOWN, count, format_number, listing, plain, plural

MOST_CHARTS = 6


@dataclass(frozen=True, kw_only=True)
class _On:
    """One case on one device; ``base`` is the same case on the first device that measured it."""

    name: str
    result: Result
    base: Result


def _render(data: ReportData) -> Block | None:
    devices = data.devices
    if len(devices) < 2:
        return None
    shared = _shared(data)
    names = _names(devices)
    if not shared and all(device.is_cpu for device in devices[1:]):
        return None  # the section on the CPU compares these, each at its fastest
    if not shared:
        said = (
            f"{count(len(devices), 'device')} were measured ({listing(names, most=6)}), but no case on more "
            "than one of them: figures of different cases are not compared."
        )
        return Block(title="Devices side by side", parts=(Paragraph(text=said),))
    charted = _charted(shared)
    left = len({case.workload for case in shared}) - len(charted)
    more = f" {count(left, 'further workload')} in the table." if left > 0 else ""
    return Block(
        title="Devices side by side",
        parts=(
            Paragraph(text=_sentence(shared)),
            Charts(
                figures=tuple(_figure(case, shared[case]) for case in charted),
                twin=table(
                    "The same case on each device",
                    [on for case in shared for on in shared[case]],
                    text("Case", lambda on: case_words(on.result.case)),
                    text("Device", lambda on: on.name),
                    number(
                        "Samples/s, 95 % interval", lambda on: stacked(on.result.measurement.interval.words())
                    ),
                    number(
                        "Against the first device",
                        lambda on: (
                            UNKNOWN
                            if on.result is on.base
                            else stacked(
                                ratio(on.result.measurement, on.base.measurement).by(format_number, "×")
                            )
                        ),
                    ),
                    text("Findings", lambda on: kinds_words(on.result.doubts)),
                ),
                caption=f"Of each workload the case that most devices have measured.{more}",
            ),
        ),
    )


def _shared(data: ReportData) -> dict[Case, list[_On]]:
    """The cases that more than one device has measured, each with its devices, the fastest first."""
    names = _names(data.devices)
    found: dict[Case, list[tuple[str, Result]]] = {}
    for device, name in zip(data.devices, names, strict=True):
        runs = [run for run in data.runs if same(run.device, device)]
        for result in newest(runs, usable=True):
            found.setdefault(result.case, []).append((name, result))
    return {
        case: sorted(
            (_On(name=name, result=result, base=known[0][1]) for name, result in known),
            key=lambda on: place(on.result),
            reverse=True,
        )
        for case, known in found.items()
        if len(known) > 1
    }


def _names(devices: Sequence[DeviceProfile]) -> list[str]:
    """A name for each device; alike ones are told apart by a number."""
    plains = [plain(device.name or "unnamed device", 40) for device in devices]
    return [
        name if plains.count(name) == 1 else f"{name} #{plains[: i + 1].count(name)}"
        for i, name in enumerate(plains)
    ]


def _charted(shared: dict[Case, list[_On]]) -> list[Case]:
    """Of each workload the case on most devices, at its fastest."""
    best: dict[str, Case] = {}
    for case in sorted(shared, key=lambda c: (-len(shared[c]), -pace(shared[c][0].result))):
        best.setdefault(case.workload, case)
    return list(best.values())[:MOST_CHARTS]


def _sentence(shared: dict[Case, list[_On]]) -> str:
    """The fastest of each workload among what was measured, or all that it cannot be told from."""
    texts = []
    for case in _charted(shared):
        founded = [on for on in shared[case] if on.result.leads]
        if len(founded) < 2:
            continue
        fastest, second, *_ = founded
        times = [
            ratio(fastest.result.measurement, on.result.measurement) if pace(on.result) else Interval(None)
            for on in founded[1:]
        ]
        others = zip(founded[1:], times, strict=True)
        tied = [on.name for on, _ in takewhile(lambda other: other[1].holds(1), others)]
        if tied:
            said = f"no difference seen between {listing((fastest.name, *tied), most=4)}"
        else:
            said = faster_words(times[0], fastest.name, second.name)
        texts.append(f"{workload_name(case)}: {said}")
    if not texts:
        return "No device is named the fastest: the findings stand in the way (see the table)."
    return f"Fastest of those measured. {'; '.join(texts)}."


def _figure(case: Case, measured: Sequence[_On]) -> Figure:
    unit = plural(plain(case.sample_unit, 20))
    marks = [
        Mark(
            row=label(on.name, 36),
            interval=on.result.measurement.interval,
            hover=label(f"{on.name}: {on.result.measurement.interval.text()}", 90),
            text=format_number(pace(on.result)),
            told=f"{on.name} {format_number(pace(on.result))}",
        )
        for on in measured
    ]
    title = case_words(case)
    alt = f"Bar chart of {title} in {unit} per second"
    looks = {None: Look(name=unit, color=BLUE)}
    return bars(marks, looks, f"{unit}/s", alt, title=title, head_px=76, row_px=27)


SECTION = Section(key="devices", render=_render, place=28, heading="throughput")
