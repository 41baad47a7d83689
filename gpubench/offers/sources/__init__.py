"""The type of a price source, its errors, and the list of sources.

A source is a file here with an object ``SOURCE``; ``SOURCE.fetch(transport)`` queries the provider. It knows
only the provider's formats and yields unchecked quotes. Shared code identifies the GPUs, checks plausibility
and merges the prices, so a new source needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpubench.errors import GpuBenchError, MisuseError
from gpubench.files import NOT_JSON
from gpubench.foreign_code import load_plugin
from gpubench.models import Pricing, Seller
from gpubench.names import nearest
from gpubench.offers.table import SetAside
from gpubench.options import unknown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

# Providers that rent out the machines of others and have no instance types.
_MARKETPLACES = frozenset({"lium", "runpod", "spheron", "tensordock", "vast"})


def kind_of(provider: str) -> str:
    """Return the default kind of a provider's offers: vm or marketplace."""
    return "marketplace" if provider in _MARKETPLACES else "vm"


class SourceError(GpuBenchError):
    """A price source could not be read; the message is stored as the reason in the state of the source."""


class SourceSkippedError(SourceError):
    """A price source was not queried, because a key or a library is missing."""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one host, named like the fields of an offer; None if not stated."""

    host_id: str | None = None
    machine_id: str | None = None
    reliability: float | None = None
    pcie_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    upload_bytes_per_s: float | None = None
    disk_bytes: int | None = None


NO_HOST = HostFacts()


class Quote(msgspec.Struct, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """One unchecked price from a source or a table.

    Attributes:
        instance: The machine. Its name must be the same for every pricing, since a spot price is compared
            with the on-demand price of the same instance and region; a different order name goes into
            ``note``.
        gpu: The GPU in the source's words; "" if only the instance identifies it.
        gpu_memory_gib: Memory of one GPU, if the source states it [GiB].
        ram_gib: Memory of the host [GiB]; a GB of the source is 1e9 bytes.
        price: Price of the entire instance [USD/h] as text or number.
        usd_per_unit: Exchange rate of the price's currency; None for US dollars.
        kind: One of ``KINDS``; ``kind_of`` returns the default of a provider.
        price_date: The day stated by the source, since a list may be old; None for the day of retrieval.
        source: The origin in words; a URL in it becomes the offer's link.
        note: Remarks on this price or how to order it.
        in_stock: Whether an instance is available at the moment; None if the source does not say.
        ask_count: Number of marketplace hosts if this one is the cheapest of them.
        ask_median: The median price of these hosts [USD/h].
        seller: None for the default of the kind: a company, or any host of a marketplace.
        host: The source's facts about the host.
        row: File, line and first cells of a row in the user's table; None for other sources.
        shared: What the rows of a table share that differ only in instance, region and price.
    """

    provider: str
    instance: str
    region: str | None
    gpu: str
    gpu_memory_gib: float | None = None
    gpu_count: float | str | None
    vcpus: float | str | None = None
    ram_gib: float | str | None = None
    price: float | str
    usd_per_unit: Decimal | None = None
    pricing: Pricing = Pricing.ON_DEMAND
    term_years: int | str | None = None
    kind: str = "vm"
    price_date: str | None = None
    source: str
    note: str | None = None
    in_stock: bool | None = None
    ask_count: int | str | None = None
    ask_median: float | str | None = None
    seller: Seller | None = None
    is_floor: bool | None = None
    host: HostFacts = NO_HOST
    row: str | None = None
    shared: Quote | None = None


class Complete(msgspec.Struct, frozen=True, kw_only=True):
    """A source's statement, among its quotes, that its answer is complete: unlisted offers are gone.

    It is yielded only after the last page or row. Without it (a truncated answer), earlier prices are kept.

    Attributes:
        pricings: The listed pricings.
        gpu: The single GPU of the listed offers, in the source's words; None for every GPU.
        whole_provider: Whether prices of this provider in other tables (shipped, collected) are gone too, or
            only earlier prices of this source.
    """

    pricings: tuple[Pricing, ...]
    gpu: str | None = None
    whole_provider: bool = True


SourceItem: TypeAlias = Quote | Complete | SetAside
"""What a source yields; a row that it cannot read is set aside with the reason."""


class Transport(Protocol):
    """A function that makes one request and returns the body, or raises SourceError."""

    def __call__(
        self,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """GET a URL, or POST ``body`` as JSON if there is one."""


class Source(NamedTuple):
    """A price source.

    Attributes:
        name: Its name for ``--provider`` and in snapshots.
        provider: The cloud or marketplace that sells at its prices.
        fetch: Yields every quote, ``SetAside`` for a row with an unexpected shape, and ``Complete`` if
            nothing can be missing. It raises SourceError if the provider fails or its answer has an
            unexpected shape.
    """

    name: str
    provider: str
    fetch: Callable[[Transport], Iterable[SourceItem]]


# --- the list of sources ---------------------------------------------------------------------------------


def all_sources(on_problem: Callable[[str], None]) -> tuple[Source, ...]:
    """Return the sources of this package and of plug-ins, collected catalogs first.

    Args:
        on_problem: Called for each plug-in that fails to load and is therefore omitted.

    Raises:
        MisuseError: If an installed plug-in has the name of another source.
    """
    from importlib.metadata import entry_points

    sources = {source.name: source for source in own_sources()}
    for point in entry_points(group="gpubench.offers"):
        try:
            source = _loaded(point)
        except MisuseError as error:
            on_problem(f"{error}; repair or uninstall that package")
            continue
        if sources.setdefault(source.name, source) is not source:
            raise MisuseError(f"two price sources are called {source.name!r} ({point.value}): uninstall one")
    return tuple(in_order(sources).values())


def _loaded(point: EntryPoint) -> Source:
    source = load_plugin("price source", point)
    if not isinstance(source, Source):
        raise MisuseError(
            f"the price source {point.name} ({point.value}) is not a gpubench.offers.sources.Source"
        )
    return source


def own_sources() -> tuple[Source, ...]:
    """Return the ``SOURCE`` or the ``SOURCES`` of every file in ``gpubench/offers/sources``."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    of_modules = (getattr(module, "SOURCES", None) or (module.SOURCE,) for module in modules)
    return tuple(chain.from_iterable(of_modules))


def refreshed_providers() -> frozenset[str]:
    """Return the clouds and marketplaces that have a source in this package."""
    from gpubench.offers.sources.gpurentalprices import CLOUDS

    return frozenset((*(source.provider for source in own_sources()), *CLOUDS))


def select_sources(sources: Sequence[Source], wanted: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources with these names or for these clouds; all if none is named.

    Raises:
        MisuseError: If a name matches no source.
    """
    for name in wanted:
        if not any(name.lower() in {source.name, source.provider} for source in sources):
            known = sorted({word for source in sources for word in (source.name, source.provider)})
            raise unknown_name("price source", name, nearest(name, known, cutoff=0.0))
    names = {name.lower() for name in wanted}
    return tuple(s for s in sources if not names or names & {s.name, s.provider})


def in_order(sources: dict[str, T]) -> dict[str, T]:
    """Sort collected catalogs first, so that a cloud's own answer overrides them."""
    return dict(sorted(sources.items(), key=lambda item: (not item[0].startswith("gpuhunt-"), item[0])))


# --- requests --------------------------------------------------------------------------------------------

_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})


def is_safe(url: str) -> bool:
    """Return whether prices may be read from a URL: https, or plain http to this machine.

    >>> is_safe("https://a.example/x"), is_safe("http://127.0.0.1:80/x"), is_safe("ftp://a.example/x")
    (True, True, False)
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)
    )


def same_host(one: str, other: str) -> bool:
    """Return whether two URLs have the same host and port; the default port may be omitted.

    >>> same_host("https://a.example/x", "https://a.example:443/y")
    True
    """
    usual_ports = {"https": 443, "http": 80}
    try:
        first, second = (
            (parts.scheme, parts.hostname, parts.port or usual_ports.get(parts.scheme))
            for parts in map(urlsplit, (one, other))
        )
    except ValueError:
        return False
    return first == second


def country_code(text: str | None) -> str | None:
    """Return a two-letter country code; None for anything else."""
    code = (text or "").strip()
    return code if len(code) == 2 and code.isalpha() else None


def decode(raw: bytes, shape: type[T], who: str) -> T:
    """Decode an answer into its documented shape.

    Raises:
        SourceError: If it is not JSON, or JSON with another shape.
    """
    try:
        return msgspec.json.decode(raw, type=shape)
    except NOT_JSON as error:
        raise SourceError(
            f"{who} answered in an unknown format ({error}); its interface may have changed"
        ) from None


class Listed(msgspec.Struct):
    """An answer that lists its rows under ``offers``."""

    offers: list[msgspec.Raw]


def decode_rows(
    rows: Iterable[bytes | msgspec.Raw], shape: type[T], who: str
) -> tuple[list[T], list[SetAside]]:
    """Decode the rows of an answer one by one, so that a bad row affects no other.

    ``shape`` declares prices as numbers, so text that is not a number fails here. Rows that can never rank,
    such as those without a GPU, are skipped later by the source.

    Returns:
        The rows with this shape, and reports of the others.
    """
    read: list[T] = []
    unread: list[SetAside] = []
    for number, row in enumerate(rows, 1):
        try:
            read.append(msgspec.json.decode(row, type=shape))
        except NOT_JSON as error:
            unread.append(SetAside(f"{who}: row {number} of its answer", f"not read: {error}"))
    return read, unread
