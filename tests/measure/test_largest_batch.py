"""The search for the largest batch, on a device of a scripted size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.measure.largest_batch import PRECISION, largest_batch


@given(limit=st.integers(1, 300_000), start=st.integers(1, 4096))
def test_the_largest_batch_is_found_to_six_percent(limit, start):
    tried = []

    def fits(batch):
        assert batch >= 1
        tried.append(batch)
        return batch <= limit

    found = largest_batch(fits, start)
    assert found is not None
    assert found <= limit
    assert limit - found <= max(1, PRECISION * found) + 8
    assert len(tried) == len(set(tried)) <= 40


def test_nothing_fits():
    assert largest_batch(lambda _: False, 64) is None


def test_a_device_without_an_end_is_not_searched_forever():
    assert largest_batch(lambda _: True, 64) == pytest.approx(1 << 20)
