"""The clock that a GPU sustains at its power limit: it lowers the speed, never raises it, and counts once."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.errors import MisuseError
from gpubench.models import Estimate, Execution, GpuSpec, MemoryFormat, Precision
from gpubench.predict.calibration import load_calibration
from gpubench.predict.chips import UNLIMITED, chips_of, power_and_clock
from gpubench.predict.estimate import estimate
from gpubench.predict.question import Question, why_impossible
from gpubench.predict.roofline import arithmetic_of, log_throttle, step_times, work_of
from gpubench.profile import load_profiles
from gpubench.specs import load_specs

SPECS = load_specs()
COEFFICIENTS = load_calibration().train.ratio.coefficients
H100_SXM, H100_PCIE = SPECS["nvidia-h100-sxm-80gb"], SPECS["nvidia-h100-pcie-80gb"]
H200, GH200 = SPECS["nvidia-h200-sxm-141gb"], SPECS["nvidia-gh200-96gb"]
L4, T4, TITAN = (
    SPECS["nvidia-l4-24gb"],
    SPECS["nvidia-tesla-t4-16gb"],
    SPECS["nvidia-titan-rtx-24gb"],
)
TRAINED = {name: profile for name, profile in load_profiles().items() if profile.train}


def throttle(spec: GpuSpec, exponent: float = COEFFICIENTS.power_exponent) -> float:
    """Return the share of its stated clock that a GPU sustains."""
    coefficients = msgspec.structs.replace(COEFFICIENTS, power_exponent=exponent)
    return math.exp(float(log_throttle(chips_of([spec]), coefficients)[0]))


def held_fp32(spec: GpuSpec) -> float:
    return spec.fp32_flops_per_s * throttle(spec)


@given(
    spec=st.sampled_from([H100_SXM, H100_PCIE, L4, T4, TITAN]),
    power=st.floats(0.1, 10),
    more=st.floats(1, 10),
    exponent=st.floats(0.05, 1),
)
def test_lower_power_limit_never_raises_the_clock(spec, power, more, exponent):
    less_w, more_w = (
        throttle(msgspec.structs.replace(spec, tdp_w=spec.tdp_w * factor), exponent)
        for factor in (power, power * more)
    )
    assert 0 < less_w <= more_w <= 1


def test_no_gpu_is_predicted_above_its_peak_clock():
    assert max(throttle(spec) for spec in SPECS.values()) == 1
    assert throttle(L4) < throttle(SPECS["nvidia-geforce-rtx-4090-24gb"])
    assert throttle(T4) < throttle(TITAN) < 1


@given(stated=st.floats(1, 3))
def test_rate_of_a_power_limited_card_is_independent_of_its_stated_peak(stated):
    assert throttle(H100_PCIE) < 1
    faster = msgspec.structs.replace(H100_PCIE, fp32_flops_per_s=stated * H100_PCIE.fp32_flops_per_s)
    assert held_fp32(faster) == pytest.approx(held_fp32(H100_PCIE))


def test_the_power_limit_of_an_h100_pcie_counts_once():
    """The peaks are stated at 1755 MHz (PCIe) and 1980 MHz (SXM); clock and power lower the rate no more than power alone."""
    clock = held_fp32(H100_PCIE) / H100_PCIE.sm_count / (held_fp32(H100_SXM) / H100_SXM.sm_count)
    watts = H100_PCIE.tdp_w / H100_PCIE.sm_count / (H100_SXM.tdp_w / H100_SXM.sm_count)
    assert watts**COEFFICIENTS.power_exponent <= clock < 1


def test_an_unknown_power_limit_does_not_lower_the_clock():
    for clock in (0.5, 1.0, 2.0):
        spec = msgspec.structs.replace(T4, tdp_w=None, fp32_flops_per_s=clock * T4.fp32_flops_per_s)
        assert power_and_clock(spec) == UNLIMITED
        assert throttle(spec) == 1
    assert power_and_clock(SPECS["nvidia-jetson-agx-orin-64gb"]) == UNLIMITED


def test_unstated_form_factor_is_as_slow_as_its_slowest_variant():
    left_open = [spec for spec in SPECS.values() if spec.variants]
    assert left_open
    for spec in left_open:
        assert held_fp32(spec) <= min(held_fp32(SPECS[key]) for key in spec.variants) * (1 + 1e-9), spec.key


@pytest.mark.parametrize("aim", ["ratio", "level"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32, Precision.AMP_BF16])
@pytest.mark.parametrize("workload", sorted(TRAINED))
def test_a_gh200_is_not_above_an_h200_at_equal_clocks(workload, precision, aim):
    """The GH200 has the same die at the same clock with less bandwidth; its higher power limit has no effect."""
    assert power_and_clock(GH200).clock == power_and_clock(H200).clock
    profile = TRAINED[workload]
    times = step_times(
        work_of(profile.train, profile.main_batch),
        chips_of([H200, GH200]),
        arithmetic_of(precision, MemoryFormat.CHANNELS_LAST if profile.is_image else None, 2),
        getattr(load_calibration().train, aim).coefficients,
        host_s_per_operator=0.0,
        deviations=np.zeros((2, 3)),
    ).step_s
    assert times[0] <= times[1]
    assert np.isfinite(times).all()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp"])
@pytest.mark.parametrize("workload", sorted(TRAINED))
def test_a_gh200_does_not_rank_above_an_h200_without_measurements(workload, precision):
    question = Question(profile=TRAINED[workload], precision=precision, execution=Execution.GRAPH)
    if why_impossible(question):
        with pytest.raises(MisuseError, match=" supports "):
            estimate(question, [H200, GH200])
        return
    answers = estimate(question, [H200, GH200])
    h200, gh200 = answers[H200.key], answers[GH200.key]
    assert isinstance(h200, Estimate)
    assert isinstance(gh200, Estimate)
    assert gh200.samples_per_s <= h200.samples_per_s
