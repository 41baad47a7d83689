"""Prices with their dates: whose, how many, how old. A price without a date is worthless."""

from __future__ import annotations

from collections import defaultdict
from statistics import median_high

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, number, table, text
from gpubench.labels import PRICING_WORDS
from gpubench.models import Pricing, Row
from gpubench.offers.dates import STALE_AFTER_DAYS, freshness
from gpubench.sections.data import ReportData
from gpubench.sections.section import Section
from gpubench.units import UNKNOWN, count, listing, plain


def _render(data: ReportData) -> Block | None:
    if data.ranking is None or not data.ranking.rows:
        return None
    rows = sorted(
        (row for row in data.ranking.rows if row.offer.pricing is not Pricing.OWNED),
        key=lambda row: (row.price_age_days is None, row.price_age_days or 0),
    )
    if not rows:
        return None
    by_provider: defaultdict[str, list[Row]] = defaultdict(list)
    read: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        by_provider[row.offer.provider].append(row)
        read[plain(row.offer.source, 200)].add(plain(row.offer.provider, 40))
    said = (
        "Prices are of the whole instance, in US dollars, without tax, storage or traffic. They move "
        "both ways and differ between regions: ask the provider before you sign. A date without its day "
        "counts as the oldest day that it can mean."
    )
    if stale := sum(age > STALE_AFTER_DAYS for age in _ages(rows)):
        said += f" {stale} of {count(len(rows), 'price')} are more than {STALE_AFTER_DAYS} days old."
    return Block(
        title="Prices and their dates",
        finding=f"half of them are at most {median_high(_ages(rows)):.0f} days old" if _ages(rows) else None,
        parts=(
            Paragraph(text=said),
            table(
                "Prices used, by provider",
                sorted(by_provider.items()),
                text("Provider", lambda item: plain(item[0], 40)),
                number("Offers", lambda item: str(len(item[1]))),
                text(
                    "Pricing", lambda item: listing(sorted({PRICING_WORDS[r.offer.pricing] for r in item[1]}))
                ),
                text("Oldest price", lambda item: plain(item[1][-1].offer.price_date, 20)),
                text("Newest price", lambda item: plain(item[1][0].offer.price_date, 20)),
                number("Age in days", lambda item: _span(_ages(item[1]))),
                text("Standing", lambda item: _standing(_ages(item[1]))),
            ),
            table(
                "Where the prices were read",
                sorted(read.items()),
                text("Source", lambda item: item[0]),
                text("Providers", lambda item: listing(sorted(item[1]))),
                folded=True,
            ),
        ),
    )


def _ages(rows: list[Row]) -> list[int]:
    return [row.price_age_days for row in rows if row.price_age_days is not None]


def _span(ages: list[int]) -> str:
    if not ages:
        return UNKNOWN
    return str(ages[0]) if min(ages) == max(ages) else f"{min(ages)} to {max(ages)}"


def _standing(ages: list[int]) -> str:
    return freshness(max(ages)) if ages else "age unknown"


SECTION = Section(key="prices", render=_render, place=180, heading="prices")
