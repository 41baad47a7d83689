"""The answer on one card: what to pay for, what the job takes there, how sure it is, what would change it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Bullets, Fact, Facts, Paragraph, Part
from gpubench.labels import gpus, gpus_of
from gpubench.models import Change, Choice, Decision, Pricing, RankedOffer, Ranking, Sureness
from gpubench.recommend.verdict import NO_GPU_NEEDED, SURENESS
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import merit_unit, merit_words, share_words
from gpubench.units import format_bytes, format_duration, format_number, format_percent, format_usd, plain

SENTENCES = re.compile(r"(?<=\.)\s+(?=[A-Z])")
"""Where one sentence of a verdict ends and the next begins."""


def _render(data: ReportData) -> Block:
    if data.ranking is None or not data.ranking.rows:
        why = data.ranking_problem or (data.ranking and data.ranking.verdict) or "no ranking was asked for"
        headline = Paragraph(text=f"There is no ranking: {plain(why, 400)}", tone="headline")
        return Block(title="The answer", parts=(headline,), brief=(headline,))
    sentences = SENTENCES.split(plain(data.ranking.verdict, 1500))
    facts = Facts(rows=tuple(_facts(data.ranking)))
    winners = tuple(_winners(data.ranking))
    card: list[Part] = [Paragraph(text=_headline(data.ranking, sentences), tone="headline"), facts]
    beside: list[Part] = [Facts(rows=winners, prominent=True)] if winners else []
    rest = tuple(each for each in sentences[1:] if not each.startswith(SURENESS))
    said: list[Part] = [Bullets(items=rest)] if rest else []
    return Block(title="The answer", parts=(*card, *beside), brief=(*card, *beside, *said))


def _headline(ranking: Ranking, sentences: list[str]) -> str:
    if sentences[0].startswith(NO_GPU_NEEDED) or ranking.decision is None:
        return sentences[0]
    choice = ranking.decision.choice
    date = "" if choice.source == "own" else f" ({plain(choice.price_date, 20)})"
    verb = "Own" if choice.source == "own" else "Rent"
    return f"{verb} {_offered(choice)}{date}."


def _facts(ranking: Ranking) -> Iterator[Fact]:
    decision, head = ranking.decision, ranking.rows[0]
    if decision is None:
        merit = f"{merit_words(ranking, head)} {merit_unit(ranking)}"
        yield Fact(term="By", value=merit, detail=f"{_basis(head)}, {plain(head.offer.price_date, 20)}")
        return
    choice = decision.choice
    yield Fact(
        term="The job", value=_job(ranking, decision), detail=f"{_basis(head)}{_batch(head)}; {_fits(choice)}"
    )
    if decision.sureness is not None:
        yield Fact(term="How sure", value=_how_sure(decision.sureness, decision.sureness_independent))
    if decision.runner_up is not None:
        yield Fact(term="Runner-up", value=_winner(decision.runner_up))
    changes = [words for each in decision.changes if (words := _change(each, own=choice.source == "own"))]
    if changes:
        yield Fact(term="What changes it", value=changes[0])


def _how_sure(sure: Sureness, alone: Sureness | None) -> str:
    """P(best), in brackets under independent errors, P(within 10 % of it), and the expected regret."""
    best = share_words(sure.p_best) + ("" if alone is None else f" ({share_words(alone.p_best)})")
    usd = sure.regret_usd
    regret = format_percent(sure.regret_share) if usd is None else format_usd(usd)
    return f"best {best}, within 10 % {share_words(sure.p_near_best)}; regret {regret}"


def _job(ranking: Ranking, decision: Decision) -> str:
    """What the job takes; without one, what the rows are ranked by."""
    choice = decision.choice
    if decision.job is None or choice.hours is None:
        return f"{merit_words(ranking, ranking.rows[0])} {merit_unit(ranking)}"
    hours = format_duration(choice.hours * 3600)
    return f"{hours} and {choice.job_cost_usd.by(format_usd)} for {plain(decision.job.words, 80)}"


def _basis(row: RankedOffer) -> str:
    return str(row.estimate.basis)


def _batch(row: RankedOffer) -> str:
    """That batches are not equal, where each GPU has its own largest."""
    return " at its largest batch" if row.estimate.batch_choice == "largest" else ""


def _fits(choice: Choice) -> str:
    if choice.fits_memory is None:
        return "memory not checked"
    if not choice.fits_memory:
        return "may not fit in memory"
    margin = choice.memory_margin_bytes
    return "fits" if margin is None else f"fits, {format_bytes(margin)} spare"


def _change(change: Change, *, own: bool) -> str:
    """What would make the runner-up the better; a price first, as that is what moves."""
    if change.kind == "price":
        what = "a cost" if own else "a price"
        return f"{what} above {format_usd(change.threshold)}/h"
    if change.kind == "spot":
        return f"losing over {format_percent(change.threshold)} of spot work"
    return f"a throughput below {format_number(change.threshold)} samples/s"


def _winners(ranking: Ranking) -> Iterator[Fact]:
    """The best of each source beside the choice, and of what was measured where that is not the choice."""
    decision = ranking.decision
    if decision is None:
        return
    for term, winner in (
        ("Best cloud", decision.best_cloud),
        ("Best marketplace", decision.best_marketplace),
        ("Best to own", decision.best_to_own),
    ):
        if winner is not None and _key(winner) != _key(decision.choice):
            yield Fact(term=term, value=gpus(winner.gpu_key, winner.gpu_count), detail=_beside(winner))
    measured = next((row for row in ranking.rows if row.estimate.basis == "measured"), None)
    if measured is not None and measured.offer.gpu_key != decision.choice.gpu_key:
        cost = "" if measured.cost_usd is None else f", {format_usd(measured.cost_usd)}"
        where = plain(measured.offer.provider, 30)
        yield Fact(term="Best you measured", value=gpus_of(measured.offer), detail=f"{where}{cost}")


def _key(choice: Choice) -> tuple[object, ...]:
    return (choice.source, choice.provider, choice.instance, choice.gpu_key, choice.gpu_count)


def _winner(choice: Choice) -> str:
    cost = "" if choice.cost_usd is None else f", {format_usd(choice.cost_usd)}"
    return f"{gpus(choice.gpu_key, choice.gpu_count)} {_where(choice)}{cost}"


def _beside(choice: Choice) -> str:
    where = _paid(choice) if choice.source == "own" and choice.purchase_usd else _seller(choice)
    cost = "" if choice.cost_usd is None else f", {format_usd(choice.cost_usd)} for the job"
    return f"{where}{cost}"


def _paid(choice: Choice) -> str:
    """What hardware costs, cards and host apart: "$450 used and a host for $1,000"."""
    cards = (choice.purchase_usd or 0.0) - (choice.host_usd or 0.0)
    host = f" and a host for ${choice.host_usd:,.0f}" if choice.host_usd else ""
    return f"${cards:,.0f} {choice.price_label}{host}"


def _seller(choice: Choice) -> str:
    """Who rents it out, and what stands between asking and having it."""
    words = [plain(choice.provider, 30)]
    if choice.source == "marketplace":
        words.append("one host's ask")
    if choice.needs_quota:
        words.append("new accounts need a quota")
    return ", ".join(words)


def _where(choice: Choice) -> str:
    if choice.source == "own":
        return (
            "of your own"
            if choice.purchase_usd is None
            else f"{_as_sold(choice)}for ${choice.purchase_usd:,.0f}"
        )
    spot = " spot" if choice.pricing is Pricing.SPOT else ""
    return f"at {plain(choice.provider, 30)}{spot}"


def _as_sold(choice: Choice) -> str:
    """New or used, and whether a host comes with it: "(used) with a host "."""
    label = f"({choice.price_label}) " if choice.price_label in {"new", "used"} else ""
    return f"{label}{'with a host ' if choice.host_usd else ''}"


def _offered(choice: Choice) -> str:
    name = gpus(choice.gpu_key, choice.gpu_count)
    if choice.source == "own":
        return f"{name} {_where(choice)}"
    return f"{name} {_where(choice)} for {format_usd(choice.price_usd_per_hour)}/h"


SECTION = Section(key="verdict", render=_render, place=10, first=True)
