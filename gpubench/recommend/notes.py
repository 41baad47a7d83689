"""What a reader must know of a ranking's figures, a sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from statistics import median

import numpy as np

from gpubench.labels import CONDITION_WORDS, gpu_name, gpus_of
from gpubench.models import Choice, Decision, ParallelMode, Pricing
from gpubench.offers.columns import Offers
from gpubench.offers.dates import ASKS_HALF_LIFE_DAYS, STALE_AFTER_DAYS, age_days, show_price_date
from gpubench.offers.outliers import ADMITTED_BY, AskedPrices, name_of
from gpubench.predict.question import SPEED_UNTOLD
from gpubench.profile import load_profiles
from gpubench.profile.memory import MOST_BATCH
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.chances import IN_DETAIL
from gpubench.recommend.decision import recommended, second_best
from gpubench.recommend.eligible import Eligible, FilterResult
from gpubench.recommend.filters import FAR_BELOW, NO_KERNELS, Exclusion
from gpubench.recommend.owning import assumed_of
from gpubench.recommend.prices import Market
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import batches_of
from gpubench.specs import load_specs
from gpubench.torch_builds import newest_release, other_build_for
from gpubench.units import count, format_number, format_percent, format_price, format_usd, listing, plain


def decisive_notes(found: Eligible, priced: Candidates) -> Iterator[str]:
    """Yield what to read before paying: prices that are doubted or old, and what is not as it was asked.

    Args:
        found: What can do the job.
        priced: The same, and all rent that owned hardware is held against.
    """
    filtered, offers = found.filtered, found.pool.offers
    yield from _left_out_as_outliers(filtered.doubted_as_asked)
    yield from _on_builds(offers)
    yield from _far_from_others(
        filtered.asked, filtered.accepted.where(filtered.accepted.by_user & filtered.accepted.places(offers))
    )
    yield from _not_as_asked(found.request, found.pool)
    yield from _on_ages(priced, filtered.market.today)


def notes_of(found: Eligible, priced: Candidates) -> Iterator[str]:
    """Yield the other notes that apply to a ranking. Args as ``decisive_notes``."""
    request, pool, total = found.request, found.pool, len(found)
    yield from _on_workloads(request)
    yield from _without_kernels(found.filtered.excluded)
    yield from _on_scaling(pool)
    yield from _on_checkpointing(request, pool)
    yield from _on_payment(request, pool)
    yield from _on_hosts(pool)
    keys = pool.offers.gpu_key.present
    if any((spec := load_specs().get(key)) and spec.variants for key in keys):
        yield "A GPU whose form factor is not stated ranks as the slowest that its name can mean."
    if any(e.basis == "predicted" and not e.anchored for e in pool.speeds.estimates):
        yield (
            "The predictions are not anchored to a measurement on a GPU, so their intervals are wide. "
            "Running gpubench run on any GPU narrows them."
        )
    if total > IN_DETAIL:
        yield f"Ties are worked out for the first {IN_DETAIL:,} of {total:,} rows."
    yield from _on_expected_prices(found.filtered.market, priced)
    yield from _free_beside(request, found.filtered)
    untold = {gpu_name(each.offer.gpu_key) for each in found.excluded if SPEED_UNTOLD in each.reason}
    if untold:
        yield f"Not ranked, having no BF16 hardware: {listing(sorted(untold))}. Of each {SPEED_UNTOLD}."


def _not_as_asked(request: RankRequest, pool: Candidates) -> Iterator[str]:
    """Yield what of the question the figures do not answer as it was asked."""
    if request.commit and Pricing.RESERVED not in pool.offers.pricing.present:
        yield (
            "No price left to rank is a commitment, so --commit adds none; "
            "gpubench offers refresh --provider azure reads Azure's."
        )
    if request.batch_size == "max":
        yield (
            f"Best batch: each GPU at its own largest batch, {MOST_BATCH:,} at most, which favors much "
            "memory. Not comparable with the ranking at an equal batch."
        )
        return
    offered = set(pool.offers.gpu_key.present)  # this CPU is none of them
    of_each = zip(pool.speeds.keys, pool.speeds.parts, strict=True)
    if request.max_latency_ms is None and len({batches_of(p) for key, p in of_each if key in offered}) > 1:
        yield "Not every device was measured at the batch asked for: see the column batch."


def on_the_choice(request: RankRequest, decision: Decision) -> Iterator[str]:
    """Yield what to know of the choice: owning it instead, its price, and the photographs that it takes."""
    choice, own = decision.choice, decision.best_to_own
    if own is not None and choice.source != "own":
        own_usd, rented_usd = own.row.cost_usd.value, choice.row.cost_usd.value
        if own_usd is not None and rented_usd is not None and own_usd < rented_usd:
            yield (
                f"Owning {gpus_of(own.offer)} would do the job for {format_usd(own_usd)}, "
                f"against {format_usd(rented_usd)} rented, if it works "
                f"{format_percent(request.utilization.likely)} of all hours for {request.years:g} years: "
                f"{format_price(own.purchase_usd)} is paid first, so --buy ranks it."
            )
        if own.assumed:
            yield f"Best to own assumes {listing(assumed_of([own]))}."
    yield from _on_the_price(choice)
    paid, other = recommended(decision), second_best(decision)
    yield from _on_vcpus(paid)
    if paid.host_unsaid:
        where = f"{gpus_of(paid.offer)} at {plain(paid.offer.provider, 40)}"
        yield f"Of the host of {where} nobody says its {listing(paid.host_unsaid)}: ask before you pay."
    if other is not None and other.can_feed is False:
        yield from _on_vcpus(other)


def _on_the_price(choice: Choice) -> Iterator[str]:
    """Yield what stands beside the price of the choice: other hosts' asks, and the source's own note."""
    asks, offer, row = choice.asks, choice.offer, choice.row
    if asks is not None and asks.ask_count > 1:
        low, middle, high = map(
            format_usd, (asks.low_usd_per_hour, asks.median_usd_per_hour, asks.high_usd_per_hour)
        )
        one, expected = (
            format_usd(usd / offer.gpu_count)
            for usd in (row.listed_usd_per_hour, row.usd_per_hour.value or 0.0)
        )
        yield (
            f"{one} for an hour of {gpu_name(offer.gpu_key)} is {CONDITION_WORDS[choice.condition]}: "
            f"the median of {asks.ask_count} hosts' asks is {middle}, "
            f"nine tenths are {low} to {high}, so expect {expected}."
        )
    if choice.price_note:
        whose = "the card" if choice.source == "own" else plain(offer.provider, 40)
        yield f"On the price of {whose}: {plain(choice.price_note)}."


def _on_expected_prices(market: Market, pool: Candidates) -> Iterator[str]:
    """Yield what is assumed of prices that are older than today."""
    if not pool.prices.sigma.any():
        return
    asks = ""
    if "marketplace" in pool.offers.kind.present:
        days = f"{ASKS_HALF_LIFE_DAYS:g} days"
        asks = f"; a host's ask returns to the middle of all for that GPU, half-way in {days} (assumed)"
    listed = "a list price as listed"
    if (pool.is_owned & (pool.prices.sigma > 0)).any():
        listed += ", a card as it was dated"
    yield (
        f"Prices are what to expect to pay: {listed}, which moves by "
        f"{format_percent(market.drift)} in a year (standard deviation){asks}."
    )


def _on_vcpus(choice: Choice) -> Iterator[str]:
    """Yield how many vCPUs prepare the photographs of what is paid for, and whether it has them."""
    if choice.feed_images_per_s is None or choice.feed_vcpus is None:
        return
    vcpus = choice.offer.vcpus
    has = "how many it has is not known" if vcpus is None else f"it has {vcpus:g}"
    few = ": too few, so it ranks at what they prepare" if choice.can_feed is False else ""
    images_per_s, takes = format_number(choice.feed_images_per_s), format_number(choice.feed_vcpus, 2)
    yield (
        f"{gpus_of(choice.offer)} takes {images_per_s} photographs/s, which about {takes} "
        f"vCPUs prepare (assumed); {has}{few}. gpubench feed measures a host."
    )


def _free_beside(request: RankRequest, filtered: FilterResult) -> Iterator[str]:
    """Yield the free tiers that stand beside a ranking of rented GPUs, with their limits."""
    if request.buys or request.gpus or request.providers:
        return
    for offer in filtered.every.where(filtered.every.kind.equals("free")):
        spec = load_specs().get(offer.gpu_key)
        if spec is not None and spec.not_ranked_because is None:
            limits = f": {plain(offer.note)}" if offer.note else ""
            yield (
                f"Free of charge, so never per dollar: {gpu_name(offer.gpu_key)} at {plain(offer.provider)}, "
                f"{plain(offer.instance)} (listed {offer.price_date}){limits}."
            )


def _left_out_as_outliers(doubted: Sequence[Exclusion]) -> Iterator[str]:
    """Yield the line on prices that are likely mistakes, with the option that ranks them.

    One that is far too high is listed with its reason, and that is all: it could not have been the answer.
    """
    doubted = [each for each in doubted if each.option == FAR_BELOW]
    if doubted:
        first = doubted[0]
        prices = "1 price is" if len(doubted) == 1 else f"{len(doubted):,} prices are"
        more = "" if len(doubted) == 1 else f" and {len(doubted) - 1:,} more (--explain)"
        reason = first.reason.removesuffix(f"; {ADMITTED_BY} ranks it")
        which = "it" if len(doubted) == 1 else "them"
        yield (
            f"{prices} left out as a likely mistake: {name_of(first.offer)}: {reason}{more}; "
            f"{ADMITTED_BY} ranks {which}."
        )


def _without_kernels(fallen: Sequence[Exclusion]) -> Iterator[str]:
    """Yield the line on GPUs that are left out because today's torch has no kernels for them."""
    left_out = dict.fromkeys(gpu_name(each.offer.gpu_key) for each in fallen if each.option == NO_KERNELS)
    if left_out:
        yield (
            f"Left out: {listing(left_out, most=3)}. Torch {newest_release()} as pip installs it has no "
            "kernels for these; naming one with --gpu ranks it."
        )


def _on_builds(offers: Offers) -> Iterator[str]:
    """Yield for each build of torch which of the GPUs that rank need it in place of the one of pip."""
    builds: dict[str, list[str]] = {}
    for key in offers.gpu_key.present:
        if (spec := load_specs().get(key)) and (build := other_build_for(spec.compute_capability)):
            builds.setdefault(str(build), []).append(gpu_name(key))
    for needed, names in builds.items():
        yield (
            f"Torch as pip installs it has no kernels for {listing(names, most=3)}: install {needed}, as the "
            "task of gpubench try does."
        )


def _far_from_others(market: AskedPrices, taken: Offers) -> Iterator[str]:
    """Yield a line on a price of the buyer's own table that no provider bears out: taken, and said."""
    if len(taken):
        offer = taken[0]
        doubt = market.doubt(offer)
        more = "" if len(taken) == 1 else f"; {len(taken) - 1:,} more are like it"
        yield (
            f"Your own price of {name_of(offer)} counts as given: {doubt}; it is of the whole instance "
            f"per hour{more}."
        )


def _on_ages(pool: Candidates, today: date) -> Iterator[str]:
    """Say once how old the prices are, and what reads new ones: the command for those it reads."""
    rented = pool.offers.where(~pool.is_owned)
    ages = {day: age_days(day, today) for day in rented.price_date.present}
    is_old = rented.price_date.is_in(lambda day: ages.get(day, 0) > STALE_AFTER_DAYS)
    old = Counter(rented.where(is_old).provider.cells())
    if not len(rented):
        return
    middle = round(median(ages[day] for day in rented.price_date.cells()))
    said = f"The median age of {count(len(rented), 'ranked price')} is {count(middle, 'day')}"
    if not old:
        yield f"{said}."
        return
    # Only where a price is old: the sources take time to load.
    from gpubench.offers.sources import refreshed_providers

    read = refreshed_providers() & old.keys()
    others = [plain(name, 30) for name, _ in old.most_common() if name not in read]
    how = [f"gpubench offers refresh reads today's of {listing(sorted(read), most=8)}"] if read else []
    how += [f"those of {listing(others, most=3)} stand on {_PAGES[len(others) > 1]}"] if others else []
    how += [] if any(rented.in_stock.present) else ["only its provider knows whether a machine is free now"]
    yield (
        f"{said}; {old.total():,} {'is' if old.total() == 1 else 'are'} over {STALE_AFTER_DAYS} days old, "
        f"the oldest of {show_price_date(max(ages, key=ages.__getitem__))}: {'; '.join(how)}."
    )


_PAGES = {False: "that provider's own page", True: "the providers' own pages"}


def _on_workloads(request: RankRequest) -> Iterator[str]:
    several = len(request.workload_names) > 1
    name = gpu_name(request.reference_gpu)
    if request.mix:
        unit = "" if request.has_job else f", given as a multiple of one {name}"
        yield f"The workloads of the mixture run in sequence: its rate is 1 / sum(share / rate){unit}."
    elif several:
        unit = "" if request.has_job else f", as a multiple of one {name}"
        yield f"Geometric mean over {', '.join(request.workload_names)}{unit}."
    if several and not request.mix and request.job_samples is not None:
        yield (
            "Hours and cost are at the geometric mean of several workloads, which no job is: "
            "name one workload, or give the setting mix."
        )


def _on_scaling(pool: Candidates) -> Iterator[str]:
    many = np.bincount(pool.machine, minlength=len(pool.scalings)).tolist()
    for basis in ("measured", "modeled"):
        found = [(s.efficiency, n) for s, n in zip(pool.scalings, many, strict=True) if s.basis == basis]
        if found:
            ends = [format_number(end, 2) for end, _ in (min(found), max(found))]
            offers = count(sum(n for _, n in found), "offer")
            yield (
                f"One job over several GPUs: scaling efficiency {basis}, "
                f"{' to '.join(dict.fromkeys(ends))} for {offers}."
            )
    shared = [scaling for scaling in pool.scalings if scaling.mode is ParallelMode.FSDP]
    if shared:
        modeled = ", its cost modeled" if any(each.basis == "modeled" for each in shared) else ""
        yield (
            f"Where the job does not fit on one GPU, it is ranked on as many as hold it shared out by FSDP"
            f"{modeled}: each works at the speed predicted for one that held everything."
        )


def _on_checkpointing(request: RankRequest, pool: Candidates) -> Iterator[str]:
    """Say where the recipe depends on how many GPUs share the job."""
    if request.checkpointing is not None or not request.one_job_over_all_gpus or not len(pool.offers):
        return
    most = max(pool.offers.gpu_count.present)
    for name in (name for name in request.workload_names if name in load_profiles()):
        rule = [(fewest, how) for fewest, how in load_profiles()[name].checkpointing_from if fewest <= most]
        if len(rule) > 1:
            ways = ", ".join(f"{how} from {count(fewest, 'GPU')} on" for fewest, how in rule)
            yield (
                f"{name} is trained with checkpointing by the number of GPUs, {ways}; its scaling holds that "
                "too. --recipe checkpointing=WAY sets one for all."
            )


def _on_hosts(pool: Candidates) -> Iterator[str]:
    """Name the processor behind each figure that the host set: with another one it would be another."""
    ranked = set(pool.offers.gpu_key.present)
    behind: dict[str, list[str]] = {}
    for key, estimate in zip(pool.speeds.keys, pool.speeds.estimates, strict=True):
        if key in ranked and estimate.host_cpu is not None:
            behind.setdefault(estimate.host_cpu, []).append(gpu_name(key))
    for cpu, names in behind.items():
        who = ", ".join(names)
        yield f"Host-bound, so as fast as the CPU it was measured with ({plain(cpu, 60)}): {who}."


def _on_payment(request: RankRequest, pool: Candidates) -> Iterator[str]:
    pricings = set(pool.offers.pricing.present)
    if pool.work is not None and request.startup_factor > 1 and pricings - {Pricing.OWNED}:
        data = "" if request.dataset_gb is None else f" and sending {request.dataset_gb:g} GB"
        yield (
            f"Rent runs {request.rented_startup_minutes:.3g} minutes before the first step (assumed: "
            f"the start{data}); the setting startup-minutes says otherwise."
        )
    if Pricing.SPOT in pricings:
        lost = format_percent(request.spot_lost_share)
        yield f"Throughput of spot offers is what is left where {lost} of the work is done again."
    if Pricing.RESERVED in pricings:
        use = request.utilization.likely
        yield (
            "Commitments rank as if used day and night; used "
            f"{format_percent(use)} of the time, their work costs {format_number(1 / use, 2)} times as much."
        )
