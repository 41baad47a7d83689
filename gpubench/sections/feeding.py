"""What the device eats: images per second and the bytes they are, against what the link carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, Part, number, table, text
from gpubench.effects import Result
from gpubench.interval import stacked
from gpubench.measure.feeding import eight_bit_bytes, tensor_bytes
from gpubench.models import MicroResult, TaskKind
from gpubench.profile import load_profiles
from gpubench.sections.data import ReportData, at_named_batches, pace, place
from gpubench.sections.section import Section
from gpubench.sections.words import rate_of, workload_name
from gpubench.units import UNKNOWN, format_percent, format_si, plain

if TYPE_CHECKING:
    from gpubench.recommend.feed import FeedReport


def _render(data: ReportData) -> Block | None:
    images = {name for name, profile in load_profiles().items() if profile.is_image}
    trained = [r for r in data.results if r.case.task is TaskKind.TRAIN and r.case.workload in images]
    if data.is_cpu or not trained:
        return None
    shown = [
        max(at_named_batches([r for r in trained if r.case.workload == name]), key=place)
        for name in sorted({r.case.workload for r in trained})
    ]
    micro = (m for run in data.device_runs for m in run.micro)
    link = next((m for m in micro if m.name == "host to device pinned"), None)
    return Block(
        title="Input pipeline",
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
            table(
                "What each workload takes in at its fastest",
                shown,
                text("Workload", lambda r: f"{r.case.workload}\n{r.case.precision.value} {r.batch_words}"),
                number("Throughput", lambda r: rate_of(r.measurement)),
                number("As float32", lambda r: format_si(_demand(r)[0], "B/s")),
                number("As 8-bit", lambda r: format_si(_demand(r)[1], "B/s")),
                number(
                    "Share of the link, float32",
                    lambda r: UNKNOWN if link is None else format_percent(_demand(r)[0] / link.value),
                ),
            ),
        ),
    )


def _demand(result: Result) -> tuple[float, float]:
    """Bytes per second that the result takes in: as float32 tensors, and as 8-bit images."""
    shape = load_profiles()[result.case.workload].sample_shape
    return pace(result) * tensor_bytes(shape), pace(result) * eight_bit_bytes(shape)


def _sentence(shown: list[Result], link: MicroResult | None) -> str:
    result = max(shown, key=lambda each: _demand(each)[0])
    tensors, eight_bit = _demand(result)
    text = (
        f"{workload_name(result.case)} takes most: {format_si(tensors, 'B/s')} as float32 tensors, "
        f"{format_si(eight_bit, 'B/s')} as 8-bit images that the device prepares."
    )
    if link is None:
        return f"{text} The link from host to device was not measured here."
    verdict = (
        "carries the tensors with room to spare" if tensors < link.value / 2 else "is tight for the tensors"
    )
    if tensors > link.value:
        verdict = "cannot carry the tensors"
        verdict += (
            " nor the images" if eight_bit > link.value else ": send 8-bit images and prepare them there"
        )
    return f"{text} The link from host to device ({format_si(link.value, 'B/s')}, pinned memory) {verdict}."


def prepared(report: FeedReport) -> list[Part]:
    """Return what this host's workers prepare, and what each GPU makes of that."""
    rate = report.prepared
    clips = rate.frames > 1
    what = f"clips of {rate.frames} frames of 340 x 256" if clips else "500 x 375 photographs"
    per_frame = (
        "below, a frame is an image: what a network takes that looks at every frame of a clip by layers of "
        "an image classifier"
    )
    lines = [
        *((per_frame,) if clips else ()),
        *(
            f"{plain(f.verdict, 600)} [{f.consumption.basis}, {f.consumption.case}; "
            f"{format_si(f.tensors_bytes_per_s, 'B/s')} of tensors, "
            f"{format_si(f.photographs_bytes_per_s, 'B/s')} of 8-bit photographs]"
            for f in report.feedings
        ),
        *(f"no figure for {line}" for line in report.refused),
    ]
    return [
        table(
            f"Augmenting {what} to 224 x 224 on this CPU, without decoding",
            [rate],
            text("DataLoader workers", lambda r: str(r.workers)),
            number("frames/s" if clips else "images/s", lambda r: stacked(r.interval.text())),
            number("per worker", lambda r: stacked(r.interval.over(r.workers).text())),
        ),
        *(Paragraph(text=line) for line in lines),
    ]


SECTION = Section(key="feeding", render=_render, place=140, heading="memory")
