"""The feeding rate of vCPUs is an assumption with the same width in rows, draws and chances."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gpubench import rank
from gpubench.findings import FindingKind, describe
from gpubench.recommend.candidates import FEED_FACTOR, IMAGES_PER_VCPU_S
from gpubench.sections.answer import remarks_of

from .builders import A100, H100, L4, estimate, offer
from .test_decision import of_photographs

JOB = {"samples": 5.4e6, "startup_minutes": 0}
RATES = {H100: estimate(H100, 9000.0, 1.1), A100: estimate(A100, 6000.0, 1.1), L4: estimate(L4, 300.0, 1.1)}


def row_of(vcpus, key=H100, **asked):
    given = [offer(key, 2.0, vcpus=vcpus)]
    (row,) = of_photographs(given, RATES, **JOB | asked).rows
    return row


def test_a_feed_bound_row_is_as_wide_as_the_assumption():
    row = row_of(10)
    assert (row.samples_per_s.value, row.samples_per_s.low, row.samples_per_s.high) == (1500, 750, 3000)
    assert (row.hours.low, row.hours.value, row.hours.high) == pytest.approx((0.5, 1, 2))
    assert (row.cost_usd.low, row.cost_usd.value, row.cost_usd.high) == pytest.approx((1, 2, 4))


def test_fed_rate_is_capped_by_the_gpus_and_its_low_end_by_near_limiting_vcpus():
    assert row_of(50).samples_per_s.high == pytest.approx(9000 * 1.1)  # not the 15,000 that could be fed
    nearly = row_of(61)
    assert nearly.samples_per_s.value == 9000
    assert nearly.samples_per_s.low == pytest.approx(61 * IMAGES_PER_VCPU_S / FEED_FACTOR)
    assert row_of(1000).samples_per_s.low == pytest.approx(9000 / 1.1)


def test_a_feed_bound_row_is_flagged():
    (found,) = (each for each in row_of(10).findings if each.kind is FindingKind.FEED_BOUND)
    assert "input-bound" in remarks_of(row_of(10))
    assert "input-bound" in describe(found)
    assert "input-bound" not in remarks_of(row_of(1000))


def test_chances_reflect_uncertainty_of_the_feeding_assumption():
    """Fed at 1,500/s for 1 USD, against 1,600/s on other GPUs for 1.15: at half of its assumed rate, the first costs more."""
    fed, free = offer(H100, 1.0, vcpus=10, instance="fed"), offer(A100, 1.15, instance="free")
    rates = RATES | {A100: estimate(A100, 1600.0, 1.01)}
    chances = {row.offer.instance: row.p_best for row in of_photographs([fed, free], rates, **JOB).rows}
    assert 0.2 < chances["free"] < 0.8
    assert sum(chances.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        ("resnet50", {}),
        ("resnet50", {"spot": True, "spot_lost": 0.2}),
        ("resnet50", {"sort": "time"}),
        ("resnet50", {"relative": True}),
        ("resnet50", {"task": "infer"}),
        (["resnet50", "vgg16"], {}),
        (None, {}),
        ("llama_8b_lora", {}),
        ("resnet50", {"buy": True}),
    ],
)
def test_no_row_of_a_ranking_has_an_interval_of_zero_width(names, asked):
    found = rank(names, **asked, draws=50, as_of="2026-11-20")
    assert found.rows
    for row in found.rows:
        is_the_unit = found.job is not None and row.offer.gpu_key == found.reference_gpu_key
        for field in ("samples_per_s", "hours", "cost_usd"):
            value, low, high = msgspec.structs.astuple(getattr(row, field))
            if low is None or (field != "samples_per_s" and is_the_unit and len(found.cases) > 1):
                continue  # unknown; or the job is this number of hours on this GPU
            assert low < high, (row.offer, field, value)
            assert low <= value <= high


def test_the_chances_of_a_limited_row_are_drawn_as_wide_as_its_interval():
    from gpubench.recommend.candidates import feed_errors

    low, high = np.quantile(feed_errors(1, 20_000), [0.05, 0.95])
    assert (low, high) == pytest.approx((1 / FEED_FACTOR, FEED_FACTOR), rel=0.03)
