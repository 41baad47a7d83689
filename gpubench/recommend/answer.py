"""Selects the sentences that apply to a ranking; ``data/sentences.json`` has their texts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from gpubench.groups import first_of_each, grouped
from gpubench.labels import CONDITION_WORDS, gpu_name, gpus_of
from gpubench.models import (
    MAY_NOT_FIT,
    BuyOrRent,
    Choice,
    FindingKind,
    ParallelMode,
    PriceCondition,
    Pricing,
    Ranking,
    Row,
    TaskKind,
    Trainable,
    Verdict,
)
from gpubench.names import counted, sized
from gpubench.offers.dates import HOURS_PER_YEAR, STALE_AFTER_DAYS, age_days, show_price_date
from gpubench.offers.hardware import hosts
from gpubench.offers.outliers import ADMITTED_BY, name_of
from gpubench.predict.question import NO_SPEED
from gpubench.profile import known_profile, load_profiles
from gpubench.recipes import Stack
from gpubench.recommend.candidates import Candidates
from gpubench.recommend.economics import (
    HOST_HOURS_BETWEEN,
    SECONDS_PER_HOUR,
    ask_words,
    token_costs,
    train_hours,
)
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.evidence import CPU_KEY
from gpubench.recommend.filters import FAR_BELOW, NO_KERNELS, REGION_UNSAID, meant_by, why_not_ranked
from gpubench.recommend.objective import ALIKE, IN_DETAIL, costs_over, is_a_guess
from gpubench.recommend.owning import assumed_of, is_a_host, must_work, payback
from gpubench.recommend.rows import best_of_each_gpu, best_to_rent, named_gpus, rows_of
from gpubench.recommend.speeds import batches_of
from gpubench.sentences import Told, tell
from gpubench.specs import load_specs
from gpubench.torch_builds import newest_release, other_build_for
from gpubench.units import (
    count,
    format_chance,
    format_duration,
    format_number,
    format_percent,
    format_price,
    format_usd,
    listing,
    plain,
)

# If the CPU finishes a job within this time [h], no GPU is needed. A deadline replaces this limit.
_NO_GPU_HOURS = 1.0

TITLES = {"cheapest": "Cheapest", "sensible": "Sensible", "fastest": "Fastest"}
"""The names of the answers in a table."""

# The names of the answers in a sentence.
_OBJECTIVES = {"cheapest": "cheapest", "sensible": "sensible choice", "fastest": "fastest"}

BASES = {
    "measured": "measured here",
    "added": "measured, added run",
    "reference": "measured",
    "predicted": "predicted",
    "guess": "guess",
}
"""How a throughput was obtained, in words."""

# At most this many offers get a sentence each; tables have all of them.
_MOST_OFFERS = 2


def facts(found: Eligible, priced: Candidates, ranking: Ranking) -> Iterator[Told]:
    """Yield the sentences about a ranking.

    Args:
        found: The offers that can do the job.
        priced: The same offers, plus all rentals to compare with owned hardware.
        ranking: The ranking, with its three answers.
    """
    request, pool = found.request, found.pool
    if not request.workloads and not request.mix:
        yield tell("toy_mix")
    yield from _on_the_cpu(found)
    yield from _on_hours_saved(ranking)
    yield from _on_chances(ranking)
    yield from _on_fewest_gpus(found)
    yield from _on_work(ranking)
    yield from _on_named_gpus(found)
    yield from _before_paying(found, ranking)
    yield from _on_request(found, ranking)
    yield from _on_own_machines(found, priced, ranking)
    yield from _on_owning(found, ranking)
    yield from _on_the_first(ranking.first)
    yield from _on_prices(found, priced)
    yield from _on_figures(found)
    yield from _on_exclusions(found)
    if pool.work is not None and request.startup_factor > 1 and set(pool.offers.pricing.present) - {"owned"}:
        minutes = f"{float(f'{request.rented_startup_minutes:.3g}'):,g}"  # 6,680 rather than 6.68e+03
        if request.dataset_gb is None:
            yield tell("startup", minutes=minutes)
        else:
            yield tell("startup_data", minutes=minutes, gb=f"{request.dataset_gb:,.12g}")
    is_assumed = request.host_lost is None and request.host_lost_share > 0
    on_hosts = any(each.choice.offer.seller == "community" for each in ranking.answers.values())
    if pool.work is not None and is_assumed and on_hosts:
        yield tell(
            "host_risk", hours=f"{HOST_HOURS_BETWEEN:g}", share=format_percent(request.host_lost_share)
        )


# --- the answers ----------------------------------------------------------------------------------------


def duration(hours: float | None) -> str:
    """Return the time of a job in a suitable unit."""
    return format_duration(None if hours is None else hours * SECONDS_PER_HOUR)


def work_done(ranking: Ranking, row: Row) -> str:
    """Describe the work that a row does: "the job in 3 h", or without a job the samples per dollar."""
    if row.hours.value is None:
        return f"{ranking.value_of(row).words()} {plain(ranking.value_unit, 60)}"
    return f"the job in {duration(row.hours.value)}"


def _on_the_cpu(found: Eligible) -> Iterator[Told]:
    request, speeds = found.request, found.pool.speeds
    if request.job_samples is None or CPU_KEY not in speeds.keys:
        return
    row = speeds.keys.index(CPU_KEY)
    likely, slow = float(speeds.samples_per_s[row]), float(speeds.low[row])  # slow is NaN if unknown
    hours = train_hours(request.job_samples, slow if slow > 0 else likely)
    enough = hours <= (request.deadline_hours or _NO_GPU_HOURS)
    yield tell("cpu_enough" if enough else "cpu_takes", hours=duration(hours))


def _on_hours_saved(ranking: Ranking) -> Iterator[Told]:
    # Yield the assumed value of an hour of waiting, and what a faster answer costs per hour that it saves.
    if ranking.hour_worth_usd is None:
        return
    if ranking.hour_worth_usd:
        yield tell("hour_worth", usd=format_usd(ranking.hour_worth_usd))
    rows = [answer.row for answer in ranking.answers.values()]
    for name, (slow, fast) in zip(("exchange", "exchange_next"), pairwise(rows), strict=True):
        usd = (fast.cost_usd.value or 0.0) - (slow.cost_usd.value or 0.0)
        hours = (slow.hours.value or 0.0) - (fast.hours.value or 0.0)
        if usd <= 0 or hours <= ALIKE * (slow.hours.value or 0.0):
            continue
        rate = format_usd(usd / hours)
        yield tell(name, more_usd=format_usd(usd), hours=duration(hours), usd_per_hour=rate)


def _on_chances(ranking: Ranking) -> Iterator[Told]:
    # Yield each toss-up (one row can be several answers), or the fact that only one GPU is left.
    if len({each.offer.gpu_key for each in ranking.by_gpu}) == 1:
        yield tell("one_gpu_left")
        return
    distinct = first_of_each(ranking.answers.items(), lambda each: (id(each[1].row), each[1].toss_up))
    for name, answer in distinct:
        if answer.toss_up is None:
            continue
        (gpu_key, gpu_count, p), (other_key, other_count, other_p) = answer.toss_up
        yield tell(
            "toss_up" if p >= other_p else "toss_up_against",
            objective=_OBJECTIVES[name],
            gpu=machine_name(gpu_key, gpu_count, other_key),
            p=format_chance(p),
            other_gpu=machine_name(other_key, other_count, gpu_key),
            other_p=format_chance(other_p),
        )


def machine_name(gpu_key: str, gpu_count: int, rival_key: str) -> str:
    """Return the GPUs of a machine in words: "2x L4", or "L4" for a single one with another GPU as rival."""
    alone = gpu_count == 1 and gpu_key != rival_key
    return gpu_name(gpu_key) if alone else f"{gpu_count}x {gpu_name(gpu_key)}"


def _on_fewest_gpus(found: Eligible) -> Iterator[Told]:
    # Yield the smallest machine that meets the deadline, if GPUs are named.
    request = found.request
    if request.deadline_hours is None or not request.gpus or found.pool.work is None:
        return
    (row,) = rows_of(found, [int(np.argmin(found.pool.count[found.order]))])
    yield tell(
        "count_needed",
        gpu=gpus_of(row.offer),
        provider=plain(row.offer.provider, 40),
        limit=duration(request.deadline_hours),
        hours=duration(row.hours.value),
        slow=duration(row.hours.high or row.hours.value),
        efficiency=format_percent(row.scaling_efficiency),
    )


def _on_work(ranking: Ranking) -> Iterator[Told]:
    # Yield how a language model is trained, or what a million tokens of its inference cost.
    row = ranking.answers["cheapest"].row
    case, profile = row.estimate.case, known_profile(row.estimate.case.workload)
    if row.parts or profile is None or not profile.tokens_per_sample or profile.is_classic:
        return
    if case.task is TaskKind.TRAIN:
        batches = {each.row.estimate.case.batch_size for each in ranking.answers.values()}
        yield tell(
            "trained_as",
            what=_TRAINED[case.trainable],
            tokens=f"{case.context_tokens or profile.tokens_per_sample:,}",
            batch=f"{max(batches):,}",
            stack=_PLAIN_STACKS[case.trainable] if case.stack is Stack.PLAIN else _STACKS[case.stack],
            other=Stack.PLAIN if case.stack is Stack.FUSED else Stack.FUSED,
        )
    elif costs := token_costs(row):
        yield tell(
            "serve_cost",
            costs=listing([f"{cost.by(format_usd)} {_TOKENS[what]}" for what, cost in costs.items()]),
            gpu=gpus_of(row.offer),
            batch=f"{case.batch_size:,}",
            prompt=f"{case.prompt_tokens:,}",
            new=f"{case.new_tokens:,}",
        )


_TOKENS = {"prefill": "in the prompt", "decode": "generated", "forward pass": "read"}
_STACKS = {
    Stack.TORCH: "the plain operators of PyTorch",
    Stack.NO_FLASH: "plain transformers without flash attention",
    Stack.FUSED: "the fused kernels of Liger or Unsloth",
}
_PLAIN_STACKS = {
    Trainable.FULL: "plain transformers",
    Trainable.LORA: "plain PEFT",
    Trainable.QLORA: "plain PEFT and bitsandbytes",
}
_TRAINED = {
    Trainable.FULL: "all weights",
    Trainable.LORA: "LoRA adapters",
    Trainable.QLORA: "LoRA adapters on a 4-bit base (QLoRA)",
}


# A reason can contain both verdicts ("does not fit; a batch of 1 may fit"), so DOES_NOT_FIT comes first.
_HELPS = {
    Verdict.DOES_NOT_FIT: "; `gpubench memory` says what would help",
    Verdict.MAY_FIT: "; to rank it anyway, name it with --gpu; `gpubench memory` says what would help",
}


def _what_helps(reason: str) -> str:
    return next((words for verdict, words in _HELPS.items() if verdict in reason), "")


def _on_named_gpus(found: Eligible) -> Iterator[Told]:
    # Yield which named GPUs are not ranked, and the cost of the ranked ones relative to the cheapest.
    places = named_gpus(found)
    for name in (name for name, place in places.items() if place is None):
        meant = meant_by(counted(name)[1], {each.offer.gpu_key for each in found.excluded})
        reasons = [each.reason for each in reversed(found.excluded) if each.offer.gpu_key in meant]
        reasons += filter(None, [why_not_ranked(name, sorted(found.filtered.every.gpu_key.present))])
        reason = plain(next(iter(reasons), "no offer is left"))
        yield tell("named_not_ranked", gpu=plain(name, 40), reason=f"{reason}{_what_helps(reason)}")
    ranked = dict.fromkeys(place for place in places.values() if place is not None)
    if found.pool.work is None or len(ranked) < 2:
        return
    cheapest, *others = sorted(ranked, key=found.time_and_cost[1].__getitem__)
    ratios = costs_over(found.pool, int(found.order[cheapest]), found.order[others].tolist())
    for other, ratio in zip(others, ratios, strict=True):
        gpu, rival = gpus_of(found.offers[cheapest]), gpus_of(found.offers[other])
        yield tell("against", gpu=gpu, other=rival, ratio=ratio.by(format_number, " times"))


# --- what to know before paying -------------------------------------------------------------------------


def first_screen_choices(ranking: Ranking) -> list[Choice]:
    """Return the choices that the first screen names, each once: answers, a cloud's offer, own machines."""
    every = [answer.choice for answer in ranking.answers.values()]
    every += [*([ranking.cloud] if ranking.cloud else []), *ranking.owned]
    return list({each.offer: each for each in every}.values())


def _before_paying(found: Eligible, ranking: Ranking) -> Iterator[Told]:
    named = first_screen_choices(ranking)
    doubts: dict[str, dict[str | None, None]] = {}  # the distinct doubts about each GPU; None is no doubt
    for each in named:
        from_host = each.condition is PriceCondition.SINGLE_HOST
        on_price = each.price_doubt or (ask_words(each.asks) if from_host else None)
        on_memory = MAY_NOT_FIT if each.row.estimate.may_fit else None
        doubts.setdefault(gpu_name(each.offer.gpu_key), {}).update({on_price: None, on_memory: None})
    doubted = grouped((", ".join(filter(None, why)), gpu) for gpu, why in doubts.items() if any(why))
    if doubted:
        parts = (f"{listing(gpus)} ({why})" for why, gpus in doubted.items())
        yield tell("price_doubt", doubts="; ".join(parts))
    if sharded := [gpus_of(each.offer) for each in named if each.row.parallel_mode is ParallelMode.FSDP]:
        yield tell("sharded", gpus=listing(dict.fromkeys(sharded)))
    for each in named:
        if each.can_feed is False:
            yield tell(
                "feed_limited",
                vcpus=f"{each.offer.vcpus:g}",
                gpu=gpus_of(each.offer),
                needed=format_number(each.feed_vcpus, 2),
            )
    usd_per_year = (
        (each.offer, each.offer.usd_per_gpu_hour * each.offer.gpu_count * HOURS_PER_YEAR) for each in named
    )
    totals = [
        f"{plain(offer.provider, 40)} {format_price(usd * offer.term_years)}"
        for offer, usd in usd_per_year
        if offer.pricing is Pricing.RESERVED and offer.term_years
    ]
    if totals:
        yield tell("commit_total", totals=listing(totals))
    if break_evens := [each.row.spot_break_even for each in named if each.row.spot_break_even]:
        yield tell("spot_pays", share=format_percent(min(break_evens)))
    yield from _on_speeds(found, ranking)
    yield from _on_access(found, named)


def _on_access(found: Eligible, named: Sequence[Choice]) -> Iterator[Told]:
    if quota := dict.fromkeys(plain(each.offer.provider, 40) for each in named if each.needs_quota):
        yield tell("quota", providers=listing(quota))
    builds = grouped(
        (str(build), gpu_name(key))
        for key in found.pool.offers.gpu_key.present
        if (spec := load_specs().get(key)) and (build := other_build_for(spec.compute_capability))
    )
    for needed, names in builds.items():
        yield tell("legacy_build", gpu=listing(names, most=3), build=needed)


def _on_speeds(found: Eligible, ranking: Ranking) -> Iterator[Told]:
    """Yield which speeds are guesses, are based on few measurements or are host-bound.

    The order by energy comes first, if it was requested. A guess that is likelier to be the fastest or the
    cheapest offer than the answer itself is named, unless that answer is a guess too.
    """
    if found.request.sort == "joules":
        yield from _by_energy(ranking)
    named = [each.row for each in first_screen_choices(ranking)]
    is_guess = is_a_guess(found.pool)[found.order]
    for name, better in (("fastest", "faster"), ("cheapest", "cheaper")):
        chance = np.where(is_guess, np.nan_to_num(getattr(found.chances, f"p_{name}")), 0.0)
        place, answer = int(np.argmax(chance)), ranking.answers[name].row
        if not answer.estimate.is_a_guess and chance[place] > (getattr(answer, f"p_{name}") or 0.0):
            told = tell("guess_faster", gpu=gpus_of(found.offers[place]), better=better)
            is_asked = found.request.sort == "time" or found.request.gpus
            yield told._replace(kind="asked") if is_asked else told
    guesses = (row for row in named if row.estimate.is_extrapolated)
    for gpu in dict.fromkeys(gpu_name(row.offer.gpu_key) for row in guesses):
        yield tell("extrapolated", gpu=gpu)
    bases = {row.estimate.basis for row in (*named, *(each.row for each in ranking.by_gpu[:2]))}
    if found.request.task == "infer" and "predicted" in bases:
        yield tell("few_measurements")
    by_host = (row for row in named if any(f.kind is FindingKind.HOST_BOUND for f in row.findings))
    for gpu in dict.fromkeys(gpus_of(row.offer) for row in by_host):
        yield tell("host_bound", gpu=gpu)


def _by_energy(ranking: Ranking) -> Iterator[Told]:
    # Yield the machine that uses the least energy per sample, and the best machines of three other GPUs.
    known = (row for row in ranking.rows if row.joules_per_sample and row.estimate.joules_per_sample.value)
    best = [(gpus_of(row.offer), _joules_of(row)) for row in best_of_each_gpu(known)]
    if not best:
        return
    first, *others = best[:4]
    yield tell("by_energy", gpu=first[0], joules=first[1], unit=ranking.rows[0].estimate.case.sample_unit)
    if others:
        yield tell("next_by_energy", gpus="; ".join(f"{gpus} at {joules}" for gpus, joules in others))


def _joules_of(row: Row) -> str:
    # Return the energy that all GPUs use per sample, with the relative interval of one GPU's energy.
    of_one = row.estimate.joules_per_sample
    of_all = of_one.over((of_one.value or 0.0) / (row.joules_per_sample or 1.0))
    return of_all.by(format_number, " J")


def _on_request(found: Eligible, ranking: Ranking) -> Iterator[Told]:
    request, pool, filtered = found.request, found.pool, found.filtered
    doubtful = filtered.accepted.where(filtered.accepted.by_user & filtered.accepted.are_in(pool.offers))
    for offer in doubtful[:_MOST_OFFERS]:
        yield tell("own_price", offer=name_of(offer), doubt=str(filtered.asked_prices.doubt(offer)))
    own = [each for each in found.excluded if each.among.by_user[each.at]]
    if request.offers is not None and own and not pool.offers.by_user.any():
        reason = f"{gpu_name(own[0].offer.gpu_key)} at {plain(own[0].offer.provider)}: {own[0].reason}"
        yield tell("own_unranked", file=plain(request.offers.name), reason=reason)
    elif never_hourly := [each for each in filtered.doubted_as_requested if each.among.by_user[each.at]]:
        yield tell("own_left_out", offer=name_of(never_hourly[0].offer), reason=never_hourly[0].reason)
    excluded = Counter(each.option for each in found.excluded)
    if request.regions and (unsaid := sum(each.reason == REGION_UNSAID for each in found.excluded)):
        yield tell("region_unsaid", offers=count(unsaid, "offer"))
    limits = {
        "--deadline-hours": f"may exceed {duration(request.deadline_hours)}",
        "--budget-usd": f"may exceed {format_usd(request.budget_usd)}",
    }
    if what := [f"{excluded[option]:,} {words}" for option, words in limits.items() if excluded[option]]:
        total = len(found) + sum(excluded[option] for option in limits)
        yield tell("beyond_limits", total=f"{total:,}", what=listing(what))
    if request.commit and Pricing.RESERVED not in pool.offers.pricing.present:
        yield tell("commit_none")
    if request.spot and Pricing.SPOT not in pool.offers.pricing.present:
        yield tell("spot_none")
    costs = (
        (request.tax, f"{format_percent(request.tax)} tax"),
        (request.egress_usd, f"{format_usd(request.egress_usd)} for egress"),
        (request.storage_usd_per_month, f"storage at {format_usd(request.storage_usd_per_month)} a month"),
    )
    if extras := [words for is_paid, words in costs if is_paid]:
        yield tell("costs_count", what=listing(extras))
    yield from _on_batches(found, ranking)


def _on_batches(found: Eligible, ranking: Ranking) -> Iterator[Told]:
    request, pool = found.request, found.pool
    answers = [each.row for each in ranking.answers.values()]
    if request.batch_size == "max":
        sizes = {gpu_name(row.offer.gpu_key): row.estimate.case.batch_size for row in answers}
        yield tell("largest_batch", batches=listing([f"{gpu} {size:,}" for gpu, size in sizes.items()]))
        return
    names_memory = request.min_memory_gib is not None or any("gb" in sized(name) for name in request.gpus)
    if request.batch_size is not None or names_memory:
        row = answers[0]
        unknown = "not checked against its memory" if row.estimate.basis == "predicted" else "fits (it ran)"
        fits = row.estimate.memory_text or unknown
        yield tell(
            "holds_batch",
            gpu=gpu_name(row.offer.gpu_key),
            batch=f"{row.estimate.case.batch_size:,}",
            fits=plain(fits),
        )
    offered = set(pool.offers.gpu_key.present)  # excludes this machine's CPU
    parts_of = zip(pool.speeds.keys, pool.speeds.parts, strict=True)
    batches = {batches_of(parts) for key, parts in parts_of if key in offered}
    if request.max_latency_ms is not None or len(batches) < 2:
        return
    yield tell("other_batches")
    most = max(batches)
    smaller = {gpus_of(row.offer): batch for row in answers if (batch := batches_of(row.estimates)) < most}
    if smaller and len(most) == 1:  # a single workload
        of_gpus = listing([f"{gpus} at {batch}" for gpus, (batch,) in smaller.items()])
        yield tell("smaller_batch", batches=of_gpus, most=f"{most[0]:,}")


# --- owning and buying ----------------------------------------------------------------------------------


def _on_own_machines(found: Eligible, priced: Candidates, ranking: Ranking) -> Iterator[Told]:
    # Yield the outcome for each machine that the buyer has, and the cost of renting instead.
    ranked = {found.offers[place] for place in np.flatnonzero(found.is_owned).tolist()}
    for offer, machine in found.filtered.owned.items():
        if machine.condition is PriceCondition.QUOTED and offer not in ranked:
            for each in (each for each in found.excluded if each.offer == offer):
                reason = f"{each.reason}{_what_helps(each.reason)}"
                yield tell("have_removed", machine=gpus_of(offer), reason=reason)
                if offer.gpu_count > 1 and Verdict.DOES_NOT_FIT in each.reason:
                    yield tell("have_sharded", gpu_count=str(offer.gpu_count))
    for choice in ranking.owned:
        if not choice.purchase_usd and choice.row.hours.value is not None:
            usd = format_usd(choice.row.cost_usd.value)
            yield tell(
                "have_ranked", machine=gpus_of(choice.offer), hours=duration(choice.row.hours.value), usd=usd
            )
    if ranking.owned and ranking.job is not None and (rent := best_to_rent(found, priced)) is not None:
        yield tell(
            "have_or_rent",
            gpu=gpus_of(rent.offer),
            provider=plain(rent.offer.provider, 40),
            usd=format_usd(rent.row.cost_usd.value),
            hours=duration(rent.row.hours.value),
        )


def _on_owning(found: Eligible, ranking: Ranking) -> Iterator[Told]:
    request, own, machines = found.request, ranking.best_to_own, found.filtered.machines
    # A host in ``request.own`` is the buyer's PC without a GPU; ``own`` is the best hardware to own.
    if any(map(is_a_host, request.own)) and not request.buys and own is not None and own.purchase_usd:
        yield tell(
            "have_pc",
            gpu=gpus_of(own.offer),
            condition=CONDITION_WORDS[own.condition],
            usd=format_price(own.purchase_usd),
            work=work_done(ranking, own.row),
        )
    first = ranking.first
    if request.buys and request.host_usd is None and first.source == "own" and first.host_usd:
        host = machines[first.offer].host or hosts()[0]
        yield tell(
            "buy_without_host" if host == hosts()[0] else "buy_with_host",
            usd=format_price(first.host_usd),
            host=host.name,
        )
    if request.buys and first.purchase_usd and first.row.hours.value is not None:
        machine, jobs = machines[first.offer], request.jobs_per_month
        use = (
            f"{format_percent(machine.utilization.likely)} of all hours"
            if jobs is None
            else f"for {count(jobs, 'job')} a month"
        )
        yield tell("share_of_purchase", use=use, years=count(machine.years, "year"))
    rented_usd = first.row.cost_usd.value
    if own is not None and first.source != "own" and rented_usd is not None and own.purchase_usd:
        own_usd = own.row.cost_usd.value
        if own_usd is not None and own_usd < rented_usd:
            yield tell(
                "own_instead",
                gpu=gpus_of(own.offer),
                usd=format_usd(own_usd),
                share=format_percent(machines[own.offer].utilization.likely),
                years=count(machines[own.offer].years, "year"),
                purchase_usd=format_price(own.purchase_usd),
            )
    yield from _buying(ranking.buy_or_rent)
    if own is not None and own.assumed:
        yield tell("assumed", assumed=listing(assumed_of([own])))


def _buying(comparisons: Iterable[BuyOrRent]) -> Iterator[Told]:
    # Yield how the first machines to buy compare with hourly rentals; those with a quote come first.
    by_the_hour = [each for each in comparisons if each.against_pricing is Pricing.ON_DEMAND]
    by_the_hour.sort(key=lambda each: each.condition is not PriceCondition.QUOTED)
    names = {"buy": "buying_pays", "depends": "buying_depends", "rent": "buying_loses"}
    for each in by_the_hour[:_MOST_OFFERS]:
        told = tell(
            names[each.verdict],
            machine=f"{gpus_of(each)} for {format_price(each.purchase_usd)}",
            rival=f"{each.against} at {format_usd(each.equivalent_usd_per_hour)}/h for the same work",
            payback=payback(each),
            hours=must_work(each),
        )
        yield told._replace(kind="asked") if each.condition is PriceCondition.QUOTED else told


# --- notes on the figures -------------------------------------------------------------------------------


def _on_the_first(choice: Choice) -> Iterator[Told]:
    asks, offer, gpu = choice.asks, choice.offer, gpus_of(choice.offer)
    if asks is not None and asks.ask_count > 1:
        low, middle, high = map(
            format_usd, (asks.low_usd_per_hour, asks.median_usd_per_hour, asks.high_usd_per_hour)
        )
        yield tell(
            "asks",
            gpu=gpu_name(offer.gpu_key),
            usd=format_usd(choice.row.listed_usd_per_hour / offer.gpu_count),
            count=str(asks.ask_count),
            median_usd=middle,
            range=f"{low} to {high}",
        )
    if choice.price_note:
        yield tell("price_note", gpu=gpu, note=plain(choice.price_note))
    if choice.host_unsaid:
        yield tell("host_unsaid", gpu=gpu, facts=listing(choice.host_unsaid))
    if (
        choice.feed_images_per_s is not None
        and choice.feed_vcpus is not None
        and choice.can_feed is not False
    ):
        fields = {
            "gpu": gpu,
            "images_per_s": format_number(choice.feed_images_per_s),
            "needed": format_number(choice.feed_vcpus, 2),
        }
        if offer.vcpus is None:
            yield tell("vcpus_unsaid", **fields)
        else:
            yield tell("vcpus", **fields, vcpus=f"{offer.vcpus:g}")


def _on_prices(found: Eligible, priced: Candidates) -> Iterator[Told]:
    market = found.filtered.market
    rented = priced.offers.where(~priced.is_owned)
    if len(rented):
        ages = {day: age_days(day, market.today) for day in rented.price_date.present}
        yield tell(
            "price_age", age=count(round(median(ages[day] for day in rented.price_date.cells())), "day")
        )
        is_old = rented.price_date.is_in(lambda day: ages.get(day, 0) > STALE_AFTER_DAYS)
        if old := Counter(rented.where(is_old).provider.cells()):
            yield from _refreshed(old)
        if not any(rented.in_stock.present):
            yield tell("stock")
        cheapest = found.offers[int(np.argmin(found.pool.price[found.order]))]
        if cheapest.pricing is not Pricing.OWNED:
            usd = format_usd(float(found.pool.price.min()))
            yield tell("cheaper_hour", usd=usd, gpu=gpus_of(cheapest), provider=plain(cheapest.provider, 40))
    if priced.prices.sigma.any():
        yield tell("expected_prices", share=format_percent(market.drift))


def _refreshed(old: Counter[str]) -> Iterator[Told]:
    from gpubench.offers.sources import refreshed_providers  # takes time to load

    read = sorted(refreshed_providers() & old.keys())
    others = [plain(name, 30) for name, _ in old.most_common() if name not in read]
    if read:
        yield tell(
            "price_refresh",
            count=f"{old.total():,}",
            limit_days=str(STALE_AFTER_DAYS),
            providers=listing(read, most=8),
        )
    if others:
        yield tell("price_pages", providers=listing(others, most=3))


def _on_figures(found: Eligible) -> Iterator[Told]:
    request, pool = found.request, found.pool
    if request.mix:
        yield tell("mixture")
    elif len(request.workload_names) > 1:
        yield tell("geometric_mean", workloads=listing(request.workload_names))
    if len(found) > IN_DETAIL:
        yield tell("ties_detail", count=f"{IN_DETAIL:,}", total=f"{len(found):,}")
    for basis in ("measured", "modeled"):
        efficiencies = {each.efficiency for each in pool.scalings if each.basis == basis}
        if efficiencies:
            ends = dict.fromkeys(format_number(end, 2) for end in (min(efficiencies), max(efficiencies)))
            yield tell("scaling", efficiency=" to ".join(ends), basis=basis)
    yield from _on_checkpointing(pool)
    yield from _on_estimates(pool)
    if Pricing.RESERVED in pool.offers.pricing.present:
        use = request.utilization.likely
        yield tell("reserved_use", share=format_percent(use), times=format_number(1 / use, 2))


def _on_estimates(pool: Candidates) -> Iterator[Told]:
    ranked = set(pool.offers.gpu_key.present)
    limited_by = grouped(
        (estimate.host_cpu, gpu_name(key))
        for key, estimate in zip(pool.speeds.keys, pool.speeds.estimates, strict=True)
        if key in ranked and estimate.host_cpu is not None
    )
    for cpu, names in limited_by.items():
        yield tell("host_cpu", gpu=listing(names), cpu=plain(cpu, 60))
    if any((spec := load_specs().get(key)) and spec.variants for key in ranked):
        yield tell("form_factor")
    if any(each.basis == "predicted" and not each.anchored for each in pool.speeds.estimates):
        yield tell("not_anchored")


def _on_checkpointing(pool: Candidates) -> Iterator[Told]:
    may_vary = pool.request.checkpointing is None and pool.request.one_job_over_all_gpus
    if not may_vary or not len(pool.offers):
        return
    most = max(pool.offers.gpu_count.present)
    for name in (name for name in pool.request.workload_names if name in load_profiles()):
        rule = [(fewest, how) for fewest, how in load_profiles()[name].checkpointing_from if fewest <= most]
        if len(rule) > 1:
            ways = ", ".join(f"{how} from {count(fewest, 'GPU')} on" for fewest, how in rule)
            yield tell("checkpointing", model=name, ways=ways)


def _on_exclusions(found: Eligible) -> Iterator[Told]:
    # Yield what is not ranked and might be missed: prices far too low, cards without kernels or without
    # BF16, and free tiers.
    request, filtered = found.request, found.filtered
    low = [each.offer for each in filtered.doubted_as_requested if each.option == FAR_BELOW]
    if low:
        yield tell(
            "left_out_prices", offers=listing([name_of(each) for each in low], most=2), setting=ADMITTED_BY
        )
    cards = dict.fromkeys(
        gpu_name(each.offer.gpu_key) for each in found.excluded if each.option == NO_KERNELS
    )
    if cards:
        yield tell("no_kernels", gpu=listing(cards, most=3), torch=newest_release())
    without_bf16 = {gpu_name(each.offer.gpu_key) for each in found.excluded if NO_SPEED in each.reason}
    if without_bf16:
        yield tell("no_bf16", gpu=listing(sorted(without_bf16)))
    if request.buys or request.gpus or request.providers:
        return
    for offer in filtered.every.where(filtered.every.kind.equals("free")):
        spec = load_specs().get(offer.gpu_key)
        if spec is not None and spec.not_ranked_because is None:
            yield tell(
                "free_tier",
                gpu=gpu_name(offer.gpu_key),
                provider=plain(offer.provider),
                instance=plain(offer.instance),
                day=show_price_date(offer.price_date),
                limits=plain(offer.note or "with limits").rstrip("."),
            )
