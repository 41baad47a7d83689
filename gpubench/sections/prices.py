"""Prices with their dates: whose, how many, how old. A price without a date is worthless."""

from __future__ import annotations

from collections.abc import Iterable

from gpubench.blocks.parts import Block, Column, Paragraph, Table
from gpubench.models import Pricing, RankedOffer
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.sections.words import PRICING_WORDS, listed
from gpubench.units import UNKNOWN, count, plain

STALE_DAYS, OLD_DAYS = 30, 180
"""Past the first a price is marked stale; past the second it is not called current."""


def _render(data: ReportData) -> Block | None:
    if data.ranking is None or not data.ranking.rows:
        return None
    rows = [row for row in data.ranking.rows if row.offer.pricing is not Pricing.OWNED]
    if not rows:
        return None
    by_provider: dict[str, list[RankedOffer]] = {}
    for row in rows:
        by_provider.setdefault(row.offer.provider, []).append(row)
    table = Table(
        caption="Prices used, by provider",
        columns=(
            Column(title="Provider"),
            Column(title="Offers", numeric=True),
            Column(title="Pricing"),
            Column(title="Oldest price"),
            Column(title="Newest price"),
            Column(title="Age in days", numeric=True),
            Column(title="Standing"),
        ),
        rows=tuple(_cells(name, offers) for name, offers in sorted(by_provider.items())),
    )
    return Block(
        title="Prices and their dates",
        parts=(
            Paragraph(text=_sentence(rows)),
            table,
            _sources(rows),
        ),
    )


def _sentence(rows: Iterable[RankedOffer]) -> str:
    ages = [row.price_age_days for row in rows]
    stale = sum(age is not None and age > STALE_DAYS for age in ages)
    text = (
        "Prices are of the whole instance, in US dollars, without tax, storage or traffic. They move "
        "both ways and differ between regions: ask the provider before you sign. A date without its day "
        "counts as the oldest day that it can mean."
    )
    if stale:
        text += f" {stale} of {count(len(ages), 'price')} are more than {STALE_DAYS} days old."
    return text


def _cells(provider: str, rows: list[RankedOffer]) -> tuple[str, ...]:
    by_age = sorted(rows, key=lambda row: (row.price_age_days is None, row.price_age_days or 0))
    ages = [row.price_age_days for row in rows if row.price_age_days is not None]
    span = UNKNOWN if not ages else str(ages[0]) if min(ages) == max(ages) else f"{min(ages)} to {max(ages)}"
    return (
        plain(provider, 40),
        str(len(rows)),
        listed(sorted({PRICING_WORDS[row.offer.pricing] for row in rows})),
        plain(by_age[-1].offer.price_date, 20),
        plain(by_age[0].offer.price_date, 20),
        span,
        _standing(max(ages, default=None)),
    )


def _sources(rows: Iterable[RankedOffer]) -> Table:
    """Where each provider's prices were read."""
    read: dict[str, set[str]] = {}
    for row in rows:
        read.setdefault(plain(row.offer.source, 200), set()).add(plain(row.offer.provider, 40))
    return Table(
        caption="Where the prices were read",
        columns=(Column(title="Source"), Column(title="Providers")),
        rows=tuple((source, listed(sorted(providers))) for source, providers in sorted(read.items())),
        folded=True,
    )


def _standing(age_days: int | None) -> str:
    if age_days is None:
        return "age unknown"
    if age_days > OLD_DAYS:
        return "old: not a current price"
    return "stale" if age_days > STALE_DAYS else "fresh"


SECTION = Section(key="prices", render=_render, place=180)
