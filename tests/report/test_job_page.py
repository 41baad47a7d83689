"""A page about a job: its answers go by the cost and the time of the job, including lost work and startup."""

from __future__ import annotations

from recommend.builders import A100, H100, L4, RTX5090, T4, offer, rank_of

from gpubench.blocks.parts import Table
from gpubench.labels import gpus_of
from gpubench.models import Pricing

from . import samples
from .test_sections import block_of

RATES = {H100: 3000.0, RTX5090: 1500.0, A100: 1700.0, L4: 500.0, T4: 200.0}
OFFERS = [
    offer(H100, 3.0, instance="h100"),
    offer(H100, 24.0, gpu_count=8, instance="h100x8"),
    offer(RTX5090, 0.45, pricing=Pricing.SPOT, instance="rtx"),
    offer(A100, 1.5, instance="a100"),
    offer(L4, 0.4, instance="l4"),
    offer(T4, 0.3, instance="t4"),
]
JOB = {"samples": 3e7, "spot": True, "spot_lost": 0.9, "startup_minutes": 20, "billing_minutes": 60}


def test_the_answer_names_the_cheapest_and_the_fastest_job():
    data = samples.report_data(ranking=rank_of(OFFERS, RATES, width=1.2, **JOB), buy_or_rent=())
    (told,) = (part for part in block_of("answer", data).parts if isinstance(part, Table))
    what = {name: cells for name, cells, *_ in told.rows}
    assert any(cells.startswith(gpus_of(data.ranking.rows[0].offer)) for cells in what.values())
    fastest = min(data.ranking.rows, key=lambda row: row.hours.value)
    (named,) = (cells for name, cells in what.items() if "Fastest" in name)
    assert named.startswith(gpus_of(fastest.offer))
