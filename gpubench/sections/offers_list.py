"""Offers as they are listed, not ranked: what each asks on which day, and why some never rank."""

from __future__ import annotations

from collections.abc import Sequence

from gpubench.blocks.parts import Paragraph, Part, number, table, text
from gpubench.labels import gpu_name, pricing_words
from gpubench.offers.dates import show_price_date
from gpubench.offers.listing import ListedOffer
from gpubench.units import UNKNOWN, format_usd, plain


def listed(rows: Sequence[ListedOffer]) -> list[Part]:
    """Return one line an offer, and below them why some never rank."""
    reasons = list(dict.fromkeys(row.not_ranked_because for row in rows if row.not_ranked_because))

    def provider(row: ListedOffer) -> str:
        mark = f" [{reasons.index(row.not_ranked_because) + 1}]" if row.not_ranked_because else ""
        return f"{row.offer.provider}{mark}"

    return [
        table(
            "",
            rows,
            text("GPU", lambda row: gpu_name(row.offer.gpu_key)),
            number("GPUs", lambda row: str(row.offer.gpu_count)),
            number("$/GPU-h", lambda row: _dollars(row.offer.usd_per_gpu_hour)),
            number("$/h", lambda row: _dollars(float(row.offer.price_usd_per_hour)), 4),
            text("Provider", provider),
            text("Instance", lambda row: plain(row.offer.instance, 36), 8),
            text("Region", lambda row: row.offer.region or UNKNOWN, 5),
            text("Pricing", lambda row: pricing_words(row.offer), 2),
            text("Kind", lambda row: row.offer.kind, 3),
            text("Price of", lambda row: show_price_date(row.offer.price_date), 4),
            text("Age", _age, 1),
            text("Stock", _stock, 6) if any(row.offer.in_stock is not None for row in rows) else None,
        ),
        *(
            Paragraph(text=f"[{number_}] not ranked: {reason}", tone="note")
            for number_, reason in enumerate(reasons, 1)
        ),
    ]


def _age(row: ListedOffer) -> str:
    return f"{row.price_age_days} days" + ("" if row.freshness == "current" else f", {row.freshness}")


def _stock(row: ListedOffer) -> str:
    if row.offer.in_stock is None:
        return UNKNOWN
    return f"{'in stock' if row.offer.in_stock else 'not seen'} {row.offer.stock_date}"


def _dollars(price: float) -> str:
    return format_usd(price) if price else "free"
