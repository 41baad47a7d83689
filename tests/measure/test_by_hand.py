"""The harness compared with the same training step written by hand."""

from __future__ import annotations

import beside_hand
import pytest
import torch
from beside_hand import compare, harness_over_bare
from paired import median_interval

from gpubench.discovery import load_workload
from gpubench.measure import proofs
from gpubench.measure.step import Hardware, move
from gpubench.models import Precision

CPU = Hardware(device=torch.device("cpu"))
TRIES = 5
"""Attempts at a real ratio, because other programs occasionally disturb one."""


@pytest.mark.timing
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP_BF16])
def test_the_harness_adds_at_most_two_percent_to_the_bare_loop(make_case, precision):
    """At least 200 interleaved pairs are timed, and more while the interval of their median includes the limit."""
    task = load_workload("cnn").build(16, 0)
    work = move(task, make_case(batch_size=16, precision=precision), CPU.device)
    ratios: list[float] = []
    low, high = 0.0, 2.0
    while len(ratios) < 200 or (low <= 1.02 < high and len(ratios) < 1000):
        ratios += harness_over_bare(work, CPU, pairs=100, steps=2)
        _, low, high = median_interval(ratios)
    assert high <= 1.02


def test_the_hand_written_loop_does_the_same_work_as_the_step(make_case):
    """Equal seeds give equal losses, so both sides run the same training."""
    losses = []
    for by in ("hand", "harness"):
        work = move(load_workload("cnn").tiny(8, 0), make_case(batch_size=8), CPU.device)
        if by == "hand":
            proofs.bare_loop(proofs.step_by_hand(work), CPU, 8)
        else:
            for index in range(8):
                work.step(index)
        losses.append(work.edge_loss(work.step(8), 8))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_interval_of_a_median_comes_from_its_order_statistics():
    """1..100: ranks 50 - 9.8 and 50 + 9.8."""
    assert median_interval([float(i) for i in range(1, 101)]) == (50.5, 41.0, 60.0)


@pytest.mark.parametrize("sampler", [False, True])
def test_the_harness_is_compared_with_the_hand_written_loop_for_real(monkeypatch, make_case, cpu, sampler):
    """On the CPU, in blocks of a few milliseconds: the ratio of real steps is near 1."""
    monkeypatch.setattr(beside_hand, "WARM_STEPS", 4)
    found = (compare(make_case(batch_size=8), cpu, sampler=sampler, block_s=0.02) for _ in range(TRIES))
    ratio, low, high = next(each for each in found if 0.3 < each[0] < 3)
    assert low <= ratio <= high
