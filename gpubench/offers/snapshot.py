"""Price tables on disk: the shipped table, refreshed snapshots, and the merged table for rankings.

A ranking reads only these files and never the network, so it can be reproduced later.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import NOT_JSON, TABLE_BYTES, cause_of, many_objects, read_json, write_file
from gpubench.folders import data_table, require_folder, results_root
from gpubench.models import Offer, Pricing
from gpubench.offers.dates import price_day
from gpubench.offers.quotes import check, check_stamp
from gpubench.offers.table import (
    BY_USER,
    Coverage,
    OfferKey,
    OfferTable,
    SetAside,
    newest_day,
    overlay,
    require_usable,
    up_to,
)
from gpubench.today import day_of, today
from gpubench.torch_builds import read_on
from gpubench.units import count, plain

_T = TypeVar("_T", Offer, Coverage)

SNAPSHOT_VERSION = 2
"""Version of a snapshot of prices, stored or published."""

IMPORTED, REFRESHED = "imported", "refreshed"
WRITE_HINT = "give another folder with --results"
# Limits on the parts of a snapshot or source, because every offer is compared with each; dozens are usual.
_MOST_SOURCES, _MOST_COVERS = 200, 500
# 20261120T190500Z.json: the name is the UTC time of the refresh, so the newest file sorts last.
_PATTERN = "[0-9]*T[0-9]*Z.json"


_Row = TypeVar("_Row")
_Claim = TypeVar("_Claim")
_Source = TypeVar("_Source")


class SourceRows(msgspec.Struct, Generic[_Row, _Claim], frozen=True, kw_only=True):
    """The latest prices of one source, and the state of its latest answer.

    Attributes:
        state: ``ok``; or ``failed`` or ``skipped``, with ``offers`` from an earlier refresh.
        retrieved_at: UTC time at which ``offers`` were read; None if the source never answered.
        reason: Why it failed or was skipped; for ``ok``, why the answer is not considered complete.
        covers: The parts for which the answer was complete.
        retired: Number of earlier offers that the answer no longer lists.
    """

    state: Literal["ok", "failed", "skipped"]
    retrieved_at: str | None
    reason: str | None = None
    offers: tuple[_Row, ...] = ()
    covers: Annotated[tuple[_Claim, ...], msgspec.Meta(max_length=_MOST_COVERS)] = ()
    retired: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0


class SnapshotOf(msgspec.Struct, Generic[_Source], frozen=True, kw_only=True):
    """One refresh: the state of every source at that time."""

    schema_version: int = SNAPSHOT_VERSION
    retrieved_at: str
    sources: Annotated[dict[str, _Source], msgspec.Meta(max_length=_MOST_SOURCES)] = {}


SourceOffers: TypeAlias = SourceRows[Offer, Coverage]
Snapshot: TypeAlias = SnapshotOf[SourceOffers]
SnapshotAsWritten: TypeAlias = SnapshotOf[SourceRows[msgspec.Raw, msgspec.Raw]]
"""A snapshot with undecoded, unchecked rows, so a bad row affects no other. See ``valid_sources``."""


class ReadSource(NamedTuple):
    """The latest answer of one source, received from the source itself or read from a snapshot.

    Attributes:
        source: The source with its valid offers and coverages.
        set_aside: The invalid rows, with reasons.
        unusable: The identities of offers with invalid rows.
    """

    source: SourceOffers
    set_aside: tuple[SetAside, ...]
    unusable: frozenset[OfferKey]


def load_offers(
    results: Path | None = None, extra: Path | None = None, as_of: date | None = None
) -> OfferTable:
    """Return every known offer.

    Refreshed offers override shipped ones, imported offers override both, and the file ``extra`` overrides
    all of them. Prices dated after ``as_of`` are left out.

    Raises:
        MisuseError: If ``results`` is not a folder, or ``extra`` cannot be read or has no usable offer.
    """
    root = results_root(results)
    require_folder(root)
    folder = offers_folder(root)
    files = [folder, folder / IMPORTED, *folder.glob("*.json"), *folder.glob(f"{IMPORTED}/*.json")]
    state = tuple(map(_state, [*files, extra] if extra else files))
    with many_objects():
        return _load(folder, extra, as_of, today(), state)


def _state(path: Path) -> object:
    # Return a value that changes with the content of a file; None if there is no file.
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=1)
def _load(folder: Path, extra: Path | None, as_of: date | None, present: date, _state: object) -> OfferTable:
    # Read and clean every table; the result is cached until a file changes.
    shipped, tables = embedded_offers(as_of), [_refreshed_offers(folder, as_of), *imported_offers(folder)]
    if extra is not None:
        from gpubench.offers.tables import read_own  # needed only for a user's table

        own = read_own(extra, latest_day(present, days_ahead=1))
        own = own if as_of is None else up_to(own, as_of, f"{extra.name}: ")
        require_usable(own, extra.name)
        tables.append(msgspec.structs.replace(own, origin=BY_USER))
    if as_of is not None:
        tables = [up_to(table, as_of) for table in tables]
    table = overlay([shipped, *tables])
    if table.retired or any(len(each.offers) for each in tables):
        return table
    return msgspec.structs.replace(table, offers=shipped.offers)  # the shipped offers have cached columns


def load_dated(
    results: Path | None = None, extra: Path | None = None, as_of: date | None = None
) -> tuple[OfferTable, date, str | None]:
    """Return every known offer, and the day as of which ages are computed: the requested day, else today.

    If the newest price or the shipped tables are dated more than a day after today, the clock must be wrong,
    and the later of the two dates is used. The arguments are those of ``load_offers``.

    Returns:
        The offers, the day, and a note if the clock is far from the newest price.

    Raises:
        MisuseError: As in ``load_offers``, or if the day is invalid.
    """
    present = day_of(as_of)
    table = load_offers(results, extra, None if as_of is None else present)
    newest = newest_day(table.offers)
    if as_of is not None or newest == date.min:
        return table, present, None
    last, what = max((newest, "The newest price is dated"), (read_on(), "The shipped tables are dated"))
    if last > present + _CLOCKS_DIFFER:
        clock = f"later than this computer's clock says ({present}), so ages are counted from that day"
        return table, last, f"{what} {last}, {clock}"
    if present > newest + _CLOCK_TRUSTED:
        age = count((present - newest).days, "day")
        return table, present, f"By this computer's clock ({present}), the newest price is {age} old"
    return table, present, None


# Clocks and time zones differ by less than this.
_CLOCKS_DIFFER = timedelta(days=1)
# If the clock is this far after every price, either the clock is wrong or the prices are outdated.
_CLOCK_TRUSTED = timedelta(days=365)


def offers_folder(results: Path | None) -> Path:
    """Return the folder of snapshots and imported tables under a results folder."""
    return results_root(results) / "offers"


@cache
def embedded_offers(as_of: date | None = None) -> OfferTable:
    """Return the shipped prices: the newest price of each offer up to a day."""
    table = OfferTable(offers=data_table("offers.csv", Offer))
    table = table if as_of is None else up_to(table, as_of)

    def day(offer: Offer) -> date:
        return price_day(offer.price_date)

    by_day = groupby(sorted(table.offers, key=day), day)
    # The entire table comes first and sets the order. The tables of single days then repeat its prices, which
    # records the changes from one day to another.
    return overlay([table, *(OfferTable(offers=tuple(of_day)) for _, of_day in by_day)])


def _refreshed_offers(folder: Path, as_of: date | None = None) -> OfferTable:
    # Return the offers of the newest readable snapshot up to a day; empty if there is none.
    read, notes = newest_snapshot(folder, as_of)
    tables = [OfferTable(notes=notes)]
    for name, (source, set_aside, _) in read.items():
        failure: tuple[str, ...] = ()
        if source.state == "failed":
            kept = (
                f"its prices from {source.retrieved_at} are kept"
                if source.offers
                else "the shipped prices are used"
            )
            failure = (plain(f"{name} could not be refreshed ({source.reason}); {kept}", 400),)
        tables.append(
            OfferTable(offers=source.offers, set_aside=set_aside, notes=failure, covers=source.covers)
        )
    return msgspec.structs.replace(overlay(tables), origin=REFRESHED)


def known_before(folder: Path) -> Sequence[Offer]:
    """Return the shipped and refreshed offers, for comparison with new ones."""
    return overlay([embedded_offers(), _refreshed_offers(folder)]).offers


def newest_snapshot(
    folder: Path, as_of: date | None = None
) -> tuple[Mapping[str, ReadSource], tuple[str, ...]]:
    """Return the newest readable snapshot up to a day, and a note for each newer unreadable one."""
    notes: list[str] = []
    last_name = f"{as_of or date.max:%Y%m%d}~"  # sorts after every time of that day
    paths = _listed(folder, _PATTERN, notes)
    for path in sorted((path for path in paths if path.name < last_name), reverse=True):
        try:
            return read_snapshot(path), tuple(notes)
        except MisuseError as error:
            notes.append(f"{error}; the previous snapshot is used")
    return {}, tuple(notes)


def _listed(folder: Path, pattern: str, notes: list[str]) -> tuple[Path, ...]:
    # Return the files of a folder with matching names; add a note if the folder cannot be listed.
    try:
        return tuple(path for path in folder.iterdir() if path.match(pattern))
    except FileNotFoundError:
        return ()
    except OSError as error:
        notes.append(f"cannot list {plain(str(folder), 1000)}: {cause_of(error)}; its prices are not used")
        return ()


def imported_offers(folder: Path) -> Iterator[OfferTable]:
    """Yield the imported tables by name; the user's own come last and override the catalogs."""
    notes: list[str] = []
    paths = _listed(folder / IMPORTED, "*.json", notes)
    yield OfferTable(notes=tuple(notes))
    for path in sorted(paths, key=lambda each: (each.name.startswith("own-"), each)):
        try:
            rows = read_imported(path)
        except MisuseError as error:
            yield OfferTable(notes=(str(error),))
        else:
            table, _ = _valid_offers(rows, f"imported {path.stem}", latest_day(today()))
            yield msgspec.structs.replace(table, origin=f"{IMPORTED} {path.stem}")


def read_snapshot(path: Path) -> Mapping[str, ReadSource]:
    """Read one snapshot; a row that violates a rule is set aside.

    Raises:
        MisuseError: If it is too large, damaged, or written by a newer gpubench.
    """
    hint = "run gpubench offers refresh"
    written = read_json(path, SnapshotAsWritten, TABLE_BYTES, what="a price snapshot", hint=hint)
    if written.schema_version > SNAPSHOT_VERSION:
        raise MisuseError(
            f"price snapshot {plain(path.name)} was written by a newer gpubench: upgrade gpubench"
        )
    try:
        return valid_sources(written, latest_day(today()))
    except ValueError as reason:
        raise MisuseError(f"{plain(path.name)} is not a price snapshot: {reason}; {hint}") from None


def read_imported(path: Path) -> tuple[msgspec.Raw, ...]:
    """Read a table that ``gpubench offers import`` wrote; its offers are not checked yet.

    Raises:
        MisuseError: If it is too large or damaged.
    """
    hint = "import it again or delete it"
    return read_json(path, tuple[msgspec.Raw, ...], TABLE_BYTES, what="an imported price table", hint=hint)


def write_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot atomically under the time of its retrieval; return its path.

    Raises:
        StorageError: If the folder cannot be written.
    """
    name = snapshot.retrieved_at.replace("-", "").replace(":", "") + ".json"
    return write_json(folder / name, snapshot)


def write_json(path: Path, document: Any) -> Path:
    """Replace a file atomically: a reader sees either the old or the new file, never a partial one.

    Raises:
        StorageError: If the folder cannot be written.
    """
    data = msgspec.json.format(msgspec.json.encode(document), indent=1)
    write_file(path, data, hint=WRITE_HINT)
    return path


# --- checks of a stored table ----------------------------------------------------------------------------

# How many days a stored date may be ahead of the clock, which may be slow; later dates are invalid.
_DAYS_AHEAD = 366


def latest_day(present: date, days_ahead: int = _DAYS_AHEAD) -> date:
    """Return the latest day that is valid as the date of a price.

    If the clock is earlier than the shipped prices, it is wrong, so dates up to a year later are valid.
    """
    shipped = newest_day(embedded_offers().offers)
    return max(present, shipped) + timedelta(days=days_ahead if present >= shipped else _DAYS_AHEAD)


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of an offer in an otherwise unusable row; its fields have the order of ``OfferKey``."""

    provider: str
    instance: str
    region: str | None = None
    pricing: Pricing
    term_years: int | None = None


def valid_sources(written: SnapshotAsWritten, latest: date) -> Mapping[str, ReadSource]:
    """Return the sources of a snapshot with their valid offers and coverages.

    A source is not considered complete if one of its rows cannot be identified.

    Args:
        written: The snapshot.
        latest: The last valid day.

    Raises:
        ImplausibleError: If a time of the snapshot is invalid.
    """
    read: dict[str, ReadSource] = {}
    check_stamp(written.retrieved_at, latest)
    for name, source in written.sources.items():
        if source.retrieved_at is not None:
            check_stamp(source.retrieved_at, latest)
        table, identities = _valid_offers(source.offers, name, latest)
        covers, bad = _valid_rows(source.covers, Coverage, latest)
        bad_covers = [SetAside(plain(f"{name}: coverage {at + 1}"), reason) for at, reason in bad.items()]
        valid = SourceOffers(
            state=source.state,
            retrieved_at=source.retrieved_at,
            reason=source.reason,
            offers=tuple(table.offers),
            covers=() if None in identities else tuple(covers),
            retired=source.retired,
        )
        unusable = frozenset(filter(None, identities))
        read[name] = ReadSource(valid, (*table.set_aside, *bad_covers), unusable)
    return read


def _valid_offers(
    rows: Sequence[msgspec.Raw], name: str, latest: date
) -> tuple[OfferTable, Sequence[OfferKey | None]]:
    # Return the valid offers, and the identity of each invalid one; None if it cannot be identified.
    offers, bad = _valid_rows(rows, Offer, latest)
    identities: list[OfferKey | None] = []
    set_aside = []
    for at, reason in bad.items():
        try:
            key: OfferKey | None = msgspec.structs.astuple(msgspec.json.decode(rows[at], type=_Identity))
        except NOT_JSON:
            key = None
        words = " ".join(filter(None, key[:3])) if key else f"row {at + 1}"
        identities.append(key)
        set_aside.append(SetAside(plain(f"{name}: {words}"), reason))
    return OfferTable(offers=tuple(offers), set_aside=tuple(set_aside)), identities


def _valid_rows(
    rows: Iterable[msgspec.Raw], shape: type[_T], latest: date
) -> tuple[list[_T], dict[int, str]]:
    # Return the valid rows, and for each invalid row, by its index, the reason.
    kept: list[_T] = []
    bad: dict[int, str] = {}
    for at, row in enumerate(rows):
        try:
            value = msgspec.json.decode(row, type=shape)
            check(value, latest)
        except (ValueError, *NOT_JSON) as reason:
            bad[at] = plain(str(reason))
        else:
            kept.append(value)
    return kept, bad
