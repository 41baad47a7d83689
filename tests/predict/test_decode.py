"""Decode rates from weight and cache bytes over bandwidth, judged on GPUs that the fit has not seen."""

from __future__ import annotations

from statistics import mean

import msgspec
import pytest
from decode_fit import decode_fit, decode_readings

from gpubench.models import DecodeWork
from gpubench.predict.roofline import (
    DECODE_BANDWIDTH_SHARE,
    TOKEN_FACTOR,
    TOKEN_FIXED_S,
    TOKEN_HALF_WIDTH,
    token_time,
)
from gpubench.specs import load_specs, require_spec


def test_the_shipped_decode_numbers_match_the_fit():
    fit = decode_fit()
    shipped = (DECODE_BANDWIDTH_SHARE, TOKEN_FIXED_S, TOKEN_HALF_WIDTH)
    assert shipped == pytest.approx((fit.share, fit.fixed_s, fit.half_width), rel=1e-9)


def test_left_out_gpus_are_within_a_fifth_on_average():
    fit = decode_fit()
    assert len(fit.errors) == 58
    assert mean(fit.errors) < 0.20
    assert 0.8 < fit.share < 1
    assert 1e-3 < fit.fixed_s < 5e-3


def test_every_reading_is_of_a_known_gpu_and_within_its_bandwidth():
    assert {r.gpu_key for r in decode_readings()} <= {*load_specs()}
    for reading in decode_readings():
        reached = reading.bytes_read / reading.token_s
        assert 0.2 < reached / load_specs()[reading.gpu_key].memory_bandwidth_bytes_per_s < 1


def test_the_interval_contains_at_least_ten_of_twelve_gpus():
    readings, held = decode_readings(), {}
    for reading in readings:
        work = DecodeWork(weight_bytes=reading.bytes_read, cache_bytes_per_token=0, flops_per_token=0)
        token_s = token_time(work, 0, 1, load_specs()[reading.gpu_key])
        held.setdefault(reading.gpu_key, []).append(
            1 / TOKEN_FACTOR <= reading.token_s / token_s <= TOKEN_FACTOR
        )
    shares = [mean(each) for each in held.values()]
    assert len(shares) == 12
    assert sum(share >= 0.5 for share in shares) >= 10


def test_token_time_scales_with_weight_bytes_and_a_batch_reads_weights_once():
    spec = require_spec("RTX 4090")
    whole = DecodeWork(weight_bytes=15e9, cache_bytes_per_token=131_072, flops_per_token=15e9)
    half = DecodeWork(weight_bytes=7.5e9, cache_bytes_per_token=131_072, flops_per_token=15e9)
    fixed = decode_fit().fixed_s
    one, narrow = token_time(whole, 0, 1, spec), token_time(half, 0, 1, spec)
    assert (one - fixed) / (narrow - fixed) == pytest.approx(2)
    eight = token_time(whole, 1000, 8, spec)
    assert eight - one == pytest.approx(8 * 1000 * 131_072 / (decode_fit().share * 1.008e12), rel=1e-3)


def test_a_card_without_a_known_bandwidth_has_no_answer():
    spec = msgspec.structs.replace(require_spec("RTX 4090"), memory_bandwidth_bytes_per_s=None)
    work = DecodeWork(weight_bytes=15e9, cache_bytes_per_token=1, flops_per_token=1)
    assert token_time(work, 0, 1, spec) is None
