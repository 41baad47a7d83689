"""The block length and the ratios of the scripts that compare gpubench with a hand-written loop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import chain, repeat
from pathlib import Path

import beside_hand
import pytest
import torch
from beside_hand import compare, harness_over_bare
from paired import EXIT_CODES, FEWEST_PAIRS, median_interval, ratio_of, verdict_of, warm_count

from gpubench.discovery import load_workload
from gpubench.interval import Interval
from gpubench.measure import proofs
from gpubench.measure.step import Hardware, move
from gpubench.models import Precision

HERE = Path(__file__).parent


def test_the_block_length_follows_the_median_step() -> None:
    """The first call compiles for two seconds, and another is delayed; neither shortens a block."""
    took = chain([2.0, 0.04, 0.04, 0.9], repeat(0.04))
    assert warm_count(lambda count: next(took) * count / 4, block_s=0.5, several=4, warm_s=0.01) == 48


def test_a_step_longer_than_a_block_is_repeated_a_few_times() -> None:
    assert warm_count(lambda _: 9.0, block_s=0.5, several=4, warm_s=0.0) == 4


def test_a_loop_is_warmed_up_for_the_requested_time() -> None:
    calls = []
    warm_count(lambda count: calls.append(count) or 1.0, block_s=0.5, several=4, warm_s=0.05)
    assert len(calls) > 10
    assert set(calls) == {4}


@pytest.mark.parametrize(
    ("ratio", "verdict", "code"),
    [
        (Interval(1.0, 0.98, 1.02), "within", 0),
        (Interval(0.9, 0.89, 0.91), "not within", 1),
        (Interval(1.1, 1.04, 1.2), "not within", 1),
        (Interval(1.02, 1.0, 1.04), "undecided", 6),
        (Interval(1.0), "undecided", 6),
    ],
)
def test_only_an_interval_inside_the_limit_is_within_it(ratio: Interval, verdict: str, code: int) -> None:
    assert verdict_of(ratio, 0.03) == verdict
    assert EXIT_CODES[verdict_of(ratio, 0.03)] == code


def test_a_few_pairs_have_no_interval() -> None:
    assert not ratio_of([1.0] * (FEWEST_PAIRS - 1)).bounded
    assert ratio_of([1.0] * FEWEST_PAIRS).bounded


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("script", "needs", "limit"),
    [(("beside_keras.py", "keras-torch"), "keras", "3%"), (("beside_opencl.py",), "pyopencl", "5%")],
)
def test_a_script_prints_its_blocks_and_exits_with_its_verdict(
    script: tuple[str, ...], needs: str, limit: str
) -> None:
    pytest.importorskip(needs)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / script[0], *script[1:]],
        env={**os.environ, "PAIRS": "8", "BLOCK_S": "0.05", "WARM_S": "0.1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    if needs == "pyopencl" and " cannot compile for it " in done.stderr:  # a PoCL older than the processor
        pytest.skip(done.stderr.splitlines()[-1])
    assert not done.stderr
    verdict = re.search(rf"(within|not within|undecided) {limit}", done.stdout)
    assert verdict, done.stdout
    assert done.returncode == EXIT_CODES[verdict[1]]
    assert re.search(r"8 pairs .*blocks of \d+\.\d+ s", done.stdout), done.stdout


# --- the harness and a hand-written loop --------------------------------------------------------------------


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
