"""Prices with their dates: source, number, age. A price without a date is worthless."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median_high

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.labels import PRICING_WORDS
from gpubench.models import Pricing, Row
from gpubench.offers.dates import STALE_AFTER_DAYS, freshness
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.units import UNKNOWN, count, listing, plain

_MOST_LETTERS_OF_SOURCE = 300
"""A source is shown in full, with its license, since some require it; but it must not fill a page."""


def _render(data: ReportData) -> Block | None:
    ranked = () if data.ranking is None else data.ranking.rows
    by_provider: defaultdict[str, list[Row]] = defaultdict(list)
    for row in sorted(ranked, key=lambda row: (row.price_age_days is None, row.price_age_days or 0)):
        if row.offer.pricing is not Pricing.OWNED:
            by_provider[row.offer.provider].append(row)
    if not by_provider:
        return None
    ages = [age for rows in by_provider.values() for age in _ages(rows)]
    said = (
        "Prices are of the whole instance, in US dollars, without tax, storage or traffic. They move "
        "both ways and differ between regions: ask the provider before you sign. A date without its day "
        "counts as the oldest day that it can mean."
    )
    if stale := sum(age > STALE_AFTER_DAYS for age in ages):
        said += f" {stale} of {count(len(ages), 'price')} are more than {STALE_AFTER_DAYS} days old."
    by_name = table(
        "Prices used, by provider",
        sorted(by_provider.items()),
        text("Provider", lambda item: plain(item[0], 40)),
        number("Offers", lambda item: str(len(item[1]))),
        text("Pricing", lambda item: listing(sorted({PRICING_WORDS[r.offer.pricing] for r in item[1]}))),
        text("Oldest price", lambda item: plain(item[1][-1].offer.price_date, 20)),
        text("Newest price", lambda item: plain(item[1][0].offer.price_date, 20)),
        text("Standing", lambda item: freshness(max(_ages(item[1]))) if _ages(item[1]) else UNKNOWN),
    )
    sources = Counter(row.offer.source or UNKNOWN for rows in by_provider.values() for row in rows)
    by_source = table(
        "Where the prices were read",
        sources.most_common(),
        text("Source", lambda item: plain(item[0], _MOST_LETTERS_OF_SOURCE)),
        number("Offers", lambda item: str(item[1])),
    )
    finding = f"half of them are at most {median_high(ages):.0f} days old" if ages else None
    return Block(title="Prices", finding=finding, parts=(Paragraph(text=said), by_name, by_source))


def _ages(rows: list[Row]) -> list[int]:
    return [row.price_age_days for row in rows if row.price_age_days is not None]


SECTION = Section(key="prices", render=_render, place=180, heading="prices")
