"""What the device eats: images per second and the bytes they are, against what the link carries."""

from __future__ import annotations

from math import prod

from gpubench.models import MicroResult, TaskKind
from gpubench.profile import load_profiles
from gpubench.report.data import ReportData, Result
from gpubench.report.section import Block, Column, Paragraph, Section, Table
from gpubench.report.words import stacked, throughput
from gpubench.units import UNKNOWN, format_percent, format_si, plain

TENSOR_BYTES = 4
"""An input element as float32; as 8-bit images the link carries four times as many [B]."""


def _render(data: ReportData) -> Block | None:
    shown = [] if data.is_cpu else _hungriest(data)
    if not shown:
        return None
    link = _link(data)
    return Block(
        title="Can it be fed",
        parts=(
            Paragraph(text=_sentence(shown, link)),
            Paragraph(
                text=(
                    "Throughput on this page is measured with batches that are already on the device. "
                    "Whether the host can prepare as many images is another question: `gpubench feed` "
                    "measures it."
                ),
                tone="note",
            ),
            Table(
                caption="What each workload takes in at its fastest",
                columns=(
                    Column(title="Workload"),
                    Column(title="Throughput", numeric=True),
                    Column(title="As float32", numeric=True),
                    Column(title="As 8-bit", numeric=True),
                    Column(title="Share of the link, float32", numeric=True),
                ),
                rows=tuple(_cells(result, size, link) for result, size in shown),
            ),
        ),
    )


def _hungriest(data: ReportData) -> list[tuple[Result, int]]:
    """The fastest training case of each image workload, with the elements of one sample."""
    profiles = load_profiles()
    fastest: dict[str, Result] = {}
    for result in data.results:
        profile = profiles.get(result.case.workload)
        if profile is None or not profile.is_image or result.case.task is not TaskKind.TRAIN:
            continue
        known = fastest.get(result.case.workload)
        if known is None or _speed(result) > _speed(known):
            fastest[result.case.workload] = result
    return [(fastest[name], prod(profiles[name].sample_shape)) for name in sorted(fastest)]


def _speed(result: Result) -> float:
    return result.measurement.samples_per_s or 0.0


def _link(data: ReportData) -> MicroResult | None:
    """The measured link from host to device, pinned memory."""
    return next(
        (
            m
            for run in data.device_runs
            for m in run.micro
            if m.unit == "B/s" and {"h2d", "host_to_device"} & {m.name, m.name.removesuffix("_pinned")}
        ),
        None,
    )


def _sentence(shown: list[tuple[Result, int]], link: MicroResult | None) -> str:
    result, size = max(shown, key=lambda pair: _speed(pair[0]) * pair[1])
    demand = _speed(result) * size * TENSOR_BYTES
    text = (
        f"{plain(result.case.workload, 40)} takes in the most: {format_si(demand, 'B/s')} as float32, "
        "a quarter of that as 8-bit images."
    )
    if link is None:
        return f"{text} The link from host to device was not measured here."
    verdict = "carries that with room to spare" if demand < link.value / 2 else "is tight for that"
    if demand > link.value:
        verdict = "cannot carry that: send 8-bit images and convert on the device"
    return f"{text} The link from host to device ({format_si(link.value, 'B/s')}, pinned memory) {verdict}."


def _cells(result: Result, size: int, link: MicroResult | None) -> tuple[str, ...]:
    m = result.measurement
    demand = _speed(result) * size * TENSOR_BYTES
    return (
        f"{plain(result.case.workload, 40)}\n{result.case.precision.value} {result.batch_words}",
        stacked(throughput(m.samples_per_s, m.samples_per_s_low, m.samples_per_s_high, m.case.sample_unit)),
        format_si(demand, "B/s"),
        format_si(demand / TENSOR_BYTES, "B/s"),
        UNKNOWN if link is None else format_percent(demand / link.value),
    )


SECTION = Section(key="feeding", render=_render)
