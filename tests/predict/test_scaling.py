"""Several GPUs: the efficiency follows from gradient bytes and the link, not from a flat factor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.models import TaskKind
from gpubench.predict.calibration import load_calibration
from gpubench.predict.model import Exchange, exchange_of, exposed_s, link_of, scaling
from gpubench.predict.question import Question
from gpubench.specs import load_specs
from predict.profiles import published

VGG16 = Question(profile=published("vgg16"))
RESNET50 = Question(profile=published("resnet50"))
SPECS = load_specs()


def test_vgg16_on_pcie_scales_worse_than_resnet50_and_nvlink_helps():
    card, module = SPECS["nvidia-geforce-rtx-4090-24gb"], SPECS["nvidia-h100-sxm-80gb"]
    (vgg, *_), (resnet, *_) = scaling(VGG16, card, 4, 900.0), scaling(RESNET50, card, 4, 1200.0)
    assert vgg < 0.8 < resnet
    exchange = exchange_of(VGG16, card, 1.0, sharded=False)
    assert exchange.gradient_bytes == pytest.approx(553e6, rel=0.01)
    assert exchange.link == "host"
    assert scaling(VGG16, module, 8, 2500.0)[0] > 0.9


def test_one_gpu_and_inference_have_no_scaling_loss():
    card = SPECS["nvidia-geforce-rtx-4090-24gb"]
    assert scaling(VGG16, card, 1, 900.0)[0] == 1
    inference = Question(profile=VGG16.profile, task=TaskKind.INFER)
    assert scaling(inference, card, 8, 900.0)[0] == 1


@given(
    n=st.integers(2, 16),
    speed=st.floats(1, 1e6),
    key=st.sampled_from([k for k, s in SPECS.items() if s.vendor == "NVIDIA"]),
)
def test_the_efficiency_is_in_its_interval_and_never_rises_with_n(n, speed, key):
    one, more = scaling(VGG16, SPECS[key], n, speed), scaling(VGG16, SPECS[key], n + 1, speed)
    efficiency, low, high = one
    assert 0 < low <= efficiency <= high <= 1
    assert more[0] <= efficiency


def test_jobs_on_another_vendors_gpus_have_a_separate_interval_width():
    amd = SPECS["amd-mi325x-256gb"]
    efficiency, low, _ = scaling(RESNET50, amd, 8, 2000.0)
    assert link_of(amd)[0] == "fabric"
    assert math.log(efficiency / low) == pytest.approx(load_calibration().scaling.other_vendors)


@pytest.mark.parametrize(("n", "speed"), [(0, 1.0), (2, 0.0), (2, float("nan"))])
def test_impossible_scaling_requests_are_errors(n, speed):
    with pytest.raises(MisuseError):
        scaling(VGG16, SPECS["nvidia-h100-sxm-80gb"], n, speed)


def test_the_backward_pass_hides_no_more_than_its_own_time():
    """A user's own fit can give a share above 1; the efficiency and the shown time both cap it."""
    exchange = Exchange(gradient_bytes=1e9, link="pcie", rate=1e9, step_s=0.3)
    assert exposed_s(exchange, 2, 1.0, 1.7) == exposed_s(exchange, 2, 1.0, 1.0) == pytest.approx(0.8)
