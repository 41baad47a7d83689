"""`gpubench feed`: can this host prepare images as fast as a GPU takes them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubench.blocks.parts import Paragraph, Part, number, table, text
from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.interval import stacked
from gpubench.recommend.request import FeedRequest
from gpubench.units import format_si, plain

if TYPE_CHECKING:
    from gpubench.recommend.feed import FeedReport

_PER_FRAME = (
    "below, a frame is an image: what a network takes that looks at every frame of a clip by layers of an "
    "image classifier"
)
_WAYS = {
    "cpu_one_process": "one process",
    "cpu_workers": "{workers} DataLoader workers",
    "device_batch": "in whole batches of {batch_size}{where}",
}


def verb(request: FeedRequest, *, as_json: bool) -> None:
    """Say whether this host can prepare images as fast as a GPU trains on them (needs kornia)."""
    from gpubench.recommend.feed import feed

    report = feed(request)
    if report.remark and not as_json:
        say(report.remark)
    answer(as_json, lambda: report, lambda: _parts(report))


def _parts(report: FeedReport) -> list[Part]:
    """What this host prepares, way by way, and what each GPU makes of that."""
    pipeline = report.pipeline
    where = "" if pipeline.link_bytes_per_s is None else " on the device"  # a CPU has no link
    link = (
        []
        if pipeline.link_bytes_per_s is None
        else [Paragraph(text=f"link from host to device: {format_si(pipeline.link_bytes_per_s, 'B/s')}")]
    )
    what, per_frame = "500 x 375 photographs", []
    if pipeline.frames > 1:
        what = f"clips of {pipeline.frames} frames of 340 x 256"
        per_frame = [Paragraph(text=_PER_FRAME)]
    said = [
        f"{plain(f.verdict, 600)} [{f.consumption.basis}, {f.consumption.case}; "
        f"{format_si(f.tensors_bytes_per_s, 'B/s')} of tensors, "
        f"{format_si(f.photographs_bytes_per_s, 'B/s')} of 8-bit photographs]"
        for f in report.feedings
    ]
    return [
        table(
            f"Augmenting {what} to 224 x 224, without decoding, on {plain(report.device)}",
            pipeline.rates,
            text(
                "how", lambda r: _WAYS[r.way].format(workers=r.workers, batch_size=r.batch_size, where=where)
            ),
            number("images/s" if pipeline.frames == 1 else "frames/s", lambda r: stacked(r.interval.text())),
        ),
        *link,
        *per_frame,
        *(Paragraph(text=text_) for text_ in (*said, *(f"no figure for {line}" for line in report.refused))),
    ]


VERB = Verb(verb, place=140)
