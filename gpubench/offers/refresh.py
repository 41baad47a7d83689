"""Fetch today's prices source by source; where a source fails its old ones stay, with their old dates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import require_writable
from gpubench.models import Offer, Pricing
from gpubench.offers.outliers import Sorted, sort_outliers
from gpubench.offers.quotes import offers_of_quotes
from gpubench.offers.snapshot import (
    WRITE_HINT,
    Snapshot,
    SourceOffers,
    embedded_offers,
    newest_snapshot,
    offers_folder,
    refreshed_offers,
    write_snapshot,
)
from gpubench.offers.source import Source, SourceError, SourceSkippedError, Transport
from gpubench.offers.table import OfferTable, SetAside, offer_key, overlay
from gpubench.units import utc_stamp

SOURCE_LIMIT_S = 600.0
"""For all the requests of one source; the longest, Azure and Vast, take some 40."""


class Refreshed(msgspec.Struct, frozen=True, kw_only=True):
    """What a refresh did; ``path`` is None where no source answered and nothing was written."""

    path: Path | None
    sources: dict[str, SourceOffers]
    set_aside: tuple[SetAside, ...]

    def named(self, state: str) -> tuple[str, ...]:
        """Names of the asked sources that ended in a state: ok, failed or skipped."""
        return tuple(name for name, source in self.sources.items() if source.state == state)


def all_sources() -> tuple[Source, ...]:
    """Return every source, collected catalogs first: what a cloud says itself lies over them.

    Raises:
        MisuseError: If an installed plug-in takes the name of another source.
    """
    from importlib.metadata import entry_points

    from gpubench.offers import aws, azure, gpuhunt_catalog, lambda_cloud, runpod, vast

    own: list[Source] = [*gpuhunt_catalog.SOURCES]
    own += [aws.SOURCE, azure.SOURCE, lambda_cloud.SOURCE, runpod.SOURCE, vast.SOURCE]
    sources = {source.name: source for source in own}
    for point in entry_points(group="gpubench.offers"):
        source: Source = point.load()
        if sources.setdefault(source.name, source) is not source:
            raise MisuseError(f"two price sources are called {source.name!r} ({point.value}): uninstall one")
    return tuple(sources.values())


def select_sources(sources: Sequence[Source], wanted: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources of these names or of these clouds; all where none is named.

    Raises:
        MisuseError: If a name fits none.
    """
    for name in wanted:
        if not any(name.lower() in {source.name, source.provider} for source in sources):
            known = ", ".join(sorted({word for source in sources for word in (source.name, source.provider)}))
            raise MisuseError(f"no price source {name!r}; known: {known}")
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
    before, _ = newest_snapshot(folder)
    kept = dict(before.sources) if before else {}
    known = overlay([embedded_offers(), refreshed_offers(folder)]).offers
    retrieved_at = utc_stamp(now)
    asked: dict[str, SourceOffers] = {}
    set_aside: list[SetAside] = []
    for source in sources:
        last = kept.get(source.name)
        try:
            fresh = offers_of_quotes(
                source.fetch(_until(transport, clock() + SOURCE_LIMIT_S, clock)), retrieved_at
            )
        except SourceError as error:
            asked[source.name] = _kept(last, error)
        else:
            believed = sort_outliers(_under_known_names(fresh, known), known, accept=accept_outliers)
            set_aside += believed.table.set_aside
            asked[source.name] = _answered(believed, last, retrieved_at)
        on_source(source.name, asked[source.name])
    if not any(source.state == "ok" for source in asked.values()):
        return Refreshed(path=None, sources=asked, set_aside=tuple(set_aside))
    snapshot = Snapshot(retrieved_at=retrieved_at, sources=_in_order(kept | asked))
    return Refreshed(path=write_snapshot(folder, snapshot), sources=asked, set_aside=tuple(set_aside))


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


def _kept(last: SourceOffers | None, error: SourceError) -> SourceOffers:
    return SourceOffers(
        state="skipped" if isinstance(error, SourceSkippedError) else "failed",
        retrieved_at=last.retrieved_at if last else None,
        reason=" ".join(str(error).split()),
        offers=last.offers if last else (),
    )


def _answered(believed: Sorted, last: SourceOffers | None, retrieved_at: str) -> SourceOffers:
    """Return the fresh offers, and the old ones of those that jumped."""
    old = tuple(offer for offer in (last.offers if last else ()) if offer_key(offer) in believed.jumped)
    return SourceOffers(state="ok", retrieved_at=retrieved_at, offers=(*old, *believed.table.offers))


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


def _in_order(sources: dict[str, SourceOffers]) -> dict[str, SourceOffers]:
    """Put collected catalogs first, so that a cloud's own answer lies over them when the file is read."""
    return dict(sorted(sources.items(), key=lambda item: (not item[0].startswith("gpuhunt-"), item[0])))
