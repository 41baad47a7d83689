"""Joint draws have the spread of the interval, and common errors do not change the order."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gpubench.draws import normals
from gpubench.predict.answers import draw
from gpubench.predict.estimate import estimate
from gpubench.predict.question import Question, case_for
from gpubench.specs import load_specs
from predict.profiles import published
from predict.runs import run_of

KEYS = ("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-tesla-t4-16gb")


@pytest.fixture(scope="module")
def estimates():
    question = Question(profile=published("vgg16"))
    specs = [load_specs()[key] for key in KEYS]
    case = case_for(question, specs[2])
    answers = estimate(question, specs, own=[run_of(KEYS[2], (case, 150.0))])
    return list(answers.values())


def test_draws_repeat_with_their_seed_and_spread_as_the_interval(estimates):
    draws = draw(estimates, 4000, seed=1)
    assert draws.shape == (3, 4000)
    normals.cache_clear()  # otherwise the second call would return the cached numbers
    assert np.array_equal(draws, draw(estimates, 4000, seed=1))
    assert not np.array_equal(draws, draw(estimates, 4000, seed=2))
    for row, estimate_ in zip(draws, estimates, strict=True):
        inside = np.mean((row > estimate_.low) & (row < estimate_.high))
        assert inside == pytest.approx(0.90 if estimate_.basis == "predicted" else 0.95, abs=0.02)


def test_predictions_of_one_anchor_move_together_and_measurements_do_not(estimates):
    logs = np.log(draw(estimates, 4000, seed=3))
    assert np.corrcoef(logs[0], logs[1])[0, 1] > 0.3
    assert abs(np.corrcoef(logs[0], logs[2])[0, 1]) < 0.06


def test_fully_common_error_leaves_the_order_unchanged(estimates):
    logs = np.log(draw(estimates[:2], 1000, seed=4, common_share=1.0))
    assert np.corrcoef(logs)[0, 1] == pytest.approx(1)


def test_the_draws_of_a_gpu_do_not_depend_on_the_others(estimates):
    every = draw(estimates, 100, seed=1)
    assert np.array_equal(every[1:], draw(estimates[1:], 100, seed=1))
    assert np.array_equal(every[::-1], draw(estimates[::-1], 100, seed=1))


def test_no_draw_exceeds_the_peak_of_its_gpu_and_a_low_end_alone_limits_nothing(estimates):
    """A published reading below an interval widens it downward but sets no upper limit."""
    predicted = next(each for each in estimates if each.basis == "predicted")
    limit = predicted.samples_per_s * 1.01
    at_peak, widened = (
        msgspec.structs.replace(predicted, **changes)
        for changes in ({"high": limit, "most_samples_per_s": limit}, {"low": predicted.low / 2})
    )
    (limited,), (free,) = draw([at_peak], 1000, seed=5), draw([widened], 1000, seed=5)
    assert limited.max() == limit
    assert free.max() > widened.high
    assert np.median(free) == pytest.approx(widened.samples_per_s, rel=0.05)
