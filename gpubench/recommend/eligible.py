"""The offers that pass the filters, can run the job and meet its limits, best first."""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import repeat
from types import MappingProxyType

import msgspec
import numpy as np

from gpubench.arrays import Flags, Floats, Indices
from gpubench.errors import MisuseError
from gpubench.labels import gpus_at
from gpubench.measure.request import RunRequest
from gpubench.models import Estimate, Execution, Offer, Pricing
from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, USUAL_DRIFT, age_days, dated
from gpubench.offers.outliers import AskedPrices
from gpubench.offers.table import NOT_RANKED, Offers, asks_of, kinds_of, places_by_kind
from gpubench.options import asked_recipe, words_of
from gpubench.precisions import AMP, Precision
from gpubench.predict.answers import draw
from gpubench.predict.question import never_predicted
from gpubench.recommend import objective
from gpubench.recommend.candidates import Candidates, Work, candidates_of, work_of
from gpubench.recommend.economics import Market
from gpubench.recommend.evidence import Evidence, Refuser
from gpubench.recommend.filters import (
    NO_FIGURE,
    Exclusion,
    apply,
    filters_of,
    leave_out_doubted,
    nearest_of,
    nothing_left,
    payment_filters,
    rented_host_filters,
    within_purchase_limit,
)
from gpubench.recommend.owning import Ownership, card_share, quote_doubt
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import Drawer, Scaling, Speeds, combine, gpus_needed, scaling_of
from gpubench.specs import load_specs
from gpubench.units import count, format_number, format_usd, listing, plain


@dataclass(frozen=True)
class FilterResult:
    """The result of the filters that need no throughput, which is the same for every workload.

    Attributes:
        every: All offers.
        kept: Offers that pass, with the requested pricing.
        possible: Offers that pass, with any pricing.
        for_sale: Hardware to buy that would pass the filters.
        excluded: The excluded offers, with reasons.
        doubted_as_requested: Offers with the requested pricing that were excluded for a doubtful price.
        accepted: Offers ranked despite a doubtful price: the buyer's own, and admitted ones.
        asked_prices: Every provider's prices, to find doubtful ones.
        market: The day of the ranking, and what the expected prices depend on.
        owned: The machine behind each offer to own.
        machines: The same, plus the machines behind ``for_sale``.
    """

    every: Offers
    kept: Offers
    possible: Offers
    for_sale: Offers
    excluded: list[Exclusion]
    doubted_as_requested: list[Exclusion]
    accepted: Offers
    asked_prices: AskedPrices
    market: Market
    owned: Mapping[Offer, Ownership]
    machines: Mapping[Offer, Ownership]

    def doubt(self, offer: Offer) -> str | None:
        """Return why the price of a ranked offer is doubtful, in a few words; None if it is not."""
        if (machine := self.owned.get(offer)) is not None:
            return quote_doubt(machine)
        age = age_days(offer.price_date, self.market.today)
        is_old = age > NOT_CURRENT_AFTER_DAYS and offer.pricing is not Pricing.OWNED
        old = f"a price of {dated(offer.price_date, age)}" if is_old else None
        return self.asked_prices.doubt_in_short(offer) or old or self.asked_prices.caution(offer)


def sift(
    request: RankRequest,
    offers: Iterable[Offer],
    *,
    today: date,
    owned: Mapping[Offer, Ownership] = MappingProxyType({}),
    for_sale: Mapping[Offer, Ownership] = MappingProxyType({}),
    drift: float = USUAL_DRIFT,
) -> FilterResult:
    """Apply every filter of the request that needs no throughput.

    Args:
        request: A checked request.
        offers: Every known offer to rent, in any order.
        today: The day as of which price ages are computed.
        owned: The machine behind each offer to own that is to be ranked.
        for_sale: Hardware that could be bought and is not ranked; the best is shown next to the ranking.
        drift: Drift of list prices in a year, see ``offers.dates.drift_of``.

    Raises:
        MisuseError: If a name is unknown, or if no offer is left; the message then counts the offers that
            each filter removed.
    """
    to_rent, machines = Offers.of(offers), {**for_sale, **owned}
    asked_prices = to_rent.cached(AskedPrices)
    every = to_rent.joined(Offers.of(owned)) if owned else to_rent
    shares = {offer: card_share(machine) for offer, machine in machines.items()}
    # Expected prices depend on every offer on the market, whatever the request excludes.
    of_market = every.kind.is_in(lambda kind: kind == "index" or kind not in NOT_RANKED) & ~every.is_owned
    trusted, _, _ = leave_out_doubted(asked_prices, every.where(of_market), accept=request.accept_outliers)
    market = Market(today, asks_of(trusted), drift, shares)
    filters = list(filters_of(request, every, market, machines))
    possible, excluded = apply(filters, every)
    most_usd = math.inf if request.budget_usd is None else request.budget_usd
    sold, _ = apply(filters, [offer for offer, each in for_sale.items() if each.purchase_usd <= most_usd])
    possible, doubted, accepted = leave_out_doubted(asked_prices, possible, accept=request.accept_outliers)
    paid_as_requested = payment_filters(request, every.pricing.present)
    kept, otherwise_paid = apply(paid_as_requested, possible)
    excluded += [*doubted, *otherwise_paid]
    _require(kept, every, excluded)
    return FilterResult(
        every=every,
        kept=kept,
        possible=possible,
        for_sale=sold,
        excluded=excluded,
        doubted_as_requested=[each for each in doubted if len(apply(paid_as_requested, [each.offer])[0])],
        accepted=accepted,
        asked_prices=asked_prices,
        market=market,
        owned=owned,
        machines=machines,
    )


@dataclass(frozen=True)
class CandidateFinder:
    """Determines which of the remaining offers can run the job, and how fast.

    Attributes:
        request: The request, with ``relative`` set if no job can be assumed.
        speeds: Speed of one GPU of each model.
        why_no_room: Says why a job that several GPUs share does not fit in their memory; None if each GPU
            runs its own job.
        work: The job; None if the request is ``relative``.
        scalings: Cache of each machine's scaling, by GPU key and number of GPUs.
    """

    request: RankRequest
    filtered: FilterResult
    evidence: Evidence
    speeds: Speeds
    why_no_room: Refuser | None
    work: Work | None = None
    scalings: dict[tuple[str, int], Scaling] = field(default_factory=dict)

    @cached_property
    def parts(self) -> Mapping[str, Mapping[str, Estimate]]:
        """The estimate for each workload on one GPU, by GPU key and workload."""
        workloads = tuple(self.evidence.answers)
        by_gpu = zip(self.speeds.keys, self.speeds.parts, strict=True)
        return {key: dict(zip(workloads, each, strict=True)) for key, each in by_gpu}

    @property
    def photograph_share(self) -> float:
        """Share of the samples that a host's vCPUs must prepare, because these samples are photographs.

        Several workloads at their geometric mean are not a job, so nothing has to be prepared.
        """
        names, mix = self.request.workload_names, self.request.mix
        if mix:
            return sum(mix[name] for name in names if name in self.evidence.photographs) / sum(mix.values())
        return float(len(names) == 1 and names[0] in self.evidence.photographs)

    def runnable(self, offers: Offers) -> tuple[Offers, list[Exclusion]]:
        """Split offers into those that can run the job and those that cannot, or might not."""
        machines = kinds_of(offers.gpu_key, offers.gpu_count)
        why = [self._why_not(*machine) for machine in machines.values]
        can_run = np.array([text is None for text in why], dtype=bool)[machines.codes]
        places = np.flatnonzero(~can_run)
        reasons = [why[machine] or "" for machine in machines.codes[places].tolist()]
        excluded = map(Exclusion, repeat(offers), places.tolist(), repeat(NO_FIGURE), reasons)
        return offers.where(can_run), list(excluded)

    def _why_not(self, gpu_key: str, gpu_count: int) -> str | None:
        # Return why this number of GPUs cannot run the job, or might not; None if they can.
        spec = load_specs().get(gpu_key)
        if gpu_key not in self.parts:
            listed = None if spec is None else spec.not_ranked_because
            unknown = "it is not in the GPU table, and none of your runs measured this work on it"
            return listed or self.speeds.refusals.get(gpu_key, unknown)
        for part in self.parts[gpu_key].values():
            if gpu_count < part.fewest_gpus:
                there = "one GPU" if gpu_count == 1 else f"{gpu_count} GPUs"
                workload, batch = part.case.workload, part.case.batch_size
                smaller = ", or a smaller batch (see `gpubench memory`)" if batch > 1 else ""
                needs = f"{gpus_needed(part.fewest_gpus)}{smaller}"
                return f"{workload} at batch {batch:,} may not fit on {there}: it {needs}"
        if self.why_no_room is None or gpu_count == 1:
            return None
        if spec is None:
            return f"how fast {gpu_count} of these share one job is unknown: they are not in the GPU table"
        found = (self.why_no_room(name, spec, gpu_count, part) for name, part in self.parts[gpu_key].items())
        return next(filter(None, found), None)

    def pool_of(self, offers: Offers) -> Candidates:
        """Arrange offers as columns."""
        request, evidence = self.request, self.evidence
        scaler = evidence.scaler if request.one_job_over_all_gpus else evidence.independent
        for key, gpu_count in set(kinds_of(offers.gpu_key, offers.gpu_count).values) - self.scalings.keys():
            spec, parts = load_specs().get(key), self.parts[key]
            self.scalings[key, gpu_count] = scaling_of(
                spec, gpu_count, parts, scaler=scaler, shares=request.mix
            )
        return candidates_of(
            request,
            offers,
            self.speeds,
            scaling_of=self.scalings,
            market=self.filtered.market,
            photograph_share=self.photograph_share,
            work=self.work,
        )

    def within_limits(self, offers: Offers) -> tuple[Candidates, list[Exclusion]]:
        """Return the offers that meet the job's limits, as columns, and why each of the others does not."""
        pool = self.pool_of(offers)
        missed = _misses(pool)
        if not missed:
            return pool, []
        meets = np.ones(len(offers), dtype=bool)
        meets[list(missed)] = False
        return self.pool_of(offers.where(meets)), list(missed.values())


@dataclass(frozen=True)
class Eligible:
    """Offers that can do the job, best first. A place is a position in this order, starting at 0.

    Attributes:
        finder: Evaluates these and other offers.
        order: The rows of the pool, best first.
        excluded: The excluded offers, with reasons.
    """

    finder: CandidateFinder
    pool: Candidates
    order: Indices
    chances: objective.Chances
    excluded: list[Exclusion]

    def __len__(self) -> int:
        return len(self.order)

    @property
    def request(self) -> RankRequest:
        """The request, with ``relative`` set if no job can be assumed."""
        return self.finder.request

    @property
    def filtered(self) -> FilterResult:
        """The offers that pass the filters."""
        return self.finder.filtered

    @cached_property
    def offers(self) -> Offers:
        """The offers, best first."""
        return self.pool.offers.take(self.order)

    @cached_property
    def is_owned(self) -> Flags:
        """Which places are hardware to own."""
        return self.pool.is_owned[self.order]

    @cached_property
    def by_gpu(self) -> Mapping[str, Indices]:
        """The places of each GPU; GPUs and places are both in order, best first."""
        keys = self.pool.speeds.keys
        return {keys[gpu]: places for gpu, places in places_by_kind(self.pool.gpu[self.order]).items()}

    @cached_property
    def answers(self) -> Mapping[str, int]:
        """The places of the three answers; guesses outside the fit come after all others.

        The fastest answer is the cheapest offer of the fastest machine: its sellers differ little in speed.
        """
        pool, place_of = self.pool, np.empty(len(self), dtype=np.int64)
        place_of[self.order] = np.arange(len(self))
        sorts = {"cheapest": "cost", "sensible": "value", "fastest": "time"}
        rows = {name: objective.first(pool.with_request(sort=sort)) for name, sort in sorts.items()}
        (time, _), fastest = objective.time_and_cost(pool, slice(None)), rows["fastest"]
        is_same = (pool.gpu == pool.gpu[fastest]) & (pool.count == pool.count[fastest])
        is_same &= time <= time[fastest] * (1 + objective.ALIKE)
        rows["fastest"] = objective.first(pool.with_request(sort="cost"), is_same)
        return {name: int(place_of[row]) for name, row in rows.items()}

    @cached_property
    def time_and_cost(self) -> tuple[Floats, Floats]:
        """Time and cost by place, for the job or, without a job, for one sample."""
        return objective.time_and_cost(self.pool, self.order)


def eligible(
    request: RankRequest,
    filtered: FilterResult,
    evidence_for: Callable[[Sequence[str]], Evidence],
    drawer: Drawer | None = None,
) -> Eligible:
    """Sort the offers that can do the job.

    Args:
        request: A checked request.
        filtered: The offers that pass the filters of the same request.
        evidence_for: Maps GPU keys to their evidence.
        drawer: Joint draws of estimates; None for ``predict.answers.draw``.

    Raises:
        MisuseError: If no offer is left; the message counts the offers that each filter removed.
    """
    finder, kept, excluded = runnable_of(request, filtered, evidence_for, drawer)
    if finder.work is None:
        finder = replace(finder, request=msgspec.structs.replace(request, relative=True))
    pool, missed = finder.within_limits(kept)
    excluded += missed
    if not len(pool):
        raise MisuseError(
            f"none of {count(len(kept), 'offer')} that can do the job meets "
            f"{listing(dict.fromkeys(each.option for each in missed))} at the pessimistic end of its "
            f"interval: {nearest_of(missed)}; {_relaxed(finder.pool_of(kept))}"
        )
    order = objective.order(pool)
    return Eligible(finder, pool, order, objective.chances_of(pool, order), excluded)


def runnable_of(
    request: RankRequest,
    filtered: FilterResult,
    evidence_for: Callable[[Sequence[str]], Evidence],
    drawer: Drawer | None = None,
) -> tuple[CandidateFinder, Offers, list[Exclusion]]:
    """Return the finder for the offers, the offers that can do the work, and those excluded so far.

    The arguments are those of ``eligible``.

    Raises:
        MisuseError: If no offer can do the work; the message counts the offers that each filter removed.
    """
    keys = {*filtered.possible.gpu_key.present, *filtered.for_sale.gpu_key.present}
    evidence = evidence_for(sorted(keys | {request.reference_gpu}))
    speeds = combine(evidence.answers, request.mix, drawer or draw, request.draws, request.seed)
    why_no_room = evidence.why_no_room if request.one_job_over_all_gpus else None
    finder = CandidateFinder(request, filtered, evidence, speeds, why_no_room)
    kept, unknown = finder.runnable(filtered.kept)
    kept, without = apply(rented_host_filters(evidence.host), kept)
    kept, dear = within_purchase_limit(request, kept, filtered.machines)
    if not len(kept):
        _refuse_never_predicted(request, unknown)
    excluded = [*filtered.excluded, *unknown, *without, *dear]
    _require(kept, filtered.every, excluded)
    work = work_of(request, speeds, evidence.usual_job, unit_of(speeds))
    return replace(finder, work=work), kept, excluded


def unit_of(speeds: Speeds) -> str:
    """Return a sample's unit; for several workloads just "sample"."""
    return speeds.parts[0][0].case.sample_unit if len(speeds.parts[0]) == 1 else "sample"


def _require(kept: Offers, offers: Offers, excluded: Sequence[Exclusion]) -> None:
    if not len(kept):
        raise nothing_left(len(offers), excluded)


def _refuse_never_predicted(request: RankRequest, unknown: Iterable[Exclusion]) -> None:
    # Raise an error with the command that measures the work, if its precision or mode is never predicted.
    named = [] if request.precision in {None, AMP} else [Precision(request.precision)]
    ways: list[Precision | Execution] = [*named, Execution(request.execution)]
    reasons = {each.reason for each in unknown}
    reason = next(filter(reasons.__contains__, map(never_predicted, ways)), None)
    if reason is not None:
        run = RunRequest(
            workloads=request.workload_names,
            precisions=() if request.precision is None else (request.precision,),
            **asked_recipe(request),
            executions=(request.execution,),
            task=request.task,
            batch_size=request.batch_size,
        )
        raise MisuseError(
            f"{reason}; no stored run has it in {request.execution} mode for a GPU among the offers: run "
            f"`gpubench run {plain(shlex.join(words_of(run)))}` on one of those GPUs, then rank again"
        )


# --- deadlines and budgets ------------------------------------------------------------------------------


def _misses(pool: Candidates) -> dict[int, Exclusion]:
    """Return the rows that may exceed the deadline or the budget, with reasons, nearest to the limit last.

    A limit is compared with the unfavorable end of the interval. A row without an interval is judged by its
    estimate.

    Raises:
        MisuseError: If there is no job, for example because the reference GPU has no figure.
    """
    if pool.request.deadline_hours is None and pool.request.budget_usd is None:
        return {}
    if pool.work is None:
        raise MisuseError("a deadline or a budget needs a job, and none can be assumed here: add --samples")
    (hours, slow_hours), (usd, dear_usd) = _likely_and_worst(pool)
    hour_words, usd_words = "takes {} h ({} h if slow), above {} h", "costs {} (up to {}), above {}"
    feed_limited = pool.vcpu_limit < pool.gpus_rate
    found: dict[int, Exclusion] = {}
    for option, limit, likely, worst, template, formatted in (
        ("--deadline-hours", pool.request.deadline_hours, hours, slow_hours, hour_words, format_number),
        ("--budget-usd", pool.request.budget_usd, usd, dear_usd, usd_words, format_usd),
    ):
        above = np.flatnonzero(worst > (math.inf if limit is None else limit))
        for row in above[np.argsort(-worst[above], kind="stable")].tolist():
            reason = template.format(*map(formatted, (likely[row], worst[row], limit)))
            if feed_limited[row]:
                reason += f", at the rate of its {pool.offers[row].vcpus:g} vCPUs (assumed)"
            found.setdefault(row, Exclusion(pool.offers, row, option, reason))
    return found


def _likely_and_worst(pool: Candidates) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    # Return the hours and dollars of each row, likely and worst; without an interval the two are equal.
    figures = (ends(pool, slice(None)) for ends in (objective.hours_with_ends, objective.cost_with_ends))
    hours, usd = ((likely, np.where(np.isnan(high), likely, high)) for likely, _, high in figures)
    return hours, usd


def _relaxed(pool: Candidates) -> str:
    # Say how far a limit must be relaxed to admit an offer, keeping the other limit if possible.
    (_, slow_hours), (_, dear_usd) = _likely_and_worst(pool)
    limits = (
        (
            "--deadline-hours",
            slow_hours,
            math.inf if pool.request.deadline_hours is None else pool.request.deadline_hours,
        ),
        ("--budget-usd", dear_usd, math.inf if pool.request.budget_usd is None else pool.request.budget_usd),
    )
    ways = []
    for (option, worst, limit), (_, other, other_limit) in (limits, limits[::-1]):  # keep the other limit
        within = np.flatnonzero(other <= other_limit)
        if math.isfinite(limit) and len(within):
            row = int(within[np.argmin(worst[within])])
            ways.append(f"{option} {_at_least(worst[row])} would leave {gpus_at(pool.offers[row])}")
    if not ways:
        beyond = [worst / limit for _, worst, limit in limits if math.isfinite(limit)]
        row = int(np.argmin(np.maximum.reduce(beyond)))
        both = " and ".join(
            f"{option} {_at_least(max(worst[row], limit))}"
            for option, worst, limit in limits
            if math.isfinite(limit)
        )
        ways.append(f"{both} would leave {gpus_at(pool.offers[row])}")
    return ", ".join(ways)


def _at_least(figure: float) -> str:
    # Format an option's value with three digits, rounded up so that it suffices.
    step = 10.0 ** (math.floor(math.log10(figure)) - 2)
    return f"{math.ceil(figure / step) * step:.12g}"
