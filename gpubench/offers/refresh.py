"""Fetch today's prices source by source; where a source fails its old ones stay, with their old dates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeVar

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import require_writable
from gpubench.models import Offer, Pricing
from gpubench.names import nearest
from gpubench.offers.outliers import sort_outliers
from gpubench.offers.quotes import named_in, sort_quotes
from gpubench.offers.snapshot import (
    WRITE_HINT,
    Snapshot,
    SourceOffers,
    known_before,
    newest_snapshot,
    offers_folder,
    write_snapshot,
)
from gpubench.offers.source import Source, SourceError, SourceSkippedError, Transport
from gpubench.offers.table import Coverage, OfferKey, OfferTable, SetAside, offer_key, overlay
from gpubench.specs import keys_of_name, load_specs
from gpubench.units import plain, utc_stamp

T = TypeVar("T")

SOURCE_LIMIT_S = 600.0
"""For all the requests of one source; the longest, Azure and Vast, take some 40."""

LEAST_SHARE = 0.5
"""An answer that names fewer than this share of the offers known before is taken for a cut one."""


class Refreshed(msgspec.Struct, frozen=True, kw_only=True):
    """What a refresh did; ``path`` is None where no source answered and nothing was written.

    ``notes`` say which earlier snapshot could not be read, so that an older one was carried over.
    """

    path: Path | None
    sources: dict[str, SourceOffers]
    set_aside: tuple[SetAside, ...]
    notes: tuple[str, ...] = ()

    def named(self, state: str) -> tuple[str, ...]:
        """Names of the asked sources that ended in a state: ok, failed or skipped."""
        return tuple(name for name, source in self.sources.items() if source.state == state)


def all_sources() -> tuple[Source, ...]:
    """Return the sources of this package and of others, collected catalogs first.

    Raises:
        MisuseError: If an installed plug-in takes the name of another source.
    """
    from importlib.metadata import entry_points

    sources = {source.name: source for source in own_sources()}
    for point in entry_points(group="gpubench.offers"):
        source: Source = point.load()
        if sources.setdefault(source.name, source) is not source:
            raise MisuseError(f"two price sources are called {source.name!r} ({point.value}): uninstall one")
    return tuple(in_order(sources).values())


def own_sources() -> tuple[Source, ...]:
    """Return the ``SOURCE``, or the ``SOURCES``, of every file in ``gpubench/offers/sources``."""
    from gpubench.offers import sources as folder

    modules = (import_module(f"{folder.__name__}.{found.name}") for found in iter_modules(folder.__path__))
    each = (getattr(module, "SOURCES", None) or (module.SOURCE,) for module in modules)
    return tuple(source for some in each for source in some)


def refreshed_providers() -> frozenset[str]:
    """Return the clouds and marketplaces whose prices a source of this package reads."""
    return frozenset(source.provider for source in own_sources())


def select_sources(sources: Sequence[Source], wanted: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources of these names or of these clouds; all where none is named.

    Raises:
        MisuseError: If a name fits none.
    """
    for name in wanted:
        if not any(name.lower() in {source.name, source.provider} for source in sources):
            known = sorted({word for source in sources for word in (source.name, source.provider)})
            near = ", ".join(nearest(name, known, cutoff=0.0))
            raise MisuseError(f"no price source {plain(name)!r}; nearest known: {near}")
    names = {name.lower() for name in wanted}
    return tuple(s for s in sources if not names or names & {s.name, s.provider})


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
    """Ask each source, and write one dated snapshot of all that is known afterwards.

    Args:
        sources: Which to ask; what a snapshot holds of others is carried over.
        transport: The way to the network.
        results: Results folder; None is the default one.
        accept_outliers: Take prices that jumped against their last known ones.
        now: Time of the retrieval.
        on_source: Called as each source has answered or failed.
        clock: Seconds, for the limit of each source.

    Raises:
        StorageError: If the snapshot cannot be written; found before any source is asked where it can be.
    """
    folder = offers_folder(results)
    require_writable(folder, hint=WRITE_HINT)
    before, notes = newest_snapshot(folder)
    kept = dict(before.sources) if before else {}
    known = known_before(folder)
    retrieved_at = utc_stamp(now)
    asked: dict[str, SourceOffers] = {}
    set_aside: list[SetAside] = []
    for source in sources:
        last = kept.get(source.name)
        try:
            answer = _answer(source, _until(transport, clock() + SOURCE_LIMIT_S, clock), retrieved_at, known)
        except SourceError as error:
            asked[source.name] = _kept(last, error)
        else:
            taken = take(answer, last, known, accept_outliers=accept_outliers)
            set_aside += taken.set_aside
            asked[source.name] = taken.source
        on_source(source.name, asked[source.name])
    if not any(source.state == "ok" for source in asked.values()):
        return Refreshed(path=None, sources=asked, set_aside=tuple(set_aside), notes=notes)
    snapshot = Snapshot(retrieved_at=retrieved_at, sources=in_order(kept | asked))
    path = write_snapshot(folder, snapshot)
    return Refreshed(path=path, sources=asked, set_aside=tuple(set_aside), notes=notes)


def _until(transport: Transport, deadline_s: float, clock: Callable[[], float]) -> Transport:
    """Return the transport with an end: a source of many slow answers cannot hold the others up."""

    def limited(
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        if clock() > deadline_s:
            raise SourceError(f"took over {SOURCE_LIMIT_S:.0f} s for all its answers: stopped")
        return transport(url, params=params, body=body, headers=headers)

    return limited


def _answer(source: Source, transport: Transport, retrieved_at: str, known: Sequence[Offer]) -> Answer:
    """Ask one source, to its end.

    Raises:
        SourceError: If it fails.
    """
    read = sort_quotes(source.fetch(transport), retrieved_at)
    fresh = _under_known_names(read.table, known)
    names = [named_in(quote, retrieved_at) for quote in read.unusable]
    named = _under_known_names(OfferTable(offers=tuple(offer for offer in names if offer)), known)
    vendors = tuple(sorted({load_specs()[offer.gpu_key].vendor for offer in (*fresh.offers, *named.offers)}))
    return Answer(
        table=fresh,
        unusable=frozenset(map(offer_key, named.offers)),
        covers=tuple(
            Coverage(
                provider=source.provider,
                day=retrieved_at[:10],
                pricings=claim.pricings,
                vendors=vendors,
                gpu_keys=() if claim.gpu is None else keys_of_name(claim.gpu),
                whole_provider=claim.whole_provider,
            )
            for claim in read.claims
            if claim.gpu is None or keys_of_name(claim.gpu)
        ),
        retrieved_at=retrieved_at,
    )


class Answer(NamedTuple):
    """What one source gave, before it is held to what was known: ``unusable`` are named, but not priced."""

    table: OfferTable
    unusable: frozenset[OfferKey]
    covers: tuple[Coverage, ...]
    retrieved_at: str


class Taken(NamedTuple):
    """What is kept of an answer, and the rows that are not."""

    source: SourceOffers
    set_aside: tuple[SetAside, ...]


def take(
    answer: Answer, last: SourceOffers | None, known: Sequence[Offer], *, accept_outliers: bool = False
) -> Taken:
    """Hold an answer to what was known: nothing is lost to an empty, a cut or a nonsensical one.

    Without one usable price it is a failure, and the earlier prices stay. Where it is complete, what it does
    not name is retired; else, and where it names an offer at a price that cannot be used, the earlier price
    stays with its date.

    Args:
        answer: The answer.
        last: What the same source gave before.
        known: Every offer known before, of any source.
        accept_outliers: Take prices that jumped against their last known ones.
    """
    believed = sort_outliers(answer.table, known, accept=accept_outliers)
    set_aside = believed.table.set_aside
    if not believed.table.offers:
        why = f" ({set_aside[0].row}: {set_aside[0].reason})" if set_aside else ""
        return Taken(_kept(last, SourceError(f"its answer holds no usable price{why}")), set_aside)
    before = {offer_key(offer): offer for offer in (last.offers if last else ())}
    covered = {
        offer_key(o)
        for o in (*before.values(), *known)
        if any(c.holds(o) and (c.whole_provider or offer_key(o) in before) for c in answer.covers)
    }
    fresh = {offer_key(offer) for offer in believed.table.offers}
    named = fresh | answer.unusable | believed.jumped
    gone = covered - named
    covers, reason = answer.covers, None
    if len(named) < LEAST_SHARE * len(covered):
        reason = (
            f"lists {len(named)} offers where {len(covered)} were known: not taken for complete, "
            "so the others stay as they were"
        )
        covers, gone = (), set()
    old = tuple(offer for key, offer in before.items() if key not in fresh and key not in gone)
    return Taken(
        SourceOffers(
            state="ok",
            retrieved_at=answer.retrieved_at,
            reason=reason,
            offers=(*old, *believed.table.offers),
            covers=covers,
            retired=len(gone),
        ),
        set_aside,
    )


def _kept(last: SourceOffers | None, error: SourceError) -> SourceOffers:
    return SourceOffers(
        state="skipped" if isinstance(error, SourceSkippedError) else "failed",
        retrieved_at=last.retrieved_at if last else None,
        reason=" ".join(str(error).split()),
        offers=last.offers if last else (),
        covers=last.covers if last else (),
    )


def _under_known_names(fresh: OfferTable, known: Iterable[Offer]) -> OfferTable:
    """Give a marketplace's offers the names they had: it has no types, so GPU and count are the identity."""
    names: dict[tuple[str, str, int, Pricing], str] = {}
    for offer in known:
        if offer.kind == "marketplace" and offer.region is None:
            names.setdefault((offer.provider, offer.gpu_key, offer.gpu_count, offer.pricing), offer.instance)

    def renamed(offer: Offer) -> Offer:
        name = names.get((offer.provider, offer.gpu_key, offer.gpu_count, offer.pricing))
        if name is None or offer.kind != "marketplace" or offer.region is not None:
            return offer
        return msgspec.structs.replace(offer, instance=name)

    offers = tuple(map(renamed, fresh.offers))
    return overlay([msgspec.structs.replace(fresh, offers=offers)])


def in_order(sources: dict[str, T]) -> dict[str, T]:
    """Put collected catalogs first, so that a cloud's own answer lies over them when the file is read."""
    return dict(sorted(sources.items(), key=lambda item: (not item[0].startswith("gpuhunt-"), item[0])))
