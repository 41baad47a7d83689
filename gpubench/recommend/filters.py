"""The buyer's filters: each has an option, a test, and a reason in words.

Dropped offers are listed; if no offer is left, the error says how many each option removed.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from gpubench.arrays import Flags
from gpubench.errors import MisuseError
from gpubench.labels import gpu_name, gpus_at
from gpubench.models import ExcludedOffer, GpuSpec, Offer, PriceCondition, Pricing, Verdict
from gpubench.names import counted, nearest, normalize
from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, age_days
from gpubench.offers.hardware import card_prices
from gpubench.offers.listing import is_in, known_providers, known_regions, outdated
from gpubench.offers.outliers import ADMITTED_BY, AskedPrices
from gpubench.offers.table import NOT_RANKED, Offers, kinds_of, offer_key
from gpubench.options import unknown_name
from gpubench.providers import find_provider
from gpubench.recommend.candidates import QUOTED
from gpubench.recommend.economics import Market, prices_of
from gpubench.recommend.factors import REQUIREMENTS, HostNeed, Reason, cooling_of, factor_filters, shortfall
from gpubench.recommend.owning import PSU_SHARE, Ownership, slots_of
from gpubench.recommend.request import COMMITMENTS, RankRequest
from gpubench.specs import architectures, known_keys, load_specs, unknown_gpu
from gpubench.torch_builds import newest_build_for, newest_release, runs_on_todays_torch
from gpubench.units import count, format_number, format_percent, format_price, format_usd, listing, plain

# Tolerance on a number of months.
_ROUNDING = 1e-9
BUY = "--buy"
NOT_ON_OFFER = "not a machine on offer today"
NO_FIGURE = "no reliable throughput estimate"
NO_KERNELS = "a GPU without kernels in today's torch (naming it with --gpu ranks it)"
FAR_BELOW = f"a price far below all others ({ADMITTED_BY} ranks it)"
FAR_ABOVE = f"a price far above all others ({ADMITTED_BY} ranks it)"
PURCHASE = "--max-purchase-usd"
# The exclusions of these limits are sorted: the offer closest to the limit is last.
_NEAREST_LAST = ("--deadline-hours", "--budget-usd", PURCHASE)
NO_CURRENT_PRICE = "a card without a current price (naming the card with --gpu ranks it)"


@dataclass(frozen=True, slots=True)
class Filter:
    """One restriction: ``reason`` returns why an offer is dropped, or None if it stays.

    An ``owned`` filter applies only to hardware to own. If the reason depends only on some ``fields``, it is
    computed once per combination of their values (a few hundred in 100,000 offers). Only the offers that
    ``suspects`` flags are tested.
    """

    option: str
    reason: Reason
    owned: bool = False
    fields: tuple[str, ...] = ()
    suspects: Callable[[Offers], Flags] = lambda offers: np.ones(len(offers), dtype=bool)


class Exclusion(NamedTuple):
    """A dropped offer (at position ``at`` of ``among``), the option that dropped it, and the reason."""

    among: Offers
    at: int
    option: str
    reason: str

    @property
    def offer(self) -> Offer:
        """The dropped offer."""
        return self.among[self.at]


def apply(filters: Sequence[Filter], offers: Iterable[Offer]) -> tuple[Offers, list[Exclusion]]:
    """Split offers into kept and dropped ones, each dropped offer with the first filter that it fails."""
    every = Offers.of(offers)
    excluded: dict[int, Exclusion] = {}
    kept = np.ones(len(every), dtype=bool)
    for each in filters:
        for at, reason in _reasons(each, every, kept):
            excluded[at] = Exclusion(every, at, each.option, reason)
        kept[list(excluded)] = False
    return every.where(kept), [excluded[at] for at in sorted(excluded)]


def _reasons(test: Filter, offers: Offers, kept: Flags) -> Iterator[tuple[int, str]]:
    # Yield the position of each kept offer that this filter drops, with the reason.

    def reason(at: int) -> str | None:
        offer = offers[at]
        return test.reason(offer, load_specs().get(offer.gpu_key))

    places = np.flatnonzero(kept & test.suspects(offers) & (offers.is_owned | (not test.owned)))
    if not test.fields or not len(places):
        yield from ((at, words) for at in places.tolist() if (words := reason(at)) is not None)
        return
    kinds = kinds_of(*(getattr(offers, name).take(places) for name in test.fields))
    _, first = np.unique(kinds.codes, return_index=True)
    for kind, at in enumerate(places[first].tolist()):
        if (words := reason(at)) is not None:
            yield from ((each, words) for each in places[kinds.codes == kind].tolist())


def recorded(exclusions: Iterable[Exclusion]) -> tuple[ExcludedOffer, ...]:
    """Return exclusions in the form that a ranking records."""
    return tuple(
        ExcludedOffer(
            provider=offer.provider,
            instance=offer.instance,
            gpu_key=offer.gpu_key,
            reason=reason,
            rule=option,
        )
        for among, at, option, reason in exclusions
        for offer in [among[at]]
    )


# The error for an empty answer names at most this many options, those that removed the most offers.
_MOST_RULES = 4


class NothingLeftError(MisuseError):
    """No offer is left to rank, even without the limits of the job."""


def nothing_left(total: int, excluded: Sequence[Exclusion]) -> NothingLeftError:
    """Return the error for an empty answer: which option removed how many offers, and a fix.

    Args:
        total: Number of offers.
        excluded: All excluded offers in the order of exclusion.
    """
    counts = Counter(each.option for each in excluded)
    if not {*counts} - {NOT_ON_OFFER}:
        return NothingLeftError(
            "no price of a machine is dated on or before the day of --as-of: ask for a later day, or give "
            "prices of that time with --offers"
        )
    removed = ", ".join(f"{name} removed {n:,}" for name, n in counts.most_common(_MOST_RULES))
    return NothingLeftError(f"none of the {total:,} offers is left: {removed}; {_fix(excluded)}")


def _fix(excluded: Sequence[Exclusion]) -> str:
    # Say which change would leave an offer, or name an excluded one with the reason.
    last = excluded[-1] if excluded else None
    if last is not None and last.option in _NEAREST_LAST:
        return nearest_of(excluded)
    by_count = [each.offer.gpu_count for each in excluded if each.option == "--count"]
    if 2 * len(by_count) > sum(each.option != "--gpu" for each in excluded):
        return f"the available numbers of GPUs: {listing(map(str, sorted({*by_count})))}"
    if misfits := [each for each in excluded if each.option in _HOST_LIMITS]:
        return f"among them, {_with_reason(misfits[-1])}"
    if to_rent := [each for each in excluded if each.option == BUY]:
        return f"quote one with --have '{gpu_name(to_rent[-1].offer.gpu_key)}, PRICE USD'"
    if last is not None and last.option == NO_FIGURE:
        unknown = [each for each in excluded if each.option == NO_FIGURE]
        usual, _ = Counter(each.reason for each in unknown).most_common(1)[0]
        helps = "; `gpubench memory` says what would help" if Verdict.DOES_NOT_FIT in usual else ""
        return f"among them, {_with_reason([each for each in unknown if each.reason == usual][-1])}{helps}"
    if without := [each for each in excluded if each.option == NO_KERNELS]:
        return f"among them, {_with_reason(without[-1])}"
    return "relax one of these"


def nearest_of(excluded: Sequence[Exclusion]) -> str:
    """Name the offer closest to a limit, with the reason."""
    return f"the nearest is {_with_reason(excluded[-1])}"


def _with_reason(exclusion: Exclusion) -> str:
    return f"{gpus_at(exclusion.offer)}: {plain(exclusion.reason)}"


def leave_out_doubted(
    asked_prices: AskedPrices, offers: Offers, *, accept: bool = False
) -> tuple[Offers, list[Exclusion], Offers]:
    """Split offers into those with plausible prices and those with likely mistakes.

    Args:
        asked_prices: Every provider's prices.
        offers: The offers to split.
        accept: Whether to keep all doubtful prices.

    Returns:
        The offers to keep, the others with the reasons, and those kept despite a doubtful price: the buyer's
            own, and admitted ones.
    """
    doubted = asked_prices.doubted(offers)
    if accept:
        return offers, [], offers.where(doubted)
    rejected = asked_prices.left_out(offers)
    accepted = offers.where(doubted & ~rejected)
    excluded = [
        Exclusion(
            offers,
            at,
            FAR_BELOW if asked_prices.is_below(offers[at]) else FAR_ABOVE,
            f"{asked_prices.doubt(offers[at])}; {ADMITTED_BY} ranks it",
        )
        for at in np.flatnonzero(rejected).tolist()
    ]
    return offers.where(~rejected), excluded, accepted


def match_gpus(name: str, keys: Collection[str]) -> frozenset[str]:
    """Return the GPUs on offer that a name means.

    >>> sorted(match_gpus("h100", ["nvidia-h100-sxm-80gb", "nvidia-h100-nvl-94gb", "nvidia-l4-24gb"]))
    ['nvidia-h100-nvl-94gb', 'nvidia-h100-sxm-80gb']

    Raises:
        MisuseError: If the name is unknown, with similar known names; if it means only GPUs that are never
            ranked, with the reason; or if no offer has any of the GPUs that it means.
    """
    _, gpu = counted(name)
    meant = meant_by(gpu, keys)
    offered = meant.intersection(keys)
    if (reason := _never_ranked(meant)) is not None:
        specs = [load_specs().get(key) for key in sorted(meant)]
        command = f"`gpubench offers list --gpu {shlex.quote(plain(gpu))}`"
        listed = f"; {command} lists the prices" if offered else ""
        similar = "" if listed else _comparable(specs[0], keys)
        raise MisuseError(f"{_named(specs)} not ranked: {reason}{listed}{similar}")
    if not offered:
        is_sold = any(each.gpu_key in meant for each in card_prices())
        buy = "; --buy ranks what it costs to buy" if is_sold else ""
        raise MisuseError(
            f"no offer has a GPU {plain(gpu)!r} ({listing(sorted(meant))}): name another one, give its "
            f"price with --offers, or say with --have that you own one{buy}"
        )
    return frozenset(offered)


REGION_UNSAID = "its region is not stated"


def why_not_ranked(name: str, keys: Collection[str]) -> str | None:
    """Return why no offer of a known GPU can be ranked; None if one can.

    Raises:
        MisuseError: If the name is unknown.
    """
    meant = meant_by(counted(name)[1], keys)
    return _never_ranked(meant) or (None if meant & {*keys} else "no offer has it")


def _never_ranked(meant: Collection[str]) -> str | None:
    # Return why none of these GPUs is ever ranked; None if one can be.
    specs = (load_specs().get(key) for key in sorted(meant))
    reasons = [None if spec is None else spec.not_ranked_because for spec in specs]
    return reasons[0] if all(reasons) else None


def _rankable_gpus(names: Sequence[str], offers: Offers) -> dict[str, frozenset[str]]:
    # Return the GPUs of each name that can be ranked; if no name can be, the error gives the reason.
    keys = sorted(offers.gpu_key.present)
    rankable = [name for name in names if why_not_ranked(name, keys) is None]
    return {name: match_gpus(name, keys) for name in rankable or names}


def meant_by(name: str, keys: Collection[str]) -> set[str]:
    """Return the keys that a name means: one exact GPU, else every known key that contains all of its words.

    Args:
        name: As typed by the user.
        keys: GPUs of offers, some of which may be missing from the GPU table.

    Raises:
        MisuseError: If the name is unknown, with similar known names.
    """
    words = set(normalize(name).replace("-", " ").split())
    unlisted = {key for key in keys if words and words <= set(key.split("-"))}
    meant = set(known_keys(name)) or unlisted
    if not meant:
        raise unknown_gpu(name, nearest(name, keys))
    return meant


def _comparable(spec: GpuSpec | None, keys: Collection[str]) -> str:
    # Name the ranked GPU with the closest memory bandwidth, which largely determines training speed.
    bandwidth = None if spec is None else spec.memory_bandwidth_bytes_per_s
    specs = (load_specs().get(key) for key in keys if _runs(key))
    single = (each for each in specs if each and not each.variants and not each.not_ranked_because)
    rates = {each.key: rate for each in single if (rate := each.memory_bandwidth_bytes_per_s)}
    if bandwidth is None or not rates:
        return ""
    nearest_key = min(rates, key=lambda key: (abs(math.log(rates[key] / bandwidth)), key))
    return f"; among ranked GPUs, the {gpu_name(nearest_key)} is nearest in memory bandwidth"


def _named(specs: Sequence[GpuSpec | None]) -> str:
    """Return the first GPU and the number of others, as subject and verb of a sentence.

    >>> _named([load_specs()["apple-m4"]])
    'Apple M4 is'
    """
    first = "" if specs[0] is None else specs[0].name
    return f"{first} is" if len(specs) == 1 else f"{first} and {len(specs) - 1} more of that name are"


def _runs(gpu_key: str) -> bool:
    # Return whether today's torch runs on a GPU; True if that is unknown.
    spec = load_specs().get(gpu_key)
    return spec is None or runs_on_todays_torch(spec.compute_capability) is not False


def _without_kernels(spec: GpuSpec) -> str:
    build = newest_build_for(spec.compute_capability)
    target = spec.compute_capability or ""
    named_target = target if target.startswith("gfx") else f"compute capability {target}"
    still = "no known build has them" if build is None else f"{build} still has them"
    return (
        f"torch {newest_release()} from pip has no kernels for {named_target}: {still}; "
        "to rank it anyway, name it with --gpu"
    )


def within_purchase_limit(
    request: RankRequest, offers: Offers, machines: Mapping[Offer, Ownership]
) -> tuple[Offers, list[Exclusion]]:
    """Split offers into those within the purchase limit, and the others with their cost, cheapest last."""
    most = math.inf if request.max_purchase_usd is None else request.max_purchase_usd
    owned = {at: machines.get(offers[at]) for at in np.flatnonzero(offers.is_owned).tolist()}
    dear = {at: each for at, each in owned.items() if each is not None and each.purchase_usd > most}
    excluded = []
    for at, machine in sorted(dear.items(), key=lambda each: -each[1].purchase_usd):
        host = f" including a host at {format_price(machine.host_usd)}" if machine.host_usd else ""
        price = f"{format_price(machine.purchase_usd)}{host}"
        excluded.append(Exclusion(offers, at, PURCHASE, f"{price}, above {format_price(most)}"))
    is_kept = np.ones(len(offers), dtype=bool)
    is_kept[list(dear)] = False
    return offers.where(is_kept), excluded


# --- the filters ----------------------------------------------------------------------------------------


def filters_of(
    request: RankRequest, offers: Offers, market: Market, machines: Mapping[Offer, Ownership]
) -> Iterator[Filter]:
    """Yield the filters of a request except those on pricing, cheapest test first.

    The filters on provider, seller and region do not apply to hardware to own. A machine named with
    ``--have`` also passes ``--gpu``.

    Args:
        request: The request with the restrictions.
        offers: Every known offer; a name that occurs in none of them is an error.
        market: The expected prices, and the day as of which price ages are computed.
        machines: The machine behind each offer to own.

    Raises:
        MisuseError: If a named GPU, provider or region is unknown.
    """
    yield Filter(NOT_ON_OFFER, lambda offer, _: NOT_RANKED.get(offer.kind), fields=("kind",))
    yield Filter(
        "a price of 0 or less",
        lambda offer, _: (
            "it costs nothing per hour: give its price or the tariff"
            if offer.pricing is Pricing.OWNED
            else f"price {offer.price_usd_per_hour} USD/h cannot be ranked"
        ),
        suspects=lambda offers: ~((offers.price > 0) & np.isfinite(offers.price)),
    )
    named = _rankable_gpus(request.gpus, offers)
    yield from _offer_filters(request, offers, market, named)
    yield from (Filter(name, reason, fields=("gpu_key",)) for name, reason in factor_filters(request))
    yield from _card_filters(request, market, machines, named)


def _offer_filters(
    request: RankRequest, offers: Offers, market: Market, named: Mapping[str, frozenset[str]]
) -> Iterator[Filter]:
    # Yield the filters on seller, region, GPU, number of GPUs, price and price age.
    filters = (
        *_seller_filters(request, offers),
        (request.gpus, _gpu_filter(named, offers)),
        (request.excluded, _exclusion_filter(request.excluded, offers)),
        *_count_and_price_filters(request, offers, market),
    )
    yield from (each for is_asked, each in filters if is_asked)


def _not_of_the_buyer(offers: Offers) -> Flags:
    # Return which offers are not the buyer's machines (--have).
    return ~(offers.is_owned & offers.provider.equals(QUOTED))


def _is_owned(offer: Offer) -> bool:
    return offer.pricing is Pricing.OWNED


def _seller_filters(request: RankRequest, offers: Offers) -> tuple[tuple[object, Filter], ...]:
    # Return pairs: whether a filter on provider, region or seller is requested, and the filter.
    providers = known_providers(request.providers, offers.provider.present)
    regions = known_regions(request.regions, offers.region.present)

    def elsewhere(offer: Offer, _: GpuSpec | None) -> str | None:
        if _is_owned(offer) or (offer.region and any(is_in(offer.region, name) for name in regions)):
            return None
        return f"in region {plain(offer.region)}" if offer.region else REGION_UNSAID

    return (
        (
            request.providers,
            Filter(
                "--provider",
                lambda o, _: (
                    None if _is_owned(o) or o.provider.casefold() in providers else "another provider"
                ),
                fields=("provider", "pricing"),
            ),
        ),
        (regions, Filter("--region", elsewhere, fields=("region", "pricing"))),
        (
            request.sellers,
            Filter(
                "--seller",
                lambda o, _: None if o.seller in {None, *request.sellers} else f"its seller is {o.seller}",
                fields=("seller",),
            ),
        ),
    )


def excluded_by(name: str, offers: Offers) -> frozenset[str]:
    """Return the provider or the keys of the GPUs that a name of ``--exclude`` means.

    Raises:
        MisuseError: If the name is unknown.
    """
    there = offers.provider.present
    meant = find_provider(name, there) or known_keys(name)
    if not meant:
        raise unknown_name("provider or GPU", name, nearest(name, [*there, *load_specs(), *architectures()]))
    return frozenset((meant,) if isinstance(meant, str) else meant)


def _exclusion_filter(names: Iterable[str], offers: Offers) -> Filter:
    meant = frozenset(chain.from_iterable(excluded_by(name, offers) for name in names))
    return Filter(
        "--exclude",
        lambda o, _: (
            "excluded by name"
            if o.gpu_key in meant or (not _is_owned(o) and o.provider.casefold() in meant)
            else None
        ),
        fields=("provider", "pricing", "gpu_key"),
    )


def _count_and_price_filters(
    request: RankRequest, offers: Offers, market: Market
) -> tuple[tuple[object, Filter], ...]:
    # Return pairs: whether a filter on number of GPUs, price or price age is requested, and the filter.
    gpu_count, most_days = request.count, request.max_price_age_days
    most = math.inf if request.max_usd_per_hour is None else request.max_usd_per_hour
    old = outdated(offers, market.today) if most_days is None else {}

    def too_old(offer: Offer, _: GpuSpec | None) -> str | None:
        age = age_days(offer.price_date, market.today)
        return f"its price is {count(age, 'day')} old, above {most_days}" if age > (most_days or 0) else None

    return (
        (
            most_days is None,
            Filter(
                "an old price when newer ones exist (setting max-price-age ranks it)",
                lambda o, _: old.get(offer_key(o)),
                suspects=lambda offers: ~offers.by_user,  # a user's own price is never outdated
            ),
        ),
        (
            gpu_count is not None,
            Filter(
                "--count",
                lambda o, _: (
                    None if o.gpu_count == gpu_count else f"{count(o.gpu_count, 'GPU')}, not {gpu_count}"
                ),
                fields=("gpu_count",),
            ),
        ),
        (
            request.max_usd_per_hour is not None,
            Filter(
                "the setting max-usd-per-hour",
                lambda o, _: (
                    f"{format_usd(prices_of([o], market).expected.item())} an hour, above {format_usd(most)}"
                ),
                suspects=lambda offers: prices_of(offers, market).expected > most,
            ),
        ),
        (
            most_days is not None,
            Filter("the setting max-price-age", too_old, fields=("price_date",)),
        ),
    )


def _gpu_filter(named: Mapping[str, frozenset[str]], offers: Offers) -> Filter:
    """Return the filter on named GPUs; a name may include a number of GPUs, as in "4x L40S".

    Raises:
        MisuseError: If no offer has that number.
    """
    for name, keys in named.items():
        offered = offers.where(offers.gpu_key.is_in(keys.__contains__)).gpu_count.present
        if counted(name)[0] not in {None, *offered}:
            raise MisuseError(
                f"no offer has {plain(name)}: offers have {listing(map(str, sorted(offered)))} of them; "
                f"--have {name!r} ranks your own"
            )

    def another(offer: Offer, _: GpuSpec | None) -> str | None:
        counts = {counted(name)[0] for name, keys in named.items() if offer.gpu_key in keys}
        if not counts:
            return "another GPU"
        return None if counts & {None, offer.gpu_count} else "a different number of that GPU"

    return Filter("--gpu", another, fields=("gpu_key", "gpu_count"), suspects=_not_of_the_buyer)


def _card_filters(
    request: RankRequest,
    market: Market,
    machines: Mapping[Offer, Ownership],
    meant: Mapping[str, frozenset[str]],
) -> Iterator[Filter]:
    """Yield the filters on kernels, and on the condition, price and host of hardware to own.

    A GPU without kernels in today's torch stays if the buyer names it, with ``--gpu`` or in a quote. If the
    name also means GPUs with kernels, only those stay.
    """
    named = frozenset[str]().union(*meant.values())
    admitted = frozenset[str]().union(*(keys for keys in meant.values() if not any(map(_runs, keys))))
    ageless = {PriceCondition.QUOTED, PriceCondition.LAUNCH_PRICE}  # a developer kit has only a launch price
    wanted = {request.condition, PriceCondition.QUOTED}

    def without_current_price(offer: Offer, _: GpuSpec | None) -> str | None:
        machine = machines.get(offer)
        if machine is None or machine.condition in ageless or offer.gpu_key in named:
            return None
        age = age_days(machine.price_date, market.today)
        if age > NOT_CURRENT_AFTER_DAYS:
            return f"its price is {age} days old"
        return "its price is a planning figure" if machine.is_planned else None

    yield Filter(
        NO_KERNELS,
        lambda _, spec: (
            None if spec is None or spec.key in admitted or _runs(spec.key) else _without_kernels(spec)
        ),
        fields=("gpu_key",),
        suspects=_not_of_the_buyer,
    )
    if request.condition is not None:
        yield Filter(
            "--condition",
            lambda offer, _: (
                f"it is not sold {request.condition}"
                if offer in machines and machines[offer].condition not in wanted
                else None
            ),
            owned=True,
        )
    yield Filter(NO_CURRENT_PRICE, without_current_price, owned=True)
    yield from owned_host_filters(request, machines)


def payment_filters(request: RankRequest, pricings: Collection[Pricing]) -> list[Filter]:
    """Return the filters on pricing. The offers that they drop may still be compared with owned hardware.

    Args:
        request: The request with the restrictions.
        pricings: The pricings of all offers; a filter on pricings that none of them has is omitted.
    """
    rents, years = request.rent_or_buy == "rent", COMMITMENTS.get(request.commit or "")
    rules = (
        (request.buys, {*Pricing} - {Pricing.OWNED}, BUY, "to rent, not to buy"),
        (rents, {Pricing.OWNED}, "rent", "to buy, not to rent"),
        (
            not request.spot,
            {Pricing.SPOT},
            "on demand only (--spot adds spot prices)",
            "a spot price; --spot ranks these too",
        ),
        (
            years is None,
            {Pricing.RESERVED},
            "no commitments (--commit adds them)",
            "a commitment; --commit 1y or 3y ranks these too",
        ),
    )
    found = [
        Filter(option, _paid_as(dropped, words), fields=("pricing",))
        for is_asked, dropped, option, words in rules
        if is_asked and dropped & {*pricings}
    ]
    if years is not None:
        other_term = Filter(
            "--commit",
            lambda offer, _: (
                f"a commitment of {count(offer.term_years or 0, 'year')}"
                if offer.pricing is Pricing.RESERVED and offer.term_years != years
                else None
            ),
            fields=("pricing", "term_years"),
        )
        found.append(other_term)
    return found


def _paid_as(dropped: Collection[Pricing], words: str) -> Reason:
    return lambda offer, _: words if offer.pricing in dropped else None


def rented_host_filters(need: HostNeed) -> list[Filter]:
    """Return a filter for each of a job's requirements for a rented host."""
    return [
        Filter(requirement.option, partial(shortfall, requirement, need), fields=requirement.fields)
        for requirement in REQUIREMENTS
    ]


# The limits on a machine to own.
_HOST_LIMITS = (
    *(f"the setting {name}" for name in ("circuit-watts", "psu-watts", "slots", "jobs-per-month")),
    "a card without a fan",
    "a module that is sold with a server",
)


def owned_host_filters(request: RankRequest, machines: Mapping[Offer, Ownership]) -> Iterator[Filter]:
    """Yield the filters on a machine to own: power, slots, airflow, and hours of work per month."""
    misfits = cache(lambda each: _misfits(request, machines[each], load_specs().get(each.gpu_key)))

    def reason_of(limit: str) -> Reason:
        return lambda offer, _: misfits(offer).get(limit) if offer in machines else None

    yield from (Filter(limit, reason_of(limit), owned=True) for limit in _HOST_LIMITS)


def _misfits(request: RankRequest, machine: Ownership, spec: GpuSpec | None) -> dict[str, str]:
    # Return the limits that a machine exceeds, each with the reason; unknown limits are ignored. A
    # utilization above 1 is the number of months that the jobs of one month take.
    host, circuit_w, months = machine.host, request.circuit_watts or math.inf, machine.utilization.likely
    psu_w, room = (  # of the assumed host, or as requested
        getattr(host, name) if host and name in machine.assumed else getattr(request, name) or math.inf
        for name in ("psu_watts", "slots")
    )
    form = None if spec is None else spec.form_factor
    cards_w = machine.power_w if machine.most_w is None else machine.most_w
    slots = 0.0 if host is None else slots_of(spec, machine.gpu_count)
    is_quoted, has_fan = machine.condition is PriceCondition.QUOTED, not spec or cooling_of(spec) == "active"
    in_a_desktop = (  # a stated price may be that of a server; a host that costs nothing is the buyer's PC
        host is not None
        and not host.has_airflow
        and ("host_usd" in machine.assumed or not machine.host_usd)
        and not is_quoted
    )
    fan = " (setting own-fan)" if request.own_fan else ": give a server's price as the setting host-usd"
    beyond = (
        (
            machine.power_w > circuit_w,
            f"its GPUs draw {machine.power_w:,.0f} W, above {circuit_w:,.0f} W",
        ),
        (
            cards_w + machine.host_w > psu_w * PSU_SHARE,
            (
                f"its cards draw {cards_w:,.0f} W and the host {machine.host_w:.0f} W, above "
                f"{format_percent(PSU_SHARE)} of a power supply of {psu_w:,.0f} W (setting psu-watts)"
            ),
        ),
        (slots > room, f"its cards take {slots:g} slots, above {room:g} (setting slots)"),
        (
            months > 1 + _ROUNDING,
            (
                f"{count(request.jobs_per_month or 0, 'job')} a month would keep it busy for "
                f"{format_number(months, 2)} months: {math.ceil(months - _ROUNDING):,} of "
                "these machines would be needed"
            ),
        ),
        (not has_fan and (in_a_desktop or request.own_fan), f"it has no fan{fan}"),
        (
            host is not None and form not in {None, "PCIe"} and not is_quoted,
            f"it is a module ({form}), which fits no host for cards",
        ),
    )
    return {limit: why for limit, (is_beyond, why) in zip(_HOST_LIMITS, beyond, strict=True) if is_beyond}
