"""The answer: the three rows of a ranking, further rows, and the sentences about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpubench.blocks.parts import (
    NO_BREAK_SPACE,
    Block,
    Bullets,
    Fact,
    Facts,
    Paragraph,
    Part,
    Table,
    number,
    table,
    text,
)
from gpubench.interval import stacked
from gpubench.labels import CONDITION_WORDS, SELLERS, gpus_of, price_of, pricing_words
from gpubench.models import Choice, Elsewhere, ParallelMode, PriceCondition, Pricing, Ranking, Row
from gpubench.models.memory import fits_text
from gpubench.offers.dates import dated
from gpubench.providers import price_page
from gpubench.recommend.lines import (
    BOTH,
    CHANCE,
    COST,
    Line,
    basis_text,
    hours_text,
    in_words,
    lines,
    precisions_of,
    seller,
    what_of,
)
from gpubench.sections.data import ReportData
from gpubench.sections.words import in_stock_words, measured_facts, per_s_unit
from gpubench.sentences import say
from gpubench.units import (
    capitalized,
    count,
    format_number,
    format_percent,
    format_usd,
    listing,
    plain,
)

MOST_WORDS = 120
"""Maximum words of the first screen: as many as one can read at a glance."""


def title(ranking: Ranking) -> str:
    """Return model, job and precision, in a sentence."""
    workloads = dict.fromkeys(case.workload for case in ranking.cases)
    precision = precisions_of(each for line in lines(ranking) for each in line.choice.row.estimates)
    job = ranking.objective if ranking.job is None else ranking.job.words
    return say("title", model=plain(" + ".join(workloads), 60), job=plain(job, 80), precision=precision)


def answer_table(ranking: Ranking) -> Table:
    """Return the answers, one per row: GPUs, seller, time, cost, basis."""
    rows = lines(ranking)
    figures = [
        number(capitalized(per_s_unit(ranking)), _of(lambda row: ranking.throughput_of(row).words())),
        number(capitalized(plain(ranking.value_unit, 60)), _of(lambda row: ranking.value_of(row).words())),
    ]
    if any(line.choice.row.hours.value is not None for line in rows):
        figures = [
            number("Time", _of(hours_text)),
            number(COST, _of(lambda row: row.cost_usd.by(format_usd))),
        ]
    return table(
        "",
        rows,
        text("", lambda line: line.names),
        text("GPUs", lambda line: f"{what_of(line.choice)}\n{basis_text(line.choice.row)}"),
        text(
            "Seller",
            lambda line: stacked(seller(line.choice.offer)).removesuffix(f"\n{SELLERS['cloud']}"),
        ),
        *figures,
        number(CHANCE, _chances),
    )


def _chances(line: Line) -> str:
    if len(line.chances) < 2:
        return stacked("".join(line.chances))
    return BOTH.join(line.chances).replace(" %", f"{NO_BREAK_SPACE}%")


def _of(words: Callable[[Row], str]) -> Callable[[Line], str]:
    return lambda line: stacked(words(line.choice.row)).replace(" to ", "\N{EN DASH}")


def _beside(ranking: Ranking) -> list[str]:
    # Return the sentences that add to the table, those about the question first.
    shown = set(in_words(ranking))
    said = (*ranking.said("asked"), *ranking.said("answer", "sureness"))
    return [each for each in said if each not in shown]


def _kept(ranking: Ranking, shown: Table) -> tuple[list[str], int]:
    """Return the sentences that fit below the table, and how many are left; no caution is left out."""
    cells = [cell for row in shown.rows for cell in row] + [column.title for column in shown.columns]
    asked, cautions = ranking.said("asked"), ranking.said("caution")
    always = " ".join([title(ranking), *cells, *cautions, *asked])
    left = MOST_WORDS - WORDS_OF_THE_REST + WORDS_OF_THE_RATE * bool(asked) - len(always.split())
    kept: list[str] = []
    for each in _beside(ranking):
        words = 0 if each in asked else len(each.split())
        if words <= left or each in asked:
            kept.append(each)
            left -= words
    return [*kept, *cautions], len(_beside(ranking)) - len(kept) + len(ranking.said("note"))


WORDS_OF_THE_RATE = 15
"""Words reserved for the worth and cost of an hour of waiting."""

WORDS_OF_THE_REST = 8
"""Words reserved for the rule of the table and the hint at more."""


def screen(ranking: Ranking) -> list[Part]:
    """Return the first screen: title, answers, and the sentences that fit."""
    shown = answer_table(ranking)
    kept, left = _kept(ranking, shown)
    rest = f"{count(left, 'more note')}, {count(len(ranking.by_gpu), 'GPU')}: add --table"
    return [
        Paragraph(text=title(ranking), tone="headline"),
        shown,
        Paragraph(text=" ".join(plain(each, 600) for each in kept)),
        Paragraph(text=rest),
    ]


def _render(data: ReportData) -> Block:
    ranking = data.ranking
    if ranking is None or not ranking.rows:
        why = data.ranking_problem or "no ranking was asked for"
        told = Paragraph(text=f"There is no ranking: {plain(why, 400)}", tone="headline")
        measured = tuple(Facts(rows=(fact,), prominent=True) for fact in measured_facts(data.results))
        return Block(title="The answer", parts=(told, *measured), brief=(told,))
    parts: tuple[Part, ...] = (
        Paragraph(text=title(ranking), tone="headline"),
        answer_table(ranking),
        Bullets(items=tuple(plain(each, 600) for each in (*_beside(ranking), *ranking.said("caution")))),
    )
    return Block(title="The answer", parts=parts, brief=parts)


SECTIONS = {"answer": _render}


# --- each answer in full -----------------------------------------------------------------------------------

MOST_REGIONS = 4
MOST_MEMORY_CHARACTERS = 300
"""Limit of the text on memory, because the reason for a missing trace is third-party text."""


def in_full(ranking: Ranking) -> Facts:
    """Return each answer with everything to know before paying, and the best hardware to own."""
    found = {line.names: line.choice for line in lines(ranking)}
    if ranking.best_to_own is not None and ranking.best_to_own.offer not in {c.offer for c in found.values()}:
        found["Best to own"] = ranking.best_to_own
    use = ranking.best_to_own_use
    return Facts(rows=tuple(Fact(term=name, value=_in_full(each, use)) for name, each in found.items()))


def _in_full(choice: Choice, use: float | None) -> str:
    row = choice.row
    read = dated(plain(choice.offer.price_date, 20), row.price_age_days)
    label, busy = _label(choice), "" if use is None else f", if busy {format_percent(use)}"
    price = f"{gpus_of(choice.offer)} at {plain(choice.offer.provider, 30)}, {price_of(row)}"
    asked = "" if row.is_expected_as_listed else f" of {format_usd(row.listed_usd_per_hour)}"
    if choice.source == "own":
        paid = "" if choice.purchase_usd is None else f" {label} ({read})"
        price = f"{what_of(choice)}{paid}, {format_usd(row.listed_usd_per_hour)} an hour of work{busy}"
    else:
        price += f" ({label}{asked}, {read})"
    job = [] if row.hours.value is None else [f"{hours_text(row)} and {row.cost_usd.by(format_usd)}"]
    return "; ".join([price, *job, fits_words(choice), *_to_know(choice)])


def _label(choice: Choice) -> str:
    if choice.condition is PriceCondition.LIST and choice.offer.pricing is not Pricing.ON_DEMAND:
        return f"{pricing_words(choice.offer)} price"
    return CONDITION_WORDS[choice.condition]


def fits_words(choice: Choice) -> str:
    """Return whether the job fits in memory, with the need: "fits (needs 6.1 to 7.8 of 24 GiB)".

    A device without memory figures ran the job, and needs none.
    """
    row = choice.row
    if row.fits_memory is None:
        return "memory not checked"
    if not row.fits_memory:
        return "may not fit in memory"
    fits = fits_text(sharded=row.parallel_mode is ParallelMode.FSDP)
    return plain(row.estimate.memory_text or fits, MOST_MEMORY_CHARACTERS)


def _to_know(choice: Choice) -> Iterator[str]:
    """Yield remarks on feeding, availability, other prices, and the limits of a new account."""
    offer = choice.offer
    if choice.feed_vcpus is not None:
        needs = f"feeding takes {format_number(choice.feed_vcpus, 2)}"
        few = ": too few" if choice.can_feed is False else ""
        has = "vCPUs, how many it has is unknown"
        yield f"{needs} {has}" if offer.vcpus is None else f"{needs} of its {offer.vcpus:g} vCPUs{few}"
    if choice.regions:
        more = len(choice.regions) - MOST_REGIONS
        first = [plain(each, 30) for each in choice.regions[:MOST_REGIONS]]
        yield f"in {listing(first) if more <= 0 else ', '.join([*first, f'{more} more'])}"
    if choice.also_at:
        yield f"also at {listing([elsewhere_words(each, offer.gpu_count) for each in choice.also_at])}"
    if choice.needs_quota:
        yield "a new account must ask for a quota"
    if choice.price_note:
        yield f"price: {plain(choice.price_note, 120)}"
    if offer.in_stock is not None:
        yield in_stock_words(offer)
    if page := price_page(offer.provider, offer.source):
        yield page


def elsewhere_words(each: Elsewhere, gpu_count: int) -> str:
    """Return another provider of the same GPU, with the cost of the job there: "aws 8x $12.00"."""
    there = each.offer
    so_many = "" if there.gpu_count == gpu_count else f" {there.gpu_count}x"
    hourly = f"{format_usd(each.usd_per_hour)}/h"
    cost = hourly if each.cost_usd is None else format_usd(each.cost_usd)
    return f"{plain(there.provider, 30)}{so_many} {cost}"
