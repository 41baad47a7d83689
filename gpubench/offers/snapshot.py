"""Price tables on disk: the embedded one, refreshed snapshots, and the one table that ranking reads.

Ranking never touches the network. It reads these files, so that a ranking can be rebuilt next year.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import SCHEMA_VERSION, Offer
from gpubench.offers.own import offers_of_rows, read_own
from gpubench.offers.plausible import check_offer
from gpubench.offers.rows import MAX_FILE_BYTES, csv_rows
from gpubench.offers.table import OfferTable, SetAside, overlay
from gpubench.units import plain

_PATTERN = "[0-9]*T[0-9]*Z.json"
"""20261120T190500Z.json: the name is the UTC time of the refresh, so the newest sorts last."""


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one price source answered at a refresh; ``offers`` may be older rows that were kept."""

    ok: bool
    retrieved_at: str | None
    offers: int
    reason: str | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One refresh: every source's offers as they stood then, with the date of each price."""

    schema_version: int = SCHEMA_VERSION
    retrieved_at: str
    sources: dict[str, SourceStatus] = {}
    offers: tuple[Offer, ...] = ()


def load_offers(results: Path | None = None, extra: Path | None = None) -> OfferTable:
    """Return every offer known: embedded < refreshed < the user's file, the later for the same offer.

    Args:
        results: Results folder whose ``offers/`` holds refreshed snapshots; None is the default folder.
        extra: The user's own price table.

    Raises:
        MisuseError: If the user's file cannot be read as a whole. A damaged snapshot is a note, no error.
    """
    tables = [embedded_offers(), refreshed_offers((results or _default_results()) / "offers")]
    if extra is not None:
        tables.append(read_own(extra))
    return overlay(tables)


@cache
def embedded_offers() -> OfferTable:
    """Return the dated price table that is shipped."""
    text = files("gpubench").joinpath("data/offers.csv").read_text(encoding="utf-8")
    return offers_of_rows(csv_rows(text, "offers.csv"))


def refreshed_offers(folder: Path) -> OfferTable:
    """Return the offers of the newest readable snapshot in a folder; empty where there is none."""
    notes = []
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        try:
            snapshot = read_snapshot(path)
        except MisuseError as error:
            notes.append(f"{error}; the snapshot before it is used")
            continue
        return _checked(snapshot, path.name, tuple(notes))
    return OfferTable(notes=tuple(notes))


def read_snapshot(path: Path) -> Snapshot:
    """Read one snapshot.

    Raises:
        MisuseError: If it is too large, damaged, or written by a newer gpubench.
    """
    shown = plain(str(path))
    try:
        if path.is_symlink() or path.stat().st_size > MAX_FILE_BYTES:
            raise MisuseError(f"price snapshot {shown} is a link or over 64 MiB: not read")
        raw = path.read_bytes()
    except OSError as error:
        raise MisuseError(f"cannot read price snapshot {shown}: {error.strerror}") from None
    try:
        snapshot = msgspec.json.decode(raw, type=Snapshot)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MisuseError(
            f"price snapshot {shown} is damaged ({error}); run gpubench offers refresh"
        ) from None
    if snapshot.schema_version > SCHEMA_VERSION:
        raise MisuseError(f"price snapshot {shown} is of a newer gpubench: upgrade gpubench")
    return snapshot


def _checked(snapshot: Snapshot, name: str, notes: tuple[str, ...]) -> OfferTable:
    offers, set_aside = [], []
    for offer in snapshot.offers:
        try:
            check_offer(offer)
        except ValueError as reason:
            words = f"{name} {offer.provider} {offer.instance} {offer.region or ''}"
            set_aside.append(SetAside(plain(words), str(reason)))
        else:
            offers.append(offer)
    return OfferTable(offers=tuple(offers), set_aside=tuple(set_aside), notes=notes)


def _default_results() -> Path:
    """Return the results folder where none is named: the variable, ./results, or the user's data."""
    if named := os.environ.get("GPUBENCH_RESULTS"):
        return Path(named)
    if (here := Path("results")).is_dir():
        return here
    from platformdirs import user_data_path

    return user_data_path("gpubench") / "results"
