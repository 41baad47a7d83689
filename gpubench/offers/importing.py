"""Bring in a price table that somebody else made: in our columns, in SkyPilot's, or in gpuhunt's.

The last two carry no dates, and name their cloud only by file or folder, so both can be told here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import Pricing
from gpubench.names import tpu_slice
from gpubench.offers.cleaning import Table, clean, missing_columns, read_rows
from gpubench.offers.dates import price_day
from gpubench.offers.outliers import sort_outliers
from gpubench.offers.quotes import sort_quotes
from gpubench.offers.request import Format, read_price_date
from gpubench.offers.snapshot import (
    IMPORTED,
    known_before,
    latest_day,
    offers_folder,
    read_imported,
    write_json,
)
from gpubench.offers.sources import Quote, kind_of
from gpubench.offers.sources.gpuhunt_catalog import PROVIDERS
from gpubench.offers.table import OfferTable, require_usable
from gpubench.specs import load_specs, offered_gpu_key
from gpubench.today import today
from gpubench.units import figure_in, plain

_MARKS: dict[Format, frozenset[str]] = {
    "own": frozenset({"gpu_key", "instance"}),
    "skypilot": frozenset({"acceleratorname", "instancetype"}),
    "gpuhunt": frozenset({"instance_name", "gpu_name"}),
}
_PLAIN_MEMORY_GIB = {"A100": 40.0, "V100": 16.0}
"""SkyPilot's names without a size: the larger cards are A100-80GB and V100-32GB there."""

_MEMORY = re.compile(r"SizeInMiB'?\"?\s*:\s*(\d{1,9})")
_LEAST_MIB = 1000.0
"""Less memory than that in MiB has no GPU on sale: such a figure is in gigabytes."""
_NAME = re.compile(r"'?\"?Name'?\"?\s*:\s*['\"]([^'\"]{1,60})['\"]")
_TOTAL = re.compile(r"TotalGpuMemoryInMiB'?\"?\s*:\s*(\d{1,9})")
_IN_INSTANCE = re.compile(
    r"\d+x-(?P<vast>\D.*)-\d+-\d+|gpu-(?P<nebius>[\w-]+?)_\dgpu-.*|\w+?_(?P<yotta>NVIDIA_\w+)_\d+G_\w+",
    re.ASCII,
)
"""SkyPilot's own names of machines often tell the form factor that its names of GPUs leave open."""


class Imported(NamedTuple):
    """The table as it was read, where it now lies, and how many offers of an earlier import it replaced."""

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
    """Read a price table and keep it beside the refreshed ones, over which it lies from then on.

    A catalog replaces the one imported of the same cloud, an own table that of the same folder and file.

    Args:
        file: CSV, or JSON in our columns.
        format_: None tells it by the columns.
        provider: The cloud, for formats that do not name it.
        price_date: Day of the prices, for formats without dates.
        results: Results folder; None is the default one.
        accept_outliers: Take prices that jumped against the last known ones.

    Raises:
        MisuseError: If the file is no such table, or nothing in it is usable.
        StorageError: If the result cannot be written.
    """
    format_, table = read_table(file, format_=format_, provider=provider, price_date=price_date)
    folder = offers_folder(results)
    known = known_before(folder)
    table = sort_outliers(table, known, accept=accept_outliers).table
    require_usable(table, file.name)
    # named by what it is of: the catalogs of all clouds lie in files of one name
    of = [file.resolve().parent.name, file.stem]
    if format_ != "own":
        of = sorted({offer.provider for offer in table.offers})
    safe = [re.sub(r"[^A-Za-z0-9._-]", "_", each)[:60] for each in of if each]
    path = folder / IMPORTED / f"{'-'.join([format_, *safe])}.json"
    replaced = None
    if path.exists():
        with suppress(MisuseError):  # an earlier import that cannot be read
            replaced = len(read_imported(path))
    return Imported(table, write_json(path, tuple(table.offers)), replaced)


def read_table(
    file: Path, *, format_: Format | None = None, provider: str | None = None, price_date: str | None = None
) -> tuple[Format, OfferTable]:
    """Read a price table in any of the three formats, and say in which; see ``import_offers``."""
    rows, latest = read_rows(file), latest_day(today(), days_ahead=1)
    format_ = _format(rows, format_)
    if format_ == "own":
        return format_, clean(rows, latest)
    if price_date is None:
        raise MisuseError(f"{format_} tables carry no dates: say with --price-date when these prices held")
    if price_day(read_price_date(price_date, "--price-date")) > latest:
        raise MisuseError(f"--price-date {plain(price_date)} lies in the future: give their own day")
    cloud = file.stem.lower()  # by the places where these projects keep their tables: aws/vms.csv, aws.csv
    if format_ == "skypilot" and cloud == "vms":
        cloud = file.resolve().parent.name.lower()
    if provider is not None:
        cloud = provider.lower()
    elif not re.fullmatch(r"[a-z][a-z0-9-]{1,30}", cloud):
        raise MisuseError(f"{plain(file.name)} does not tell the cloud: say it with --provider")
    else:
        cloud = {**PROVIDERS, "vastai": "vast"}.get(cloud, cloud)
    read = _skypilot_quotes if format_ == "skypilot" else _gpuhunt_quotes
    source = f"{format_} table {plain(file.name)}"
    return format_, sort_quotes(_over_zones(read(rows, cloud, price_date, source)), price_date).table


def _format(table: Table, said: Format | None) -> Format:
    """Return the format that was said, or that the columns tell."""
    missing = {each: sorted(marks.difference(table.columns)) for each, marks in _MARKS.items()}
    found = said or next((each for each, columns in missing.items() if not columns), None)
    if found is None:
        raise MisuseError(
            f"{plain(table.name)} has columns of no known format ({plain(', '.join(table.columns))}); "
            f"as a table of your own it lacks {', '.join(missing_columns(table.columns))}"
        )
    if missing[found]:
        lacks = ", ".join(missing[found])
        raise MisuseError(f"{plain(table.name)} is not a table in the format {found}: it lacks {lacks}")
    return found


def _skypilot_quotes(table: Table, provider: str, price_date: str, source: str) -> Iterator[Quote]:
    for _, row in table.rows:
        gpu, instance, count = row["acceleratorname"], row["instancetype"], row.get("acceleratorcount", "")
        if not gpu:
            continue
        # A GPU without a machine is its fee alone: it would look four times too cheap. A TPU has its host.
        whole = bool(instance) or tpu_slice(gpu) is not None
        named, memory_gib = _skypilot_gpu(instance, gpu, count, row.get("gpuinfo", ""))
        for pricing, amount in ((Pricing.ON_DEMAND, row.get("price")), (Pricing.SPOT, row.get("spotprice"))):
            if amount and not (pricing is Pricing.SPOT and _number(amount) is None):
                yield Quote(
                    provider=provider,
                    instance=instance or (gpu if whole else f"{gpu} (attach)"),
                    kind=kind_of(provider) if whole else "attach-fee",
                    region=row.get("region"),
                    gpu=named,
                    gpu_memory_gib=memory_gib,
                    gpu_count=count,
                    vcpus=row.get("vcpus"),
                    ram_gib=row.get("memorygib"),
                    price=amount,
                    pricing=pricing,
                    price_date=price_date,
                    source=source,
                )


def _skypilot_gpu(instance: str, gpu: str, count: str, info: str) -> tuple[str, float | None]:
    """Return the name that tells a GPU best, and the memory of one [GiB].

    The catalogs differ in what memory they give: that of one GPU with the sum beside it; of one, or of all,
    in both places; and some count in gigabytes. Of what a name and a memory can mean together, the first
    known card with a form factor is the one.
    """
    one, total = (_number(found[1]) if (found := each.search(info)) else None for each in (_MEMORY, _TOTAL))
    sizes: list[float | None] = [one]
    if one is not None and one >= _LEAST_MIB:
        sizes = [one / 1024 / (_number(count) or 1.0), one / 1024] if total == one else [one / 1024]
    told, inside = _NAME.search(info), _IN_INSTANCE.fullmatch(instance)
    machine = "" if inside is None else str(inside[inside.lastgroup or 0]).replace("_", " ")
    known = [
        (name, size, load_specs()[key])
        for size in sizes
        for name in (told[1] if told else "", machine, gpu)
        if name and (key := offered_gpu_key(name, size)) is not None
    ]
    exact = [each for each in known if not each[2].variants]
    name, size, _ = next(iter(exact or known), (gpu, sizes[0], None))
    return name, _PLAIN_MEMORY_GIB.get(name) if size is None else size


def _gpuhunt_quotes(table: Table, provider: str, price_date: str, source: str) -> Iterator[Quote]:
    for _, row in table.rows:
        gpu, count = row["gpu_name"], row.get("gpu_count", "")
        if not gpu or count in {"", "0"}:
            continue
        is_tpu = row.get("gpu_vendor") == "google" and not gpu.startswith("tpu-")
        yield Quote(
            provider=provider,
            instance=row["instance_name"],
            region=row.get("location"),
            gpu=f"tpu-{gpu}" if is_tpu else gpu,
            gpu_memory_gib=_number(row.get("gpu_memory", "")),
            gpu_count=count,
            kind=kind_of(provider),
            vcpus=row.get("cpu"),
            ram_gib=row.get("memory"),
            price=row.get("price", ""),
            pricing=Pricing.SPOT if row.get("spot", "").lower() == "true" else Pricing.ON_DEMAND,
            price_date=price_date,
            source=source,
        )


def _number(text: str) -> float | None:
    value = figure_in(text)
    return value if value is not None and 0 < value < 1e6 else None


def _over_zones(quotes: Iterable[Quote]) -> Iterator[Quote]:
    """Yield one quote per instance, region and pricing: the median where zones of a region differ."""
    alike: dict[tuple[str, str | None, str, str, Pricing], list[Quote]] = defaultdict(list)
    for quote in quotes:
        alike[quote.instance, quote.region, quote.gpu, str(quote.gpu_count), quote.pricing].append(quote)
    for group in alike.values():
        prices = [_number(str(quote.price)) for quote in group]
        known = [price for price in prices if price is not None]
        if len(group) == 1 or len(known) < len(group):
            yield group[0]
        else:
            yield msgspec.structs.replace(group[0], price=median(known), note=f"median of {len(group)} zones")
