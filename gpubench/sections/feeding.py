"""What this host prepares for a GPU to train on, against what the GPU takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpubench.blocks.parts import Paragraph, Part, number, table, text
from gpubench.interval import stacked
from gpubench.measure.feeding import EIGHT_BIT_BYTES, TENSOR_BYTES
from gpubench.units import format_si, plain

if TYPE_CHECKING:
    from gpubench.recommend.feed import FeedReport


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
            f"{format_si(f.consumption.images_per_s * TENSOR_BYTES, 'B/s')} of tensors, "
            f"{format_si(f.consumption.images_per_s * EIGHT_BIT_BYTES, 'B/s')} of 8-bit "
            "photographs]"
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
