"""The components of a figure's uncertainty: within a process, and between processes, hosts and cards.

Components that a run on one card cannot show come from publications and from the few cards measured for this
project.
"""

from __future__ import annotations

import math

import msgspec

from gpubench.interval import Interval
from gpubench.stats import Z95

PARTS = ("within process", "process", "heat", "host", "card")


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """One component of the uncertainty of a figure.

    Attributes:
        name: One of ``PARTS``.
        half_width: Half-width of its 95 % interval relative to the figure, for heat only on the slow side.
            None if unknown.
        n: Number of readings (for the card, of clusters); None if the source does not say.
        source: What the component is based on.
    """

    name: str
    half_width: float | None
    n: int | None
    source: str


USUAL_PROCESS = Component(
    name="process",
    half_width=Z95 * 0.003,
    n=6,
    source="one launch: three processes on an H200 differed by 0.2 to 0.6 %, three on an H100 by 0.3 %",
)
USUAL_PROCESS_HOST_BOUND = Component(
    name="process",
    half_width=Z95 * 0.07,
    n=None,
    source="one launch: host-bound steps differed by 7 to 16 % between processes on an H200",
)
UNKNOWN_PROCESS = Component(
    name="process", half_width=None, n=None, source="one launch: the usual spread of a CPU is unknown"
)
HOST = Component(
    name="host",
    half_width=0.006,
    n=39,
    source="39 machines with one H100 each: 0.1 to 0.6 % (ResNet-50)",
)
# One spread of 22 % and four of 4.5 %, which make a mean of 8 %, have a root mean square of 10.6 %.
PUBLISHED = Component(
    name="card",
    half_width=0.05,
    n=5,
    source="five clusters, over 90 % of their GPUs: within a cluster, speeds varied by 8 % on average, 22 % "
    "at most (Sinha and others, SC22, arXiv:2208.11035), so the half-width is half of their root mean "
    "square; two H200s differed by a factor of 0.96 to 1.10",
)
# The published spread, updated by shared runs (tests/record/card_spread.py): so far there are none.
CARD = PUBLISHED
# Log half-width of the throughput of another card of the same model in another host.
ELSEWHERE = math.hypot(math.log1p(HOST.half_width or 0.0), math.log1p(CARD.half_width or 0.0))
# Throughput of any card of a model, divided by the throughput of one measured card.
ANOTHER_CARD = Interval(1.0, math.exp(-ELSEWHERE), math.exp(ELSEWHERE))
