"""The catalogs collected by the gpuhunt project, one source per cloud.

gpubench itself fetches and reads the catalogs, so its usual limits apply. Two of gpuhunt's environment
variables also work here: GPUHUNT_CATALOG_DIR names a folder of ``<provider>.csv`` files, which replaces the
network, and GPUHUNT_CATALOG_URL another URL to fetch from. Prices in a folder have the date of
the file's last change.
"""

import csv
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gpubench.errors import MisuseError
from gpubench.files import read_bytes
from gpubench.models import Pricing
from gpubench.offers.sources import (
    Complete,
    Quote,
    Source,
    SourceError,
    SourceItem,
    Transport,
    kind_of,
)
from gpubench.today import today
from gpubench.units import figure_in

URL = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3"
DIR_VARIABLE, URL_VARIABLE = "GPUHUNT_CATALOG_DIR", "GPUHUNT_CATALOG_URL"
MAX_CSV_BYTES = 256 * 1024**2
COLUMNS = frozenset({"instance_name", "gpu_name"})
"""Columns by which a catalog is recognized."""
PROVIDERS = {
    "aws": "aws",
    "azure": "azure",
    "cloudrift": "cloudrift",
    "gcp": "gcp",
    "lambdalabs": "lambda",
    "nebius": "nebius",
    "oci": "oci",
    "runpod": "runpod",
    "verda": "verda",
}
"""Maps gpuhunt's name for each cloud to gpubench's."""


def fetch(catalog: str, transport: Transport) -> Iterator[SourceItem]:
    """Yield one quote for each row with a GPU in a cloud's catalog."""
    folder, version = os.environ.get(DIR_VARIABLE), ""
    try:
        if folder is None:
            version, text = _download(catalog, transport)
            day = re.match(r"(20\d{2})-?(\d{2})-?(\d{2})", version)  # 20261119, or 20261119-1234
            price_date = "-".join(day.groups()) if day else None
        else:
            path = Path(folder) / f"{catalog}.csv"
            text = read_bytes(path, MAX_CSV_BYTES, follow_links=True)
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
            price_date = str(min(written, today()))  # the rows have no date, but are no newer than their file
        reader = csv.DictReader(io.StringIO(text.decode()), restval="")
        rows = list(reader)
    except MisuseError as error:
        raise SourceError(str(error)) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise SourceError(f"{catalog}.csv is not a catalog of gpuhunt: {error}") from None
    if lacking := sorted(COLUMNS.difference(reader.fieldnames or ())):
        raise SourceError(f"{catalog}.csv is not a catalog of gpuhunt: it lacks {', '.join(lacking)}")
    yield from quotes(rows, PROVIDERS[catalog], price_date, f"gpuhunt catalog {catalog} {version}".rstrip())
    if all(figure_in(row.get("price", "")) is not None for row in rows):
        # gpuhunt collects only the families it supports; other offers may still be on sale.
        yield Complete(pricings=(Pricing.ON_DEMAND, Pricing.SPOT), whole_provider=False)


def quotes(
    rows: Iterable[Mapping[str | None, str]], provider: str, price_date: str | None, source: str
) -> Iterator[Quote]:
    """Yield one quote for each row with a GPU."""
    for row in rows:
        gpu, count = row["gpu_name"], row.get("gpu_count", "")
        if not gpu or count in {"", "0"}:
            continue
        is_tpu = row.get("gpu_vendor") == "google" and not gpu.startswith("tpu-")
        yield Quote(
            provider=provider,
            instance=row["instance_name"],
            region=row.get("location"),
            gpu=f"tpu-{gpu}" if is_tpu else gpu,
            gpu_memory_gib=figure_in(row.get("gpu_memory", "")) or None,
            gpu_count=count,
            kind=kind_of(provider),
            vcpus=row.get("cpu"),
            ram_gib=row.get("memory"),
            price=row.get("price", ""),
            pricing=Pricing.SPOT if row.get("spot", "").lower() == "true" else Pricing.ON_DEMAND,
            price_date=price_date,
            source=source,
        )


def _download(catalog: str, transport: Transport) -> tuple[str, bytes]:
    # Fetch the newest catalog; return its version, which starts with its date, and its table.
    base = f"{os.environ.get(URL_VARIABLE, URL).rstrip('/')}/{catalog}"
    version = transport(f"{base}/version").decode("ascii", "replace").strip()
    if not re.fullmatch(r"[\w.-]{1,64}", version):
        raise SourceError(f"{version[:40]!r} is not a valid version of gpuhunt's catalog of {catalog}")
    packed = transport(f"{base}/{version}/catalog.zip")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if archive.getinfo(f"{catalog}.csv").file_size > MAX_CSV_BYTES:
                raise SourceError(f"gpuhunt's {catalog}.csv is over {MAX_CSV_BYTES:,} bytes: refused")
            return version, archive.read(f"{catalog}.csv")
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:
        raise SourceError(f"gpuhunt's catalog of {catalog} is not a valid archive: {error}") from None


SOURCES = tuple(Source(f"gpuhunt-{name}", ours, partial(fetch, name)) for name, ours in PROVIDERS.items())
