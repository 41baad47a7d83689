"""The input pipeline: the arithmetic of the verdict, and the real pipeline at small size."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from command import here
from hypothesis import given
from hypothesis import strategies as st

from gpubench.errors import GpuBenchError, MisuseError
from gpubench.measure import feeding as timing
from gpubench.measure.feeding import PreparationRate, measure_preparation
from gpubench.recommend.feed import Consumption, FeedReport, consumed_by, feeding
from gpubench.sections.lists import prepared


def prepares(images_per_s: float, workers: int = 4, frames: int = 1) -> PreparationRate:
    """Return a rate known within 2 %."""
    return PreparationRate(
        images_per_s=images_per_s,
        low=images_per_s * 0.98,
        high=images_per_s * 1.02,
        workers=workers,
        frames=frames,
        rounds=3,
    )


def consumes(images_per_s: float, width: float | None = 0.02) -> Consumption:
    low, high = (None, None) if width is None else (images_per_s * (1 - width), images_per_s * (1 + width))
    return Consumption(
        workload="vgg16",
        gpu="card",
        case="c",
        basis="measured",
        images_per_s=images_per_s,
        low=low,
        high=high,
    )


def test_host_that_prepares_more_images_than_consumed_can_feed_the_gpu() -> None:
    found = feeding(consumes(300), prepares(350))
    assert found.fed
    assert found.cpu_share == pytest.approx(350 / 300)
    assert found.certain
    assert "consumes 300 (294 to 306) images/s" in found.verdict
    assert found.verdict.endswith("can feed the GPU")


def test_a_slow_host_makes_the_gpu_wait() -> None:
    found = feeding(consumes(3000), prepares(350))
    assert not found.fed
    assert found.workers_needed == 35  # 87.5 per worker
    assert "88 % of the time; 35 of these workers would keep up" in found.verdict


@pytest.mark.parametrize(("consumed", "width", "certain"), [
    (300, 0.02, True), (300, 0.5, False), (300, None, False), (3000, 0.5, True), (700, 0.6, False),
])  # fmt: skip
def test_a_verdict_is_certain_if_both_ends_of_the_intervals_agree(consumed, width, certain) -> None:
    found = feeding(consumes(consumed, width), prepares(350))
    assert found.certain is certain
    assert ("not certain" in found.verdict) is not certain


def test_each_verdict_states_the_traffic_of_the_link() -> None:
    """An image has 562,500 bytes as a photograph and 602,112 as a tensor; 300 pass each second."""
    (_, said) = prepared(
        FeedReport(remark=None, prepared=prepares(350), feedings=(feeding(consumes(300), prepares(350)),))
    )
    assert "181 MB/s of tensors, 169 MB/s of 8-bit photographs" in said.text


@given(consumed=st.floats(1, 1e6), given_=st.floats(1, 1e6), workers=st.integers(1, 256))
def test_the_figures_are_consistent(consumed: float, given_: float, workers: int) -> None:
    found = feeding(consumes(consumed), prepares(given_, workers))
    one = given_ / workers
    assert found.fed == (given_ >= consumed)
    assert (found.workers_needed - 1) * one * (1 - 1e-9) < consumed <= found.workers_needed * one * (1 + 1e-9)
    assert "\n" not in found.verdict


def test_the_workers_of_a_loader_are_timed_on_this_cpu() -> None:
    pytest.importorskip("kornia")
    found = measure_preparation(2, timed_s=0.0)
    assert (found.workers, found.frames, found.rounds) == (2, 1, timing.LEAST_ROUNDS)
    assert found.images_per_s > 0
    assert found.low is None or found.low < found.images_per_s


def test_loader_round_covers_one_batch_from_each_worker(monkeypatch) -> None:
    """Four workers hand over 16 images each while two seconds pass: 32 images/s."""
    pytest.importorskip("kornia")
    from torch.utils import data

    taken = []
    monkeypatch.setattr(data, "DataLoader", lambda *_args, **_options: iter(lambda: taken.append(1), 0))
    seconds = iter(range(0, 1000, 2))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(seconds))
    found = measure_preparation(4, timed_s=10.0)
    assert (found.images_per_s, found.rounds) == (pytest.approx(32), 5)
    assert len(taken) == 4 * (1 + 5), "the first round warms up"


def test_clips_are_prepared_whole_and_counted_by_their_frames() -> None:
    pytest.importorskip("kornia")
    found = measure_preparation(1, frames=16, timed_s=0.0)
    assert (found.frames, found.images_per_s > 0) == (16, True)
    (shown, said) = prepared(FeedReport(remark=None, prepared=found, feedings=()))
    assert "clips of 16 frames" in shown.caption
    assert "frames/s" in [column.title for column in shown.columns]
    assert "each frame is an image" in said.text


def test_the_rate_is_given_in_total_and_per_worker() -> None:
    (shown,) = prepared(FeedReport(remark=None, prepared=prepares(400, workers=4), feedings=()))
    (row,) = shown.rows
    assert row[0] == "4"
    assert row[1].startswith("400")
    assert row[2].startswith("100")


def test_without_kornia_the_install_command_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(MisuseError, match=r"pip install 'kornia>=[\d.]+,<\d+'"):
        measure_preparation(1)


@pytest.mark.skipif(sys.platform != "linux", reason="workers on other systems do not inherit the patch")
def test_a_worker_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kornia")
    monkeypatch.setattr(timing, "_prepared", lambda *_: os._exit(3))
    with pytest.raises(GpuBenchError, match=r"could not be timed: .*DataLoader worker .*exited unexpectedly"):
        measure_preparation(1)


def test_unmeasured_gpu_gets_a_predicted_image_consumption() -> None:
    found, refused = consumed_by(("nvidia-h100-sxm-80gb", "nvidia-tesla-k80-12gb"))
    assert {c.workload for c in found} == {"vgg16", "resnet50"}
    assert {c.gpu for c in found} == {"nvidia-h100-sxm-80gb"}
    assert len(refused) == 2
    assert all(c.images_per_s > 100 for c in found)
    assert all(c.low < c.images_per_s < c.high for c in found if c.workload == "vgg16")


def test_feed_refuses_an_unknown_gpu_before_timing_anything() -> None:
    done = here("feed", "--gpu", "nvidia-nothing", "--json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not done.stdout


@pytest.mark.slow
def test_feed_answers_in_json() -> None:
    command = [sys.executable, "-m", "gpubench", "feed", "--gpu", "nvidia-l4-24gb", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    document = json.loads(done.stdout)
    assert {f["consumption"]["workload"] for f in document["feedings"]} == {"vgg16", "resnet50"}
