"""`gpubench offers`: dated prices, listed, refreshed and imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpubench.cli.common import JsonOption, ResultsOption, money, print_json, say
from gpubench.errors import MisuseError

if TYPE_CHECKING:
    from gpubench.models import Pricing
    from gpubench.offers.listing import ListedOffer
    from gpubench.offers.table import OfferTable

OffersFileOption = Annotated[
    Path | None, typer.Option("--offers", help="Your own price table (CSV or JSON), laid over the others.")
]
SHOWN_SET_ASIDE = 5


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    offers = typer.Typer(
        help="List, refresh or import dated prices of clouds and marketplaces.", no_args_is_help=True
    )
    offers.command("list")(list_)
    app.add_typer(offers, name="offers")


def list_(
    provider: Annotated[list[str] | None, typer.Option(help="Only this provider; may be repeated.")] = None,
    region: Annotated[
        list[str] | None, typer.Option(help="Only this region ('any': source gives none).")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="Only this GPU: a key, a name or a part such as h100.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Only instances with so many GPUs.")] = None,
    max_usd_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Highest price of the instance per hour.")
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Only spot prices.")] = False,
    pricing: Annotated[
        list[str] | None, typer.Option(help="Only on_demand, spot or reserved; may be repeated.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only vm, marketplace, serverless, historic, attach-fee or free."),
    ] = None,
    offers: OffersFileOption = None,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """List offers, cheapest GPU-hour first, with the age of each price."""
    from datetime import UTC, datetime
    from decimal import Decimal

    from gpubench.offers.listing import OfferFilter, list_offers
    from gpubench.offers.snapshot import load_offers

    wanted = OfferFilter(
        providers=tuple(provider or ()),
        regions=tuple(region or ()),
        gpus=tuple(gpu or ()),
        kinds=_kinds(kind or []),
        pricings=_pricings([*(pricing or ()), *(["spot"] if spot else ())]),
        gpu_count=count,
        max_usd_per_hour=None if max_usd_per_hour is None else Decimal(str(max_usd_per_hour)),
    )
    today = datetime.now(UTC).date()
    table = load_offers(results, offers)
    rows = list_offers(table.offers, wanted, today)
    if as_json:
        print_json(_document(rows, table, today.isoformat()))
        return
    _print_table(rows)
    _say_summary(rows, table)


def _kinds(given: list[str]) -> tuple[str, ...]:
    from gpubench.offers.plausible import KINDS

    for value in given:
        if value not in KINDS:
            raise MisuseError(f"--kind {value!r} is unknown; give one of {', '.join(sorted(KINDS))}")
    return tuple(given)


def _pricings(given: list[str]) -> tuple[Pricing, ...]:
    from gpubench.models import Pricing

    known = [pricing.value for pricing in Pricing]
    for value in given:
        if value not in known:
            raise MisuseError(f"--pricing {value!r} is unknown; give one of {', '.join(known)}")
    return tuple(map(Pricing, given))


def _document(rows: tuple[ListedOffer, ...], table: OfferTable, as_of: str) -> dict[str, object]:
    from gpubench.models import SCHEMA_VERSION

    return {
        "schema_version": SCHEMA_VERSION,
        "as_of": as_of,
        "offers": [
            {
                "provider": row.offer.provider,
                "instance": row.offer.instance,
                "region": row.offer.region,
                "gpu_key": row.offer.gpu_key,
                "gpu_count": row.offer.gpu_count,
                "vcpus": row.offer.vcpus,
                "ram_bytes": row.offer.ram_bytes,
                "pricing": row.offer.pricing,
                "term_years": row.offer.term_years,
                "kind": row.offer.kind,
                "price_usd_per_hour": money(row.offer.price_usd_per_hour),
                "usd_per_gpu_hour": money(row.usd_per_gpu_hour),
                "price_date": row.offer.price_date,
                "price_age_days": row.price_age_days,
                "freshness": row.freshness,
                "source": row.offer.source,
                "note": row.offer.note,
                "retrieved_at": row.offer.retrieved_at,
            }
            for row in rows
        ],
        "set_aside": [{"row": row, "reason": reason} for row, reason in table.set_aside],
        "notes": list(table.notes),
    }


def _print_table(rows: tuple[ListedOffer, ...]) -> None:
    from gpubench.offers.dates import show_price_date
    from gpubench.units import UNKNOWN, format_usd, plain

    cells = [
        (
            "$/GPU-h",
            "$/h",
            "GPUs",
            "GPU",
            "provider",
            "instance",
            "region",
            "pricing",
            "kind",
            "price of",
            "age",
        )
    ]
    for row in rows:
        offer = row.offer
        age = f"{row.price_age_days} days" + ("" if row.freshness == "current" else f", {row.freshness}")
        term = f" {offer.term_years}y" if offer.term_years else ""
        cells.append(
            (
                format_usd(float(row.usd_per_gpu_hour)),
                format_usd(float(offer.price_usd_per_hour)),
                str(offer.gpu_count),
                offer.gpu_key,
                plain(offer.provider),
                plain(offer.instance),
                plain(offer.region or UNKNOWN),
                offer.pricing + term,
                plain(offer.kind),
                show_price_date(offer.price_date),
                age,
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        figures = [cell.rjust(width) for cell, width in zip(line[:3], widths[:3], strict=True)]
        words = [cell.ljust(width) for cell, width in zip(line[3:], widths[3:], strict=True)]
        print("  ".join(figures + words).rstrip())


def _say_summary(rows: tuple[ListedOffer, ...], table: OfferTable) -> None:
    from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, STALE_AFTER_DAYS

    stale = sum(row.freshness == "stale" for row in rows)
    old = sum(row.freshness == "not current" for row in rows)
    say(
        f"{len(rows)} of {len(table.offers)} offers; {stale} prices are over {STALE_AFTER_DAYS} days old, "
        f"{old} over {NOT_CURRENT_AFTER_DAYS} and not current. A partial date counts as its oldest day."
    )
    for note in table.notes:
        say(note)
    if table.set_aside:
        say(f"set aside: {len(table.set_aside)}")
        for row, reason in table.set_aside[:SHOWN_SET_ASIDE]:
            say(f"  {row}: {reason}")
        if len(table.set_aside) > SHOWN_SET_ASIDE:
            say(f"  ... and {len(table.set_aside) - SHOWN_SET_ASIDE} more (--json shows all)")
