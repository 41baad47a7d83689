"""The spread between cards of one model, from the published one and the shared runs of the repository."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from gpubench.findings import INFORMATIVE
from gpubench.models import Case, Status
from gpubench.record.sharing import Shared
from gpubench.spread import PUBLISHED, Component
from gpubench.stats import Z95
from gpubench.units import count

PUBLISHED_CARDS = 10
"""The published spread counts as this many cards, so a few shared runs do not outweigh it."""


def card_spread(shared: Sequence[Shared]) -> Component:
    """Return the spread between cards of one model: the published one, updated by shared runs.

    Each contributor counts as one card of a model. The deviation of a card is the mean, over the cases that
    others measured on that model too, of the logarithm of its rate relative to their mean. The constant
    ``CARD`` is this result for the shared runs of the repository, as a test confirms.
    """
    rates: dict[tuple[str | None, Case], dict[str, float]] = {}
    for each in shared:
        for row in each.run.measurements:
            if (
                row.status is Status.OK
                and row.samples_per_s
                and INFORMATIVE.issuperset(f.kind for f in row.findings)
            ):
                by = rates.setdefault((each.run.device.gpu_key, row.case), {})
                by[each.by] = math.log(row.samples_per_s)
    deviations: dict[tuple[str | None, str], list[float]] = {}
    for (gpu_key, _), by in rates.items():
        for name, rate in by.items() if len(by) > 1 else ():
            deviations.setdefault((gpu_key, name), []).append(rate - fmean(by.values()))
    if not deviations:
        return PUBLISHED
    degrees = len(deviations) - len({gpu_key for gpu_key, _ in deviations})
    squares = sum(fmean(found) ** 2 for found in deviations.values())
    published = (PUBLISHED.half_width or 0.0) / Z95
    variance = (PUBLISHED_CARDS * published**2 + squares) / (PUBLISHED_CARDS + degrees)
    source = f"{PUBLISHED.source}; updated by {count(len(deviations), 'card')} of shared runs"
    return msgspec.structs.replace(
        PUBLISHED, half_width=Z95 * math.sqrt(variance), n=len(deviations), source=source
    )
