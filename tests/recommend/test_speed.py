"""The core is quick: 100,000 offers with intervals, P(best) and ties in about a second of CPU."""

from __future__ import annotations

import random
import time

import pytest

from gpubench.specs import load_specs

from .builders import estimate, offer, rank_of

CPU_LIMIT_S = 3.0  # 0.9 s on an idle core of 2024; a shared machine under test may be thrice as slow
COUNT = 100_000


@pytest.fixture(scope="module")
def rates():
    keys = [key for key, spec in load_specs().items() if spec.vendor == "NVIDIA"]
    chance = random.Random(1)
    return {key: estimate(key, chance.uniform(50, 5000), 1.5) for key in keys}


@pytest.fixture(scope="module")
def offers(rates):
    chance = random.Random(2)
    return [
        offer(
            chance.choice(list(rates)),
            round(chance.uniform(0.1, 80), 3),
            gpu_count=chance.choice([1, 2, 4, 8]),
            instance=f"i{number}",
        )
        for number in range(COUNT)
    ]


def test_a_hundred_thousand_offers_are_ranked(offers, rates):
    ranking = rank_of(offers, rates, draws=2000)
    assert len(ranking.rows) == COUNT
    assert abs(sum(row.p_best for row in ranking.rows) - 1) < 1e-9
    assert any("first 1,000" in note for note in ranking.notes)


@pytest.mark.timing
def test_it_takes_a_second_or_so(offers, rates):
    start = time.process_time()
    rank_of(offers, rates, draws=2000)
    assert time.process_time() - start < CPU_LIMIT_S
