"""A ranking as the JSON that others rely on: flat rows, unknown as null, money as numbers."""

from __future__ import annotations

from typing import Any

from gpubench.interval import Interval
from gpubench.models import RankedOffer, Ranking
from gpubench.recommend.tokens import generation_times, token_costs


def as_json(ranking: Ranking) -> dict[str, Any]:
    """Return the document of ``gpubench rank --json``; keys are added freely and never renamed."""
    return {
        "schema_version": ranking.schema_version,
        "as_of": ranking.as_of,
        "objective": ranking.objective,
        "sorted_by": ranking.sorted_by,
        "unit": ranking.unit,
        "by_reference": ranking.by_reference,
        "throughput_unit": ranking.throughput_unit,
        "value_unit": ranking.value_unit,
        "reference_gpu_key": ranking.reference_gpu_key,
        "verdict": ranking.verdict,
        "decision": ranking.decision,
        "notes": ranking.notes,
        "decisive_notes": ranking.decisive_notes,
        "cases": ranking.cases,
        "rows": [row.flat() | _tokens(row) for row in ranking.rows],
        "excluded": ranking.excluded,
        "buy_or_rent": ranking.buy_or_rent,
        "max_purchase_usd": ranking.max_purchase_usd,
        "purchases": ranking.purchases,
    }


def _tokens(row: RankedOffer) -> dict[str, float | None]:
    """What a million tokens costs, and what a generated one takes; no key where the input is no tokens."""
    found: dict[str, float | None] = {}
    for what, cost in token_costs(row).items():
        found |= _flat(f"usd_per_million_tokens_{what.replace(' ', '_')}", cost)
    times = generation_times(row.estimate)
    if times is not None:
        found |= _flat("first_token_s", times.first_token_s) | _flat("per_token_s", times.per_token_s)
    return found


def _flat(name: str, figure: Interval) -> dict[str, float | None]:
    return {name: figure.value, f"{name}_low": figure.low, f"{name}_high": figure.high}
