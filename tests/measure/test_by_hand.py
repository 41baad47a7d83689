"""The harness held against the same training step written by hand."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import beside_hand
import pytest
import torch
from beside_hand import compare, harness_over_bare, in_all_orders
from beside_torchrun import CORES, LAUNCHES, MODEL, asked, cores_of_ranks, in_one_job, judge, main
from paired import median_interval

from gpubench.discovery import load_workload
from gpubench.measure import proofs
from gpubench.measure.step import Hardware, move
from gpubench.models import Precision

CPU = Hardware(device=torch.device("cpu"))
TRIES = 5
"""Of real ratios, of which one in a while is that of the machine's other work."""


@pytest.mark.timing
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP_BF16])
def test_the_harness_adds_at_most_two_percent_to_the_bare_loop(make_case, precision):
    """At least 200 interleaved pairs, more while the interval of the median ratio is undecided."""
    task = load_workload("cnn").build(16, 0)
    work = move(task, make_case(batch_size=16, precision=precision), CPU.device)
    ratios: list[float] = []
    low, high = 0.0, 2.0
    while len(ratios) < 200 or (low <= 1.02 < high and len(ratios) < 1000):
        ratios += harness_over_bare(work, CPU, pairs=100, steps=2)
        _, low, high = median_interval(ratios)
    assert high <= 1.02


def test_the_loop_by_hand_does_the_same_work_as_the_step(make_case):
    """Same seeds, same losses: what is compared is the same training."""
    losses = []
    for by in ("hand", "harness"):
        work = move(load_workload("cnn").tiny(8, 0), make_case(batch_size=8), CPU.device)
        if by == "hand":
            proofs.bare_loop(work, CPU, 8)
        else:
            for index in range(8):
                work.step(index)
        losses.append(work.edge_loss(work.step(8), 8))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_each_of_three_blocks_takes_each_place_alike():
    """A clock that slows down steadily: a third of all blocks each, and no ratio but 1 in the mean of six."""
    now = iter(range(1, 100))
    seen = []

    def block(kind):
        seen.append(kind)
        return 10_000.0 + next(now)

    ratios, controls = in_all_orders(lambda: block("harness"), lambda: block("bare"), 2)
    assert len(ratios) == len(controls) == 12
    places = [index for index, kind in enumerate(seen[:18]) if kind == "harness"]
    assert [place % 3 for place in places].count(0) == 2
    assert sum(places) == sum(range(18)) / 3
    assert math.prod(ratios[:6]) == pytest.approx(1, abs=1e-5)
    assert math.prod(controls[:6]) == pytest.approx(1, abs=1e-5)


def test_a_job_of_two_is_held_against_a_plain_script_in_its_own_processes(tmp_path):
    """Real processes, in blocks of a few steps: both ratios are of real steps, near 1.

    On a machine that others load too, one block in a while waits for its turn.
    """
    ratios = (in_one_job(tmp_path, block_s=0.01, repeats=1) for _ in range(TRIES))
    assert any(all(0.2 < ratio < 5 for ratio in both) for both in ratios)


def test_each_rank_keeps_to_cores_of_its_own_with_all_its_threads(tmp_path):
    """The second of two ranks: those that torch has started before the model is built, too."""
    cores = cores_of_ranks(1)
    looks = (
        "import os, json, torch; torch.rand(512, 512) @ torch.rand(512, 512)\n"
        "import beside_model; beside_model.build(4)\n"
        "threads = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')]\n"
        "print(json.dumps([threads, torch.get_num_threads()]))"
    )
    (tmp_path / "beside_model.py").write_text(MODEL)
    place = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", CORES: ",".join(map(str, cores))}
    told = subprocess.check_output(
        [sys.executable, "-c", looks], cwd=tmp_path, env={**os.environ, **place}, text=True, timeout=60
    )
    threads, count = json.loads(told)
    assert len(cores) == 2
    assert {tuple(each) for each in threads} == {(cores[1],)}
    assert count == 1


def test_more_cores_than_there_are_are_refused():
    with pytest.raises(SystemExit, match="--cores 99 for each"):
        cores_of_ranks(99)


def test_the_comparison_prints_what_it_read_and_ends_in_time(capfd, monkeypatch):
    """A limit that one launch uses up: one figure, from which nothing can be told."""
    monkeypatch.setenv(CORES, "")
    how = asked(["blocks", "--cores", "1", "--block-s", "0.01", "--repeats", "1", "--within-s", "1"])
    assert main(how) == 6
    *_, last = capfd.readouterr().out.splitlines()
    read = json.loads(last)
    assert len(read["ratios"]) == len(read["controls"]) == 1
    assert (read["verdict"], len(read["cores_of_ranks"])) == ("undecided", 2)


ALIKE = [0.999, 1.001, 1.0, 0.998, 1.002]


@pytest.mark.parametrize(
    ("ratios", "controls", "verdict"),
    [
        ([1.01, 1.012, 1.008, 1.009, 1.011], ALIKE, "within"),
        ([1.05, 1.052, 1.048, 1.049, 1.051], ALIKE, "not within"),
        ([0.95, 0.952, 0.948, 0.949, 0.951], ALIKE, "not within"),
        ([1.02, 1.06, 0.99, 1.04, 1.0], ALIKE, "undecided"),
        (ALIKE, [0.97, 1.03, 1.0, 0.96, 1.04], "undecided"),  # too wide
        (ALIKE, [1.01, 1.011, 1.009, 1.01, 1.01], "undecided"),  # a control that is not 1
        ([1.0], [1.0], "undecided"),
    ],
)
def test_a_machine_that_is_not_like_itself_decides_nothing(ratios, controls, verdict):
    assert judge(ratios, controls).verdict == verdict


@pytest.mark.timing
@pytest.mark.timeout(900)
def test_a_job_of_two_takes_as_long_as_a_plain_torchrun_script(tmp_path, monkeypatch):
    """Within 3 % either way, over launches, each rank on cores of its own.

    It fails where the ratio is not; where the script is not like itself, or the interval holds both answers,
    nothing is held, and the figures stand in the reason why it was skipped.
    """
    monkeypatch.setenv(CORES, ",".join(map(str, cores_of_ranks(None))))
    figures = [in_one_job(tmp_path) for _ in range(LAUNCHES["blocks"])]
    judged = judge([ratio for ratio, _ in figures], [control for _, control in figures])
    if judged.verdict == "undecided":
        pytest.skip(f"undecided on this machine: {judged}")
    assert judged.verdict == "within", f"{judged}"


def test_the_interval_of_a_median_is_that_of_its_order_statistics():
    """1..100: ranks 50 - 9.8 and 50 + 9.8."""
    assert median_interval([float(i) for i in range(1, 101)]) == (50.5, 41.0, 60.0)


@pytest.mark.parametrize("sampler", [False, True])
def test_the_harness_is_held_against_the_loop_by_hand_for_real(monkeypatch, make_case, cpu, sampler):
    """On the CPU, in blocks of a few milliseconds: the ratio is one of real steps, near 1."""
    monkeypatch.setattr(beside_hand, "WARM_STEPS", 4)
    found = (compare(make_case(batch_size=8), cpu, sampler=sampler, block_s=0.02) for _ in range(TRIES))
    ratio, low, high = next(each for each in found if 0.3 < each[0] < 3)
    assert low <= ratio <= high
