"""Take over a snapshot that somebody else refreshed and published, by its URL: no key and no library needed.

It is held to what is known here like an answer of its sources: older answers than one's own are left, jumps
are set aside, and an empty one loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import require_writable
from gpubench.models import SCHEMA_VERSION
from gpubench.offers.dates import price_day
from gpubench.offers.refresh import Answer, Refreshed, in_order, take
from gpubench.offers.snapshot import (
    WRITE_HINT,
    Snapshot,
    SourceOffers,
    check_offers,
    known_before,
    newest_snapshot,
    offers_folder,
    write_snapshot,
)
from gpubench.offers.source import SourceError, Transport, decode, is_safe
from gpubench.offers.table import OfferTable, SetAside, offer_key
from gpubench.today import now as clock
from gpubench.units import plain, utc_stamp

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")
_ONE_DAY = timedelta(days=1)
"""Clocks and time zones differ by less."""


def take_over(
    url: str,
    transport: Transport,
    *,
    results: Path | None = None,
    only: Sequence[str] = (),
    accept_outliers: bool = False,
    now: datetime | None = None,
) -> Refreshed:
    """Read a published snapshot and write one of one's own, of all that is known afterwards.

    Args:
        url: Where the snapshot lies, as ``gpubench offers refresh`` writes it.
        transport: The way to the network.
        results: Results folder; None is the default one.
        only: Sources or clouds to take; empty is every one.
        accept_outliers: Take prices that jumped against their last known ones.
        now: Time of this refresh.

    Returns:
        What was done; ``path`` is None where nothing in it is newer than what is here.

    Raises:
        SourceError: If the URL cannot be read, is no snapshot, holds no offer, or is dated in the future.
        MisuseError: If the URL is of a kind that is never read, or the snapshot has none of ``only``.
        StorageError: If the result cannot be written.
    """
    if not is_safe(url):
        raise MisuseError(f"--from {plain(url, 80)!r} is not an https address; give one as https://HOST/PATH")
    folder = offers_folder(results)
    require_writable(folder, hint=WRITE_HINT)
    today = now or clock()
    published = _chosen(_read(url, transport, today), only)
    before, notes = newest_snapshot(folder)
    kept = dict(before.sources) if before else {}
    known = known_before(folder)
    asked: dict[str, SourceOffers] = {}
    set_aside: list[SetAside] = []
    newer = False
    for name, source in published.items():
        last = kept.get(name)
        if last and last.retrieved_at and last.retrieved_at >= (source.retrieved_at or ""):
            asked[name] = last
            continue
        table = _until(check_offers(source.offers, name), today)
        unusable = frozenset(map(offer_key, source.offers)) - frozenset(map(offer_key, table.offers))
        answer = Answer(table, unusable, source.covers, source.retrieved_at or utc_stamp(today))
        taken = take(answer, last, known, accept_outliers=accept_outliers)
        set_aside += taken.set_aside
        asked[name] = taken.source
        newer = newer or taken.source.state == "ok"
    path = None
    if newer:
        snapshot = Snapshot(retrieved_at=utc_stamp(now), sources=in_order(kept | asked))
        path = write_snapshot(folder, snapshot)
    return Refreshed(path=path, sources=asked, set_aside=tuple(set_aside), notes=notes)


def _read(url: str, transport: Transport, today: datetime) -> Snapshot:
    snapshot = decode(transport(url), Snapshot, f"{plain(url, 200)} is no price snapshot: it")
    if snapshot.schema_version > SCHEMA_VERSION:
        raise SourceError(f"{plain(url, 200)} is of a newer gpubench: upgrade gpubench")
    for stamp in (snapshot.retrieved_at, *(source.retrieved_at for source in snapshot.sources.values())):
        if stamp is not None and _time(stamp, url) > today + _ONE_DAY:
            raise SourceError(f"{plain(url, 200)} is dated {plain(stamp, 30)}, in the future: not taken")
    return snapshot


def _time(stamp: str, url: str) -> datetime:
    try:
        return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise SourceError(f"{plain(url, 200)} has a time {plain(stamp, 30)!r} that is none") from None


def _chosen(snapshot: Snapshot, only: Iterable[str]) -> dict[str, SourceOffers]:
    """Return the sources asked for that ever answered."""
    found = {
        name: source
        for name, source in snapshot.sources.items()
        if _NAME.fullmatch(name) and source.offers and source.retrieved_at
    }
    if not found:
        raise SourceError("the published snapshot holds no offer: keeping the previous prices")
    words = {name: {name, *(offer.provider for offer in source.offers)} for name, source in found.items()}
    wanted = {name.lower() for name in only}
    for name in sorted(wanted):
        if not any(name in each for each in words.values()):
            known = ", ".join(sorted({word for each in words.values() for word in each}))
            raise MisuseError(f"the snapshot has no source {plain(name, 60)!r}; it has: {plain(known, 400)}")
    return {name: source for name, source in found.items() if not wanted or wanted & words[name]}


def _until(table: OfferTable, today: datetime) -> OfferTable:
    """Set aside prices of the future: they would count as fresh until their day has passed."""
    latest = (today + _ONE_DAY).date()
    late = {offer.price_date for offer in table.offers if price_day(offer.price_date) > latest}
    reasons = (
        SetAside(plain(f"{o.provider} {o.instance}"), f"price date {o.price_date} lies in the future")
        for o in table.offers
        if o.price_date in late
    )
    return msgspec.structs.replace(
        table,
        offers=tuple(offer for offer in table.offers if offer.price_date not in late),
        set_aside=(*table.set_aside, *reasons),
    )
