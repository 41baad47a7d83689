"""From columns to rows: rank, chances, value, job and Pareto set of the offers that are looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, TypeAlias, overload

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.labels import full_name
from gpubench.models import (
    Estimate,
    Finding,
    FindingKind,
    Offer,
    ParallelMode,
    Pricing,
    RankedOffer,
    TaskKind,
)
from gpubench.offers.columns import Offers
from gpubench.offers.dates import STALE_AFTER_DAYS, age_days
from gpubench.offers.table import OfferKey, offer_key
from gpubench.recommend import economics, objective
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.chances import Chances
from gpubench.recommend.factors import factors_of
from gpubench.recommend.objective import cost_with_ends, hours, job_rates, time_and_cost, value_with_ends
from gpubench.recommend.prices import Market, prices_of
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import with_fits, with_memory_of
from gpubench.specs import load_specs
from gpubench.torch_builds import other_build_for


class Rows(Sequence[RankedOffer]):
    """Every row of a ranking, best first, each made when it is asked for: of 100,000 few are looked at.

    Attributes:
        offers: The offer of each row.
    """

    def __init__(
        self,
        request: RankRequest,
        pool: Candidates,
        order: Indices,
        chances: Chances,
        *,
        market: Market,
        possible: Offers | None = None,
        doubts: Mapping[OfferKey, str] = MappingProxyType({}),
    ) -> None:
        """Keep the columns that rows are made of.

        Args:
            request: What was asked.
            pool: The offers.
            order: Rows of the pool, best first.
            chances: How sure their order is.
            market: What is expected of prices, and the day that their ages count to.
            possible: The same offers however they are paid: what spot prices are held against.
            doubts: Why prices that rank are doubted; it comes first in the note of such an offer.
        """
        self.offers = pool.offers.take(order)
        self._request, self._pool, self._order, self._chances = request, pool, order, chances
        self._doubts = doubts
        self._ages = {day: age_days(day, market.today) for day in pool.offers.price_date.present}
        self._stale = {age: _stale(age) for age in self._ages.values()}
        self._on_demand = _on_demand(possible, market) if request.spot and possible is not None else {}
        estimates, parts = pool.speeds.estimates, pool.speeds.parts
        self._by_gpu: dict[str, Sequence[Any]] = {
            "fits_memory": [each.fits_memory for each in estimates],
            "latency_s": [  # of one batch of one workload
                each[0].case.batch_size / each[0].samples_per_s
                if len(each) == 1 and each[0].case.task is TaskKind.INFER
                else None
                for each in parts
            ],
            "factors": [factors_of(load_specs().get(key)) for key in pool.speeds.keys],
        }
        self._time, self._money = time_and_cost(request, pool, order)
        self._gpus_rate = pool.gpus_rate
        self._memory = np.nan_to_num(pool.memory[order], nan=0.0)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.offers)

    @overload
    def __getitem__(self, at: int) -> RankedOffer: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[RankedOffer, ...]: ...
    def __getitem__(self, at: int | slice) -> RankedOffer | tuple[RankedOffer, ...]:
        """Return one row, or several."""
        chosen = np.arange(len(self))[at]
        return self.at(chosen) if isinstance(at, slice) else self.at([int(chosen)])[0]

    @cached_property
    def of_gpu(self) -> Mapping[str, Indices]:
        """The rows of each GPU, GPUs and rows best first."""
        keys = self._pool.speeds.keys
        return {keys[gpu]: rows for gpu, rows in _alike(self._pool.gpu[self._order]).items()}

    def p_best_of_gpu(self, offer: Offer) -> float:
        """Return the probability that an offer of this GPU is the best: of several, at most one is.

        Args:
            offer: An offer of the ranking: of hardware to own all such count, else all to rent.
        """
        same = self.of_gpu[offer.gpu_key]
        alike = same[self.is_owned[same] == (offer.pricing is Pricing.OWNED)]
        return min(1.0, float(np.nansum(self._chances.p_best[alike])))

    @cached_property
    def _dominators(self) -> Dominators:
        return Dominators(self._time, self._money, self._memory, self._pool.kind[self._order])

    @cached_property
    def is_owned(self) -> Flags:
        """Which rows are hardware to own."""
        return self._pool.is_owned[self._order]

    @property
    def owned(self) -> Indices:
        """The rows of owned hardware."""
        return np.flatnonzero(self.is_owned)

    @cached_property
    def best_to_rent_and_to_own(self) -> Sequence[int]:
        """The first row of each GPU to rent, and the first to own, in their order."""
        kinds = 2 * self._pool.gpu[self._order] + self.is_owned
        return [int(rows[0]) for rows in _alike(kinds).values()]

    @property
    def runner_up(self) -> int | None:
        """The best row of another GPU than the first's; of a single GPU another provider's, else the next."""
        if len(self.of_gpu) > 1:
            return int(list(self.of_gpu.values())[1][0])
        elsewhere = np.flatnonzero(~self.offers.provider.equals(self.offers[0].provider))
        return int(elsewhere[0]) if len(elsewhere) else 1 if len(self) > 1 else None

    @property
    def one_a_gpu(self) -> Sequence[int]:
        """The best row of each GPU to rent, and each of what is owned or could be; of one GPU every row."""
        if len(self.of_gpu) == 1:
            return range(len(self))
        return sorted({*self.best_to_rent_and_to_own, *self.owned.tolist()})

    @cached_property
    def owned_or_spot(self) -> Indices:
        """The rows that are no rent at a fixed price."""
        return np.flatnonzero(self.is_owned | self.offers.pricing.equals(Pricing.SPOT))

    def head(self, most: int) -> Indices:
        """Return so many rows, and those that stay in every cut: the best of each GPU, and what is owned.

        Of the rows that nothing dominates twice as many stay, so that enough are left below the first.
        """
        undominated = np.flatnonzero(self._dominators.of(np.arange(len(self))) < 0)[: 2 * most]
        first = np.arange(min(most, len(self)))
        return np.unique(np.concatenate([first, self.best_to_rent_and_to_own, self.owned, undominated]))

    @property
    def leading(self) -> Sequence[RankedOffer]:
        """The rows that share the first rank."""
        ranks = self._chances.ranks
        return self[: ranks.count(ranks[0])]

    @cached_property
    def prices(self) -> Floats:
        """What each row is expected to cost by the hour [USD]."""
        return self._pool.price[self._order]

    def price_and_cost(self, at: int) -> tuple[float, float | None]:
        """Return what one row is expected to cost by the hour and the job [USD], without making the row."""
        price = float(self.prices[at])
        return price, None if self._pool.work is None else float(self._money[at])

    def __iter__(self) -> Iterator[RankedOffer]:
        """Yield every row."""
        return iter(self[:])

    def at(self, positions: Sequence[int] | Indices) -> tuple[RankedOffer, ...]:
        """Return the rows at these positions."""
        chosen = np.asarray(positions, dtype=np.int64)
        columns = self._known(chosen) | self._figures(chosen) | self._pareto(chosen)
        names = tuple(columns)
        return tuple(
            RankedOffer(**dict(zip(names, values, strict=True)))
            for values in zip(*columns.values(), strict=True)
        )

    def _known(self, chosen: Indices) -> dict[str, Sequence[Any]]:
        """Return what is known of rows before any arithmetic: the offer, its GPU, the age of its price."""
        offers = [self._noted(self.offers[at]) for at in chosen.tolist()]
        rows = self._order[chosen].tolist()
        gpus = self._pool.gpu[rows].tolist()
        ages = [self._ages[offer.price_date] for offer in offers]
        estimates = self._pool.speeds.estimates
        known: dict[str, Sequence[Any]] = {
            "offer": offers,
            "scaling_basis": [self._pool.scaling(row).basis for row in rows],
            "price_age_days": ages,
            "spot_break_even": self._spot_break_even(offers, rows),
            "findings": [
                estimates[gpu].findings
                + self._stale[age]
                + self._feed_bound(offer, row)
                + _torch_build(offer.gpu_key)
                for offer, row, gpu, age in zip(offers, rows, gpus, ages, strict=True)
            ],
            "parallel_mode": [self._pool.scaling(row).mode for row in rows],
            **{name: [values[gpu] for gpu in gpus] for name, values in self._by_gpu.items()},
        }
        return known | self._estimates(rows, gpus)

    def doubt(self, offer: Offer) -> str | None:
        """Return why the price of an offer is doubted, in a few words; None where it is believed."""
        return self._doubts.get(offer_key(offer)) if self._doubts else None

    def _feed_bound(self, offer: Offer, row: int) -> tuple[Finding, ...]:
        takes, fed = float(self._gpus_rate[row]), float(self._pool.fed[row])
        if offer.vcpus is None or takes <= fed:
            return ()
        return (Finding(kind=FindingKind.FEED_BOUND, value=offer.vcpus * takes / fed, limit=offer.vcpus),)

    def _noted(self, offer: Offer) -> Offer:
        doubt = self.doubt(offer)
        if doubt is None:
            return offer
        note = f"price {doubt}"
        return msgspec.structs.replace(offer, note=f"{note}; {offer.note}" if offer.note else note)

    def _estimates(self, rows: Sequence[int], gpus: Sequence[int]) -> dict[str, Sequence[Any]]:
        """Return the estimates of rows, with the memory of each of the GPUs that share the job."""
        speeds = self._pool.speeds

        @cache
        def found(gpu: int, machine: int) -> tuple[Estimate, tuple[Estimate, ...]]:
            scaling = self._pool.scalings[machine]
            sharded = scaling.mode is ParallelMode.FSDP
            parts = with_fits(speeds.parts[gpu], scaling.fits, sharded=sharded)
            estimate = speeds.estimates[gpu]
            if parts is not speeds.parts[gpu]:
                estimate = with_memory_of(estimate, parts)
            return estimate, parts if len(parts) > 1 else ()

        both = [found(*each) for each in zip(gpus, self._pool.machine[rows].tolist(), strict=True)]
        return {"estimate": [one for one, _ in both], "parts": [parts for _, parts in both]}

    def _spot_break_even(self, offers: Sequence[Offer], rows: Sequence[int]) -> list[float | None]:
        """Return the share of work that may be lost before on demand is as cheap."""
        found: list[float | None] = [None] * len(rows)
        machines = ((offer.provider, offer.instance, offer.region) for offer in offers)
        both = {
            at: usd
            for at, (offer, machine) in enumerate(zip(offers, machines, strict=True))
            if offer.pricing is Pricing.SPOT and (usd := self._on_demand.get(machine)) is not None
        }
        if both:
            spots, on_demand = np.array(rows)[list(both)], np.array(list(both.values()))
            shares = objective.spot_break_even(self._request, self._pool, spots, on_demand).tolist()
            for at, share in zip(both, shares, strict=True):
                found[at] = share
        return found

    def _figures(self, chosen: Indices) -> dict[str, Sequence[Any]]:
        """Return the computed fields of rows."""
        request, pool, chances, rows = self._request, self._pool, self._chances, self._order[chosen]
        price, price_factor = pool.price[rows], np.exp(pool.prices.half_width[rows])
        rates = pool.rate[rows], pool.rate_low[rows], pool.rate_high[rows]
        value, value_low, value_high = value_with_ends(pool, rows, rates)
        row = pool.speeds.row_of_one(request.reference_gpu)
        reference = math.nan if row is None else float(pool.speeds.samples_per_s[row])
        ratios = (pool.rate[rows], pool.ratio_low[rows], pool.ratio_high[rows])
        score, score_low, score_high = (each / reference for each in ratios)
        per_usd = value_with_ends(pool, rows, (score, score_low, score_high))
        job = {}
        if pool.work is not None:
            job = _with_ends("hours", *(hours(request, pool, rate[rows], rows) for rate in job_rates(pool)))
            job |= _with_ends("cost_usd", *cost_with_ends(request, pool, rows))
        return {
            "rank": [chances.ranks[at] for at in chosen.tolist()],
            "tie": [chances.ties[at] for at in chosen.tolist()],
            "p_best": _none_for_nan(chances.p_best[chosen]),
            **_with_ends("expected_usd_per_hour", price, price / price_factor, price * price_factor),
            **_with_ends("samples_per_s", *rates),
            "gpus_samples_per_s": self._gpus_rate[rows].tolist(),
            **_with_ends("samples_per_usd", value, value_low, value_high),
            "usd_per_million_samples": economics.usd_per_million_samples(value).tolist(),
            "scaling_efficiency": [pool.scaling(row).efficiency for row in rows],
            **_with_ends("score", score, score_low, score_high),
            **_with_ends("reference_hours_per_usd", *(each / economics.SECONDS_PER_HOUR for each in per_usd)),
            **job,
        }

    def _pareto(self, chosen: Indices) -> dict[str, Sequence[Any]]:
        """Return whether nothing beats a row in time, cost and memory at once, and what does."""
        time, money, memory = self._time, self._money, self._memory
        by = self._dominators.of(chosen)
        better = (
            (time[by] < time[chosen]) * _FASTER
            + (money[by] < money[chosen]) * _CHEAPER
            + (memory[by] > memory[chosen]) * _LARGER
        )
        work = " per sample" if self._pool.work is None else ""
        reasons = [
            None if rival < 0 else f"{full_name(self.offers[rival])}: {_ADVANTAGES[kind].format(work=work)}"
            for rival, kind in zip(by.tolist(), better.tolist(), strict=True)
        ]
        return {"pareto": (by < 0).tolist(), "dominated_by": reasons}


Chosen: TypeAlias = Callable[[Rows], Indices]
"""Which rows of a ranking are made."""


def _alike(kinds: Indices) -> Mapping[int, Indices]:
    """Return the positions of each kind, in their order, kinds by their first."""
    by_kind = np.argsort(kinds, kind="stable")
    parts = np.split(by_kind, np.flatnonzero(np.diff(kinds[by_kind])) + 1)
    return {int(kinds[part[0]]): part for part in sorted(parts, key=lambda part: int(part[0]))}


def _on_demand(offers: Offers, market: Market) -> dict[tuple[str, str, str | None], float]:
    """Return what each machine is expected to cost on demand [USD/h]."""
    offers = offers.where(offers.pricing.equals(Pricing.ON_DEMAND))
    machines = zip(offers.provider.cells(), offers.instances, offers.region.cells(), strict=True)
    return dict(zip(machines, prices_of(offers, market).expected.tolist(), strict=True))


_FASTER, _CHEAPER, _LARGER = 1, 2, 4
_ADVANTAGES = {
    1: "faster, at no higher cost",
    2: "cheaper{work}, and as fast",
    3: "faster, and cheaper{work}",
    4: "more memory, as fast, at no higher cost",
    5: "faster and more memory, at no higher cost",
    6: "cheaper{work}, more memory, and as fast",
    7: "faster, cheaper{work}, and more memory",
}


def _stale(age_days: int) -> tuple[Finding, ...]:
    if age_days <= STALE_AFTER_DAYS:
        return ()
    return (Finding(kind=FindingKind.STALE_PRICE, value=age_days, limit=STALE_AFTER_DAYS),)


@cache
def _torch_build(gpu_key: str) -> tuple[Finding, ...]:
    spec = load_specs().get(gpu_key)
    build = None if spec is None else other_build_for(spec.compute_capability)
    return () if build is None else (Finding(kind=FindingKind.NEEDS_TORCH_BUILD, value=str(build)),)


def _with_ends(name: str, likely: Floats, low: Floats, high: Floats) -> dict[str, Sequence[float | None]]:
    """Return the columns of a figure and of its ends."""
    figures = {"": likely, "_low": low, "_high": high}
    return {f"{name}{end}": _none_for_nan(values) for end, values in figures.items()}


def _none_for_nan(values: Floats) -> list[float | None]:
    plain: list[float] = values.tolist()
    if np.isnan(values).any():
        return [None if math.isnan(value) else value for value in plain]
    return list[float | None](plain)


_AT_ONCE = 64


class Dominators:
    """Who dominates whom.

    A row dominates another when it is no worse in time, cost and memory and better in at least one. Among
    the rows that dominate, the cheapest is named, of several the fastest. Rows alike in all three do not
    dominate each other.
    """

    def __init__(self, time: Floats, cost: Floats, memory: Floats, kinds: Indices) -> None:
        """Sort rows by what they take.

        Args:
            time: (N,) time to train, less is better.
            cost: (N,) cost to train, less is better.
            memory: (N,) memory of one GPU, more is better; NaN is unknown and counts as none.
            kinds: (N,) rows of one kind are alike in time and memory: the cheapest beats what another beats.
        """
        self._time, self._cost, self._level = time, cost, np.nan_to_num(memory, nan=0.0)
        by_cost = np.argsort(cost, kind="stable")
        cheapest = by_cost[np.unique(kinds[by_cost], return_index=True)[1]]
        level = -self._level[cheapest]
        self._able = cheapest[np.lexsort((cheapest, level, time[cheapest], cost[cheapest]))]

    def of(self, rows: Indices) -> Indices:
        """Return for each of these rows one that dominates it, or -1 where it is on the Pareto set."""
        result = np.full(len(rows), -1, dtype=np.int64)
        able = self._time[self._able], self._cost[self._able], self._level[self._able]
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE, None]
            time, cost, level = self._time[part], self._cost[part], self._level[part]
            no_worse = (able[0] <= time) & (able[1] <= cost) & (able[2] >= level)
            beats = no_worse & ~((able[0] == time) & (able[1] == cost) & (able[2] == level))
            first = self._able[beats.argmax(axis=1)]
            result[start : start + _AT_ONCE] = np.where(beats.any(axis=1), first, -1)
        return result
