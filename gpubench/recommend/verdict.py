"""The verdict: what to pay for, in a few sentences, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.models import BuyOrRent, FindingKind, Pricing, RankedOffer
from gpubench.recommend.contest import SURE
from gpubench.recommend.economics import train_hours
from gpubench.recommend.own_devices import CPU_KEY
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import Speeds
from gpubench.recommend.words import compact, gpu_name, gpus_of, listing, offer_name, price_of
from gpubench.units import UNKNOWN, format_duration, format_number, format_percent, format_usd, plain

NO_GPU_HOURS = 1.0
"""A job that the CPU ends within this needs no GPU, unless a deadline says otherwise."""

MOST_MACHINES = 2
"""Machines that the verdict speaks of; the table has them all."""

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
        _host_bound(rows[0]),
        _spot(rows[0]),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _best(request: RankRequest, row: RankedOffer, unit: str) -> str:
    title = {"value": "Best value", "throughput": "Fastest", "time": "Fastest", "cost": "Cheapest job"}
    basis = _BASIS[row.estimate.basis]
    return f"{title[request.sort]}: {_who(row)}, {_merit(request, row, unit)}, {basis}."


def _who(row: RankedOffer) -> str:
    if row.offer.pricing is Pricing.OWNED:
        return f"owning {gpus_of(row.offer)} ({plain(row.offer.instance)}) at {price_of(row.offer)} of work"
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
    if len(rows) == 1:
        return "It is the only offer left."
    rivals = rivals_of(rows)
    chance = f"it is the best of {len(rows)} offers with a probability of {_probability(head.p_best)}"
    if not rivals:
        return f"How sure: {chance}."
    word = "A tie" if head.p_best < SURE else "Not certain"
    return f"{word}: {chance}, and cannot be told from {listing(rivals)}{_separator(rows, rivals)}."


def _probability(value: float) -> str:
    return "over 99 %" if value > 0.99 else format_percent(value)


def rivals_of(rows: Sequence[RankedOffer]) -> list[str]:
    """Return the other GPUs that cannot be told from the head of the ranking, likeliest first."""
    head = rows[0]
    tied = [row for row in rows[1:] if row.tie and row.rank == head.rank]
    tied.sort(key=lambda row: -(row.p_best or 0.0))
    return list(dict.fromkeys(f"{gpus_of(row.offer)}{_seller(row)}" for row in tied))


def _seller(row: RankedOffer) -> str:
    return "" if row.offer.pricing is Pricing.OWNED else f" at {plain(row.offer.provider)}"


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
        return "It is also the fastest." if len(rows) > 1 else ""
    row = rows[index]
    rate = compact(row.samples_per_s, row.samples_per_s_low, row.samples_per_s_high)
    return f"Fastest: {_who(row)}, {rate} {unit} a second."


def _cheapest(rows: Sequence[RankedOffer], index: int) -> str:
    return "" if index == 0 else f"Cheapest by the hour: {_who(rows[index])}."


def _host_bound(row: RankedOffer) -> str:
    if not any(finding.kind is FindingKind.HOST_BOUND for finding in row.findings):
        return ""
    vcpus = row.offer.vcpus
    enough = f" One thread for each GPU launches the work, so its {vcpus:g} vCPUs suffice." if vcpus else ""
    return f"This is host-bound: a dearer GPU buys nothing until the batch grows.{enough}"


def _spot(row: RankedOffer) -> str:
    if row.spot_break_even is None or row.spot_break_even <= 0:
        return ""
    return f"Spot wins there while lost work stays under {format_percent(row.spot_break_even)}."


def cpu_sentences(request: RankRequest, speeds: Speeds) -> list[str]:
    """Return what the CPU that was measured here makes of the job, where that is worth knowing."""
    if request.job_samples is None or CPU_KEY not in speeds.keys:
        return []
    row = speeds.keys.index(CPU_KEY)
    slow = speeds.low[row] if speeds.low[row] > 0 else speeds.samples_per_s[row]
    hours = train_hours(request.job_samples, float(slow))
    if hours <= (request.deadline_hours or NO_GPU_HOURS):
        return [
            f"You do not need a GPU for this: the CPU here does the job in {format_duration(hours * 3600)}."
        ]
    return [f"The CPU here would take {format_duration(hours * 3600)}."]


def buying_sentences(decisions: Sequence[BuyOrRent]) -> list[str]:
    """Return a sentence for the best machines: buy or rent, from how many hours on, and against what."""
    by_the_hour = [each for each in decisions if each.against_pricing is Pricing.ON_DEMAND]
    return [_buying(each) for each in by_the_hour[:MOST_MACHINES]]


def _buying(each: BuyOrRent) -> str:
    machine = f"{each.gpu_count}x {gpu_name(each.gpu_key)} for {format_usd(each.purchase_usd)}"
    against = f"{each.against} ({format_usd(each.equivalent_usd_per_hour)}/h for the same work)"
    if each.verdict == "rent":
        return f"Rather than buy {machine}, rent {against}: it pays in no case considered."
    share = _percents(
        each.break_even_utilisation_low, each.break_even_utilisation, each.break_even_utilisation_high
    )
    hours = _hours(each.break_even_hours_low, each.break_even_hours, each.break_even_hours_high)
    word = "pays" if each.verdict == "buy" else "can pay"
    return f"Buying {machine} {word} after {hours} of work, {share} of its life, against {against}."


def _hours(low: float | None, likely: float | None, high: float | None) -> str:
    first = "more hours than it has" if likely is None else f"{format_number(likely)} h"
    ends = (UNKNOWN if low is None else format_number(low), "never" if high is None else format_number(high))
    return f"{first} ({ends[0]} to {ends[1]})"


def _percents(low: float | None, likely: float | None, high: float | None) -> str:
    first = "never" if likely is None else format_percent(likely)
    ends = ["never" if end is None else format_percent(end) for end in (low, high)]
    return f"{first} ({ends[0]} to {ends[1]})"
