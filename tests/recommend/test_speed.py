"""The core is fast: 100,000 offers with intervals, P(best) and ties in about a second of CPU."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import re
import resource
import subprocess
import sys
import time

import numpy as np
import pytest

from gpubench.recommend import objective
from gpubench.specs import load_specs
from gpubench.torch_builds import runs_on_todays_torch

from .builders import H100, L4, T4, estimate, offer, rank_of

CPU_LIMIT_S = 3.0  # 0.9 s on an idle core of 2024; a shared machine under test may be three times as slow
COUNT = 100_000


@pytest.fixture(scope="module")
def rates():
    specs = load_specs().items()
    keys = [k for k, s in specs if s.vendor == "NVIDIA" and runs_on_todays_torch(s.compute_capability)]
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
    assert abs(sum(row.p_best or 0 for row in ranking.rows) - 1) < 1e-9
    assert any("first 1,000" in note for note in ranking.said("note"))


def test_offer_beyond_the_detailed_rows_gets_its_own_chance_or_none(monkeypatch):
    """Four equal offers share the win; of five with old prices, the two below the detailed rows are not drawn."""
    alike = [offer(H100, 2.0, instance=str(place)) for place in range(4)]
    rows = rank_of([*alike, offer(L4, 4.0)], {H100: 3000.0, L4: 500.0}, width=1.01, samples=1e8).rows
    assert [row.p_best for row in rows] == pytest.approx([0.25] * 4 + [0])

    old = [offer(H100, 2 + place / 50, provider=str(place), price_date="2025-11-20") for place in range(5)]
    monkeypatch.setattr(objective, "IN_DETAIL", 2)
    found = rank_of([*old, offer(T4, 9.0)], {H100: 3000.0, T4: 50.0}, width=1.01, samples=1e8)
    rows = {(row.offer.gpu_key, row.offer.provider): row for row in found.rows}
    known = [rows[H100, str(place)].p_best for place in range(5)]
    assert all(0 < each <= 1 for each in known[:3])
    assert known[3:] == [None, None]
    assert rows[T4, "acme"].p_best == 0
    assert found.first.p_best_of_gpu == pytest.approx(1)


@pytest.mark.timing
def test_ranking_many_offers_stays_within_its_cpu_limit(offers, rates):
    start = time.process_time()
    rank_of(offers, rates, draws=2000)
    assert time.process_time() - start < CPU_LIMIT_S


@pytest.fixture
def own_table(tmp_path):
    """A user's table of 100,000 offers."""
    chance = random.Random(4)
    keys = [
        key for key, spec in load_specs().items() if spec.vendor == "NVIDIA" and not spec.not_ranked_because
    ]
    some = chance.sample(keys, 43)  # as many as the shipped table has
    middle = {key: chance.uniform(0.2, 4) for key in some}
    lines = ["provider,instance,region,gpu_key,gpu_count,on_demand_usd_per_h,price_date,source"]
    for number in range(COUNT):
        key, count = chance.choice(some), chance.choice([1, 2, 4, 8])
        usd = middle[key] * count * chance.lognormvariate(0, 0.3)
        lines.append(f"p{number % 40},i{number},r{number % 9},{key},{count},{usd:.4f},2026-11-01,quote")
    table = tmp_path / "own.csv"
    table.write_text("\n".join(lines))
    return table


@pytest.mark.timing
def test_a_table_of_a_hundred_thousand_own_offers_is_ranked_in_four_seconds(own_table):
    """CPU seconds of the whole command including its start: the minimum of three runs."""
    command = [sys.executable, "-m", "gpubench", "rank", "--offers", str(own_table)]
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    taken = []
    for _ in range(3):
        before = cpu_of_children_s()
        subprocess.run(command, check=True, capture_output=True, env=compiled)
        taken.append(cpu_of_children_s() - before)
    print(f"\nrank of {COUNT:,} own offers: {min(taken):.2f} s of CPU")
    assert min(taken) <= 4, taken


@pytest.mark.timing
def test_the_page_of_many_offers_takes_under_5_s_and_4_mb_and_says_that_it_is_cut(own_table, tmp_path):
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "gpubench", "report", "--offers", str(own_table), "-o", str(page)]
    before = cpu_of_children_s()
    subprocess.run(
        command, check=True, capture_output=True, env=os.environ | {"GPUBENCH_RESULTS": str(tmp_path)}
    )
    taken = cpu_of_children_s() - before
    print(f"\nreport of {COUNT:,} own offers: {taken:.2f} s of CPU")
    assert taken < 5
    text = page.read_bytes()
    assert 100_000 < len(text) < 4_000_000
    found = re.search(rb'<script type="application/gzip" id="calculator">([^<]*)', text)
    asked = json.loads(gzip.decompress(base64.b64decode(found[1])))
    # The page says so (few_offers). Cards without kernels in today's torch are left out of both numbers.
    assert len(asked["offers"]) <= 1000 < COUNT / 2 < asked["offer_count"]


def cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_rows_that_cannot_lead_are_not_drawn_and_no_chance_changes(monkeypatch):
    """Today's prices are certain, so the draws of other offers do not depend on which offers are drawn."""
    hosts = [
        offer(key, 1 + place / 7, instance=f"{key}{place}", gpu_count=count)
        for key in (H100, L4, T4)
        for place in range(12)
        for count in (1, 4)
    ]
    rates = {H100: 3000.0, L4: 500.0, T4: 200.0}

    def ranked():
        rows = rank_of(hosts, rates, width=1.5, samples=1e8).rows
        return [(row.offer, row.p_best) for row in rows]

    monkeypatch.setattr(objective, "IN_DETAIL", 4)
    few = ranked()
    drawn = []
    may_lead = objective._may_lead
    monkeypatch.setattr(
        objective, "_may_lead", lambda *asked: drawn.append(may_lead(*asked)) or np.ones_like(drawn[-1])
    )
    every = ranked()
    assert not drawn[0].all()
    assert [row[0] for row in every] == [row[0] for row in few]
    for row, as_drawn in zip(few, every, strict=True):
        assert as_drawn[1] in {row[1], None}
