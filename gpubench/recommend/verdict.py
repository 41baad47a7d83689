"""The verdict: what to pay for, in a few sentences, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpubench.findings import doubts
from gpubench.interval import Interval
from gpubench.labels import CONDITION_WORDS, card_condition, gpu_name, gpus_of, price_of
from gpubench.models import (
    Answer,
    BuyOrRent,
    Case,
    Choice,
    Decision,
    FindingKind,
    PriceCondition,
    Pricing,
    Ranking,
    Row,
    Sentence,
    SentenceKind,
    SortedBy,
    Sureness,
)
from gpubench.recommend.chances import NEAR
from gpubench.recommend.decision import against_rent_by_the_hour, recommended, second_best
from gpubench.recommend.economics import SECONDS_PER_HOUR, train_hours
from gpubench.recommend.eligible import Eligible
from gpubench.recommend.evidence import CPU_KEY
from gpubench.recommend.objective import is_a_guess
from gpubench.recommend.owning import must_work, payback
from gpubench.recommend.request import RankRequest
from gpubench.recommend.rows import leading
from gpubench.recommend.speeds import Speeds
from gpubench.units import (
    format_chance,
    format_duration,
    format_percent,
    format_price,
    format_usd,
    listing,
    plain,
)

NO_GPU_NEEDED = "You do not need a GPU for this"
"""How the sentence begins that comes before everything else."""

CAUTION = "Caution"
"""How the sentence begins that flags what the answer rests on and should not."""

SURENESS = "How sure"
"""How the sentence begins that says how sure the answer is."""

RATHER_RENT = "Rather rent"
"""How the sentence begins that says that what is best to buy does not pay."""

MOST_WORDS = 60
"""Of a verdict beside its other answers; what it has no room for stands among the notes."""

MOST_WORDS_IN_ALL = 112
"""Of both together: with the line below it 120, as many as a screen of the page holds beside its chart."""

ALIKE = 0.02
"""Two jobs whose hours differ by less than this share take as long: an hour between them has no price."""

NO_GPU_HOURS = 1.0
"""A job that the CPU ends within this needs no GPU, unless a deadline says otherwise."""

BEST_PER_DOLLAR, MOST_WORK = "Best per dollar", "Most for it"
"""The terms of the two answers to a sum to spend: the least for the job, and the most work for the sum."""

TOSS_UP = "Toss-up"
"""The term of the chances of an answer and its likeliest rival."""

BEST_CLOUD = "Best cloud"
"""The term of the best offer of a provider that is no single host."""

ONLY_OFFER = "the only offer left"
"""What stands where nothing is left to compare with."""

CERTAIN = 0.99
"""A probability above this is not told apart from certainty."""

MOST_MACHINES = 2
"""Machines that the verdict speaks of; the table has them all."""

_BASIS = {
    "measured": "measured here",
    "reference": "measured on another such card",
    "predicted": "predicted",
}


class Said(NamedTuple):
    """Sentences on a ranking, the most important first: those of the verdict, and what it has no room for."""

    verdict: tuple[Sentence, ...]
    beside: tuple[Sentence, ...]


def verdict(found: Eligible, ranking: Ranking, made: Mapping[int, Row]) -> Said:
    """Return the verdict: the answers, how sure the first is, and what there is room for.

    Args:
        found: What can do the job.
        ranking: The answer, with the decision; its rows are those that are shown.
        made: Rows by their place, those that share the first rank, the fastest and the cheapest among them.
    """
    request, speeds = found.request, found.pool.speeds
    head, rent, cpu = made[0], rent_instead(ranking), _on_the_cpu(request, speeds)
    is_enough = cpu.kind is SentenceKind.NO_GPU_NEEDED
    sure = f"{SURENESS}: {confidence(ranking.sorted_by, ranking.decision)}."
    beside = [
        _host_bound(head),
        _tie([made[place] for place in leading(found)]),
        _spot(ranking, head),
        _others(ranking, found, made),
        *_buying(ranking.buy_or_rent),
    ]
    others = other_answers(ranking).items()
    sentences = [
        *([cpu] if is_enough else []),
        _said(SentenceKind.ANSWER, _best(request, ranking, head)),
        _beside(f"{RATHER_RENT}: {rent}." if rent else ""),
        _beside(f"It is {ONLY_OFFER}.") if len(found) == 1 else _said(SentenceKind.SURENESS, sure),
        _said(SentenceKind.CAUTION, caution(ranking)),
        *(_said(SentenceKind.OTHER_ANSWER, f"{name}: {text}.") for name, text in others),
        *(
            _said(SentenceKind.TOSS_UP, f"{TOSS_UP}: {name} {chances}.")
            for name, chances in toss_ups(ranking.answers).items()
        ),
        *map(_beside, beside),
        *([] if is_enough else [cpu]),
        _beside(_against_the_cpu(request, speeds, head)),
    ]
    return _within(room_for(ranking), (each for each in sentences if each.text))


def room_for(ranking: Ranking) -> int:
    """Return how many words a verdict and a card may have: ``MOST_WORDS``, and those of its other answers."""
    beside = [*other_answers(ranking).items(), *toss_ups(ranking.answers).items()]
    others = sum(word_count(f"{term} {text}") for term, text in beside)
    return min(MOST_WORDS + others, MOST_WORDS_IN_ALL)


def _said(kind: SentenceKind, text: str) -> Sentence:
    return Sentence(kind=kind, text=text)


def _beside(text: str) -> Sentence:
    return _said(SentenceKind.BESIDE, text)


def word_count(text: str) -> int:
    """Return how many words a text has: what stands between spaces, signs and figures too."""
    return len(text.split())


def _within(most_words: int, sentences: Iterable[Sentence]) -> Said:
    """Part sentences into those that there is room for, in their order, and the others."""
    said: list[Sentence] = []
    beside: list[Sentence] = []
    left = most_words
    for sentence in sentences:
        words = word_count(sentence.text)
        if words <= left or not said:
            said.append(sentence)
            left -= words
        else:
            beside.append(sentence)
    return Said(tuple(said), tuple(beside))


def _best(request: RankRequest, ranking: Ranking, row: Row) -> str:
    by, decision = ranking.sorted_by, ranking.decision
    title = f"{_TITLES[by]}{' among purchases' if only_purchases(decision) else ''}"

    def figure(row: Row) -> float:
        if by == "total":
            return row.total_usd.value or 0.0
        if by == "cost":
            return row.cost_usd.value or 0.0
        if by == "time":
            return row.hours.value or 0.0
        return -((row.samples_per_usd if by == "value" else row.samples_per_s).value or 0.0)

    guesses = [each.row for each in decision.by_gpu if each.row.estimate.is_extrapolated]  # beyond the fit
    if any(figure(each) < figure(decision.choice.row) for each in guesses):
        title += " that the fit covers"
    if request.batch_size == "max":
        title += " at each GPU's own largest batch"
    return f"{title}: {_who(row)}, {_merit(ranking, row)}, {_BASIS[row.estimate.basis]}."


_TITLES: dict[SortedBy, str] = {
    "total": "Best in dollars and hours",
    "value": "Best value",
    "throughput": "Fastest",
    "time": "Fastest",
    "cost": "Cheapest job",
}


def only_purchases(decision: Decision) -> bool:
    """Return whether all that was ranked is hardware to buy, so that the best is the best of those alone."""
    return all(each.purchase_usd is not None for each in decision.by_gpu)


def rent_instead(ranking: Ranking) -> str:
    """Return what to rent where the best to buy does not pay: "RTX 3090 at vast, $6.00 a job; buying ..."."""
    rent = ranking.decision.rather_rent
    weighed = against_rent_by_the_hour(ranking.decision.choice, ranking.buy_or_rent)
    if rent is None or weighed is None:
        return ""
    offer, cost_usd = rent.offer, rent.row.cost_usd.value
    name = gpu_name(offer.gpu_key) if offer.gpu_count == 1 else gpus_of(offer)
    usd = price_of(rent.row) if cost_usd is None else f"{format_usd(cost_usd)} a job"
    return f"{name} at {plain(offer.provider, 30)}, {usd}; buying {payback(weighed)}"


def _who(row: Row) -> str:
    if row.offer.pricing is Pricing.OWNED:
        return f"owning {gpus_of(row.offer)} at {price_of(row)} of work"
    spot = " spot" if row.offer.pricing is Pricing.SPOT else ""
    host = f" ({CONDITION_WORDS[PriceCondition.SINGLE_HOST]})" if row.offer.kind == "marketplace" else ""
    about = ""
    if not row.is_expected_as_listed:
        about = "about "
        host = f" (one host asked {format_usd(row.listed_usd_per_hour)})"
    return f"{gpus_of(row.offer)} at {plain(row.offer.provider, 40)}{spot} for {about}{price_of(row)}{host}"


def _merit(ranking: Ranking, row: Row) -> str:
    if ranking.sorted_by == "value":
        return f"{ranking.value_of(row).compact()} {ranking.value_unit}"
    if ranking.sorted_by == "throughput":
        return _rate(ranking, row)
    job = ranking.decision.job
    return f"{_job(row)} for {'the job' if job is None else plain(job.words, 80)}"


def _job(row: Row) -> str:
    return f"{_duration(row.hours.value)} and {format_usd(row.cost_usd.value)}"


def _rate(ranking: Ranking, row: Row) -> str:
    figure = ranking.throughput_of(row).compact()
    if ranking.by_reference and ranking.reference_gpu_key:
        return f"{figure} times one {gpu_name(ranking.reference_gpu_key)}"
    return f"{figure} {ranking.throughput_unit}"


def confidence(by: SortedBy, decision: Decision, *, of_the_gpu: bool = True) -> str:
    """Return in at most 15 words how sure the choice is, and how far from the best it is on average.

    "41 % within 10 % of cheapest, expected regret $3.12". Where others have the same GPU too, the chance of
    the GPU, which a table of one row a GPU shows, is larger than that of the offer, and both are told: "GPU
    56 % cheapest; offer 30 % within 10 %, expected regret $3.12".

    Args:
        by: What the rows are in order of.
        decision: With the choice and its sureness.
        of_the_gpu: Whether to tell the chance of the GPU as well.
    """
    sure, choice = decision.sureness, decision.choice
    best = _best_of(by, decision)
    is_contest = len({each.offer.gpu_key for each in decision.by_gpu}) > 1
    of_gpu = choice.p_best_of_gpu if of_the_gpu and is_contest else None
    if of_gpu is None or sure.p_best > CERTAIN or format_chance(choice.row.p_best) == format_chance(of_gpu):
        return _sureness_words(sure, best)
    return f"GPU {format_chance(of_gpu)} {best}; offer {_near(sure)}, {_regret(sure)}"


def _best_of(by: SortedBy, decision: Decision) -> str:
    return f"{_BEST[by]}{' purchase' if only_purchases(decision) else ''}"


def _sureness_words(sure: Sureness, best: str) -> str:
    """Return the chance of coming near the best, and the expected regret: how far the choice is from it."""
    if sure.p_best > CERTAIN:
        return f"over {format_percent(CERTAIN)} the {best}"
    return f"{_near(sure)} of {best}, {_regret(sure)}"


def _near(sure: Sureness) -> str:
    return f"{format_chance(sure.p_near_best)} within {format_percent(NEAR)}"


def _regret(sure: Sureness) -> str:
    if sure.regret_usd is not None:
        return f"expected regret {format_usd(sure.regret_usd)}"
    return f"expected regret {format_percent(sure.regret_share)}"


def sureness_note(ranking: Ranking) -> str:
    """Return what the figures of ``confidence`` mean."""
    decision = ranking.decision
    if decision.sureness.p_best > CERTAIN:
        return ""
    best = _best_of(ranking.sorted_by, decision)
    return (
        f"{SURENESS}: in joint draws of throughput and price, against the {best} of each draw; the "
        f"expected regret is how far the choice falls short of it on average."
    )


_BEST: dict[SortedBy, str] = {
    "total": "best",
    "cost": "cheapest",
    "time": "fastest",
    "value": "best",
    "throughput": "fastest",
}


def _tie(leading: Sequence[Row]) -> str:
    """Name the other GPUs that cannot be told from the first, likeliest first."""
    tied = sorted((row for row in leading[1:] if row.tie), key=lambda row: -(row.p_best or 0.0))
    rivals = dict.fromkeys(gpus_of(row.offer) for row in tied)
    rivals.pop(gpus_of(leading[0].offer), None)
    return f"Statistically tied with {listing(rivals, most=2)}." if rivals else ""


class Caution(NamedTuple):
    """What the answer rests on and should not: in full, and in a few words where room is short."""

    text: str
    in_a_word: str


def decisive_doubts(decision: Decision) -> list[Caution]:
    """Return what is doubtful where it decides, first a clock far from every price."""
    decisive = [each for each in (recommended(decision), second_best(decision)) if each is not None]
    beyond = dict.fromkeys(
        gpu_name(each.offer.gpu_key) for each in decisive if each.row.estimate.is_extrapolated
    )
    of_choices = (
        f"{gpu_name(each.offer.gpu_key)} at {each.price_doubt}" for each in decisive if each.price_doubt
    )
    prices = list(dict.fromkeys((*of_choices, *decision.answer_doubts)))
    few, first = underfed(recommended(decision)), "".join(prices[:1]).partition(" at ")[0]
    whose = "" if first == gpu_name(recommended(decision).offer.gpu_key) else f" of {first}"
    return [
        *([Caution(decision.clock, "this computer's clock looks wrong")] if decision.clock else []),
        *([Caution(f"{few} of its GPUs", _feed(recommended(decision).fed_share))] if few else []),
        *([Caution("; ".join(prices), f"doubtful price{whose}")] if prices else []),
        *([Caution(f"{listing(beyond)} extrapolated beyond the fit", "extrapolated")] if beyond else []),
        *([Caution(decision.unfitted, "few measurements")] if decision.unfitted else []),
    ]


def caution(ranking: Ranking) -> str:
    """Return the sentence to read before paying: all that is doubtful where it decides."""
    found = decisive_doubts(ranking.decision)
    return f"{CAUTION}: {'; '.join(each.text for each in found)}." if found else ""


def underfed(choice: Choice) -> str:
    """Return "its 6 vCPUs feed 94 %"; nothing where they prepare all that the GPUs take, or nobody knows."""
    return "" if choice.can_feed is not False else _feeds(choice.offer.vcpus, choice.fed_share)


def _feeds(vcpus: float | None, share: float | None) -> str:
    return f"its {vcpus:g} {_feed(share)}"


def _feed(share: float | None) -> str:
    return f"vCPUs feed {format_chance(share)}"


def fastest_and_cheapest_by_the_hour(found: Eligible) -> tuple[int, int]:
    """Return the places of the fastest that is no guess beyond the fit, and of the lowest price."""
    time, _ = found.time_and_cost
    time = np.where(is_a_guess(found.pool)[found.order], np.inf, time)
    return int(np.argmin(time)), int(np.argmin(found.pool.price[found.order]))


def other_answers(ranking: Ranking) -> dict[str, str]:
    """Return what stands beside the answer: the cheapest, the fastest, a cloud's best, the worth of an hour.

    Each is another row than the answer, and says what an hour costs between the two: "8x B200 at coreweave,
    49 min, $55.98 ($40.44-80.77); 7.6 h sooner: $5.91 an hour". The best of a cloud stands beside a host of a
    marketplace. Nothing where the order is not of dollars and hours together.
    """
    if ranking.sorted_by != "total":
        return {}
    decision, choice = ranking.decision, recommended(ranking.decision)
    if only_purchases(decision) and ranking.max_purchase_usd is not None:
        return {
            term: f"{_bought(ranking.answers[name])}: {_job(ranking.answers[name].row)}"
            for term, name in ((BEST_PER_DOLLAR, "cheapest"), (MOST_WORK, "fastest"))
        }
    rows = {name.capitalize(): each.row for name, each in ranking.answers.items() if name != "sensible"}
    if choice.source == "marketplace" and decision.best_cloud is not None:
        rows[BEST_CLOUD] = decision.best_cloud.row
    told: dict[str, str] = {}
    named = {choice.offer}
    for name, row in rows.items():
        if row.offer not in named:
            told[name] = f"{_there(row)}; {_trade(row, choice.row)}"
            named.add(row.offer)
    return told | {"Waiting": f"{format_usd(ranking.hour_worth_usd)} an hour (--hour-worth)"}


def _bought(answer: Answer) -> str:
    """Return a set with its condition and its sum: "3x RTX 5070 (used) with a host for $2,671"."""
    condition = "" if answer.condition is None else card_condition(answer.condition)
    named = gpus_of(answer.row.offer) + (f" ({condition})" if condition else "")
    return f"{named}{' with a host' if answer.host_usd else ''} for {format_price(answer.purchase_usd)}"


def toss_ups(answers: Mapping[str, Answer]) -> Mapping[str, str]:
    """Return the chances of each answer that is a toss-up: "cheapest RTX 3090 49 %, 2x V100 21 %".

    Two answers that are one row, and as even, are named together: "cheapest and sensible".
    """
    even: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if answer.toss_up is not None:
            chances = (f"{_few(key, n)} {format_chance(p)}" for key, n, p in answer.toss_up)
            even.setdefault(", ".join(chances), []).append(name)
    return {" and ".join(names): chances for chances, names in even.items()}


def _few(gpu_key: str, gpu_count: int) -> str:
    return gpu_name(gpu_key) if gpu_count == 1 else f"{gpu_count}x {gpu_name(gpu_key)}"


def _there(row: Row) -> str:
    cost = row.cost_usd
    usd = format_usd(cost.value)
    if cost.low is not None and cost.high is not None:  # one word: a line holds few
        usd = f"{usd} ({format_usd(cost.low)}-{format_usd(cost.high).removeprefix('$')})"
    owned = row.offer.pricing is Pricing.OWNED
    where = "owned" if owned else f"at {plain(row.offer.provider, 40)}"
    return f"{gpus_of(row.offer)} {where}, {_duration(row.hours.value)}, {usd}"


def _trade(row: Row, first: Row) -> str:
    """Return what a row costs beside the answer, and for an hour of the difference."""
    usd = (row.cost_usd.value or 0.0) - (first.cost_usd.value or 0.0)
    job_hours = (row.hours.value or 0.0) - (first.hours.value or 0.0)
    if usd * job_hours >= 0 or abs(job_hours) < ALIKE * (first.hours.value or 0.0):
        return f"{format_usd(abs(usd))} {'more' if usd > 0 else 'less'}"
    later = f"{_duration(abs(job_hours))} {'sooner' if job_hours < 0 else 'longer'}"
    return f"{later}: {format_usd(abs(usd / job_hours))} an hour"


def _others(ranking: Ranking, found: Eligible, made: Mapping[int, Row]) -> str:
    """Name the fastest and the cheapest by the hour, where they are other offers than the best."""
    parts, (fastest, cheapest) = [], fastest_and_cheapest_by_the_hour(found)
    if ranking.sorted_by == "total":
        fastest = 0  # it is one of the answers, which are told with what an hour costs between them
    if fastest and ranking.sorted_by in {"value", "cost"}:
        row = made[fastest]
        speed = _rate(ranking, row) if ranking.sorted_by == "value" else _job(row)
        for bound in (each for each in row.findings if each.kind is FindingKind.FEED_BOUND):
            has, needs = float(bound.limit or 0), float(bound.value or 0)
            speed += f", as {_feeds(has, has / needs)} of its GPUs"
        parts.append(f"fastest: {_who(row)}, {speed}")
    if cheapest and not only_purchases(ranking.decision):  # what an hour owned costs rests on its use
        parts.append(f"cheapest by the hour: {_who(made[cheapest])}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _host_bound(row: Row) -> str:
    if not any(finding.kind is FindingKind.HOST_BOUND for finding in row.findings):
        return ""
    vcpus = row.offer.vcpus
    enough = f" One thread for each GPU launches the work, so its {vcpus:g} vCPUs suffice." if vcpus else ""
    return f"This is host-bound: a faster GPU will not help at this batch size.{enough}"


def _spot(ranking: Ranking, row: Row) -> str:
    if row.spot_break_even is None or row.spot_break_even <= 0:
        return ""
    wins = "wins" if ranking.sorted_by in {"total", "cost", "value"} else "is the cheaper"
    return f"Spot {wins} there while lost work stays under {format_percent(row.spot_break_even)}."


def _on_the_cpu(request: RankRequest, speeds: Speeds) -> Sentence:
    """Return whether the CPU that was measured here is enough, or how long it would take; empty of none."""
    if request.job_samples is None or CPU_KEY not in speeds.keys:
        return _beside("")
    row = speeds.keys.index(CPU_KEY)
    likely, slow = float(speeds.samples_per_s[row]), float(speeds.low[row])
    hours = train_hours(request.job_samples, slow if slow > 0 else likely)
    cpu = f"the CPU {_how(speeds, row)}"
    if hours <= (request.deadline_hours or NO_GPU_HOURS):
        enough = f"{NO_GPU_NEEDED}: {cpu} ends the job in {_duration(hours)}."
        return _said(SentenceKind.NO_GPU_NEEDED, enough)
    return _beside(f"{cpu[0].upper()}{cpu[1:]} would take {_duration(hours)}.")


def _duration(hours: float | None) -> str:
    return format_duration(None if hours is None else hours * SECONDS_PER_HOUR)


def _against_the_cpu(request: RankRequest, speeds: Speeds, best: Row) -> str:
    """Return how the best offer compares with the CPU that was measured here, where no job is given.

    Nothing where the two did unlike things (batch, precision ...), or where a finding casts doubt on either.
    """
    if request.job_samples is not None or CPU_KEY not in speeds.keys or best.offer.gpu_key == CPU_KEY:
        return ""
    row = speeds.keys.index(CPU_KEY)
    theirs, mine = best.estimates, speeds.parts[row]
    unlike = [each.case for each in theirs] != [each.case for each in mine]
    if unlike or doubts(*(each.findings for each in (*theirs, *mine))):
        return ""
    figures = (float(each[row]) for each in (speeds.samples_per_s, speeds.low, speeds.high))
    cpu = Interval(*(None if math.isnan(figure) else figure for figure in figures))
    times = best.samples_per_s.times(cpu.inverse()).text()
    case = f" ({_work(best.estimate.case)})" if len(mine) == 1 else ""
    return f"{gpus_of(best.offer)}{case} works {times} times as fast as the CPU {_how(speeds, row)}."


def _how(speeds: Speeds, row: int) -> str:
    """How the CPU was measured: its threads, the case where it is one, and what casts doubt on the figure."""
    parts = speeds.parts[row]
    remarks = [_work(parts[0].case)] if len(parts) == 1 else []
    flags = doubts(*(part.findings for part in parts))
    if flags:
        remarks.append(f"flagged {listing(flags, most=3)}")
    return f"{parts[0].method} ({'; '.join(remarks)})" if remarks else parts[0].method


def _work(case: Case) -> str:
    return f"{case.precision} {case.execution}, batch {case.batch_size:,}"


def _buying(decisions: Sequence[BuyOrRent]) -> Iterator[str]:
    """Yield a sentence for the best machines: buy or rent, from how many hours on, and against what."""
    by_the_hour = [each for each in decisions if each.against_pricing is Pricing.ON_DEMAND]
    by_the_hour.sort(
        key=lambda each: each.condition is not PriceCondition.QUOTED
    )  # what was asked about first
    for each in by_the_hour[:MOST_MACHINES]:
        condition = card_condition(each.condition)
        host = " with a host" if each.host_usd else ""
        name = f"{gpus_of(each)} ({condition})" if condition else gpus_of(each)
        machine = f"{name}{host} for {format_price(each.purchase_usd)}"
        against = f"{each.against} ({format_usd(each.equivalent_usd_per_hour)}/h for the same work)"
        advice = _ADVICE[each.verdict].format(machine=machine, against=against)
        yield f"{advice}: it must work {must_work(each)}, and {payback(each)}."


_ADVICE = {
    "buy": "Buying {machine} pays against {against}",
    "depends": "Buying {machine} can pay against {against}",
    "rent": "Rather than buy {machine}, rent {against}",
}
