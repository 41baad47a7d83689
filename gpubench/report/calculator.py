"""The data from which the page's script computes the answers of ``rank``: figures, names and texts.

The script uses the same random numbers (``gpubench.draws``) and constants as the library. Some decisions are
made here and passed as data: which machines run a job, which prices count, and who sells where.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.draws import INVERSE_NORMAL
from gpubench.errors import MisuseError
from gpubench.files import many_objects
from gpubench.labels import FRONTIER, SELLERS, gpu_name, offer_name
from gpubench.models import Estimate, Pricing, TaskKind, WorkloadProfile
from gpubench.models.ranking import MODELED
from gpubench.offers.dates import STALE_AFTER_DAYS, age_days, drift_of
from gpubench.offers.hardware import parse_owned
from gpubench.offers.listing import is_in
from gpubench.offers.table import Offers, places_by_kind
from gpubench.options import RecipeRequest, options_of, request_from, words_of
from gpubench.precisions import AMP, Precision
from gpubench.predict.answers import highest_draw, log_deviation, start_of
from gpubench.predict.calibration import load_calibration
from gpubench.profile import load_profiles, traced_once
from gpubench.recommend import candidates
from gpubench.recommend.answer import BASES, TITLES
from gpubench.recommend.economics import HOURS_PER_MONTH, MINUTES_PER_HOUR, ask_words, prices_of
from gpubench.recommend.eligible import CandidateFinder, FilterResult, runnable_of, sift, unit_of
from gpubench.recommend.evidence import Runs, device_key, gather, mean_power_w
from gpubench.recommend.lines import HOURS, OR, precisions_of, seller
from gpubench.recommend.objective import ALIKE
from gpubench.recommend.owning import Ownership, is_a_host, offer_of, ownerships
from gpubench.recommend.rank import check, runs_of
from gpubench.recommend.request import RankRequest
from gpubench.sentences import texts
from gpubench.specs import find_spec, load_specs
from gpubench.units import format_bytes, plain, plural

# Pricing and provider of the GPUs that a reader of the page may choose as owned. They cost only their energy.
_TO_CHOOSE = Pricing.OWNED, candidates.QUOTED

# Numbers of owned GPUs that the page offers.
_HAVE_COUNTS = (1, 2, 4, 8)

MOST_OFFERS = 1000
"""Maximum number of offers for the script. If there are more, the script gets the cheapest of each kind."""

MOST_OF_A_KIND = 3
"""Number of offers of each kind on the page. The library, too, draws prices only for the cheapest few."""

REGIONS = {"us": "United States", "eu": "European Union", "europe": "Europe", "asia": "Asia"}

# Decimal places of the share of the GPUs' throughput that an offer delivers, in training and inference.
_SHARE_DECIMALS = 9
# Significant digits of a figure. With these, P(best) and dollars match the library's to 1 part in 100,000.
_DIGITS = 6

FIRST = "resnet50"
"""The default model of the page, which most buyers know."""

# Ids of the sentences that the script may show.
SENTENCES = (
    "title",
    "exchange",
    "exchange_next",
    "one_gpu_left",
    "price_doubt_short",
    "waiting_counts",
    "chance_means",
    "page_old",
    "nothing_meets",
    "relax_budget",
    "relax_deadline",
    "pair",
    "pair_how",
    "price_age_short",
)

WORDS: Mapping[str, Mapping[str, str]] = {
    "titles": TITLES,
    "bases": BASES,
    "sellers": SELLERS,
    "regions": REGIONS,
    "labels": {
        "nothing": "nothing",
        "anybody": "anybody",
        "anywhere": "anywhere",
        "hours": "time of the job",
        "usd": "cost of the job, US dollars",
        "shade": "nine in ten",
        "trade_offs": "trade-offs",
        "or": OR,
        "frontier": FRONTIER,
        "copied": "Copied.",
    },
}
"""Names of the choices, the columns and the axes."""

OPTIONS = {
    "precision": "--precision",
    "samples": "--samples",
    "worth": "--hour-worth",
    "budget": "--budget-usd",
    "deadline": "--deadline-hours",
    "have": "--have",
    "seller": "--seller",
    "region": "--region",
    "spot": "--spot",
}
"""The option of the command for each input of the page."""

TICKS = {
    "hours": [
        (number * seconds / 3600, f"{number} {unit}")
        for unit, seconds, numbers in (
            ("s", 1, (1, 2, 5, 10, 30)),
            ("min", 60, (1, 2, 5, 10, 30)),
            ("h", 3600, (1, 2, 5, 10, 24)),
            ("days", 86400, (2, 5, 10, 30, 100, 365)),
        )
        for number in numbers
    ],
    "usd": [
        (figure, f"${figure:,.0f}" if figure >= 1 else f"${figure:g}")
        for power in range(-4, 8)
        for figure in (digit * 10.0**power for digit in (1, 2, 5))
    ],
}
"""Positions and labels of the ticks of each axis."""


@many_objects()
@traced_once()
def calculator(asked: RankRequest) -> dict[str, Any]:
    """Return the data of the script, as plain JSON values.

    Args:
        asked: The question of the page. Its filters always apply; its model, job and limits are the initial
            inputs of the page.

    Raises:
        MisuseError: If the question is invalid, or no machine runs any of its workloads.
    """
    from gpubench.offers.snapshot import load_dated

    table, today, _ = load_dated(asked.results, asked.offers, asked.as_of)
    runs, _ = runs_of(asked.results)
    # The question without the limits that the page itself asks for.
    market = msgspec.structs.replace(
        asked,
        spot=True,
        sellers=(),
        regions=(),
        budget_usd=None,
        deadline_hours=None,
        relative=False,
        draws=1,  # the page draws its own numbers
        rent_or_buy="buy" if asked.buys else None,
    )
    every = Offers.of(table.offers)
    owned = {offer_of(each): each for each in _owned(market, every, runs, today)}
    whole = sift(market, every, today=today, owned=owned, drift=drift_of(table.changes))
    filtered = _few(whole)
    starts: dict[str, int] = {}  # the number of each starting point of predictions; ``_part`` adds them
    found = [case for each in _questions(market) if (case := _case(each, filtered, runs, starts))]
    if not found:
        raise MisuseError("no remaining machine runs any of the models")
    cases = [case for case, _ in found]
    return {
        "seed": asked.seed,
        "draws": asked.draws,
        "as_of": today.isoformat(),
        "fresh_until": (today + timedelta(days=STALE_AFTER_DAYS + 1)).isoformat(),
        "common_share": load_calibration().common_share,
        "gpus": {key: _card(key) for key in sorted(filtered.kept.gpu_key.present)},
        "filters": _filters(asked, _own_keys(runs)),
        "sentences": {name: texts()[name] for name in SENTENCES},
        **WORDS,
        "alike": ALIKE,
        "units": HOURS,
        "options": OPTIONS,
        "ticks": TICKS,
        "inverse_normal": INVERSE_NORMAL,
        "costs": _costs(asked),
        "offers": _offers(market, filtered, found),
        "offer_count": len(whole.kept),
        "starts": list(starts),
        "cases": cases,
        "begin": _begin(asked, cases, _own_keys(runs)),
        "opening": (),
    }


def _costs(asked: RankRequest) -> dict[str, Any]:
    return {
        "startup_hours": asked.rented_startup_minutes / MINUTES_PER_HOUR,
        "startup_factor": asked.startup_factor,
        "farthest_startup": candidates.farthest_startup(asked.startup_factor),
        "billing_hours": asked.billing_unit_minutes / MINUTES_PER_HOUR,
        "storage_usd_per_hour": asked.storage_usd_per_month / HOURS_PER_MONTH,
        "egress_usd": asked.egress_usd,
        "tax": asked.tax,
        "images_per_vcpu_s": candidates.IMAGES_PER_VCPU_S,
        "feed_sigma": candidates.FEED_SIGMA,
        "feed_factor": candidates.FEED_FACTOR,
        "shares_work": asked.jobs != "independent",
    }


def _owned(market: RankRequest, every: Offers, runs: Runs, today: Any) -> list[Ownership]:
    # Return the buyer's machines, machines for sale, and every GPU of the offers as if the buyer owned it.
    known = filter(None, map(find_spec, sorted(every.gpu_key.present)))  # None for a name of several cards
    keys = [each.key for each in known if each.board_power_w and each.not_ranked_because is None]
    described = ownerships(market, mean_power_w(runs), today, _own_keys(runs))
    own = {_machine(each.gpu_count, each.gpu_key) for each in described if not each.purchase_usd}
    to_choose = {_machine(count, key) for key in keys for count in _HAVE_COUNTS} - own
    # A request to buy would take these machines as quotes, which replace the prices of their cards.
    choosing = msgspec.structs.replace(
        market, own=tuple(sorted(to_choose)), rent_or_buy=None, max_purchase_usd=None
    )
    return [*described, *ownerships(choosing, mean_power_w(runs), today)]


def _machine(count: int, key: str) -> str:
    return f"{count}x {key}"


def _own_keys(runs: Runs) -> set[str]:
    return {key for run in runs.own if (key := device_key(run))}


def _questions(market: RankRequest) -> Iterator[RankRequest]:
    # Yield the question itself if no shipped model covers it, then one about every shipped model at each of
    # its precisions.
    plain_recipe = {each.field: getattr(RankRequest(), each.field) for each in options_of(RecipeRequest)}
    if not _is_shipped(market):
        yield market
    for name, profile in load_profiles().items():
        if TaskKind.TRAIN not in profile.tasks and profile.decode is None:  # an input pipeline
            continue
        for precision in _offered_at(profile):
            yield msgspec.structs.replace(
                market, **plain_recipe, workloads=(name,), mix={}, precision=precision, batch_size=None,
                task="train", max_latency_ms=None, samples=None, epochs=None, dataset_size=None,
            )  # fmt: skip


def _offered_at(profile: WorkloadProfile) -> tuple[str, ...]:
    return tuple(profile.precisions) or ("amp", "fp32")


def _is_shipped(market: RankRequest) -> bool:
    # Return whether the question is about one shipped model at one of its precisions.
    names = market.workload_names
    given = {each.field for each in options_of(RecipeRequest) if market.was_given(each.field)}
    profile = load_profiles().get(names[0]) if len(names) == 1 else None
    is_listed = not market.workloads or (
        profile is not None and market.precision in {None, AMP, *_offered_at(profile)}
    )
    is_usual = market.batch_size is None and market.task == "train" and not given
    return is_listed and is_usual and not market.mix


def _undrawn(estimates: Sequence[Estimate], _draws: int, _seed: int) -> Floats:
    # Return one rate of each estimate in place of draws, which the page makes itself.
    return np.array([[estimate.samples_per_s] for estimate in estimates])


def _case(
    asked: RankRequest, filtered: FilterResult, runs: Runs, starts: dict[str, int]
) -> tuple[dict[str, Any], Offers] | None:
    # Return the figures of one model at one precision, and the offers that run it; None if none does.
    try:
        asked = check(asked)
        finder, kept, _ = runnable_of(asked, filtered, partial(gather, asked, runs=runs), _undrawn)
    except MisuseError:
        return None
    pool = finder.pool_of(kept)
    work = finder.work
    if work is None:
        return None
    # The page shows a job in hours of one GPU as a round number of samples.
    in_gpu_hours = work.reference is not None
    samples = float(f"{work.samples:.2g}") if in_gpu_hours else work.samples
    is_own = (
        pool.width_factor < 1
    )  # the user's measured card: its interval omits the difference between two cards
    certain = dict(zip(pool.gpu[is_own].tolist(), pool.width_factor[is_own].tolist(), strict=True))
    names = [part.case.workload for part in finder.speeds.parts[0]]
    precisions = [precisions_of(parts) for parts in finder.speeds.parts]
    usual = max(precisions, key=precisions.count)
    unusual = [{} if each == usual else {"precision": each} for each in precisions]  # a card without bf16
    figures = {
        "workloads": names,
        "label": plain(" + ".join(names), 60),
        "precision": asked.precision or _CHOICES.get(usual, AMP),
        "usual_precision": usual,
        "task": asked.task,
        "unit": plural(unit_of(finder.speeds)),
        "samples": samples,
        "words": None if in_gpu_hours else work.job.words,
        "photographs": finder.photograph_share,
        "shares": [asked.mix[name] for name in asked.workload_names] if asked.mix else None,
        "gpus": {
            key: _gpu(finder, row, certain.get(row), starts) | unusual[row]
            for row, key in enumerate(finder.speeds.keys)
        },
        "machines": _machines(pool),
    }
    return figures, kept


# Values of --precision by the precision in words; "amp-bf16 or amp-fp16" has none.
_CHOICES = {each.words: str(each) for each in Precision}


def _machines(pool: candidates.Candidates) -> list[list[Any]]:
    # Return each machine: GPU, count, pace (rate per GPU over one GPU's), spread at clouds and at hosts, and
    # whether its scaling is modeled.
    hosts = pool.offers.kind.equals("marketplace").tolist()
    machines: dict[int, list[Any]] = {}
    for row, (machine, is_host) in enumerate(zip(pool.machine.tolist(), hosts, strict=True)):
        known = machines.setdefault(
            machine,
            [
                pool.speeds.keys[pool.gpu[row]],
                int(pool.count[row]),
                _short(pool.pace[row]),
                None,
                None,
                pool.scalings[machine].basis == MODELED,
            ],
        )
        known[4 if is_host else 3] = _short(pool.spread[row])
    return list(machines.values())


def _gpu(finder: CandidateFinder, row: int, certain: float | None, starts: dict[str, int]) -> dict[str, Any]:
    speeds = finder.speeds
    estimate = speeds.estimates[row]
    return {
        **{name: _short(getattr(speeds, name)[row]) for name in ("samples_per_s", "low", "high")},
        "parts": [_part(part, starts) for part in speeds.parts[row]],
        "certain": certain,
        "basis": "added" if estimate.origin else estimate.basis,
        "is_guess": estimate.is_a_guess,
        "need_bytes": estimate.device_bytes.value,
    }


def _part(estimate: Estimate, starts: dict[str, int]) -> list[Any]:
    # Return the rate, its log standard deviation, the limit of its draws, and its starting point's number.
    start = start_of(estimate)
    place = None if start is None else starts.setdefault("\0".join(start), len(starts))
    most = highest_draw(estimate)
    return [
        _short(estimate.samples_per_s),
        _short(log_deviation(estimate)),
        None if math.isinf(most) else _short(most),
        place,
    ]


def _offers(
    market: RankRequest, filtered: FilterResult, found: list[tuple[dict[str, Any], Offers]]
) -> list[dict[str, Any]]:
    # Return the facts of each offer that do not depend on the workload.
    names = [(o.provider, o.instance, o.region or "", str(o.pricing), o.gpu_key) for o in filtered.kept]
    kept = filtered.kept.take(sorted(range(len(names)), key=names.__getitem__))  # ties are sorted by name
    today = filtered.market.today
    prices = prices_of(kept, filtered.market)
    train, infer = (msgspec.structs.replace(market, task=task) for task in ("train", "infer"))
    delivered = np.column_stack([candidates.delivered_by(each, kept) for each in (train, infer)])
    of_rows = zip(
        prices.expected.tolist(),
        prices.sigma.tolist(),
        prices.group.tolist(),
        delivered.round(_SHARE_DECIMALS).tolist(),
        strict=True,
    )
    for_sale = {offer for offer, each in filtered.owned.items() if each.purchase_usd}
    asks = filtered.market.asks
    return [
        {
            "who": seller(offer, owned.purchase_usd if (owned := filtered.owned.get(offer)) else None),
            "name": offer_name(offer),
            "gpu": offer.gpu_key,
            "count": offer.gpu_count,
            "vcpus": offer.vcpus,
            "usd": _short(usd),
            "sigma": _short(sigma),
            "group": "\0".join(prices.names(group)) if sigma else None,
            "delivered": share,
            "pricing": offer.pricing.value,
            "seller": offer.seller,
            "is_own": offer.pricing is Pricing.OWNED and offer.provider == "own",
            "is_host": offer.kind == "marketplace",
            "regions": [each for each in REGIONS if offer.region and is_in(offer.region, each)],
            "age_days": age_days(offer.price_date, today),
            "have": _machine(offer.gpu_count, offer.gpu_key)
            if offer not in for_sale and (offer.pricing, offer.provider) == _TO_CHOOSE
            else None,
            "doubt": filtered.doubt(offer)
            or (ask_words(asks.get((offer.gpu_key, offer.pricing))) if offer.kind == "marketplace" else None),
            "barred": cases,
        }
        for offer, (usd, sigma, group, share), cases in zip(kept, of_rows, _barred(kept, found), strict=True)
    ]


def _barred(kept: Offers, found: list[tuple[dict[str, Any], Offers]]) -> list[list[int]]:
    # Return for each offer the cases that its host cannot run, although its GPUs can.
    barred: list[list[int]] = [[] for _ in range(len(kept))]
    for at, (case, runs_it) in enumerate(found):
        machines = {(gpu, count) for gpu, count, *_ in case["machines"]}
        for place in np.flatnonzero(~kept.are_in(runs_it)).tolist():
            if (kept[place].gpu_key, kept[place].gpu_count) in machines:
                barred[place].append(at)
    return barred


def _few(filtered: FilterResult) -> FilterResult:
    # Keep at most ``MOST_OFFERS``: the cheapest of each kind that the page distinguishes.
    kept = filtered.kept
    if len(kept) <= MOST_OFFERS:
        return filtered

    def region_bits(region: str | None) -> float:
        return float(sum(2**at for at, name in enumerate(REGIONS) if region and is_in(region, name)))

    columns = (kept.gpu_key, kept.gpu_count, kept.pricing, kept.seller)
    kinds = np.stack([*(column.codes for column in columns), kept.region.figures(region_bits)], axis=1)
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    price = kept.price / kept.gpu_count.figures(float)
    by_price = np.argsort(price, kind="stable")
    by_kind = sorted(places_by_kind(kind.reshape(-1)[by_price]).items())
    first = by_price[np.concatenate([places[:MOST_OF_A_KIND] for _, places in by_kind])]
    cheapest = first[np.argsort(price[first], kind="stable")][:MOST_OFFERS]
    few = kept.take(np.sort(cheapest))
    return replace(filtered, kept=few, possible=few, excluded=[])


def _card(key: str) -> dict[str, str]:
    spec = load_specs().get(key)
    memory = None if spec is None else spec.memory_bytes
    return {"name": gpu_name(key), "memory": format_bytes(memory)}


def _is_a_choice(machine: str, own_keys: Collection[str]) -> bool:
    # Return whether the page offers a text of --have as a choice: not a PC, and nothing with a price.
    return not is_a_host(machine) and parse_owned(machine, own_keys)[2]["purchase_usd"] <= 0


# Options of ``rank`` that the page asks for itself, or that do not matter to it.
_OF_THE_PAGE = {
    "workload",
    "precision",
    "samples",
    "epochs",
    "dataset_size",
    "hour_worth",
    "budget_usd",
    "deadline_hours",
    "have",
    "seller",
    "region",
    "spot",
    "results",
    "offers",
    "limit",
    "sort",
}


def _filters(asked: RankRequest, own_keys: Collection[str] = ()) -> list[str]:
    # Return the other options of the question, as given.
    kept = {name: value for name, value in asked.question.items() if name not in _OF_THE_PAGE}
    kept["have"] = [text for text in asked.own if not _is_a_choice(text, own_keys)]
    return list(words_of(request_from(RankRequest, kept, "rank")))


def _begin(asked: RankRequest, cases: list[dict[str, Any]], own_keys: Collection[str] = ()) -> dict[str, Any]:
    first = cases[0]
    if _is_shipped(asked):
        name = asked.workloads[0] if asked.workloads else FIRST
        same_model = [case for case in cases if case["workloads"] == [name]]
        same_precision = [case for case in same_model if case["precision"] == asked.precision]
        first = next(iter(same_precision or same_model), first)
    own = (parse_owned(text, own_keys) for text in asked.own if _is_a_choice(text, own_keys))
    return {
        "model": first["label"],
        "precision": first["precision"],
        "samples": asked.job_samples or first["samples"],
        "worth": asked.hour_worth_usd,
        "budget": asked.budget_usd,
        "deadline": asked.deadline_hours,
        "have": next((_machine(count, key) for key, count, _ in own), None),
        "seller": asked.sellers[0] if len(asked.sellers) == 1 else None,
        "spot": asked.spot,
        "region": next((name for name in asked.regions if name in REGIONS), None),
    }


def _short(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(f"{value:.{_DIGITS}g}")
