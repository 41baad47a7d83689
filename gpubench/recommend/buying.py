"""What to buy: sets of one or two cards with the host around them, held to a purse, a power supply and slots.

How much of its life a set works follows from the jobs of a month, where they are told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from gpubench.models import GpuSpec, Offer, PriceCondition, Purchase, Row
from gpubench.offers.columns import Offers
from gpubench.recommend.economics import HOURS_PER_MONTH
from gpubench.recommend.factors import cooling_of
from gpubench.recommend.filters import PURCHASE, WITHOUT_A_FAN, Exclusion, Filter
from gpubench.recommend.ownership import Ownership, host_power_w, is_a_computer, offer_of
from gpubench.recommend.request import DEFAULT_HOST, Range, RankRequest
from gpubench.recommend.speeds import largest_of
from gpubench.specs import load_specs
from gpubench.units import format_percent, format_price

PSU_SHARE = 0.8
"""Of its rating a power supply is planned for: cards draw more than their board power for milliseconds."""

UNKNOWN_SLOTS = 3.0
"""Slots that a card takes of which the table does not say: most large ones take as many."""

_ROUNDING = 1e-9


def purchase_filters(request: RankRequest, owned: Mapping[Offer, Ownership]) -> list[Filter]:
    """Return what a purchase must keep within: the host's power supply, slots and air.

    Args:
        request: The limits; of a host that is not told they are those of ``DEFAULT_HOST``.
        owned: What owning means, for the owned ones among the offers; others pass.
    """

    def filter_of(option: str, reason: _Reason) -> Filter:
        def of(offer: Offer, spec: GpuSpec | None) -> str | None:
            return reason(request, owned[offer], spec) if offer in owned else None

        return Filter(option, of, owned=True)

    return [filter_of(option, reason) for option, reason in _LIMITS.items()]


Limit = TypeVar("Limit", int, float)

_Reason: TypeAlias = Callable[[RankRequest, Ownership, GpuSpec | None], str | None]


def _limit(given: Limit | None, default: Limit, machine: Ownership) -> Limit | None:
    """Return the limit of a host: what is given, else the default one's where a host is bought too."""
    is_bought_too = machine.condition is not PriceCondition.QUOTED and machine.host_usd > 0
    return default if given is None and is_bought_too else given


def _too_hot(request: RankRequest, machine: Ownership, spec: GpuSpec | None) -> str | None:
    del request
    in_a_default_host = machine.condition is not PriceCondition.QUOTED and "host_usd" in machine.assumed
    if spec is None or not in_a_default_host or cooling_of(spec) == "active":
        return None
    return "it has no fan of its own: give the price of a server for it with --host-usd"


def _too_hungry(request: RankRequest, machine: Ownership, spec: GpuSpec | None) -> str | None:
    rating = _limit(request.psu_watts, DEFAULT_HOST.psu_w, machine)
    if rating is None:
        return None
    cards_w, host_w = _board_power_w(machine, spec), host_power_w(machine.gpu_key)
    if cards_w + host_w <= rating * PSU_SHARE:
        return None
    return (
        f"its cards draw {cards_w:,.0f} W and the host {host_w:.0f} W, above {format_percent(PSU_SHARE)} "
        f"of a power supply of {rating:,.0f} W (--psu-watts)"
    )


def _too_wide(request: RankRequest, machine: Ownership, spec: GpuSpec | None) -> str | None:
    room = _limit(request.slots, DEFAULT_HOST.slots, machine)
    if room is None or (taken := _slots(machine, spec)) <= room:
        return None
    return f"its cards take {taken:g} slots, above {room} (--slots)"


_LIMITS: Mapping[str, _Reason] = {
    WITHOUT_A_FAN: _too_hot,
    "--psu-watts": _too_hungry,
    "--slots": _too_wide,
}


def within_the_sum(
    request: RankRequest, offers: Offers, machines: Mapping[Offer, Ownership]
) -> tuple[Offers, list[Exclusion]]:
    """Part offers into those that the sum buys, and the others with what they cost, the cheapest last."""
    most = request.max_purchase_usd
    if most is None:
        return offers, []
    places = np.flatnonzero(offers.is_owned).tolist()
    costs = {at: machines[offers[at]].in_all_usd for at in places if offers[at] in machines}
    dear = sorted((at for at, usd in costs.items() if usd > most), key=costs.__getitem__, reverse=True)
    is_kept = np.ones(len(offers), dtype=bool)
    is_kept[dear] = False
    fallen = []
    for at in dear:
        machine = machines[offers[at]]
        host = f" with a host of {format_price(machine.host_usd)}" if machine.host_usd else ""
        price = f"{format_price(machine.purchase_usd)}{host}"
        if machine.machine_count > 1:
            price = (
                f"{request.jobs_per_month:g} jobs a month need {cards_needed(machine)} such cards, "
                f"{machine.machine_count} machines at {price}: {format_price(machine.in_all_usd)}"
            )
        fallen.append(Exclusion(offers, at, PURCHASE, f"{price}, above {format_price(most)}"))
    return offers.where(is_kept), fallen


def _board_power_w(machine: Ownership, spec: GpuSpec | None) -> float:
    if spec is None or spec.board_power_w is None:
        return machine.power_w
    return spec.board_power_w * machine.gpu_count


def _slots(machine: Ownership, spec: GpuSpec | None) -> float:
    if is_a_computer(spec):
        return 0.0
    one = None if spec is None else spec.slot_count
    return (UNKNOWN_SLOTS if one is None else one) * machine.gpu_count


def cards_needed(machine: Ownership) -> int | None:
    """Return how many such cards do the jobs of a month; None where no jobs are told.

    One card that 1.4 months of work wait for each month needs another: 2. Beyond one machine they come in
    machines: 1.4 of two cards each are 4.
    """
    if machine.use is None:
        return None
    if machine.machine_count > 1:
        return machine.machine_count * machine.gpu_count
    return max(1, math.ceil(machine.use * machine.gpu_count - _ROUNDING))


def at_work(machines: Iterable[Ownership], rows: Iterable[Row], request: RankRequest) -> list[Ownership]:
    """Return the machines, each used for as much of its life as the jobs of a month take on it.

    4 jobs of 73 h are 4 x 73 / 730 = 40 % of all hours. Of independent jobs each has one card, so that on two
    cards they are 20 %. 14 jobs are 140 %: two machines, each at work 70 %.

    Args:
        machines: At any utilization.
        rows: Their ranking, with the hours of one job.
        request: The jobs of a month.
    """
    assert request.jobs_per_month is not None  # what is bought is compared at so many jobs
    hours = {row.offer: row.hours.value for row in rows}
    found = []
    for machine in machines:
        job_hours = hours.get(offer_of(machine))
        if job_hours is None:
            found.append(machine)
            continue
        at_once = 1 if request.one_job_over_all_gpus else machine.gpu_count
        use = request.jobs_per_month * job_hours / HOURS_PER_MONTH / at_once
        assumed = tuple(field for field in machine.assumed if field != "utilization")
        busy = replace(machine, use=use, assumed=assumed)
        found.append(replace(busy, utilization=Range.of(use / busy.machine_count)))
    return found


def purchases_of(rows: Iterable[Row], owned: Mapping[Offer, Ownership]) -> tuple[Purchase, ...]:
    """Return rows of owned hardware as purchases, in their order."""
    purchases = []
    for row in rows:
        machine, spec = owned[row.offer], load_specs().get(row.offer.gpu_key)
        purchases.append(
            Purchase(
                gpu_key=machine.gpu_key,
                gpu_count=machine.gpu_count,
                condition=machine.condition,
                machine_count=machine.machine_count,
                cards_usd=machine.in_all_usd - machine.hosts_usd,
                host_usd=machine.hosts_usd,
                purchase_usd=machine.in_all_usd,
                price_date=machine.price_date,
                source=machine.source,
                rank=row.rank,
                p_best=row.p_best,
                extrapolated=row.estimate.is_extrapolated,
                board_power_w=_board_power_w(machine, spec),
                slots=_slots(machine, spec),
                memory_free=memory_free(row, spec),
                samples_per_s=row.samples_per_s.value or 0.0,
                samples_per_s_low=row.samples_per_s.low,
                samples_per_s_high=row.samples_per_s.high,
                score=row.score.value,
                score_low=row.score.low,
                score_high=row.score.high,
                usd_per_hour=row.listed_usd_per_hour,
                hours=row.hours.value,
                utilization=machine.utilization.likely,
                cards_needed=cards_needed(machine),
                assumed=machine.assumed,
            )
        )
    return tuple(purchases)


def memory_free(row: Row, spec: GpuSpec | None) -> float | None:
    """Return the share of a card's memory that the largest of the workloads leaves.

    None where memory in use is not known of one: what its tensors take is another figure.
    """
    used = largest_of([each.device_bytes.value for each in row.estimates])
    return None if spec is None or spec.memory_bytes is None or used is None else 1 - used / spec.memory_bytes
