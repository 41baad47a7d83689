"""A row is flagged if its loss does not fall; too few losses give no verdict."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpubench.measure.checks import LEAST_PAIRS, loss_ends
from gpubench.models import Launch, Round

BATCHES = 4


def launch_of(
    loss: Callable[[int, int], float], *, single: int, rounds: int, steps: int, batches: int | None = BATCHES
) -> Launch:
    """Return a launch as it is measured: single steps, a round of one step, then rounds of ``steps`` steps.

    Args:
        loss: Returns the loss of a step, given its number since the start and its batch.
        single: Steps with individually stored losses.
        rounds: Number of rounds, including the warm-up.
        steps: Steps in each round except the first.
        batches: The batch count that the launch stores.
    """
    curve = tuple(loss(step, step % BATCHES) for step in range(single))
    edges, done = [], 0
    for index in range(rounds):
        count = steps if index else 1
        done += count
        edges.append(Round(steps=count, wall_s=1.0, loss=loss(single + done - 1, (done - 1) % BATCHES)))
    cut = min(3, rounds)
    return Launch(
        index=0, loss_curve=curve, warmup=tuple(edges[:cut]), rounds=tuple(edges[cut:]), batch_count=batches
    )


def falls(launch: Launch) -> bool | None:
    ends = loss_ends(launch)
    return None if ends is None else ends[1] < ends[0]


SHAPES = [(single, steps) for single in (2, 3, 5, 8, 50) for steps in (1, 2, 3, 4, 40)]


@pytest.mark.parametrize(("single", "steps"), SHAPES)
def test_a_falling_loss_is_rarely_flagged(single: int, steps: int) -> None:
    """Each step lowers the loss by a third of the noise; the batches differ by five times the noise."""
    draw = random.Random(0)
    for rounds in (3, 8, 30):
        verdicts = []
        for _ in range(400):
            harder = [draw.gauss(0.0, 5.0) for _ in range(BATCHES)]

            def loss(step: int, batch: int, harder: list[float] = harder) -> float:
                return 100.0 + harder[batch] - step / 3 + draw.gauss(0.0, 1.0)

            verdicts.append(falls(launch_of(loss, single=single, rounds=rounds, steps=steps)))
        assert len({verdict is None for verdict in verdicts}) == 1, (
            "only the number of losses decides whether there is a verdict"
        )
        assert verdicts.count(False) <= 0.05 * len(verdicts), (rounds, verdicts.count(False))


@pytest.mark.parametrize("hardest", range(BATCHES))
@pytest.mark.parametrize(("single", "steps"), SHAPES)
def test_a_long_row_without_a_falling_loss_is_always_flagged(single: int, steps: int, hardest: int) -> None:
    """The row is flagged whichever batch is the hardest, and also if the loss creeps up."""
    for rounds in (16, 24, 60, 200):
        for creep in (0.0, 1e-6):
            launch = launch_of(
                lambda step, batch, creep=creep: 2.0 + (batch == hardest) + creep * step,
                single=single,
                rounds=rounds,
                steps=steps,
            )
            assert falls(launch) is False, (rounds, creep)


@pytest.mark.parametrize(("losses", "verdict"), [(7, None), (8, True)])
def test_loss_verdict_needs_four_pairs_of_losses_on_the_same_batches(
    losses: int, verdict: bool | None
) -> None:
    launch = launch_of(lambda step, batch: 2.0 + batch - 0.01 * step, single=losses, rounds=0, steps=1)
    assert falls(launch) is verdict
    assert 2 * LEAST_PAIRS == 8


def test_seven_losses_of_slow_steps_do_not_suffice() -> None:
    """Slow steps are timed in rounds of one step.

    The rounds start over at the first batch, so after two single steps and five rounds, two of the last four
    losses have no earlier loss on the same batch.
    """
    launch = launch_of(lambda step, batch: 2.0 + 0.01 * batch, single=2, rounds=5, steps=1)
    assert loss_ends(launch) is None


def test_missing_loss_gives_no_verdict() -> None:
    launch = launch_of(lambda step, batch: 2.0, single=50, rounds=0, steps=1)
    assert loss_ends(launch) == (2.0, 2.0)
    assert loss_ends(Launch(index=0, loss_curve=(*launch.loss_curve, None), batch_count=BATCHES)) is None


def test_a_record_without_batch_counts_is_judged_by_first_and_last_fifth() -> None:
    launch = launch_of(lambda step, batch: float(100 - step), single=50, rounds=0, steps=1, batches=None)
    assert loss_ends(launch) == (95.5, 55.5)


def test_a_loss_that_is_a_mean_over_steps_belongs_to_no_batch() -> None:
    """Rounds that are timed by calls (``call_s``) have a mean loss; all of them count as one batch."""
    rounds = tuple(Round(steps=3, wall_s=1.0, call_s=0.5, loss=3.0 - 0.1 * index) for index in range(8))
    launch = Launch(index=0, rounds=rounds, batch_count=BATCHES)
    assert loss_ends(launch) == pytest.approx((2.85, 2.45))
