"""What to buy for a sum: sets of cards with their host, new and used apart, best first."""

from __future__ import annotations

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.interval import Interval
from gpubench.labels import CONDITION_WORDS, gpu_name, gpus, hosts, machines
from gpubench.models import PriceCondition, Purchase, Ranking
from gpubench.offers.dates import show_price_date
from gpubench.recommend.buy_or_rent import assumptions
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import hours_words
from gpubench.units import (
    UNKNOWN,
    capitalized,
    format_percent,
    format_price,
    format_usd,
)

MOST_ROWS = 12


def _sentence(ranking: Ranking) -> str:
    limit = "" if ranking.max_purchase_usd is None else f" within {format_price(ranking.max_purchase_usd)}"
    best, *rest = ranking.purchases
    sentences = [f"Best buy{limit}: {_words(best)}."]
    others = {each.condition: each for each in reversed(rest)}  # the best of each condition
    others.pop(best.condition, None)
    sentences += [
        f"The best {name}: {_words(each)}."
        for name, each in others.items()
        if name is not PriceCondition.UNSTATED
    ]
    fastest = max(ranking.purchases, key=lambda each: (not each.extrapolated, each.samples_per_s))
    if fastest != best:
        sentences.append(f"Fastest{limit}: {_words(fastest)}.")
    return " ".join(sentences)


def _words(each: Purchase) -> str:
    cards = each.gpu_count * each.machine_count
    one = f"{format_price(each.cards_usd / cards)}{' each' if cards > 1 else ''}"
    price = f"{_condition(each)}, {one}, {show_price_date(each.price_date)}"
    host = ""
    if each.host_usd:
        in_all = format_price(each.purchase_usd)
        host = f" and {format_price(each.host_usd)} for {hosts(each.machine_count)}: {in_all}"
    work = ""
    if each.cards_needed is not None:
        enough = "card does" if each.cards_needed == 1 else "cards do"
        share = format_percent(each.utilization)
        work = f", at work {share} of all hours; {each.cards_needed} {enough} the jobs"
    return f"{machines(each.gpu_key, each.gpu_count, each.machine_count)} ({price}){host}{work}"


def _condition(each: Purchase) -> str:
    return CONDITION_WORDS[each.condition]


def _render(data: ReportData) -> Block | None:
    ranking = data.ranking
    if ranking is None or not ranking.purchases:
        return None
    if ranking.max_purchase_usd is None and not any(each.cards_needed for each in ranking.purchases):
        return None  # not asked for
    found = ranking.purchases[:MOST_ROWS]
    has_job = any(each.hours is not None for each in found)
    has_several = any(each.machine_count > 1 for each in found)
    has_month = any(each.cards_needed is not None for each in found)
    unit = capitalized(ranking.throughput_unit)
    if ranking.by_reference and ranking.reference_gpu_key:
        unit = f"× {gpu_name(ranking.reference_gpu_key)}"

    def speed(each: Purchase) -> Interval:
        if ranking.by_reference:
            return Interval(each.score or 0.0, each.score_low, each.score_high)
        return Interval(each.samples_per_s, each.samples_per_s_low, each.samples_per_s_high)

    shown = table(
        "What the sum buys, best first",
        found,
        number("Machines", lambda each: str(each.machine_count)) if has_several else None,
        text("Cards", lambda each: gpus(each.gpu_key, each.gpu_count)),
        text("Condition", _condition),
        number("Cards cost", lambda each: format_price(each.cards_usd), 3),
        number("Host", lambda each: format_usd(each.host_usd), 4),
        number("In all", lambda each: format_price(each.purchase_usd)),
        number(unit, lambda each: speed(each).text()),
        number("Hour of work", lambda each: format_usd(each.usd_per_hour)),
        number("A job", lambda each: hours_words(each.hours)) if has_job else None,
        number("At work", lambda each: format_percent(each.utilization)) if has_month else None,
        number("Cards needed", lambda each: str(each.cards_needed or UNKNOWN)) if has_month else None,
        number("Memory free", lambda each: format_percent(each.memory_free), 2),
        number("Watts", lambda each: f"{each.board_power_w:,.0f}", 5),
        number("Slots", lambda each: f"{each.slots:g}", 6),
        text("Price of", lambda each: show_price_date(each.price_date), 1),
    )
    said = Paragraph(text=_sentence(ranking))
    assumed = Paragraph(text=assumptions(ranking.purchases, "host"), tone="note")
    return Block(title="What to buy", brief=(shown, said, assumed), parts=(said, shown, assumed))


SECTION = Section(key="buying", render=_render, place=105)
