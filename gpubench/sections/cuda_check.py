"""A card held against itself: what was judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Paragraph, Part, table, text
from gpubench.units import plain

if TYPE_CHECKING:  # the page lists all sections, and none of it needs the check of a card
    from gpubench.cuda_check.judge import Verdict

LONGEST_REASON = 600


def judged(verdicts: Sequence[Verdict]) -> list[Part]:
    """Return what was judged, row by row, and why each that did not agree did not."""
    return [
        table(
            "",
            verdicts,
            text("Part", lambda v: v.part),
            text("What", lambda v: v.what),
            text("Found", lambda v: v.found),
            text("Limit", lambda v: v.limit, optional=1),
            text("", lambda v: v.state),
        ),
        *(
            Paragraph(text=f"{v.part}, {v.what}: {v.state}: {plain(v.reason, LONGEST_REASON)}")
            for v in verdicts
            if v.reason is not None
        ),
    ]
