from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from gpubench import sentences
from gpubench.cli.output import answer, print_json, say
from gpubench.errors import ExitCode
from gpubench.groups import grouped
from gpubench.offers import dates, listing, refresh, snapshot, sources
from gpubench.offers.request import ImportRequest, OffersRequest, RefreshRequest
from gpubench.offers.table import OfferTable, SetAside
from gpubench.providers import price_page
from gpubench.sections.lists import listed
from gpubench.units import count, plain

SHOWN_SET_ASIDE = 8
# Maximum number of rows in the table: laying out 100,000 takes a minute and 1 GB.
_SHOWN_OFFERS = 2_000
# Version of ``gpubench offers list --json``.
_LIST_VERSION = 2


def list_(request: OffersRequest, *, as_json: bool) -> None:
    table, day, clock = snapshot.load_dated(request.results, request.offers, request.as_of)
    rows = listing.list_offers(table.offers, request, day)
    keys = ("provider", "instance", "region", "price_date")

    answer(
        as_json,
        lambda: {
            "schema_version": _LIST_VERSION,
            "as_of": day.isoformat(),
            "clock": clock,
            "offers": [_record(row) for row in rows],
            "retired": [{key: getattr(offer, key) for key in keys} for offer in table.retired],
            "set_aside": [each._asdict() for each in table.set_aside],
            "notes": table.notes,
        },
        lambda: listed(rows[:_SHOWN_OFFERS]),
    )
    say(*(() if as_json else _summary(rows, table, clock, explain=request.explain)))


def _record(row: listing.ListedOffer) -> dict[str, object]:
    # Return the offer's fields, except ``ask_*`` (other listings), and values derived for the requested day.
    fields = msgspec.structs.asdict(row.offer).items()
    own = {
        name: float(v) if isinstance(v, Decimal) else v for name, v in fields if not name.startswith("ask_")
    }
    derived = {name: getattr(row, name) for name in ("price_age_days", "freshness", "not_ranked_because")}
    page = price_page(row.offer.provider, row.offer.source)
    return own | {"usd_per_gpu_hour": row.offer.usd_per_gpu_hour or None, "price_url": page} | derived


def _summary(
    rows: Sequence[listing.ListedOffer], table: OfferTable, clock: str | None, *, explain: bool
) -> Iterator[str]:
    if clock:
        yield clock
    if len(rows) > _SHOWN_OFFERS:
        yield f"the {_SHOWN_OFFERS:,} cheapest of {len(rows):,}: narrow them with an option, or use --json"
    stale, old = (sum(row.freshness == age for row in rows) for age in ("stale", "not current"))
    ages = (
        f"; over {dates.STALE_AFTER_DAYS} days old: {count(stale, 'price')}, {old} more over "
        f"{dates.NOT_CURRENT_AFTER_DAYS} and not current. A partial date counts as its earliest day. "
        f"{sentences.say('stock')}"
    )
    yield f"{len(rows):,} of {count(len(table.offers), 'offer')}{ages if rows else '.'}"
    yield from table.notes
    if table.retired:
        first = plain(f"{table.retired[0].provider} {table.retired[0].instance}", 80)
        yield (
            f"no longer listed and left out: {count(len(table.retired), 'earlier price')} "
            f"({first} ...; --json lists all)"
        )
    yield from _set_aside(table.set_aside, explain=explain)
    if not rows:
        yield "no offer matches all of these options: relax one of them"


def _set_aside(set_aside: Sequence[SetAside], *, explain: bool = False) -> Iterator[str]:
    # Yield how many rows were set aside and why: a line per reason, or per row with ``explain``.
    if set_aside or explain:
        yield f"set aside: {len(set_aside)}"
    rows = grouped(((reason, row if explain else ""), row) for row, reason in set_aside)
    most = None if explain else SHOWN_SET_ASIDE
    for (reason, _), same in list(rows.items())[:most]:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        yield f"  {same[0]}{more}: {reason}"
    if most and len(rows) > most:
        yield f"  ... and {count(len(rows) - most, 'more reason')} (--json shows all)"


def refresh_(request: RefreshRequest, *, as_json: bool) -> ExitCode:
    from gpubench.offers.transport import HttpTransport  # loads requests

    options: dict[str, Any] = {"results": request.results, "accept_outliers": request.accept_outliers}
    wanted = (
        sources.select_sources(sources.all_sources(say), request.providers) if request.url is None else ()
    )
    with HttpTransport() as transport:
        if request.url is None:
            done = refresh.refresh(wanted, transport, on_source=_say_source, **options)
        else:
            done = refresh.refresh_from_url(request.url, transport, only=request.providers, **options)
            for source in done.sources.items():
                _say_source(*source)
    say(*_set_aside(done.set_aside), *done.notes)
    unmet = done.named("failed") + (done.named("skipped") if request.providers else ())
    if done.path is not None:
        say(f"written: {plain(str(done.path), 1000)}")
    elif request.url is not None and not unmet:
        say("nothing at that URL is newer than the local prices")
    else:
        say("no source answered; the previous prices are kept (`gpubench offers list` shows their age)")
    if as_json:
        keys = ("state", "retrieved_at", "retired", "reason")
        fetched = {
            name: {key: getattr(source, key) for key in keys} | {"offers": len(source.offers)}
            for name, source in done.sources.items()
        }
        print_json(
            {
                "path": done.path,
                "sources": fetched,
                "set_aside": [each._asdict() for each in done.set_aside],
                "notes": done.notes,
            }
        )
    return ExitCode.NO if unmet or (done.path is None and request.url is None) else ExitCode.DONE


def _say_source(name: str, source: snapshot.SourceOffers) -> None:
    if source.state == "ok":
        gone = f"; no longer listed: {source.retired}" if source.retired else ""
        note = f"; {plain(source.reason, 400)}" if source.reason else ""
        say(f"{name}: {count(len(source.offers), 'offer')}{gone}{note}")
    else:
        kept = (
            f"; kept: {count(len(source.offers), 'offer')} from {source.retrieved_at}"
            if source.offers
            else ""
        )
        say(f"{name}: {source.state}: {plain(source.reason or 'no reason given', 400)}{kept}")


def import_(request: ImportRequest, *, as_json: bool) -> None:
    done = refresh.import_offers(
        request.file,
        format_=request.format,
        provider=request.provider,
        price_date=request.price_date,
        results=request.results,
        accept_outliers=request.accept_outliers,
    )
    say(*_set_aside(done.table.set_aside))
    offers, rows = len(done.table.offers), [each._asdict() for each in done.table.set_aside]
    instead = "" if done.replaced is None else f", replacing {done.replaced} from an earlier import"
    say(f"{count(offers, 'offer')} stored in {plain(str(done.path), 1000)}{instead}")
    if as_json:
        print_json({"path": done.path, "offers": offers, "replaced": done.replaced, "set_aside": rows})
