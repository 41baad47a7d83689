"""All measured devices side by side: the same case, and nothing else, compared."""

from __future__ import annotations

from collections.abc import Callable

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.effects import Result, ratio
from gpubench.interval import stacked
from gpubench.models import Case, DeviceProfile, Run
from gpubench.sections.data import ReportData, newest, same
from gpubench.sections.section import Section
from gpubench.sections.words import case_words
from gpubench.units import UNKNOWN, count, plain

MOST_DEVICES = 6


def _render(data: ReportData) -> Block | None:
    devices = _devices(data)
    if len(devices) < 2:
        return None
    of_device = [{r.case: r for r in newest(_runs(data, device), usable=True)} for device in devices]
    cases = [
        case for case in dict.fromkeys(c for known in of_device for c in known) if _shared(case, of_device)
    ]
    names = [plain(device.name or "unnamed device", 40) for device in devices]
    if not cases and all(device.is_cpu for device in devices[1:]):
        return None  # the section on the CPU compares these, each at its fastest
    if not cases:
        said = (
            f"{count(len(devices), 'device')} were measured ({', '.join(names)}), but no case on more than "
            "one of them: figures of different cases are not compared."
        )
        return Block(title="Devices side by side", parts=(Paragraph(text=said),))
    return Block(
        title="Devices side by side",
        parts=(
            Paragraph(
                text=f"The cases that more than one device has measured, in samples per second; below each "
                f"figure its ratio to {names[0]}."
            ),
            table(
                "The same case on each device",
                cases,
                text("Case", case_words),
                *(
                    number(name, _figure_of(known, of_device[0]))
                    for name, known in zip(names, of_device, strict=True)
                ),
            ),
        ),
    )


def _devices(data: ReportData) -> list[DeviceProfile]:
    """The page's device first, then the others by their newest run."""
    found: list[DeviceProfile] = [] if data.device is None else [data.device]
    for run in data.runs:
        if not any(same(run.device, device) for device in found):
            found.append(run.device)
    return found[:MOST_DEVICES]


def _runs(data: ReportData, device: DeviceProfile) -> list[Run]:
    return [run for run in data.runs if same(run.device, device)]


def _shared(case: Case, of_device: list[dict[Case, Result]]) -> bool:
    return sum(case in known for known in of_device) > 1


def _figure_of(known: dict[Case, Result], first: dict[Case, Result]) -> Callable[[Case], str]:
    """What a device did of a case, and on the others its ratio to the first."""

    def cell(case: Case) -> str:
        if case not in known:
            return UNKNOWN
        m = known[case].measurement
        figure = stacked(m.interval.words())
        if case not in first or first[case] is known[case]:
            return figure
        return f"{figure}\n{ratio(m, first[case].measurement).text('×')}"

    return cell


SECTION = Section(key="devices", render=_render, place=28, printed=True)
