"""The answer that stands in the page's HTML, for readers without scripts and until the script has drawn."""

from __future__ import annotations

from dataclasses import dataclass

from gpubench.labels import gpus_of
from gpubench.models import Ranking, Row
from gpubench.recommend.lines import BOTH, basis_text, hours_text, lines, precisions_of, seller
from gpubench.sentences import say
from gpubench.specs import load_specs
from gpubench.units import format_bytes, format_chance, format_usd, plain

MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Still:
    """A title, the three answers and the best offer of each machine, in words.

    Attributes:
        title: Model, job and precision.
        three: For each different answer: its names, GPUs, seller, time, cost, basis, chances.
        rows: For each machine: GPUs, seller, time, cost, price of an hour, memory, basis, chance.
    """

    title: str
    three: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]


def still_of(ranking: Ranking, model: str) -> Still:
    """Return the answer of a ranking in words, as the script tells it."""
    heads: dict[tuple[str, int], Row] = {}
    for row in ranking.rows:
        heads.setdefault((row.offer.gpu_key, row.offer.gpu_count), row)
    job = "" if ranking.job is None else plain(ranking.job.words, 80)
    named = [line for line in lines(ranking) if line.answers]
    precision = precisions_of(each for line in named for each in line.choice.row.estimates)
    return Still(
        title=say("title", model=plain(model, 60), job=job, precision=precision),
        three=tuple(
            (
                line.names,
                gpus_of(line.choice.offer),
                seller(line.choice.offer),
                _ranged(hours_text(line.choice.row)),
                _ranged(line.choice.row.cost_usd.by(format_usd)),
                basis_text(line.choice.row),
                BOTH.join(line.chances),
            )
            for line in named
        ),
        rows=tuple(
            _cells(row)
            for at, row in enumerate(heads.values())
            if at < MOST_ROWS or row.estimate.basis == "measured"
        ),
    )


def _ranged(words: str) -> str:
    """Return an interval in fewer words: the three answers stand on one screen."""
    return words.replace(" to ", "\N{EN DASH}")


def _cells(row: Row) -> tuple[str, ...]:
    spec = load_specs().get(row.offer.gpu_key)
    return (
        gpus_of(row.offer),
        seller(row.offer),
        hours_text(row),
        row.cost_usd.by(format_usd),
        f"{format_usd(row.usd_per_hour.value)}/h",
        format_bytes(None if spec is None else spec.memory_bytes),
        basis_text(row),
        format_chance(row.p_sensible),
    )
