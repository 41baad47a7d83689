"""The catalogs collected by the gpuhunt project, one source per published cloud.

This package fetches the catalogs, so its usual limits apply, and gpuhunt parses them. Two of gpuhunt's
environment variables work: GPUHUNT_CATALOG_DIR, a folder of ``<provider>.csv`` to read instead of the
network, and GPUHUNT_CATALOG_URL, another URL to fetch from.
"""

import csv
import io
import logging
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpubench.files import write_file
from gpubench.models import Pricing
from gpubench.offers.sources import (
    Complete,
    Quote,
    Said,
    Source,
    SourceError,
    Transport,
    kind_of,
)
from gpubench.offers.table import SetAside

URL = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3"
DIR_VARIABLE, URL_VARIABLE = "GPUHUNT_CATALOG_DIR", "GPUHUNT_CATALOG_URL"
MAX_CSV_BYTES = 256 * 1024**2
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
"""Maps gpuhunt's name of each cloud to that of gpubench."""


def fetch(catalog: str, transport: Transport) -> Iterator[Said]:
    """Yield one quote per row of a cloud's catalog that has a GPU."""
    import gpuhunt

    with TemporaryDirectory(prefix="gpubench-") as scratch:
        folder, version = os.environ.get(DIR_VARIABLE), ""
        if folder is None:
            folder, version = scratch, _download(catalog, transport, Path(scratch))
        with _variable(DIR_VARIABLE, folder), _warnings() as skipped:
            try:
                items = gpuhunt.Catalog(auto_reload=False).query(provider=catalog, min_gpu_count=1)
            except OSError as error:
                raise SourceError(f"cannot read {catalog}.csv in {folder}: {error.strerror}") from None
            except (csv.Error, UnicodeDecodeError) as error:
                raise SourceError(f"{catalog}.csv is not a catalog of gpuhunt: {error}") from None
    day = re.match(r"(20\d{2})-?(\d{2})-?(\d{2})", version)  # 20261119, or 20261119-1234
    for item in items:
        is_tpu = getattr(item.gpu_vendor, "value", "") == "google"
        yield Quote(
            provider=PROVIDERS[catalog],
            instance=item.instance_name,
            region=item.location,
            gpu=f"tpu-{item.gpu_name}" if is_tpu else item.gpu_name or "",
            gpu_memory_gib=item.gpu_memory,
            gpu_count=item.gpu_count,
            vcpus=item.cpu,
            ram_gib=item.memory,
            price=item.price,
            kind=kind_of(PROVIDERS[catalog]),
            pricing=Pricing.SPOT if item.spot else Pricing.ON_DEMAND,
            price_date="-".join(day.groups()) if day else None,
            source=f"gpuhunt catalog {catalog} {version}".rstrip(),
        )
    yield from (SetAside(f"gpuhunt catalog {catalog}", warning) for warning in skipped)
    if not skipped:
        # gpuhunt collects only the families it supports; other offers may still be on sale.
        yield Complete(pricings=(Pricing.ON_DEMAND, Pricing.SPOT), whole_provider=False)


def _download(catalog: str, transport: Transport, folder: Path) -> str:
    # Fetch the newest catalog into a folder; return its version, which starts with its date.
    base = f"{os.environ.get(URL_VARIABLE, URL).rstrip('/')}/{catalog}"
    version = transport(f"{base}/version").decode("ascii", "replace").strip()
    if not re.fullmatch(r"[\w.-]{1,64}", version):
        raise SourceError(f"gpuhunt names {version[:40]!r}, which is not a version of its catalog")
    packed = transport(f"{base}/{version}/catalog.zip")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            if archive.getinfo(f"{catalog}.csv").file_size > MAX_CSV_BYTES:
                raise SourceError(f"gpuhunt's {catalog}.csv is over {MAX_CSV_BYTES:,} bytes: refused")
            write_file(folder / f"{catalog}.csv", archive.read(f"{catalog}.csv"))
    except (zipfile.BadZipFile, KeyError) as error:
        raise SourceError(f"gpuhunt's catalog of {catalog} is not such an archive: {error}") from None
    return version


@contextmanager
def _warnings() -> Iterator[list[str]]:
    # Collect gpuhunt's warnings, one for each unreadable row that it skips.
    warned: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gpuhunt")
    logger.addHandler(handler)
    try:
        yield warned
    finally:
        logger.removeHandler(handler)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


SOURCES = tuple(Source(f"gpuhunt-{name}", ours, partial(fetch, name)) for name, ours in PROVIDERS.items())
