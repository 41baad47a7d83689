"""Fetches today's prices, from each source or from a published snapshot; a failure loses no prices.

If a source fails, its old prices stay and keep their dates. A published snapshot needs no keys or libraries.
Its prices are treated like answers from the sources themselves: answers older than the user's are ignored,
jumps are set aside, and an empty answer loses nothing.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import require_writable
from gpubench.labels import PRICING_WORDS, gpu_name
from gpubench.models import Offer
from gpubench.offers.outliers import set_aside_jumps
from gpubench.offers.quotes import read_quotes
from gpubench.offers.request import Format
from gpubench.offers.snapshot import (
    IMPORTED,
    SNAPSHOT_VERSION,
    WRITE_HINT,
    ReadSource,
    Snapshot,
    SnapshotAsWritten,
    SourceOffers,
    known_before,
    latest_day,
    newest_snapshot,
    offers_folder,
    read_imported,
    valid_sources,
    write_json,
    write_snapshot,
)
from gpubench.offers.sources import (
    Source,
    SourceError,
    SourceSkippedError,
    Transport,
    decode,
    in_order,
    is_safe,
)
from gpubench.offers.table import Coverage, OfferKey, OfferTable, SetAside, offer_key, require_usable
from gpubench.offers.tables import read_table
from gpubench.specs import keys_of_name, load_specs
from gpubench.today import now as clock_now
from gpubench.units import count, listing, plain, utc_stamp

# Time limit for all requests of one source; the slowest, Azure and Vast, take about 40 s.
_SOURCE_LIMIT_S = 600.0

LEAST_SHARE = 0.5
"""An answer with less than this share of the previously known offers is considered truncated."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


class Refreshed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a refresh.

    Attributes:
        path: The snapshot; None if none was written: no source answered, or nothing is newer.
        notes: A note on each unreadable snapshot that was skipped in favor of an older one.
    """

    path: Path | None
    sources: dict[str, SourceOffers]
    set_aside: tuple[SetAside, ...]
    notes: tuple[str, ...] = ()

    def named(self, state: str) -> tuple[str, ...]:
        """Return the names of the queried sources in a state: ok, failed or skipped."""
        return tuple(name for name, source in self.sources.items() if source.state == state)


# --- from the sources ------------------------------------------------------------------------------------


def refresh(
    sources: Iterable[Source],
    transport: Transport,
    *,
    results: Path | None = None,
    accept_outliers: bool = False,
    now: datetime | None = None,
    on_source: Callable[[str, SourceOffers], None] = lambda _name, _source: None,
    clock: Callable[[], float] = time.monotonic,
) -> Refreshed:
    """Query each source, and write one dated snapshot of every known offer.

    Args:
        sources: The sources to query; rows of other sources in a snapshot are kept.
        transport: The network access.
        results: Results folder; None for the default.
        accept_outliers: Whether to accept price jumps.
        now: Time of the retrieval; None for the current time.
        on_source: Called when a source has answered or failed.
        clock: Returns a time that only increases, for the time limit of each source [s].

    Raises:
        StorageError: If the snapshot cannot be written; checked before any query if possible.
    """
    folder, retrieved_at = offers_folder(results), utc_stamp(now)
    before, known = _before(folder), known_before(folder)
    answers: dict[str, SourceOffers] = {}
    set_aside: list[SetAside] = []
    for source in sources:
        last = before.sources.get(source.name)
        limited = _until(transport, clock() + _SOURCE_LIMIT_S, clock)
        try:
            answer = _query(source, limited, retrieved_at, known)
        except SourceError as error:
            answers[source.name] = _keep_earlier(last, error)
        else:
            answers[source.name], aside = _merge(answer, last, known, accept_outliers=accept_outliers)
            set_aside += aside
        on_source(source.name, answers[source.name])
    is_new = any(source.state == "ok" for source in answers.values())
    return _write(folder, before, answers, set_aside, retrieved_at if is_new else None)


def _before(folder: Path) -> Refreshed:
    # Return the state before the refresh: the sources of the newest snapshot, and its invalid rows.
    require_writable(folder, hint=WRITE_HINT)
    newest, notes = newest_snapshot(folder)
    sources = {name: each.source for name, each in newest.items()}
    set_aside = tuple(row for each in newest.values() for row in each.set_aside)
    return Refreshed(path=None, sources=sources, set_aside=set_aside, notes=notes)


def _write(
    folder: Path,
    before: Refreshed,
    answers: dict[str, SourceOffers],
    set_aside: Iterable[SetAside],
    stamp: str | None,
) -> Refreshed:
    # Write all prices as a snapshot with this timestamp. None means that nothing is new: no file is written.
    path = None
    if stamp is not None:
        snapshot = Snapshot(retrieved_at=stamp, sources=in_order(before.sources | answers))
        path = write_snapshot(folder, snapshot)
    return Refreshed(
        path=path, sources=answers, set_aside=(*before.set_aside, *set_aside), notes=before.notes
    )


def _until(transport: Transport, deadline_s: float, clock: Callable[[], float]) -> Transport:
    # Return the transport with a deadline, so that a slow source does not delay the others.

    def limited(
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        if clock() > deadline_s:
            raise SourceError(f"took over {_SOURCE_LIMIT_S:.0f} s for all its answers: stopped")
        return transport(url, params=params, body=body, headers=headers)

    return limited


def _query(source: Source, transport: Transport, retrieved_at: str, known: Sequence[Offer]) -> ReadSource:
    """Query one source and collect its complete answer.

    Raises:
        SourceError: If the source fails.
    """
    read = read_quotes(source.fetch(transport), retrieved_at)
    fresh = _under_known_names(read.table.offers, known)
    unusable = _under_known_names(read.unusable, known)
    vendors = {load_specs()[offer.gpu_key].vendor for offer in (*fresh, *unusable)}
    covers = tuple(
        Coverage(
            provider=source.provider,
            day=retrieved_at[:10],
            pricings=claim.pricings,
            vendors=tuple(sorted(vendors)),
            gpu_keys=() if claim.gpu is None else keys_of_name(claim.gpu),
            whole_provider=claim.whole_provider,
        )
        for claim in read.claims
        if claim.gpu is None or keys_of_name(claim.gpu)
    )
    answered = SourceOffers(state="ok", retrieved_at=retrieved_at, offers=fresh, covers=covers)
    return ReadSource(answered, read.table.set_aside, frozenset(map(offer_key, unusable)))


def _under_known_names(fresh: Iterable[Offer], known: Sequence[Offer]) -> tuple[Offer, ...]:
    # Give marketplace offers their previous names: GPU and count identify an offer without an instance type.

    def identity(offer: Offer) -> tuple[Any, ...] | None:
        has_no_type = offer.kind == "marketplace" and offer.region is None
        return (offer.provider, offer.gpu_key, offer.gpu_count, offer.pricing) if has_no_type else None

    names = {identity(offer): offer.instance for offer in reversed(known)}  # the first name is kept
    names.pop(None, None)  # offers with an instance type keep their own names
    renamed = (
        msgspec.structs.replace(offer, instance=names.get(identity(offer), offer.instance)) for offer in fresh
    )
    return tuple({offer_key(offer): offer for offer in renamed}.values())


# --- from a published snapshot ---------------------------------------------------------------------------


def refresh_from_url(
    url: str,
    transport: Transport,
    *,
    results: Path | None = None,
    only: Sequence[str] = (),
    accept_outliers: bool = False,
    now: datetime | None = None,
) -> Refreshed:
    """Read a published snapshot and write one for the user, with every known offer.

    Args:
        url: URL of a snapshot written by ``gpubench offers refresh``. With #sha256=HASH at its end,
            the snapshot must have that hash; without it, the one published at URL.sha256.
        transport: The network access.
        results: Results folder; None for the default.
        only: Sources or clouds to read; empty for all.
        accept_outliers: Whether to accept price jumps.
        now: Time of this refresh; None for the current time.

    Returns:
        The result; ``path`` is None if nothing in it is newer than the local prices.

    Raises:
        SourceError: If the file or its hash cannot be read, if they do not match, or if the file is not a
            snapshot, has no offers, or is dated in the future.
        MisuseError: If the URL is not https, or if the snapshot lacks one of ``only``.
        StorageError: If the result cannot be written.
    """
    if not is_safe(url):
        raise MisuseError(f"{plain(url, 80)!r} is not an https address; give one as https://HOST/PATH")
    folder = offers_folder(results)
    before, known = _before(folder), known_before(folder)
    read = _published(url, transport, now or clock_now())
    answers: dict[str, SourceOffers] = {}
    set_aside: list[SetAside] = []
    is_new = False
    for name, answer in _chosen(read, only).items():
        last = before.sources.get(name)
        if last and last.retrieved_at and last.retrieved_at >= (answer.source.retrieved_at or ""):
            answers[name] = last
            continue
        answers[name], aside = _merge(answer, last, known, accept_outliers=accept_outliers)
        set_aside += aside
        is_new = is_new or answers[name].state == "ok"
    return _write(folder, before, answers, set_aside, utc_stamp(now) if is_new else None)


def _published(url: str, transport: Transport, present: datetime) -> Mapping[str, ReadSource]:
    place, _, digest = url.partition("#sha256=")
    who = plain(place, 200)
    raw = transport(place)
    if sha256(raw).hexdigest() != (digest or _published_digest(place, transport)).lower():
        raise SourceError(f"{who} does not match its SHA-256: it was truncated or changed; try again later")
    written = decode(raw, SnapshotAsWritten, f"{who} is not a price snapshot: it")
    if written.schema_version > SNAPSHOT_VERSION:
        raise SourceError(f"{who} was written by a newer gpubench: upgrade gpubench")
    try:
        return valid_sources(written, latest_day(present.date(), days_ahead=1))
    except ValueError as reason:
        raise SourceError(f"{who} is rejected: {reason}") from None


def _published_digest(place: str, transport: Transport) -> str:
    # Return the SHA-256 published next to a snapshot, in the format of ``sha256sum``.
    try:
        words = transport(f"{place}.sha256").decode("ascii", "replace").split()
    except SourceError as error:
        raise SourceError(f"{error}; give the missing hash as --from URL#sha256=HASH") from None
    return words[0] if words else ""


def _chosen(read: Mapping[str, ReadSource], only: Iterable[str]) -> dict[str, ReadSource]:
    # Return the requested sources of a snapshot that have ever answered.
    found = {
        name: each
        for name, each in read.items()
        if _NAME.fullmatch(name) and (each.source.offers or each.set_aside) and each.source.retrieved_at
    }
    if not found:
        raise SourceError("the published snapshot has no offers: keeping the previous prices")
    words = {name: {name, *(offer.provider for offer in each.source.offers)} for name, each in found.items()}
    wanted = {name.lower() for name in only}
    for name in sorted(wanted):
        if not any(name in each for each in words.values()):
            known = ", ".join(sorted({word for each in words.values() for word in each}))
            raise MisuseError(f"the snapshot has no source {plain(name, 60)!r}; it has: {plain(known, 400)}")
    return {name: each for name, each in found.items() if not wanted or wanted & words[name]}


# --- merging an answer -----------------------------------------------------------------------------------


def _merge(
    answer: ReadSource, last: SourceOffers | None, known: Sequence[Offer], *, accept_outliers: bool
) -> tuple[SourceOffers, tuple[SetAside, ...]]:
    """Merge an answer into the known prices; an empty, truncated or nonsensical answer loses nothing.

    An answer without a usable price is a failure, and the earlier prices stay. If an answer is complete,
    offers that it does not list are retired. Otherwise, or if the price of an offer is unusable, the earlier
    price stays with its date.

    Args:
        answer: The answer, before it is compared with known prices.
        last: The previous answer of the same source.
        known: Every previously known offer, of any source.
        accept_outliers: Whether to accept price jumps.

    Returns:
        The accepted part of the answer, with earlier offers that are kept, and the rejected rows.
    """
    fetched = OfferTable(offers=answer.source.offers, set_aside=answer.set_aside)
    table, jumped = set_aside_jumps(fetched, known, accept=accept_outliers)
    set_aside = table.set_aside
    if not table.offers:
        why = f" ({set_aside[0].row}: {set_aside[0].reason})" if set_aside else ""
        return _keep_earlier(last, SourceError(f"its answer has no usable price{why}")), set_aside
    before = {offer_key(offer): offer for offer in (last.offers if last else ())}
    earlier = (*before.values(), *known)
    fresh = set(map(offer_key, table.offers))
    named = fresh | answer.unusable | jumped
    listed = [*table.offers, *(offer for offer in earlier if offer_key(offer) in named)]
    claims, unknown = _split_claims(answer.source.covers, listed)
    covered = _covered(claims, before, earlier)
    gone, reason = covered - named, None
    covers = (*claims, *_earlier_claims(last, unknown))
    if len(named) < LEAST_SHARE * len(covered):
        reason = (
            f"lists {count(len(named), 'offer')} where {len(covered)} were known: considered incomplete, "
            "so the others are kept"
        )
        covers, gone = (last.covers if last else ()), set()
    elif unlisted := _covered(unknown, before, earlier):
        words = (
            [gpu_name(key) for key in cover.gpu_keys] or [PRICING_WORDS[each] for each in cover.pricings]
            for cover in unknown
            if _covered([cover], before, earlier)
        )
        names = dict.fromkeys(chain.from_iterable(words))
        reason = (
            f"lists none of the {count(len(unlisted), 'known offer')} of {listing(names, most=3)}: "
            "they may have been renamed, so they are kept"
        )
    old = tuple(offer for key, offer in before.items() if key not in fresh and key not in gone)
    kept = SourceOffers(
        state="ok",
        retrieved_at=answer.source.retrieved_at,
        reason=reason,
        offers=(*old, *table.offers),
        covers=covers,
        retired=len(gone),
    )
    return kept, set_aside


def _split_claims(
    covers: Iterable[Coverage], listed: Sequence[Offer]
) -> tuple[tuple[Coverage, ...], tuple[Coverage, ...]]:
    """Split the claims of completeness into those with at least one listed offer and those without.

    A claim without a listed offer proves little: its offers may be gone or renamed.
    """
    confirmed: list[Coverage] = []
    unknown: list[Coverage] = []
    for cover in covers:
        found = {offer.pricing for offer in listed if cover.applies_to(offer)}
        for claims, pricings in ((confirmed, found), (unknown, set(cover.pricings) - found)):
            if pricings:
                in_order = tuple(pricing for pricing in cover.pricings if pricing in pricings)
                claims.append(msgspec.structs.replace(cover, pricings=in_order))
    return tuple(confirmed), tuple(unknown)


def _covered(
    covers: Sequence[Coverage], before: Mapping[OfferKey, Offer], earlier: Iterable[Offer]
) -> set[OfferKey]:
    # Return the keys of the earlier offers that an answer would list if they were still on sale.
    return {
        offer_key(offer)
        for offer in earlier
        if any(c.applies_to(offer) and (c.whole_provider or offer_key(offer) in before) for c in covers)
    }


def _earlier_claims(last: SourceOffers | None, unknown: Iterable[Coverage]) -> Iterator[Coverage]:
    # Yield the earlier claims for which the new answer lists no offers, so that retired offers stay retired.
    for new in unknown:
        for old in last.covers if last else ():
            pricings = tuple(pricing for pricing in old.pricings if pricing in new.pricings)
            is_same = (old.gpu_keys, old.whole_provider) == (new.gpu_keys, new.whole_provider)
            if is_same and pricings and old.provider == new.provider:
                yield msgspec.structs.replace(old, pricings=pricings)


def _keep_earlier(last: SourceOffers | None, error: SourceError) -> SourceOffers:
    # Return the earlier prices of a source that failed, with the reason.
    return SourceOffers(
        state="skipped" if isinstance(error, SourceSkippedError) else "failed",
        retrieved_at=last.retrieved_at if last else None,
        reason=" ".join(str(error).split()),
        offers=last.offers if last else (),
        covers=last.covers if last else (),
    )


# --- importing a table -----------------------------------------------------------------------------------


class Imported(NamedTuple):
    """The imported table, its stored path, and how many earlier imported offers it replaced.

    ``replaced`` is None if there was no earlier import, or if it could not be read.
    """

    table: OfferTable
    path: Path
    replaced: int | None


def import_offers(
    file: Path,
    *,
    format_: Format | None = None,
    provider: str | None = None,
    price_date: str | None = None,
    results: Path | None = None,
    accept_outliers: bool = False,
) -> Imported:
    """Read a price table and store it; from then on its prices override refreshed ones.

    A catalog replaces an earlier import for the same cloud; the user's own table replaces one with the same
    folder and file name.

    Args:
        file: CSV, or JSON with gpubench's columns.
        format_: None to detect it from the columns.
        provider: The cloud, for formats that do not name it.
        price_date: Day of the prices, for formats without dates.
        results: Results folder; None for the default.
        accept_outliers: Whether to accept price jumps.

    Raises:
        MisuseError: If the file is not a price table, or nothing in it is usable.
        StorageError: If the result cannot be written.
    """
    format_, table = read_table(
        file,
        format_=format_,
        provider=provider,
        price_date=price_date,
        latest=latest_day(clock_now().date(), days_ahead=1),
    )
    folder = offers_folder(results)
    known = known_before(folder)
    table, _ = set_aside_jumps(table, known, accept=accept_outliers)
    require_usable(table, file.name)
    # Catalogs are named after their clouds, because their files may all have one name.
    names = [file.resolve().parent.name, file.stem]
    if format_ != "own":
        names = sorted({offer.provider for offer in table.offers})
    safe = [re.sub(r"[^A-Za-z0-9._-]", "_", each)[:60] for each in names if each]
    path = folder / IMPORTED / f"{'-'.join([format_, *safe])}.json"
    replaced = None
    if path.exists():
        with suppress(MisuseError):  # an earlier import that cannot be read
            replaced = len(read_imported(path))
    return Imported(table, write_json(path, tuple(table.offers)), replaced)
