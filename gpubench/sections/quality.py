"""What each precision takes to a stated quality: steps, time and energy, with their spread over seeds."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.interval import Interval, stacked
from gpubench.models import Precision
from gpubench.models.run import TimeToQuality
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import workload_name
from gpubench.units import UNKNOWN, format_number, plain

_WHAT = (
    "A small network is trained from several seeds until held-out samples show the stated quality. Times are "
    "of the steps alone; 95 % intervals are of the mean over seeds. Energy is told where a seed takes 10 s "
    "or more. Steps over fp32's pair the seeds: an interval that holds 1 shows no difference in learning."
)

_SIGNS = {"accuracy": "at least", "loss": "at most"}


def _render(data: ReportData) -> Block | None:
    run = next((run for run in data.device_runs if run.quality), None)
    if run is None:
        return None
    rows = run.quality
    twin = table(
        "Time to quality",
        rows,
        text("Workload", lambda r: f"{workload_name(r.case)}\n{r.case.precision.value}"),
        text("Quality", lambda r: f"{r.metric} {_SIGNS[r.metric]} {format_number(r.target)}"),
        text("Result", _result),
        number("Steps, 95 % interval", lambda r: _told(r, r.steps)),
        number("Time [s], 95 % interval", lambda r: _told(r, r.train_s)),
        number("Energy [J], 95 % interval", lambda r: _told(r, r.energy_j), optional=1),
        number("Steps over fp32's", lambda r: _told(r, _over_fp32(r, rows))),
    )
    return Block(title="Time to a stated quality", parts=(Paragraph(text=_WHAT), twin), brief=(twin,))


def _result(row: TimeToQuality) -> str:
    reached = sum(run.reached for run in row.runs)
    if row.is_reached:
        return f"reached by all of {reached} seeds"
    if row.reason is not None:
        return plain(row.reason, 200)
    return f"not reached after {row.most_steps:,} steps by {len(row.runs) - reached} of {len(row.runs)} seeds"


def _told(row: TimeToQuality, value: Interval) -> str:
    return stacked(value.text()) if row.is_reached and value.value is not None else UNKNOWN


def _over_fp32(row: TimeToQuality, rows: tuple[TimeToQuality, ...]) -> Interval:
    of_same = (each for each in rows if each.case.workload == row.case.workload and each is not row)
    other = next((each for each in of_same if each.case.precision is Precision.FP32), None)
    return Interval(None) if other is None else row.steps_over(other)


SECTION = Section(key="quality", render=_render, place=73, heading="throughput")
