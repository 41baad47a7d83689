"""P(best), P(top 3) and ties on draws that can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gpubench.recommend.objective import bands, wins_of


def test_chances_are_counted_over_draws():
    """Row 0 wins draws 1 and 2, row 1 wins draw 3, and they share draw 4: 2.5 and 1.5 of 4."""
    scores = np.array([[3, 3, 1, 2], [1, 2, 3, 2], [0, 0, 0, 0], [0.5, 0.1, 0.1, 0.1]])
    p_best = wins_of(scores)
    assert p_best.tolist() == [0.625, 0.375, 0, 0]
    assert p_best.sum() == 1


def test_a_common_error_does_not_make_a_tie():
    """Both intervals are a factor of two wide and overlap, but the first is ahead in every draw."""
    common = np.exp(np.random.default_rng(1).standard_normal(500))
    assert bands(np.array([1.1 * common, common]), [0, 1]) == ([1, 2], [False, False])


def test_uncertainty_ties_rows_but_a_pricier_offer_of_the_same_gpu_does_not_tie():
    draws = np.exp(0.3 * np.random.default_rng(1).standard_normal((2, 500)))
    scores = np.array([1.05 * draws[0], 1.02 * draws[0], draws[1], 0.1 * draws[1]])
    assert bands(scores, [0, 0, 1, 1]) == ([1, 1, 1, 4], [True, False, True, False])


def test_a_wide_row_below_a_certain_loser_is_not_lifted_over_it():
    random = np.random.default_rng(2)
    sure = np.full((2, 500), [[1.0], [0.9]])
    wide = 0.8 * np.exp(0.5 * random.standard_normal(500))
    assert bands(np.array([*sure, wide]), [0, 1, 2]) == ([1, 2, 2], [False, True, True])


def test_equal_offers_tie():
    scores = np.ones((3, 10))
    assert bands(scores, [0, 0, 0]) == ([1, 1, 1], [True, True, True])
    assert wins_of(scores).tolist() == pytest.approx([1 / 3] * 3)
