"""A card held against itself: what was judged, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Paragraph, Part, table, text
from gpubench.units import format_duration, plain

if TYPE_CHECKING:  # the page lists all sections, and none of it needs the check of a card
    from gpubench.cuda_check.judge import Verdict
    from gpubench.models import CudaCheck

LONGEST_REASON = 600


def judged(check: CudaCheck, verdicts: Sequence[Verdict]) -> list[Part]:
    """Return the verdicts, and the time of the quick run by phase."""
    return [*_verdicts(verdicts), *_phases(check)]


def _verdicts(verdicts: Sequence[Verdict]) -> list[Part]:
    """What was judged, row by row, and why each that did not agree did not."""
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


def _phases(check: CudaCheck) -> list[Part]:
    """Where the time of the quick run went."""
    quick = next((part for part in check.parts if part.name == "quick" and part.phases_s), None)
    if quick is None:
        return []
    phases = sorted(quick.phases_s.items(), key=lambda item: -item[1])
    times = ", ".join(f"{name} {format_duration(spent_s)}" for name, spent_s in phases)
    return [Paragraph(text=f"time of the quick run by phase: {times}")]
