"""The answer that stands in the page's HTML, for readers without scripts and until the script has drawn."""

from __future__ import annotations

from dataclasses import dataclass

from gpubench.interval import Interval
from gpubench.labels import gpus_of
from gpubench.models import Pricing, Ranking, Row
from gpubench.report.calculator import WORDS
from gpubench.sentences import say
from gpubench.specs import load_specs
from gpubench.units import format_bytes, format_chance, format_usd, plain

MOST_ROWS = 40
_STEPS = ((48.0, 24.0, " days"), (1.0, 1.0, " h"), (1 / 60, 1 / 60, " min"), (0.0, 1 / 3600, " s"))


@dataclass(frozen=True, slots=True)
class Still:
    """A title, the three answers and the best offer of each machine, in words.

    Attributes:
        title: Model, job and precision.
        three: For each different answer: its names, GPUs and seller, time, cost, basis, chances.
        rows: For each machine: GPUs, seller, time, cost, price of an hour, memory, basis, chance.
    """

    title: str
    three: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]


def still_of(ranking: Ranking, model: str, precision: str) -> Still:
    """Return the answer of a ranking in words, as the script tells it."""
    three: dict[int, list[str]] = {}
    of: dict[int, Row] = {}
    for name, answer in ranking.answers.items():
        of[id(answer.row)] = answer.row
        three.setdefault(id(answer.row), []).append(name)
    heads: dict[tuple[str, int], Row] = {}
    for row in ranking.rows:
        heads.setdefault((row.offer.gpu_key, row.offer.gpu_count), row)
    job = "" if ranking.decision.job is None else plain(ranking.decision.job.words, 80)
    return Still(
        title=say("title", model=plain(model, 60), job=job, precision=precision),
        three=tuple(
            (
                " · ".join(WORDS["titles"][name] for name in names),
                f"{gpus_of(of[key].offer)}, {_seller(of[key])}",
                _ranged(_hours(of[key])),
                _ranged(of[key].cost_usd.by(format_usd)),
                _basis(of[key]),
                " · ".join(format_chance(ranking.answers[name].p_best) for name in names),
            )
            for key, names in three.items()
        ),
        rows=tuple(
            _cells(row)
            for at, row in enumerate(heads.values())
            if at < MOST_ROWS or row.estimate.basis == "measured"
        ),
    )


def _cells(row: Row) -> tuple[str, ...]:
    spec = load_specs().get(row.offer.gpu_key)
    return (
        gpus_of(row.offer),
        _seller(row),
        _hours(row),
        row.cost_usd.by(format_usd),
        f"{format_usd(row.usd_per_hour.value)}/h",
        format_bytes(None if spec is None else spec.memory_bytes),
        _basis(row),
        format_chance(row.p_sensible),
    )


def _seller(row: Row) -> str:
    offer = row.offer
    if offer.pricing is Pricing.OWNED:
        return plain(f"{offer.provider}: {offer.instance}", 60)
    spot = " spot" if offer.pricing is Pricing.SPOT else ""
    return f"{plain(offer.provider, 40)}{spot}{'*' if offer.kind == 'marketplace' else ''}"


def _hours(row: Row) -> str:
    hours = row.hours.value or 0.0
    of, unit = next((of, unit) for least, of, unit in _STEPS if hours >= least)
    ends = (None if each is None else each / of for each in (hours, row.hours.low, row.hours.high))
    return Interval(*ends).text(unit)


def _ranged(words: str) -> str:
    """Return an interval in fewer words: the three answers stand on one screen."""
    return words.replace(" to ", "–")


def _basis(row: Row) -> str:
    return WORDS["bases"]["guess" if row.estimate.is_extrapolated else row.estimate.basis]
