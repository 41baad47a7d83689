"""The verdict: what to pay for, in a few sentences, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.models import RankedOffer
from gpubench.recommend.contest import SURE
from gpubench.recommend.request import RankRequest
from gpubench.recommend.words import compact, gpu_name, gpus_of, listing, offer_name, price_of
from gpubench.units import format_duration, format_percent, format_usd

_BASIS = {
    "measured": "measured here",
    "reference": "measured on another such card",
    "predicted": "predicted",
}


def verdict(
    request: RankRequest, rows: Sequence[RankedOffer], fastest_and_cheapest: tuple[int, int], unit: str
) -> str:
    """Return the verdict over all rows, best first; one sentence for each thing a buyer asks.

    Args:
        request: What was asked.
        rows: Every ranked row, at least one.
        fastest_and_cheapest: Which rows are the fastest and the cheapest by the hour.
        unit: What a sample is, in the plural.
    """
    fastest, cheapest = fastest_and_cheapest
    sentences = [
        _best(request, rows[0], unit),
        _sureness(rows),
        _fastest(request, rows, fastest, unit),
        _cheapest(rows, cheapest),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _best(request: RankRequest, row: RankedOffer, unit: str) -> str:
    title = {"value": "Best value", "throughput": "Fastest", "time": "Fastest", "cost": "Cheapest job"}
    basis = _BASIS[row.estimate.basis]
    return f"{title[request.sort]}: {_who(row)}, {_merit(request, row, unit)}, {basis}."


def _who(row: RankedOffer) -> str:
    return f"{gpus_of(row.offer)} at {offer_name(row.offer)} for {price_of(row.offer)}"


def _merit(request: RankRequest, row: RankedOffer, unit: str) -> str:
    if row.hours is not None and request.sort in {"time", "cost"}:
        return f"{format_duration(row.hours * 3600)} and {format_usd(row.cost_usd)} for the job"
    if request.sort in {"throughput", "time"}:
        rate = compact(row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high)
        return f"{rate} {unit} a second"
    value = compact(row.samples_per_usd, row.samples_per_usd_low, row.samples_per_usd_high)
    return f"{value} {unit} per dollar"


def _sureness(rows: Sequence[RankedOffer]) -> str:
    head = rows[0]
    if head.p_best is None:
        return ""
    rivals = rivals_of(rows)
    chance = f"it is the best of {len(rows)} offers with a probability of {format_percent(head.p_best)}"
    if not rivals:
        return f"How sure: {chance}."
    word = "A tie" if head.p_best < SURE else "Not certain"
    return f"{word}: {chance}, and cannot be told from {listing(rivals)}{_separator(rows, rivals)}."


def rivals_of(rows: Sequence[RankedOffer]) -> list[str]:
    """Return the other GPUs that cannot be told from the head of the ranking, likeliest first."""
    head = rows[0]
    tied = [row for row in rows[1:] if row.tie and row.rank == head.rank]
    tied.sort(key=lambda row: -(row.p_best or 0.0))
    return list(dict.fromkeys(f"{gpus_of(row.offer)} at {row.offer.provider}" for row in tied))


def _separator(rows: Sequence[RankedOffer], rivals: list[str]) -> str:
    """Name the measurement that would tell the head from its likeliest rival."""
    del rivals
    head = rows[0]
    tied = [row for row in rows[1:] if row.tie and row.rank == head.rank]
    open_keys = list(
        dict.fromkeys(
            row.offer.gpu_key
            for row in [head, *sorted(tied, key=lambda row: -(row.p_best or 0.0))]
            if row.estimate.basis == "predicted"
        )
    )
    if not open_keys:
        return "; measure both again with --publish to part them"
    names = " and ".join(gpu_name(key) for key in open_keys[:2])
    return f"; `gpubench run` on {names} would part them"


def _fastest(request: RankRequest, rows: Sequence[RankedOffer], index: int, unit: str) -> str:
    if request.sort in {"throughput", "time"}:
        return ""
    if index == 0:
        return "It is also the fastest."
    row = rows[index]
    rate = compact(row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high)
    return f"Fastest: {_who(row)}, {rate} {unit} a second."


def _cheapest(rows: Sequence[RankedOffer], index: int) -> str:
    return "" if index == 0 else f"Cheapest by the hour: {_who(rows[index])}."
