"""The table of the allocator replay on the page matches the shipped readings."""

from __future__ import annotations

import pytest
from allocator_scores import Order, between, reserved_bytes, table

from gpubench.units import MIB
from tools.evaluate import DOCS


@pytest.mark.slow
def test_the_table_on_the_page_matches_the_readings() -> None:
    assert table() in (DOCS / "memory-evidence.md").read_text(encoding="utf-8")


def test_a_replayed_step_creates_its_states_once_and_a_graph_has_its_own_pool() -> None:
    """64 MiB of weights, 64 MiB of states, and a step with two blocks of 32 MiB at once."""
    step = Order((64 * MIB,), (64 * MIB,), (), ((0, 32 * MIB), (1, 32 * MIB), (0, 0), (1, 0)))
    eager = reserved_bytes(step, [], in_graph=False)
    assert eager == (64 + 64 + 2 * 32) * MIB
    assert reserved_bytes(step, [], in_graph=True) == eager


def test_allocation_order_is_interpolated_between_two_batches() -> None:
    small = Order((10,), (), (2,), ((0, 20), (0, 0)))
    large = Order((10,), (), (4,), ((0, 40), (0, 0)))
    assert between(small, large, 8) == Order((10,), (), (8,), ((0, 80), (0, 0)))
    assert between(small, Order((10,), (), (4,), ((0, 40),)), 8) is None
