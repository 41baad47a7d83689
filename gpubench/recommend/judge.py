"""The pure core of the ranking: offers and estimates in, a ranking out; no file, no clock, no network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpubench.labels import gpu_name
from gpubench.models import BuyOrRent, GpuSpec, Offer, Ranking
from gpubench.offers.outliers import Market
from gpubench.offers.table import OfferKey
from gpubench.recommend import limits, objective
from gpubench.recommend.break_even import against_rent
from gpubench.recommend.buying import purchase_filters, purchases_of
from gpubench.recommend.candidates import Candidates, candidates_of
from gpubench.recommend.filters import (
    NO_FIGURE,
    Exclusion,
    apply,
    excluded,
    filters_of,
    nothing_left,
    outlier_filter,
    payment_filters,
)
from gpubench.recommend.gather import Evidence
from gpubench.recommend.notes import far_from_others, free_beside, left_out_as_outliers, notes_of
from gpubench.recommend.owning import Ownership
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import rows_of, with_spot_break_even
from gpubench.recommend.scaling import scaling_of
from gpubench.recommend.speeds import Drawer, Speeds, combine
from gpubench.recommend.verdict import buying_sentences, cpu_comparison, cpu_sentences, verdict
from gpubench.units import plural


def judge(
    request: RankRequest,
    offers: Sequence[Offer],
    evidence_for: Callable[[Sequence[str]], Evidence],
    *,
    specs: Mapping[str, GpuSpec],
    today: date,
    drawer: Drawer | None = None,
    owned: Mapping[Offer, Ownership] = MappingProxyType({}),
    believed: Collection[OfferKey] = (),
    notes: Iterable[str] = (),
) -> Ranking:
    """Rank offers as the request asks.

    Args:
        request: A checked request.
        offers: Every offer known, in any order.
        evidence_for: GPU keys to what is known of them.
        specs: The specification table.
        today: The day that price ages count to.
        drawer: Joint draws of estimates; None is ``predict.draws.draw``.
        owned: What owning means, for the owned ones among the offers.
        believed: Keys of offers that the buyer gave himself: their prices are taken as they are.
        notes: What the reader should know about the evidence.

    Raises:
        MisuseError: If a name is unknown or no offer is left; the message says which filter removed how many.
    """
    watts = {offer: ownership.power_w for offer, ownership in owned.items()}
    wanted = [*filters_of(request, offers, today, watts), *purchase_filters(request, owned)]
    possible, fallen = apply(wanted, offers, specs)
    market = Market(offers)
    possible, doubted = apply(outlier_filter(request, market, believed), possible, specs)
    paid_as_asked = payment_filters(request, {offer.pricing for offer in offers})
    kept, otherwise_paid = apply(paid_as_asked, possible, specs)
    fallen += [*doubted, *otherwise_paid]
    _require(kept, offers, fallen)
    evidence = evidence_for(sorted({offer.gpu_key for offer in possible} | {request.reference_gpu}))
    speeds = combine(evidence.answers, request.mix, drawer or _draw(), request.draws, request.seed)
    kept, unknown = _with_speed(kept, speeds, specs)
    fallen += unknown
    _require(kept, offers, fallen)
    pool = _pool(request, kept, speeds, specs, evidence)
    misses = limits.misses(request, pool)
    if misses:
        fallen += misses.values()
        kept = [offer for row, offer in enumerate(kept) if row not in misses]
        _require(kept, offers, fallen)
        pool = _pool(request, kept, speeds, specs, evidence)
    order = objective.order(request, pool)
    rows = rows_of(request, pool, order, today)
    if request.spot:
        rows = with_spot_break_even(rows, possible)
    decisions: tuple[BuyOrRent, ...] = ()
    if owned:
        both = dict.fromkeys([*kept, *_with_speed(possible, speeds, specs)[0]])
        machines = {row.offer: owned[row.offer] for row in rows if row.offer in owned}
        decisions = against_rent(request, _pool(request, list(both), speeds, specs, evidence), machines)
    ranking = Ranking(
        as_of=today.isoformat(),
        objective=objective.in_words(request),
        sorted_by=objective.sorted_by(request),
        cases=_cases(speeds),
        **_units(request, speeds),
        rows=tuple(rows),
        excluded=excluded(fallen),
        verdict="",
        buy_or_rent=decisions,
        max_purchase_usd=request.max_purchase_usd,
        purchases=purchases_of(rows, owned, specs),
        notes=(
            *notes,
            *left_out_as_outliers([each for each in doubted if apply(paid_as_asked, [each.offer], specs)[0]]),
            *far_from_others(market, believed, kept),
            *notes_of(request, pool, len(rows), today),
            *free_beside(request, offers, specs),
        ),
    )
    sentences = [
        *cpu_sentences(request, speeds),
        *verdict(request, ranking, _headline(request, pool, order)),
        *cpu_comparison(request, speeds, rows[0]),
    ]
    return msgspec.structs.replace(
        ranking,
        rows=ranking.rows[: request.limit],
        verdict=" ".join([*sentences, *buying_sentences(decisions)]),
    )


def _require(kept: Sequence[Offer], offers: Sequence[Offer], fallen: Sequence[Exclusion]) -> None:
    if not kept:
        raise nothing_left(len(offers), fallen)


def _draw() -> Drawer:
    from gpubench.predict.draws import draw

    return draw


def _with_speed(
    offers: Sequence[Offer], speeds: Speeds, specs: Mapping[str, GpuSpec]
) -> tuple[list[Offer], list[Exclusion]]:
    known = set(speeds.keys)
    kept = [offer for offer in offers if offer.gpu_key in known]
    fallen = [
        Exclusion(offer, NO_FIGURE, _why_unknown(offer.gpu_key, speeds, specs))
        for offer in offers
        if offer.gpu_key not in known
    ]
    return kept, fallen


def _why_unknown(gpu_key: str, speeds: Speeds, specs: Mapping[str, GpuSpec]) -> str:
    spec = specs.get(gpu_key)
    if spec is not None and spec.not_ranked_because:
        return spec.not_ranked_because
    return speeds.refusals.get(gpu_key, "its GPU is not in the table, and no run of yours measured it")


def _pool(
    request: RankRequest,
    offers: Sequence[Offer],
    speeds: Speeds,
    specs: Mapping[str, GpuSpec],
    evidence: Evidence,
) -> Candidates:
    scaler = evidence.scaler if request.one_job_over_all_gpus else None
    parts = {
        key: dict(zip(evidence.answers, each, strict=True))
        for key, each in zip(speeds.keys, speeds.parts, strict=True)
    }
    scalings = {
        (key, count): scaling_of(specs.get(key), count, parts[key], scaler=scaler, shares=request.mix)
        for key, count in {(offer.gpu_key, offer.gpu_count) for offer in offers}
    }
    return candidates_of(offers, speeds, specs, scalings, request.spot_lost)


def _headline(request: RankRequest, pool: Candidates, order: NDArray[np.int64]) -> tuple[int, int]:
    """Return the rows, in order, of the fastest offer and of the cheapest by the hour."""
    time, _ = objective.time_and_cost(request, pool, order)
    return int(np.argmin(time)), int(np.argmin(pool.price[order]))


def _cases(speeds: Speeds) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(part.case for parts in speeds.parts for part in parts))


def _units(request: RankRequest, speeds: Speeds) -> dict[str, Any]:
    """Return the units of the ranking: samples of one workload, else multiples of the reference GPU."""
    known = request.reference_gpu in speeds.keys
    by_reference = known and len(request.workload_names) > 1
    name = gpu_name(request.reference_gpu)
    unit = _unit(speeds)
    return {
        "unit": unit,
        "by_reference": by_reference,
        "throughput_unit": f"x {name}" if by_reference else f"{unit}/s",
        "value_unit": f"{name} hours per dollar" if by_reference else f"{unit} per dollar",
        "reference_gpu_key": request.reference_gpu if known else None,
    }


def _unit(speeds: Speeds) -> str:
    units = {part.case.sample_unit for part in speeds.parts[0]}
    unit = units.pop() if len(units) == 1 and len(speeds.parts[0]) == 1 else "sample"
    return plural(unit)
