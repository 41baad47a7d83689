"""The input pipeline: the verdict's arithmetic, and the real thing in small."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.measure.feeding import (
    Consumption,
    PipelineOrder,
    PipelineReport,
    PreparationRate,
    eight_bit_bytes,
    feeding,
    measure_pipeline,
    tensor_bytes,
)
from gpubench.models import DeviceProfile
from gpubench.recommend.feed import FeedReport, consumed_by
from gpubench.sections.feeding import prepared

PHOTOGRAPH, TENSOR = 500 * 375 * 3, 224 * 224 * 3 * 4


def rate(way: str, images_per_s: float, workers: int = 1) -> PreparationRate:
    """A rate to within 2 %."""
    return PreparationRate(
        way=way,
        images_per_s=images_per_s,
        low=images_per_s * 0.98,
        high=images_per_s * 1.02,
        rounds=3,
        workers=workers,
        threads=1,
        batch_size=64,
    )


def report(one: float, several: float, batch: float, link: float | None = None) -> PipelineReport:
    rates = (rate("cpu_one_process", one), rate("cpu_workers", several, 4), rate("device_batch", batch))
    return PipelineReport(
        rates=rates, link_bytes_per_s=link, photograph_bytes=PHOTOGRAPH, tensor_bytes=TENSOR
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


def test_a_host_that_prepares_more_than_is_taken_feeds_it() -> None:
    found = feeding(consumes(300), report(100, 350, 5000, link=25e9), device_is_gpu=True)
    assert found.fed
    assert found.cpu_share == pytest.approx(350 / 300)
    assert found.tensors_bytes_per_s == 300 * TENSOR
    assert found.tensors_link_share == pytest.approx(300 * TENSOR / 25e9)
    assert found.photographs_link_share == pytest.approx(300 * PHOTOGRAPH / 25e9)
    assert found.certain
    assert "consumes 300 (294 to 306) images/s" in found.verdict
    assert found.verdict.endswith("can feed it")


def test_a_slow_host_makes_the_gpu_wait() -> None:
    found = feeding(consumes(3000), report(100, 350, 6000, link=25e9), device_is_gpu=True)
    assert not found.fed
    assert found.workers_needed == 30
    assert found.gpu_images_per_s == pytest.approx(2000)  # 1/3000 + 1/6000 s per image
    assert "88 % of the time" in found.verdict
    assert "trains 2,000 images/s" in found.verdict


def test_a_narrow_link_is_named() -> None:
    found = feeding(consumes(3000), report(1000, 4000, 6000, link=1e9), device_is_gpu=True)
    assert not found.fed
    assert "cannot feed it" in found.verdict


def test_a_gpu_that_augments_trains_no_more_than_the_link_carries_of_photographs() -> None:
    found = feeding(consumes(3000), report(100, 350, 60_000, link=0.9e9), device_is_gpu=True)
    assert found.gpu_images_per_s == pytest.approx(0.9e9 / PHOTOGRAPH)
    assert "trains 1,600 images/s" in found.verdict
    assert "carried 1.81 GB/s" in found.verdict


def test_a_link_that_was_not_measured_leaves_the_answer_open() -> None:
    found = feeding(consumes(300), report(100, 350, 5000), device_is_gpu=False)
    assert found.fed is None
    assert "can feed it" not in found.verdict
    assert "carries 181 MB/s" in found.verdict


@pytest.mark.parametrize(("consumed", "width", "certain"), [
    (300, 0.02, True), (300, 0.5, False), (300, None, False), (3000, 0.5, True), (700, 0.6, False),
])  # fmt: skip
def test_a_verdict_is_certain_where_both_ends_of_the_intervals_agree(consumed, width, certain) -> None:
    found = feeding(consumes(consumed, width), report(100, 350, 5000, link=25e9), device_is_gpu=True)
    assert found.certain is certain
    assert ("not certain" in found.verdict) is not certain


def test_the_report_counts_the_bytes_that_feed_counts() -> None:
    assert eight_bit_bytes((3, 224, 224)) == PHOTOGRAPH
    assert tensor_bytes((3, 224, 224)) == TENSOR
    assert eight_bit_bytes((1, 28, 28)) == 28 * 28


def test_a_cpu_says_nothing_of_augmenting_on_the_gpu() -> None:
    found = feeding(consumes(3000), report(100, 350, 50), device_is_gpu=False)
    assert found.gpu_images_per_s is None
    assert found.tensors_link_share is found.photographs_link_share is None
    assert "augments by itself" not in found.verdict


@given(
    consumed=st.floats(1, 1e6), one=st.floats(1, 1e5), several=st.floats(1, 1e6), batch=st.floats(1, 1e6),
    link=st.none() | st.floats(1e6, 1e12),
)  # fmt: skip
def test_the_figures_hang_together(
    consumed: float, one: float, several: float, batch: float, link: float | None
) -> None:
    found = feeding(consumes(consumed), report(one, several, batch, link), device_is_gpu=True)
    carried = None if found.tensors_link_share is None else found.tensors_link_share <= 1
    assert found.fed == (carried if found.cpu_share >= 1 else False)
    assert found.gpu_images_per_s is not None
    assert found.gpu_images_per_s <= min(consumed, batch)
    assert (found.workers_needed - 1) * one < consumed <= found.workers_needed * one * (1 + 1e-9)
    assert "\n" not in found.verdict


def test_the_pipeline_is_timed_each_way_on_this_cpu() -> None:
    pytest.importorskip("kornia")
    order = PipelineOrder(device="cpu", workers=2, batch_size=4, round_s=0.01, rounds=2, most_s=0.5)
    found = measure_pipeline(DeviceProfile(backend="cpu"), order=order)
    assert [r.way for r in found.rates] == ["cpu_one_process", "cpu_workers", "device_batch"]
    assert all(r.images_per_s > 0 for r in found.rates)
    assert (found.photograph_bytes, found.tensor_bytes) == (PHOTOGRAPH, TENSOR)
    assert found.link_bytes_per_s is None


def test_clips_are_prepared_as_one_and_counted_by_their_frames() -> None:
    pytest.importorskip("kornia")
    order = PipelineOrder(
        device="cpu", workers=1, frames=16, batch_size=16, round_s=0.01, rounds=1, most_s=0.5
    )
    found = measure_pipeline(DeviceProfile(backend="cpu"), order=order)
    assert all(r.images_per_s > 0 and r.batch_size == 16 for r in found.rates)
    assert (found.frames, found.photograph_bytes, found.tensor_bytes) == (16, 340 * 256 * 3, TENSOR)
    made = FeedReport(device="d", remark=None, pipeline=found, feedings=())
    shown = prepared(made)[0]
    assert "clips of 16 frames" in shown.caption
    assert "frames/s" in [column.title for column in shown.columns]


def test_a_cpu_is_not_called_the_device_that_batches_are_sent_to() -> None:
    for link, words in ((None, "in whole batches of 64"), (25e9, "in whole batches of 64 on the device")):
        made = FeedReport(device="d", remark=None, pipeline=report(100, 350, 500, link=link), feedings=())
        assert words in [row[0] for row in prepared(made)[0].rows]


def test_without_kornia_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    (tmp_path / "kornia.py").write_text("raise ModuleNotFoundError('kornia')")  # type: ignore[operator]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MisuseError, match=r"pip install 'kornia>=[\d.]+,<\d+'"):
        measure_pipeline(DeviceProfile(backend="cpu"), workers=1)


def test_no_workers_are_refused() -> None:
    with pytest.raises(MisuseError, match="0 workers"):
        measure_pipeline(DeviceProfile(backend="cpu"), workers=0)


def test_what_a_gpu_consumes_is_predicted_where_it_was_not_measured() -> None:
    found, refused = consumed_by(("nvidia-h100-sxm-80gb", "nvidia-tesla-k80-12gb"))
    assert {c.workload for c in found} == {"vgg16", "resnet50"}
    assert {c.gpu for c in found} == {"nvidia-h100-sxm-80gb"}
    assert len(refused) == 2
    assert all(c.images_per_s > 100 for c in found)
    assert all(c.low < c.images_per_s < c.high for c in found if c.workload == "vgg16")


def test_the_verb_refuses_an_unknown_gpu_before_timing_anything() -> None:
    command = [sys.executable, "-m", "gpubench", "feed", "--gpu", "nvidia-nothing", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not done.stdout


@pytest.mark.slow
def test_the_verb_answers_in_json() -> None:
    command = [sys.executable, "-m", "gpubench", "feed", "--gpu", "nvidia-l4-24gb", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    document = json.loads(done.stdout)
    assert {f["consumption"]["workload"] for f in document["feedings"]} == {"vgg16", "resnet50"}
