"""`gpubench offers`: dated prices, listed, refreshed and imported."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench.cli.options import Verb
from gpubench.cli.output import answer, print_json, say
from gpubench.errors import ExitCode
from gpubench.offers.request import ImportRequest, OffersRequest, RefreshRequest
from gpubench.units import plain

if TYPE_CHECKING:
    from gpubench.offers.listing import ListedOffer
    from gpubench.offers.refresh import Refreshed
    from gpubench.offers.snapshot import Dated, SourceOffers
    from gpubench.offers.table import OfferTable, SetAside

SHOWN_SET_ASIDE = 8
SHOWN_OFFERS = 2_000
"""Laying 100,000 rows out takes a minute and a GB, and nobody reads them."""


def list_(request: OffersRequest, *, as_json: bool) -> None:
    """List offers, cheapest GPU-hour first, with the age of each price."""
    from gpubench.offers.listing import list_offers
    from gpubench.offers.snapshot import load_dated
    from gpubench.sections.lists import listed

    dated = load_dated(request.results, request.offers, request.as_of)
    table, rows = dated.table, list_offers(dated.table.offers, request, dated.day)
    answer(as_json, lambda: _document(rows, dated), lambda: listed(rows[:SHOWN_OFFERS]))
    if as_json:
        return
    if dated.clock:
        say(dated.clock)
    if len(rows) > SHOWN_OFFERS:
        say(f"the {SHOWN_OFFERS:,} cheapest of {len(rows):,}: narrow them with an option, or take --json")
    _say_summary(rows, table, explain=request.explain)
    if not rows:
        say("no offer passes all of these options: relax one of them")


def refresh_(request: RefreshRequest, *, as_json: bool) -> ExitCode:
    """Fetch today's prices into a dated snapshot; a source that fails keeps its old prices and dates.

    Exit code 1 if a source failed, or none answered.
    """
    done = _refreshed(request)
    _say_set_aside(done.set_aside)
    for note in done.notes:
        say(note)
    unmet = done.named("failed") + (done.named("skipped") if request.providers else ())
    if done.path is not None:
        say(f"written: {plain(str(done.path), 1000)}")
    elif request.url is not None and not unmet:
        say("nothing in it is newer than the prices here")
    else:
        say("no source answered: keeping the previous prices, see `gpubench offers list` for their age")
    if as_json:
        print_json(
            {
                "path": None if done.path is None else str(done.path),
                "sources": {
                    name: {
                        "state": source.state,
                        "retrieved_at": source.retrieved_at,
                        "offers": len(source.offers),
                        "retired": source.retired,
                        "reason": source.reason,
                    }
                    for name, source in done.sources.items()
                },
                "set_aside": [each._asdict() for each in done.set_aside],
                "notes": done.notes,
            }
        )
    return ExitCode.NO if unmet or (done.path is None and request.url is None) else ExitCode.DONE


def _refreshed(request: RefreshRequest) -> Refreshed:
    """Ask the sources, or read a published snapshot, and say of each source how it answered."""
    from gpubench.offers.refresh import refresh, take_over
    from gpubench.offers.sources import all_sources, select_sources
    from gpubench.offers.transport import HttpTransport

    wanted, url = request.providers, request.url
    kept: dict[str, Any] = {"results": request.results, "accept_outliers": request.accept_outliers}
    sources = select_sources(all_sources(say), wanted) if url is None else ()
    with HttpTransport() as transport:
        if url is None:
            return refresh(sources, transport, on_source=_say_source, **kept)
        done = take_over(url, transport, only=wanted, **kept)
    for name, source in done.sources.items():
        _say_source(name, source)
    return done


def import_(request: ImportRequest, *, as_json: bool) -> None:
    """Keep a price table of your own; it is read beside the shipped and the refreshed prices from then on."""
    from gpubench.offers.importing import import_offers

    done = import_offers(
        request.file,
        format_=request.format,
        provider=request.provider,
        price_date=request.price_date,
        results=request.results,
        accept_outliers=request.accept_outliers,
    )
    _say_set_aside(done.table.set_aside)
    instead = "" if done.replaced is None else f", in place of {done.replaced} of an earlier import"
    say(f"{len(done.table.offers)} offers kept in {plain(str(done.path), 1000)}{instead}")
    if as_json:
        print_json(
            {
                "path": str(done.path),
                "offers": len(done.table.offers),
                "replaced": done.replaced,
                "set_aside": [each._asdict() for each in done.table.set_aside],
            }
        )


def _say_source(name: str, source: SourceOffers) -> None:
    if source.state == "ok":
        gone = f"; {source.retired} are no longer listed" if source.retired else ""
        note = f"; {plain(source.reason, 400)}" if source.reason else ""
        say(f"{name}: {len(source.offers)} offers{gone}{note}")
    else:
        kept = f"; {len(source.offers)} offers of {source.retrieved_at} are kept" if source.offers else ""
        say(f"{name}: {source.state}: {plain(source.reason or 'no reason given', 400)}{kept}")


def _say_set_aside(set_aside: Sequence[SetAside], *, explain: bool = False) -> None:
    """Say how many rows were not used and why: one line a reason, else one a row."""
    if explain:
        say(f"set aside: {len(set_aside)}")
        for row, reason in set_aside:
            say(f"  {row}: {reason}")
        return
    rows: dict[str, list[str]] = {}
    for row, reason in set_aside:
        rows.setdefault(reason, []).append(row)
    if rows:
        say(f"set aside: {len(set_aside)}")
    for reason, alike in list(rows.items())[:SHOWN_SET_ASIDE]:
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        say(f"  {alike[0]}{more}: {reason}")
    if len(rows) > SHOWN_SET_ASIDE:
        say(f"  ... and {len(rows) - SHOWN_SET_ASIDE} more reasons (--json shows all)")


LIST_VERSION = 2
"""Version of ``gpubench offers list --json``."""


def _document(rows: tuple[ListedOffer, ...], dated: Dated) -> dict[str, object]:
    table = dated.table
    return {
        "schema_version": LIST_VERSION,
        "as_of": dated.day.isoformat(),
        "clock": dated.clock,
        "offers": [_record(row) for row in rows],
        "retired": [
            {"provider": o.provider, "instance": o.instance, "region": o.region, "price_date": o.price_date}
            for o in table.retired
        ],
        "set_aside": [each._asdict() for each in table.set_aside],
        "notes": table.notes,
    }


def _record(row: ListedOffer) -> dict[str, object]:
    """What an offer is, without what other hosts ask, and what follows from it on the day."""
    fields = msgspec.structs.asdict(row.offer).items()
    said = {
        name: float(v) if isinstance(v, Decimal) else v for name, v in fields if not name.startswith("ask_")
    }
    return said | {
        "usd_per_gpu_hour": row.offer.usd_per_gpu_hour or None,
        "price_age_days": row.price_age_days,
        "freshness": row.freshness,
        "not_ranked_because": row.not_ranked_because,
    }


def _say_summary(rows: tuple[ListedOffer, ...], table: OfferTable, *, explain: bool) -> None:
    from gpubench.offers.dates import NOT_CURRENT_AFTER_DAYS, STALE_AFTER_DAYS

    stale = sum(row.freshness == "stale" for row in rows)
    old = sum(row.freshness == "not current" for row in rows)
    ages = (
        f"; {stale} prices are over {STALE_AFTER_DAYS} days old, {old} over {NOT_CURRENT_AFTER_DAYS} and not "
        "current. A partial date counts as its oldest day."
    )
    say(f"{len(rows)} of {len(table.offers)} offers{ages if rows else '.'}")
    for note in table.notes:
        say(note)
    if table.retired:
        first = table.retired[0]
        say(
            f"{len(table.retired)} earlier prices are left out, because their provider no longer lists them "
            f"({plain(f'{first.provider} {first.instance}', 80)} ...; --json names all)"
        )
    _say_set_aside(table.set_aside, explain=explain)


VERB = Verb(
    {"list": list_, "refresh": refresh_, "import": import_},
    "List, refresh or import dated prices of clouds and marketplaces.",
    place=80,
    also_called=("price", "prices", "cost", "costs", "cloud"),
)
