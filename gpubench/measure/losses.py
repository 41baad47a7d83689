"""Losses of a training from the seed on, and what of them can be held against each other.

The batches differ: of small models by more than a dozen steps lower the loss. So a loss is held against an
earlier one of the same batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from gpubench.models import Launch

LEAST_PAIRS = 4
"""Fewer losses of the same batch, early and late, carry no verdict: with four a loss that falls by a third of
its own noise in each step is called so in 3 % of rows, with one in 17 %."""


def loss_trace(launches: Sequence[Launch]) -> tuple[float | None, ...]:
    """The losses of the first launch from the seed on: single steps, then the edges of the rounds."""
    if not launches:
        return ()
    first = launches[0]
    return (*first.loss_curve, *(r.loss for r in (*first.warmup, *first.rounds)))


def loss_ends(launch: Launch) -> tuple[float, float] | None:
    """Means of the first and of the last fifth of the losses, of the same batches on either side.

    The last fifth is four losses or more, and each is held against as early a one of its batch as is left.
    None where fewer than four have one, or a loss is not known. The rounds begin at the first batch again,
    and the loss of each is that of its last step.
    """
    losses = loss_trace((launch,))
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses):
        return None
    rounds = (*launch.warmup, *launch.rounds)
    # All batches are one where their number is unknown, and where a framework tells the mean over its steps.
    count = 1 if any(r.call_s is not None for r in rounds) else launch.batch_count or 1
    steps = [*range(len(launch.loss_curve)), *(done - 1 for done in accumulate(r.steps for r in rounds))]
    turn = len(known) - max(LEAST_PAIRS, len(known) // 5)
    early: dict[int, list[float]] = defaultdict(list)
    late: dict[int, list[float]] = defaultdict(list)
    for place, (step, loss) in enumerate(zip(steps, known, strict=True)):
        (early if place < turn else late)[step % count].append(loss)
    first: list[float] = []
    last: list[float] = []
    for batch, found in late.items():
        pairs = min(len(found), len(early[batch]))
        first += early[batch][:pairs]
        last += found[len(found) - pairs :]
    return (fmean(first), fmean(last)) if len(first) >= LEAST_PAIRS else None
