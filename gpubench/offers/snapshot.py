"""Price tables on disk: the embedded one, refreshed snapshots, and the one table that ranking reads.

Ranking never touches the network. It reads these files, so that a ranking can be rebuilt next year.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, cause_of, many_objects, read_json, write_file
from gpubench.folders import data_text, require_folder, results_root
from gpubench.labels import full_name
from gpubench.models import SCHEMA_VERSION, Offer
from gpubench.offers.columns import Offers
from gpubench.offers.plausible import check_offer
from gpubench.offers.price_table import offers_of_columns, read_own
from gpubench.offers.table import Coverage, OfferTable, SetAside, overlay, up_to
from gpubench.offers.text_table import csv_columns
from gpubench.units import plain

IMPORTED = "imported"
WRITE_HINT = "give another folder with --results"
MOST_SOURCES, MOST_COVERS = 200, 500
"""Of a snapshot, and of a source: each offer is held against each of them, and dozens are usual."""
_PATTERN = "[0-9]*T[0-9]*Z.json"
"""20261120T190500Z.json: the name is the UTC time of the refresh, so the newest sorts last."""


class SourceOffers(msgspec.Struct, frozen=True, kw_only=True):
    """What one price source last gave, and how it answered when it was last asked.

    Attributes:
        state: ``ok``; or ``failed`` or ``skipped``, and then ``offers`` are those of an earlier refresh.
        retrieved_at: UTC time at which ``offers`` were read; None where it never answered.
        reason: Why it failed or was skipped; of ``ok``, why it was not taken for complete.
        covers: What its answer was complete in.
        retired: How many offers known before that answer no longer lists.
    """

    state: Literal["ok", "failed", "skipped"]
    retrieved_at: str | None
    reason: str | None = None
    offers: tuple[Offer, ...] = ()
    covers: Annotated[tuple[Coverage, ...], msgspec.Meta(max_length=MOST_COVERS)] = ()
    retired: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One refresh: every source as it stood then, those that a later one of the list also gives first."""

    schema_version: int = SCHEMA_VERSION
    retrieved_at: str
    sources: Annotated[dict[str, SourceOffers], msgspec.Meta(max_length=MOST_SOURCES)] = {}


def load_offers(
    results: Path | None = None, extra: Path | None = None, as_of: date | None = None
) -> OfferTable:
    """Return every offer known: embedded < refreshed < the user's file, the later for the same offer.

    Args:
        results: Results folder whose ``offers/`` holds refreshed snapshots; None is the default folder.
        extra: The user's own price table.
        as_of: The last day whose prices count; later ones are set aside. None is every price.

    Raises:
        MisuseError: If the user's file cannot be read as a whole, or the results folder is none. A damaged
            snapshot, or a folder of prices that cannot be listed, is a note, no error.
    """
    root = results_root(results)
    require_folder(root)
    folder = offers_folder(root)
    with many_objects():
        tables = [embedded_offers(), refreshed_offers(folder, as_of), *imported_offers(folder)]
        if extra is not None:
            own = read_own(extra)
            tables.append(msgspec.structs.replace(own, offers=Offers.of(own.offers).given_by_the_user()))
        if as_of is not None:
            why = f"price of {{date}}, after {as_of}"
            tables = [up_to(table, as_of, full_name, why) for table in tables]
        return overlay(tables)


def offers_folder(results: Path | None) -> Path:
    """Return the folder of snapshots and imported tables under a results folder."""
    return results_root(results) / "offers"


@cache
def embedded_offers() -> OfferTable:
    """Return the dated price table that is shipped."""
    return offers_of_columns(csv_columns(data_text("offers.csv"), "offers.csv"))


def refreshed_offers(folder: Path, as_of: date | None = None) -> OfferTable:
    """Return the offers of the newest readable snapshot until a day; empty where there is none."""
    snapshot, notes = newest_snapshot(folder, as_of)
    tables = [OfferTable(notes=notes)]
    for name, source in (snapshot.sources if snapshot else {}).items():
        failure: tuple[str, ...] = ()
        if source.state == "failed":
            kept = (
                f"its prices of {source.retrieved_at} are kept"
                if source.offers
                else "the shipped prices stand"
            )
            failure = (plain(f"{name} could not be refreshed ({source.reason}); {kept}", 400),)
        checked = check_offers(source.offers, name)
        tables.append(msgspec.structs.replace(checked, notes=failure, covers=source.covers))
    return overlay(tables)


def known_before(folder: Path) -> Sequence[Offer]:
    """Return the shipped and the refreshed offers, which new ones are held against."""
    return overlay([embedded_offers(), refreshed_offers(folder)]).offers


def newest_snapshot(folder: Path, as_of: date | None = None) -> tuple[Snapshot | None, tuple[str, ...]]:
    """Return the newest snapshot until a day that can be read, and a note for each newer one that cannot."""
    notes: list[str] = []
    latest = f"{as_of or date.max:%Y%m%d}~"  # sorts behind every time of its day
    paths = _listed(folder, _PATTERN, notes)
    for path in sorted((path for path in paths if path.name < latest), reverse=True):
        try:
            return read_snapshot(path), tuple(notes)
        except MisuseError as error:
            notes.append(f"{error}; the snapshot before it is used")
    return None, tuple(notes)


def _listed(folder: Path, pattern: str, notes: list[str]) -> tuple[Path, ...]:
    """Return the files of a folder whose names fit; a note where it is there and cannot be listed."""
    try:
        return tuple(path for path in folder.iterdir() if path.match(pattern))
    except FileNotFoundError:
        return ()
    except OSError as error:
        notes.append(f"cannot list {plain(str(folder), 1000)}: {cause_of(error)}; no prices of it count")
        return ()


def imported_offers(folder: Path) -> Iterator[OfferTable]:
    """Yield the tables that the user imported by their names, own ones last: over the catalogs."""
    notes: list[str] = []
    paths = _listed(folder / IMPORTED, "*.json", notes)
    yield OfferTable(notes=tuple(notes))
    for path in sorted(paths, key=lambda each: (each.name.startswith("own-"), each)):
        try:
            offers = read_imported(path)
        except MisuseError as error:
            yield OfferTable(notes=(str(error),))
        else:
            yield check_offers(offers, f"imported {path.stem}")


def read_snapshot(path: Path) -> Snapshot:
    """Read one snapshot.

    Raises:
        MisuseError: If it is too large, damaged, or written by a newer gpubench.
    """
    snapshot = read_json(
        path, Snapshot, TABLE_BYTES, what="a price snapshot", hint="run gpubench offers refresh"
    )
    if snapshot.schema_version > SCHEMA_VERSION:
        raise MisuseError(f"price snapshot {plain(path.name)} is of a newer gpubench: upgrade gpubench")
    return snapshot


def read_imported(path: Path) -> tuple[Offer, ...]:
    """Read a table that ``gpubench offers import`` wrote.

    Raises:
        MisuseError: If it is too large or damaged.
    """
    hint = "import it again or delete it"
    return read_json(path, tuple[Offer, ...], TABLE_BYTES, what="an imported price table", hint=hint)


def write_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot under the time of its retrieval, whole or not at all; return its path.

    Raises:
        StorageError: If the folder cannot be written.
    """
    name = snapshot.retrieved_at.replace("-", "").replace(":", "") + ".json"
    return write_json(folder / name, snapshot)


def write_json(path: Path, document: Any) -> Path:
    """Replace a file atomically: a reader sees the old one or the new one, never a half.

    Raises:
        StorageError: If the folder cannot be written.
    """
    data = msgspec.json.format(msgspec.json.encode(document), indent=1)
    write_file(path, data, hint=WRITE_HINT)
    return path


def check_offers(offers: Iterable[Offer], name: str) -> OfferTable:
    """Return the offers that hold to the limits of a row; the others are set aside under the table's name."""
    kept, set_aside = [], []
    for offer in offers:
        try:
            check_offer(offer)
        except ValueError as reason:
            set_aside.append(SetAside(f"{name}: {plain(full_name(offer))}", str(reason)))
        else:
            kept.append(offer)
    return OfferTable(offers=tuple(kept), set_aside=tuple(set_aside))
