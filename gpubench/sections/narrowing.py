"""What a page can hold of offers, and by what its reader narrows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from gpubench.blocks.parts import Filter
from gpubench.models import Pricing, RankedOffer
from gpubench.recommend.decision import best_to_rent_and_to_own
from gpubench.sections.data import ReportData
from gpubench.units import GIB, plain

_Facet: TypeAlias = Callable[[RankedOffer], str | float | None]

RENT_OR_BUY = {
    Pricing.ON_DEMAND: "rent on demand",
    Pricing.SPOT: "rent spot",
    Pricing.RESERVED: "rent reserved",
    Pricing.OWNED: "buy",
}


def head_of(rows: Sequence[RankedOffer], most: int) -> tuple[RankedOffer, ...]:
    """Return so many rows in their order: the best of each GPU to rent and to own, then the first others."""
    if len(rows) <= most:
        return tuple(rows)
    kept = {id(row) for row in best_to_rent_and_to_own(rows)}
    kept |= {id(row) for row in [row for row in rows if id(row) not in kept][: max(0, most - len(kept))]}
    return tuple(row for row in rows if id(row) in kept)


def filters_of(data: ReportData, rows: Sequence[RankedOffer]) -> tuple[Filter, ...]:
    """What a buyer narrows offers by: whose they are, rent or buy, memory of one GPU, and budget."""

    def memory_gib(row: RankedOffer) -> float | None:
        spec = data.specs.get(row.offer.gpu_key)
        return None if spec is None or spec.memory_bytes is None else round(spec.memory_bytes / GIB)

    def filtered(title: str, kind: Literal["choice", "at least", "at most"], of: _Facet) -> Filter:
        return Filter(title=title, kind=kind, values=tuple(of(row) for row in rows))

    return (
        filtered(
            "Provider",
            "choice",
            lambda row: None if row.offer.pricing is Pricing.OWNED else plain(row.offer.provider, 40),
        ),
        filtered("Rent or buy", "choice", lambda row: RENT_OR_BUY[row.offer.pricing]),
        filtered("Memory, GiB a GPU at least", "at least", memory_gib),
        filtered("$ an hour, at most", "at most", lambda row: row.expected_usd_per_hour),
        *(
            [filtered("Budget, $ for the job", "at most", lambda row: row.cost_usd)]
            if any(row.cost_usd is not None for row in rows)
            else []
        ),
    )
