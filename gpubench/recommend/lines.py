"""The lines of an answer: its rows in words, for every screen and document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpubench.interval import Interval
from gpubench.labels import SELLERS, card_condition, gpus_of
from gpubench.models import Answer, Choice, Estimate, Offer, Pricing, Ranking, Row
from gpubench.models.row import MODELED
from gpubench.recommend.answer import BASES, TITLES, machine_name
from gpubench.sentences import say
from gpubench.units import count, format_chance, format_price, format_usd, plain

COST = "You pay"
"""The heading of the column with the cost of a job, without waiting."""

CHANCE = "Chance it's best"
"""The heading of the column with the chance that no other GPUs are a better answer."""

BOTH = " \N{MIDDLE DOT} "
"""Joins the names of a row that is more than one answer."""

OR = "or"
"""Precedes the most likely other GPUs of a toss-up."""

_FOR_A_SUM = {"cheapest": "Best per dollar", "sensible": "Sensible", "fastest": "Most for it"}
HOURS = ((48.0, 24.0, " days"), (1.0, 1.0, " h"), (1 / 60, 1 / 60, " min"), (0.0, 1 / 3600, " s"))
"""Units of a time, the longest first: from how many hours on, how many hours it is, its name."""


class Line(NamedTuple):
    """A row of the answer, with the names of its answers.

    Attributes:
        names: "Cheapest", "Sensible · Fastest", "Cloud", "Yours" ...
        answers: Its answers; empty for an additional row.
    """

    names: str
    choice: Choice
    answers: tuple[Answer, ...] = ()

    @property
    def chances(self) -> tuple[str, ...]:
        """The chance of each answer, with the most likely rival of a toss-up; with names if they differ."""
        found = [_chance(answer) for answer in self.answers]
        if len(set(found)) < 2:
            return tuple(found[:1])
        return tuple(
            f"{name.lower()} {each}" for name, each in zip(self.names.split(BOTH), found, strict=True)
        )


def lines(ranking: Ranking) -> list[Line]:
    """Return the distinct rows to show: the answers, the best cloud, the buyer's machines, and named GPUs."""
    buys = ranking.max_purchase_usd is not None and ranking.first.source == "own"
    titles = _FOR_A_SUM if buys else TITLES
    names: dict[int, list[str]] = {}
    for name, answer in ranking.answers.items():
        names.setdefault(id(answer.row), []).append(name)
    found: list[Line] = []
    for same in names.values():
        of = [ranking.answers[name] for name in same]
        found.append(Line(BOTH.join(titles[name] for name in same), of[0].choice, tuple(of)))
    named = {line.choice.offer for line in found}
    beside = [("Cloud", ranking.cloud), *(("Yours", each) for each in ranking.owned)]
    beside += [("Also asked", each) for each in ranking.asked]
    found[1:1] = [Line(name, each) for name, each in beside if each is not None and each.offer not in named]
    return found


def _chance(answer: Answer) -> str:
    """Return the chance that no other GPUs are a better answer and, in a toss-up, that of the main rival."""
    mine = "" if answer.p_best is None else format_chance(answer.p_best)
    if answer.toss_up is None:
        return mine
    _, (gpu_key, gpu_count, rival) = answer.toss_up
    return f"{mine} ({OR} {machine_name(gpu_key, gpu_count)} {format_chance(rival)})"


def headline(ranking: Ranking) -> str:
    """Return the sensible answer in a sentence."""
    sensible = ranking.answers["sensible"].row
    return next(_in_words(ranking, line) for line in lines(ranking) if line.choice.row is sensible)


def in_words(ranking: Ranking) -> list[str]:
    """Return each row of the answer in a sentence."""
    return [_in_words(ranking, line) for line in lines(ranking)]


def _in_words(ranking: Ranking, line: Line) -> str:
    row = line.choice.row
    what = f"{ranking.value_of(row).words()} {plain(ranking.value_unit, 60)}"
    if row.hours.value is not None:
        what = f"{hours_text(row)}, {row.cost_usd.by(format_usd)}"
    known = [each.p_best for each in line.answers if each.p_best is not None]
    chances = dict.fromkeys(map(format_chance, known))
    if chances:
        what += f"; {' and '.join(chances)} to be best"
    return say(
        "headline", title=line.names, gpu=what_of(line.choice), seller=seller(line.choice.offer), what=what
    )


def what_of(choice: Choice) -> str:
    """Return the GPUs of a row: "1x L4"; for hardware to buy, also its condition and total price."""
    if not choice.purchase_usd:
        return gpus_of(choice.offer)
    said = card_condition(choice.condition)
    host = " with a host" if choice.host_usd else ""
    return f"{gpus_of(choice.offer)}{f', {said}' if said else ''}{host}, {format_price(choice.purchase_usd)}"


def seller(offer: Offer) -> str:
    """Return the seller and its kind, or that the machine is owned or to be bought."""
    if offer.pricing is Pricing.OWNED:
        return "to buy" if offer.provider == "buy" else "yours"
    paid = " spot" if offer.pricing is Pricing.SPOT else ""
    if offer.pricing is Pricing.RESERVED and offer.term_years is not None:
        paid = f" for {count(offer.term_years, 'year')}"
    kind = f" ({SELLERS[offer.seller]})" if offer.seller is not None else ""
    return f"{plain(offer.provider, 40)}{paid}{kind}"


def hours_text(row: Row) -> str:
    """Return the time of the job with its interval, in one unit."""
    hours = row.hours.value or 0.0
    of, unit = next((of, unit) for least, of, unit in HOURS if hours >= least)
    ends = (None if each is None else each / of for each in (hours, row.hours.low, row.hours.high))
    return Interval(*ends).text(unit)


def basis_text(row: Row) -> str:
    """Return the basis of a row's throughput: measured, predicted or a guess."""
    if row.estimate.is_extrapolated:
        return BASES["guess"]
    return BASES["predicted" if row.scaling_basis == MODELED else row.estimate.basis]


def precisions_of(estimates: Iterable[Estimate]) -> str:
    """Return the precisions of the estimates, each once: ``amp`` is bf16 on one card and fp16 on another."""
    return plain(" or ".join(dict.fromkeys(each.case.precision.words for each in estimates)), 60)
