"""The requests of ``gpubench offers``: one field per option of ``list``, ``refresh`` and ``import``."""

from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gpubench.errors import MisuseError
from gpubench.options import (
    GPU,
    PROVIDER,
    REGION,
    SELLER,
    Option,
    Results,
    shown_value,
    with_help,
)
from gpubench.pricings import Pricing

KINDS = (
    *("vm", "marketplace", "serverless", "historic", "attach-fee", "free"),
    *("index", "not-orderable", "capacity-block", "cluster"),
)
KIND_SYNONYMS = {
    "": "vm",
    **dict.fromkeys(("cloud", "instance", "machine", "virtual-machine", "vps"), "vm"),
    **dict.fromkeys(("server", "node", "dedicated", "bare-metal", "baremetal", "on-demand"), "vm"),
    **dict.fromkeys(("market", "market-place", "host", "community", "peer-to-peer", "p2p"), "marketplace"),
    "server-less": "serverless",
    **dict.fromkeys(("history", "past"), "historic"),
    **dict.fromkeys(("attach", "attached", "gpu-only"), "attach-fee"),
    "free-tier": "free",
}
"""Other spellings of a kind, in lowercase with hyphens; rankings call a vm ``cloud``."""

TO_RENT = tuple(pricing for pricing in Pricing if pricing is not Pricing.OWNED)


class OffersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which offers to show; a field that is None or empty restricts nothing.

    Attributes:
        gpus: Names, aliases or parts of keys: ``h100`` means every H100.
    """

    providers: Annotated[tuple[str, ...], with_help(PROVIDER, help="Only this provider.")] = ()
    regions: Annotated[
        tuple[str, ...],
        with_help(REGION, help="Only this region; `any` means offers without a stated region."),
    ] = ()
    sellers: Annotated[tuple[str, ...], SELLER] = ()
    gpus: Annotated[
        tuple[str, ...], with_help(GPU, help="Only this GPU: key, name, or part of it (h100).")
    ] = ()
    offers: Annotated[
        Path | None,
        Option("Your own price table (CSV or JSON); its rows replace other prices of the same offer."),
    ] = None
    explain: Annotated[bool, Option("Also list every row that is set aside, with its reason.")] = False
    as_of: Annotated[date | None, Option("List as of this day; later prices are left out.")] = None
    results: Results = None


ACCEPT_OUTLIERS = Option("Accept prices over 5 times or under a fifth of the previous one.")


class RefreshRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which sources to query, or the URL of a published snapshot."""

    providers: Annotated[
        tuple[str, ...],
        with_help(PROVIDER, help="Only this cloud or price source; may be repeated."),
    ] = ()
    accept_outliers: Annotated[bool, ACCEPT_OUTLIERS] = False
    url: Annotated[
        str | None, Option("URL of a published snapshot to read instead of the sources.", name="from")
    ] = None
    results: Results = None


Format = Literal["own", "skypilot", "gpuhunt"]


def read_price_date(value: Any, name: str) -> str:
    """Return the full or partial date of a price unchanged, after checking it with ``dates.price_day``.

    Raises:
        MisuseError: If the string is not a date.
        TypeError: If the value is not a string.
    """
    from gpubench.offers.dates import price_day

    if not isinstance(value, str):
        raise TypeError
    try:
        price_day(value)
    except ValueError:
        raise MisuseError(
            f"{name} {shown_value(value)} is not a date: write it as YYYY, YYYY-MM or YYYY-MM-DD"
        ) from None
    return value


class ImportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A third-party price table, and the facts that it does not state."""

    file: Annotated[
        Path, Option("CSV, or JSON in gpubench's columns.", place=True, bare=True, metavar="FILE")
    ]
    format: Annotated[
        Format | None, Option("Which tool's columns the table has.", default="recognized by its columns")
    ] = None
    provider: Annotated[str | None, Option("The cloud, if the table does not name it.")] = None
    price_date: Annotated[
        str | None,
        Option(
            "Date of the prices, if the table has none.",
            read=read_price_date,
            takes="a date (YYYY, YYYY-MM or YYYY-MM-DD)",
            python="str",
            metavar="YYYY[-MM[-DD]]",
        ),
    ] = None
    accept_outliers: Annotated[bool, with_help(ACCEPT_OUTLIERS, way="setting")] = False
    results: Results = None
