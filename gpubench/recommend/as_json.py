"""A ranking as the JSON that others rely on: flat rows, unknown as null, money as numbers."""

from __future__ import annotations

from typing import Any

from gpubench.models import Ranking


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
        "cases": ranking.cases,
        "rows": [row.flat() for row in ranking.rows],
        "excluded": ranking.excluded,
        "buy_or_rent": ranking.buy_or_rent,
        "max_purchase_usd": ranking.max_purchase_usd,
        "purchases": ranking.purchases,
    }
