"""Users' price tables: with gpubench's or similar columns, or in the formats of SkyPilot and gpuhunt.

gpubench's columns are named after the fields of an offer, with one price per row. A user's table may have up
to four prices per row, memory in GiB, prices in another currency, and other column names. An unusable row or
price is set aside with the reason, and the rest is used. Tables of SkyPilot and gpuhunt have no dates, and
only the name of their file or folder names the cloud, so options can state both.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from statistics import median

import msgspec

from gpubench.errors import MisuseError
from gpubench.groups import grouped
from gpubench.names import counted, normalize, squeeze, tpu_slice
from gpubench.offers.dates import price_day
from gpubench.offers.quotes import (
    ImplausibleError,
    check_day,
    exchange_rate,
    read_field,
    read_kind,
    read_quotes,
)
from gpubench.offers.request import Format, read_price_date
from gpubench.offers.sources import NO_HOST, HostFacts, Quote, gpuhunt_catalog, kind_of
from gpubench.offers.table import NOT_RANKED, OfferTable, SetAside
from gpubench.offers.text_table import Table, cells_of, read_rows
from gpubench.pricings import Pricing
from gpubench.specs import load_specs, offered_gpu_key
from gpubench.today import today
from gpubench.units import GIB, figure_in, listing, plain

PRICES: Mapping[str, tuple[Pricing, int | None] | None] = {
    "price_usd_per_hour": None,
    "on_demand_usd_per_h": (Pricing.ON_DEMAND, None),
    "spot_usd_per_h": (Pricing.SPOT, None),
    "reserved_1y_usd_per_h": (Pricing.RESERVED, 1),
    "reserved_3y_usd_per_h": (Pricing.RESERVED, 3),
}
"""Price columns, with their pricing and their term in years; None if each row states these."""

# Column of the on-demand price per GPU, used in rows without a price of the entire instance.
_PER_GPU = "usd_per_gpu_hour"

# A price per GPU is rounded, so the price of the machine may differ from its multiple by this share.
_PER_GPU_TOLERANCE = 0.05

HEADINGS: Mapping[str, str] = {
    "gpu_key": "gpu, gpu name, gpu model, gpu type, card, graphics card, accelerator, model, name",
    "gpu_count": "gpus, num gpus, number gpus, no gpus, gpu number, vgpu, quantity, qty, count",
    "gpu_memory_gib": "gpu ram, vram",
    "provider": "cloud, cloud provider, vendor, company, supplier",
    "instance": "instance type, instance name, machine, machine type, plan, sku, flavor, product, name",
    "region": "location, zone, country, datacenter, data center, geolocation",
    "vcpus": "vcpu, cpu, cpus, cpu cores, cores, cpu cores effective",
    "ram_gib": "ram, system ram, host ram, system memory",
    "price_date": "date, day, as of, updated",
    "on_demand_usd_per_h": (
        "your price, net price, discounted price, price, current price, list price, "
        "on demand, on demand price, ondemand, dph, pay as you go"
    ),
    _PER_GPU: "price gpu, price per gpu, per gpu, gpuh, price card, price per card, price accelerator",
    "spot_usd_per_h": (
        "spot, is spot, spot price, interruptible, interruptible price, preemptible, preemptible price"
    ),
}
"""Other names for gpubench's columns, most likely first; see ``_heading``."""
# Words in column names: that a price is for an hour, that a column has prices, and words to ignore.
_OF_AN_HOUR = frozenset({"h", "hr", "hour", "hourly"})
_PRICE = frozenset({"price", "cost", "rate", "fee"})
_WITHOUT_MEANING = frozenset({"usd", "us", "total", "in", "of", "the", "gb", "gib"})
PAGES = ("url", "link", "offer_url", "rent_url")
"""Names of columns for the URL of an offer."""
_ADDRESS = re.compile(r"https?://")

NO_REGION = frozenset({"", "any"})
DOLLARS = frozenset({"", "USD", "US$", "$", "DOLLAR", "DOLLARS", "US DOLLAR", "US DOLLARS"})
# What to remove from a price: marks of dollars per hour, and what separates thousands ("1,234.50", "1'234").
_MONEY = re.compile(
    r"^(?:US ?)?\$|^USD|(?:USD|\$)?\s*(?:(?:/|per) ?(?:1 )?(?:hour|hr|h))?$|(?<=\d),(?=\d{3}\.\d)"
    r"|(?<=\d)[\s'’](?=\d{3}(?:\.\d|\b))",
    re.IGNORECASE,
)


# --- the user's own table --------------------------------------------------------------------------------


def read_own(path: Path, latest: date | None = None) -> OfferTable:
    """Read a user's price table: CSV (comma, semicolon or tab) or a JSON list of objects.

    Args:
        path: The file.
        latest: The last valid day of a price; None for tomorrow.

    Raises:
        MisuseError: If the file cannot be read; individual bad rows are set aside instead.
    """
    table = read_rows(path, _is_gpu)
    if (format_ := _format(table, None)) != "own":
        raise MisuseError(
            f"{plain(path.name)} has the columns of {format_}, which have no dates: "
            "gpubench offers import FILE --price-date DAY keeps it"
        )
    return clean(table, latest or today() + timedelta(days=1))


def clean(table: Table, latest: date) -> OfferTable:
    """Return the offers of a table with gpubench's or similar columns, and its unusable rows.

    Raises:
        MisuseError: If it has no column of GPUs or no column of prices.
    """
    named = _renamed(table)
    missing = [] if "gpu_key" in named.columns else ["gpu_key (the GPU's name)"]
    if not {*PRICES, _PER_GPU}.intersection(named.columns):
        missing.append("on_demand_usd_per_h (US dollars per hour)")
    if missing:
        raise MisuseError(
            f"{plain(table.name)} has no column {' and no column '.join(missing)}; "
            f"its columns are {plain(', '.join(table.columns)) or 'without names'}: rename yours, "
            "and convert other units"
        )
    return read_quotes(_quotes(named), None, latest).table


# Rows that tell whether a column has numbers.
_MOST_READ = 100


def _renamed(table: Table) -> Table:
    # Return a table in which other column names are replaced by gpubench's.
    # rate_date is left out, because its words would also match the date of a price.
    headings = {column: _heading(column) for column in table.columns if column not in {*PRICES, "rate_date"}}
    present = {*table.columns}
    if not present.isdisjoint(PRICES):
        present |= {*PRICES, _PER_GPU}  # one of gpubench's columns has the price, so no other is guessed
    ours: dict[str, str] = {}
    for name, others in HEADINGS.items():
        wanted = [_heading(other) for other in (name, *others.split(", "))]
        meant = [column for column, words in headings.items() if words in wanted]
        if meant and name not in present:
            column = min(meant, key=lambda each: wanted.index(headings[each]))
            alike = [
                each
                for at, each in enumerate(table.columns)
                if headings.get(each) == headings[column]
                and any(re.search(r"\d", "".join(row[at : at + 1])) for _, row in table.rows[:_MOST_READ])
            ]
            if len(alike) > 1 and name in {*PRICES, _PER_GPU}:
                raise MisuseError(
                    f"{plain(table.name)} has two columns of one price, {listing(map(plain, alike))}: "
                    "leave the one that applies"
                )
            is_of_any_pricing = (
                name == "on_demand_usd_per_h" and not {"demand", "ondemand"} & headings[column]
            )
            ours[column] = "price_usd_per_hour" if is_of_any_pricing and "pricing" in present else name
            del headings[column]
    return table._replace(columns=[ours.get(column, column) for column in table.columns])


@lru_cache(maxsize=10_000)
def _heading(column: str) -> frozenset[str]:
    # Return the words of a column name that identify it, in any order: "$/GPU/hr" is a price per GPU.
    words = re.findall(r"[^\W\d_]+|[€£¥]", column.lower().replace("#", " number "))
    meaning = {"price" if word in _PRICE else word for word in words if word not in _WITHOUT_MEANING}
    is_hourly = not meaning.isdisjoint(_OF_AN_HOUR)  # what is stated per hour is a price
    return frozenset((meaning - _OF_AN_HOUR - {"per"}) | {"price"}) if is_hourly else frozenset(meaning)


_GPU_HEADINGS = frozenset(map(_heading, ("gpu_key", *HEADINGS["gpu_key"].split(", "))))


def _is_gpu(column: str) -> bool:
    return _heading(column) in _GPU_HEADINGS


def _quotes(table: Table) -> Iterator[Quote | SetAside]:
    first, prices = table.columns[:3], [column for column in PRICES if column in table.columns]
    repeated = [name for name in dict.fromkeys(table.columns) if name not in _OFTEN_DIFFERENT]
    several = [column for column in table.columns if _heading(column) in _SEVERAL]
    is_spot, not_spot = _YES, _NO
    spot = (
        {row["spot_usd_per_h"] for _, row in cells_of(table)} if "spot_usd_per_h" in table.columns else set()
    )
    if {"1"} <= spot <= {"", "0", "1"}:
        is_spot, not_spot = frozenset({"1"}), frozenset({"0"})
    facts = lru_cache(maxsize=10_000)(
        lambda column, count, *cells: _facts(table, dict(zip(repeated, cells, strict=True)), column, count)
    )
    for number, row in cells_of(table):
        where = f"{table.name}:{number} {' '.join(filter(None, map(row.__getitem__, first)))}".rstrip()
        if row.get("spot_usd_per_h", "").lower() in not_spot:
            row["spot_usd_per_h"] = ""
        priced = [column for column in prices if row[column]] or ([_PER_GPU] if row.get(_PER_GPU) else [])
        why_not = None if priced else "no price"
        if row[None]:
            why_not = "more cells than the header has columns"
        elif row.get("spot_usd_per_h", "").lower() in is_spot:
            why_not = "its price is a spot price: put it into a column spot_usd_per_h"
        elif found := [each for each in several if (figure_in(row[each]) or 1) != 1]:
            why_not = (
                f"its {plain(found[0], 40)} is {plain(row[found[0]])}: give the GPUs and the price of one "
                "instance for an hour, without that column"
            )
        if why_not is not None:
            yield SetAside(where, why_not)
            continue
        for column in priced:
            try:
                instance = row.get("instance") or row["gpu_key"]
                count = _count_in(instance, counted(row["gpu_key"])[1])
                quote = facts(column, count, *map(row.__getitem__, repeated))
                _check_instance(instance, count, quote)
                yield msgspec.structs.replace(
                    quote,
                    instance=instance,
                    region=None if (region := row.get("region", "")).lower() in NO_REGION else region,
                    price=_price(quote, row[column], row.get(_PER_GPU, ""), is_whole=column != _PER_GPU),
                    row=where,
                    shared=quote,
                )
            except ValueError as error:
                yield SetAside(where, str(error))


_PRICINGS = re.compile(r"[ -]")
_COUNT_MARK = re.compile(r"^[x×] ?(?=\d)|(?<=\d) ?(?:[x×]|gpus?|cards?)$")
# gpubench's columns, which have their own rules. Only other columns, such as notes, may contradict the price.
_UNDERSTOOD = frozenset(
    {*HEADINGS, *PRICES, *HostFacts.__struct_fields__, *PAGES, "pricing", "term_years", "kind", "source"}
    | {"currency", "usd_per_unit", "rate_date", "ram_bytes", "ask_count", "ask_median_usd_per_hour"}
    | {"seller", "is_floor"}
)
# Columns that usually differ from row to row; rows that are equal in all others are read once.
_OFTEN_DIFFERENT = frozenset({*PRICES, _PER_GPU, "instance", "region"})


def _facts(table: Table, row: Mapping[str, str], column: str, in_instance: int | None) -> Quote:
    # Return the quote of a row without the cells of ``_OFTEN_DIFFERENT``. ``column`` is the column of its
    # price, ``in_instance`` the number of GPUs in the name of its instance.
    get = row.get
    kind, note = read_kind(get("kind", "")), get("note")
    source = get("source") or f"own price file {plain(table.name)}"
    stated_pricing = _PRICINGS.sub("_", get("pricing", "").lower()) or Pricing.ON_DEMAND
    pricing, term_years = PRICES.get(column) or (stated_pricing, get("term_years"))
    stated, name = counted(row["gpu_key"])  # "8x H100" with a count of 8
    usual = stated or in_instance
    # Without a column of counts, it is 1 unless a name contains it; an empty cell means an unknown count.
    gpu_count = _COUNT_MARK.sub("", get("gpu_count", str(usual or 1)).lower()) or str(usual or "")
    if stated not in {None, figure_in(gpu_count)}:
        raise ValueError(f"its GPU is {plain(row['gpu_key'])!r}, but its GPU count is {plain(gpu_count)}")
    usd_per_unit, currency = None, get("currency", "").upper()
    if currency not in DOLLARS:
        usd_per_unit = _rate(currency, get("usd_per_unit", ""), get("rate_date", ""))
        converted = f"converted from {currency} at {usd_per_unit} USD of {row['rate_date']}"
        note = f"{note}; {converted}" if note else converted
    # A note may be about the reserved price of its row, and a kind may say that nothing is for sale.
    sold_otherwise = _SOLD_OTHERWISE if _TERM_COLUMNS.isdisjoint(table.columns) else _SOLD_BRIEFLY
    contradiction = _contradicted(row, pricing, figure_in(gpu_count) or 1, sold_otherwise)
    if contradiction is not None and kind not in NOT_RANKED:
        raise ValueError(contradiction)
    ram_bytes = figure_in(get("ram_bytes", ""))
    stated_facts = {field: row[field] for field in HostFacts.__struct_fields__ if get(field)}
    page = next((cell for cell in map(get, PAGES) if cell and _ADDRESS.match(cell)), "")
    return Quote(
        provider=get("provider", Path(table.name).stem).lower(),
        instance="",
        region=None,
        gpu=name,
        gpu_memory_gib=_memory_of_one(name, _gib(get("gpu_memory_gib", "")), gpu_count),
        gpu_count=gpu_count,
        vcpus=get("vcpus"),
        ram_gib=_gib(get("ram_gib", "")) or get("ram_bytes") if ram_bytes is None else ram_bytes / GIB,
        price="",
        usd_per_unit=usd_per_unit,
        pricing=Pricing(read_field("pricing", pricing)),
        term_years=term_years,
        kind=kind,
        price_date=_day(get("price_date", table.day.isoformat())),
        source=f"{source} {page}".rstrip(),
        note=note,
        ask_count=get("ask_count"),
        ask_median=get("ask_median_usd_per_hour") or None,
        seller=get("seller", "").lower() or None,  # type: ignore[arg-type]  # a wrong one is reported
        is_floor=msgspec.convert(floor, bool, strict=False)
        if (floor := get("is_floor"))
        else _floor_in(note),
        host=msgspec.structs.replace(NO_HOST, **stated_facts) if stated_facts else NO_HOST,
        row="",
    )


# A date with a time or slashes, one with points, and ones with slashes of which one number must be the day.
_YEAR, _MONTH, _DAY = r"(?P<year>\d{4})", r"(?P<month>\d{1,2})", r"(?P<day>1[3-9]|2\d|3[01])"
_DATES = (
    re.compile(rf"{_YEAR}[-/.]{_MONTH}[-/.](?P<day>\d{{1,2}})(?:[T ]\d.*)?", re.ASCII),
    re.compile(rf"(?P<day>\d{{1,2}})\.{_MONTH}\.{_YEAR}", re.ASCII),
    re.compile(rf"{_DAY}[-/]{_MONTH}[-/]{_YEAR}", re.ASCII),
    re.compile(rf"{_MONTH}[-/](?:{_DAY}|(?P<same>(?P=month)))[-/]{_YEAR}", re.ASCII),
)


def _day(text: str) -> str:
    # Return a date as YYYY-MM-DD, without its time. Others, such as 11/10/2026, which may be in October or
    # November, stay as they are, and their rows are set aside.
    found = next(filter(None, (each.fullmatch(text) for each in _DATES)), None)
    if found is None:
        return text
    return f"{found['year']}-{found['month']:0>2}-{found['day'] or found['month']:0>2}"


def _price(quote: Quote, cell: str, per_gpu: str, *, is_whole: bool) -> str:
    # Return the price of an instance from its cell, or from the price per GPU. Raise if the two disagree.
    # ``is_whole`` says that the cell is the price of the whole instance.
    if quote.usd_per_unit is None:
        cell, per_gpu = _in_dollars(cell), _in_dollars(per_gpu)
    whole = (figure_in(per_gpu) or 0.0) * (figure_in(str(quote.gpu_count)) or 0.0) if per_gpu else 0.0
    if whole and not is_whole:
        return str(round(whole, 6))
    is_compared = whole and quote.pricing is Pricing.ON_DEMAND
    if is_compared and abs((figure_in(cell) or whole) / whole - 1) > _PER_GPU_TOLERANCE:
        raise ValueError(f"its price is {cell} for {quote.gpu_count} GPUs, but {per_gpu} per GPU")
    return cell


def _in_dollars(text: str) -> str:
    # Return a price without its dollar sign, which may be on either side.
    return text if not text or figure_in(text) is not None else _MONEY.sub("", text).strip()


_MAYBE_COUNTED = re.compile(r"\d ?[xX×]|[xX×] ?\d")


def _count_in(instance: str, gpu: str) -> int | None:
    # Return the number of GPUs in the name of an instance that also has the GPU's model: "8x H100 pod".
    count, rest = counted(instance) if _MAYBE_COUNTED.search(instance) else (None, "")
    is_of_gpu = count and any(
        word in squeeze(rest) for word in normalize(gpu).split() if re.search(r"\d", word)
    )
    return count if is_of_gpu else None


# Words in the name of an instance: for a part or a laptop version of the GPU, and for a price that is not on
# demand. "HGX B200 (with preemptible)" has both prices.
_PART_OR_LAPTOP = re.compile(
    r"\bmig\b|\b\dg\.\d+gb|\bvgpu\b|\b1/\d|\b(?:laptop|notebook|slice|fractional)\b|\bshared\b(?![ -]c)",
    re.IGNORECASE,
)
_NOT_ON_DEMAND = re.compile(
    r"(?<!with )(?<!non-)(?<!no[ -])(?<!not )(?<!without )\b(?:spot|pre-?empt(?:ible)?|interruptible|reserved"
    r"|low[ -]priority|commit\w*|(?:all|partial)[ -]upfront|subscription|savings plan|prepaid)\b(?![ -]free)",
    re.IGNORECASE,
)


_FLOOR = re.compile(
    r"(?:price )?(?:from(?! \w*[a-z])|starting (?:at|from|price)|starts at|as low as)\b", re.IGNORECASE
)


def _floor_in(note: str | None) -> bool | None:
    # Return True if a note begins like "starting at $2"; None for any other note.
    return True if note and _FLOOR.match(note) else None


# Clauses of a cell: a price is not on demand, nothing is on sale, a price is not for an hour or not in
# dollars, it is for one GPU of several, or the GPU is only a part of one.
_PERIOD = r"(?:days?|daily|weeks?|weekly|months?|monthly|mo|years?|yearly|yr|annum|annual(?:ly)?)"
_SOLD = (
    r"(?:(?:an?|this|is|prices?|only|for|on|as|community{0})[\s-]+)*"
    r"(?:spot|pre-?empt(?:ible)?|interruptible|reserved|low[ -]priority{1})"
    r"(?:\s+(?:instances?|machines?|vms?|servers?|capacity|prices?|pricing|rates?|tier|only|by default))*{2}"
)
_TERM = r"(?:\d+|one|three)[- ]?(?:m|mo|months?|y|yrs?|years?)"
_SOLD_BRIEFLY = re.compile(_SOLD.format("", "", ""))
_SOLD_OTHERWISE = re.compile(
    _SOLD.format(rf"|{_TERM}", r"|commit\w*|subscription|prepaid", rf"(?:[\s-]+{_TERM})?")
)
_TERM_COLUMNS = frozenset({"pricing", "reserved_1y_usd_per_h", "reserved_3y_usd_per_h"})
_SOLD_OUT = re.compile(
    r"(?:currently\s+)?(?:sold[ -]?out|out of (?:stock|capacity)|no (?:stock|capacity|availability)|"
    r"(?:not |un)available|wait(?:ing )?list|coming soon|contact (?:us|sales)|(?:up)?on request|pre-?order|"
    r"(?:fully )?(?:rented|booked|occupied)(?: out)?|discontinued|end of life|"
    r"(?:0|none) (?:left|available|in stock))"
)
_NOT_IN_DOLLARS = re.compile(
    r"(?:(?:all|prices?|is|are|in)\s+)*(?:eur|euros?|gbp|pounds?|chf|cad|aud|inr|jpy|cny|rmb|cents?|[€£¥¢])"
)
_NOT_HOURLY = re.compile(
    rf"(?:(?:usd|us|\$|prices?|is|are|priced|billed|paid|charged)\s*)*(?:(?:per|/|an?|each|every)\s*){_PERIOD}"
    rf"|(?:billed|paid|charged)\s+{_PERIOD}"
)
_BARE_PERIOD = re.compile(rf"(?:1 )?{_PERIOD}")
_SHORT_PERIOD = re.compile(r"minutes?|seconds?|min|sec")  # a price by the hour may be billed by the second
_OF_ONE_GPU = re.compile(
    r"(?:(?:usd|us|\$|prices?|is|are)\s*)*(?:per|/|each)\s*(?:gpu|card|accelerator)s?"
    r"(?:[\s/-]*(?:per )?(?:hours?|hr|h))?"
)
_PART = re.compile(
    r"(?<![\d/])1/[2-9](?![\d/])|\b\dg\.\d+gb\b|\bmig[ -]?\dg"
    r"|\b(?:time[ -]?sliced|fractional|(?:shared|half an?) gpu|(?:gpu|mig) slice)\b"
)
# Words of headings: how a price is paid, a commitment, a sum paid in advance, what a price is for, what is
# left, what is taken, and a part of a GPU.
_PAYMENT = frozenset(
    {"pricing", "plan", "billing", "type", "tier", "model", "option", "mode", "market", "offering"}
)
_TERMS = frozenset({"term", "commitment", "commit", "contract", "minimum", "min", "duration", "lease"})
_PAID_FIRST = frozenset({"upfront", "setup"})
_UNITS = frozenset(
    {"unit", "units", "period", "basis", "frequency", "cycle", "billing", "price", "note", "notes"}
)
_STOCK = frozenset({"available", "availability", "stock", "rentable"})
_TAKEN = frozenset({"rented", "occupied", "unavailable", "sold"})
_FRACTION = frozenset({"fraction", "share", "slice", "portion"})
_LONG = re.compile(r"months?\b|(?<![a-z])mo\b|years?\b|yrs?\b|annual")
# The headings of a number of machines or of hours: a price may be that of one of them or of all.
_SEVERAL = frozenset(
    map(
        _heading,
        ("node", "nodes", "number nodes", "num nodes", "node count", "hours", "gpu hours", "hours used"),
    )
)
_ADD_COLUMNS = (
    "but its price would rank as an on-demand price in US dollars: add a column pricing (and term_years) or "
    "currency"
)
# In a column of spot prices, these only say whether the price of the row is one.
_YES, _NO = frozenset({"yes", "y", "true", "x"}), frozenset({"no", "n", "false"})
_NONE = _NO | {"0", "0%", "none", "❌", "✗", "✘", "×"}


def _contradicted(
    row: Mapping[str, str], pricing: str, gpu_count: float, sold_otherwise: re.Pattern[str]
) -> str | None:
    # Return the cell that contradicts a price of whole GPUs for an hour, and why; None if none does.
    is_in_dollars = row.get("currency", "").upper() in DOLLARS
    for heading, text in row.items():
        if text and (heading not in _UNDERSTOOD or heading == "provider"):
            problem = _problem(heading, text.lower(), gpu_count, sold_otherwise, is_in_dollars)
            if problem is not None and (problem != _ADD_COLUMNS or pricing == Pricing.ON_DEMAND):
                return f"its {plain(heading, 40)} is {plain(text, 40)!r}, {problem}"
    return None


@lru_cache(maxsize=10_000)
def _problem(
    heading: str, cell: str, gpu_count: float, sold_otherwise: re.Pattern[str], is_in_dollars: bool
) -> str | None:
    words, clauses = _heading(heading), [clause.strip() for clause in re.split(r"[;,.()]", cell)]
    is_paid_otherwise = (
        any(map(sold_otherwise.fullmatch, clauses))
        or (words & _PAYMENT and _NOT_ON_DEMAND.search(cell))
        or (words & (_TERMS | _PAYMENT) and _LONG.search(cell))
        or (words & _PAID_FIRST and re.search("[1-9]", cell))
        or (is_in_dollars and any(map(_NOT_IN_DOLLARS.fullmatch, clauses)))
    )
    is_of_a_period = words & _UNITS and (
        any(map(_BARE_PERIOD.fullmatch, clauses))
        or (words & {"unit", "per"} and _SHORT_PERIOD.fullmatch(cell))
    )
    is_fraction = (
        words & _FRACTION
        and words <= _FRACTION | {"gpu", "gpus"}
        and figure_in(cell.rstrip("%")) not in {None, 1, 100}
    )
    is_minimum = words & {"min", "minimum"} and words & {"gpu", "gpus"}
    problems = {
        "so it cannot be ordered now": any(map(_SOLD_OUT.fullmatch, clauses))
        or (words & _STOCK and cell in _NONE)
        or (words & _TAKEN and cell in _YES),
        "so its price is not for an hour: convert it": is_of_a_period
        or any(map(_NOT_HOURLY.fullmatch, clauses)),
        "but it would rank as whole GPUs": is_fraction or _PART.search(cell),
        f"so its price is not that of all its GPUs: put it into a column {_PER_GPU}": gpu_count > 1
        and any(map(_OF_ONE_GPU.fullmatch, clauses)),
        "so fewer GPUs cannot be ordered": is_minimum and (figure_in(cell) or 0) > gpu_count,
        _ADD_COLUMNS: is_paid_otherwise,
    }
    return next((problem for problem, has_it in problems.items() if has_it), None)


def _check_instance(instance: str, in_instance: int | None, quote: Quote) -> None:
    # Raise if the name of an instance contradicts the number of GPUs, the GPU or the pricing.
    wrong = _contradicted_by(instance, quote.gpu, quote.pricing)
    if in_instance is not None and in_instance != figure_in(str(quote.gpu_count)):
        wrong = f"GPU count is {plain(str(quote.gpu_count))}"
    if wrong is not None:
        raise ValueError(f"its instance is {plain(instance)!r}, but its {wrong}")


def _contradicted_by(instance: str, gpu: str, pricing: str) -> str | None:
    # Return what the name of an instance contradicts, in words; None if nothing.
    if _PART_OR_LAPTOP.search(instance) and not _PART_OR_LAPTOP.search(gpu):
        return f"GPU is {plain(gpu)!r}"
    return "price is on demand" if pricing == Pricing.ON_DEMAND and _NOT_ON_DEMAND.search(instance) else None


_SIZE = re.compile(r"([\d.]+)\s*([GTM])i?B?", re.IGNORECASE)


def _gib(text: str) -> str:
    # Return memory in GiB as text, from a cell with a unit: ``80 GB``, ``2 TiB``, ``24564 MiB``.
    if (found := _SIZE.fullmatch(text)) is None or (size := figure_in(found[1])) is None:
        return text
    return f"{size * {'G': 1, 'T': 1024, 'M': 1 / 1024}[found[2].upper()]:g}"


@lru_cache
def _memory_of_one(gpu: str, memory_gib: str, count: str) -> float | None:
    # Return the memory of one GPU [GiB] from a cell that states it for one or all; large values are in MiB.
    size, gpus = figure_in(memory_gib), figure_in(count)
    if size is not None and size >= _LEAST_MIB:
        size /= 1024
    if size is None or not gpus or offered_gpu_key(gpu, size) is not None:
        return size
    return size / gpus


@lru_cache
def _rate(currency: str, usd_per_unit: str, day: str) -> Decimal:
    # Return the exchange rate of a foreign currency [USD]; a rate without a date is rejected.
    if not (usd_per_unit and day):
        raise ImplausibleError(
            f"currency {currency[:10]!r} without usd_per_unit and rate_date: give both, or US dollars"
        )
    check_day(day, today() + timedelta(days=1))
    return exchange_rate(usd_per_unit)


# --- SkyPilot and gpuhunt ---------------------------------------------------------------------------------

_MARKS: dict[Format, frozenset[str]] = {
    "skypilot": frozenset({"acceleratorname", "instancetype"}),
    "gpuhunt": gpuhunt_catalog.COLUMNS,
}
# SkyPilot's names without a size mean the smaller card: the larger ones are A100-80GB and V100-32GB.
_PLAIN_MEMORY_GIB = {"A100": 40.0, "V100": 16.0}

_MEMORY = re.compile(r"SizeInMiB'?\"?\s*:\s*(\d{1,9})")
# No GPU on sale has less memory than this [MiB], so a smaller figure is in gigabytes.
_LEAST_MIB = 1000.0
_NAME = re.compile(r"'?\"?Name'?\"?\s*:\s*['\"]([^'\"]{1,60})['\"]")
_TOTAL = re.compile(r"TotalGpuMemoryInMiB'?\"?\s*:\s*(\d{1,9})")
# Names of instances that contain the name of the GPU.
_IN_INSTANCE = re.compile(
    r"\d+x-(?P<vast>\D.*)-\d+-\d+|gpu-(?P<nebius>[\w-]+?)_\dgpu-.*|\w+?_(?P<yotta>NVIDIA_\w+)_\d+G_\w+",
    re.ASCII,
)


def read_table(
    file: Path,
    *,
    format_: Format | None = None,
    provider: str | None = None,
    price_date: str | None = None,
    latest: date | None = None,
) -> tuple[Format, OfferTable]:
    """Read a price table; return its format and its offers. See ``refresh.import_offers``."""
    rows, latest = read_rows(file, _is_gpu), latest or today() + timedelta(days=1)
    format_ = _format(rows, format_)
    if format_ == "own":
        return format_, clean(rows, latest)
    if price_date is None:
        raise MisuseError(f"{format_} tables have no dates: give the date of the prices with --price-date")
    if price_day(read_price_date(price_date, "--price-date")) > latest:
        raise MisuseError(f"--price-date {plain(price_date)} is in the future: give the day of the prices")
    cloud = file.stem.lower()
    if format_ == "skypilot" and cloud == "vms":
        cloud = file.resolve().parent.name.lower()
    if provider is not None:
        cloud = provider.lower()
    elif not re.fullmatch(r"[a-z][a-z0-9-]{1,30}", cloud):
        raise MisuseError(f"{plain(file.name)} does not name the cloud: name it with --provider")
    else:
        cloud = {**gpuhunt_catalog.PROVIDERS, "vastai": "vast"}.get(cloud, cloud)
    read = _skypilot_quotes if format_ == "skypilot" else gpuhunt_catalog.quotes
    cells, source = (row for _, row in cells_of(rows)), f"{format_} table {plain(file.name)}"
    return format_, read_quotes(_over_zones(read(cells, cloud, price_date, source)), price_date).table


def _format(table: Table, given: Format | None) -> Format:
    # Return the given format, or detect it from the columns.
    missing = {each: sorted(marks.difference(table.columns)) for each, marks in _MARKS.items()}
    matching = [each for each, columns in missing.items() if not columns]
    found = given or (matching[0] if matching else "own")
    if missing.get(found):
        lacks = ", ".join(missing[found])
        raise MisuseError(f"{plain(table.name)} is not a table in the format {found}: it lacks {lacks}")
    return found


def _skypilot_quotes(
    rows: Iterable[Mapping[str | None, str]], provider: str, price_date: str, source: str
) -> Iterator[Quote]:
    for row in rows:
        gpu, instance, count = row["acceleratorname"], row["instancetype"], row.get("acceleratorcount", "")
        if not gpu:
            continue
        # The price of a GPU without its machine is only a fee and would look four times too cheap. A TPU
        # includes its host.
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
    """Return the most specific name of a GPU, and its memory [GiB].

    Catalogs state the memory in two fields: as that of one GPU and the total, as that of one GPU in both, or
    as the total in both; some use gigabytes. The result is the first name and memory that identify a card
    with its form factor, else the first that identify a card without it.
    """
    one, total = (_number(found[1]) if (found := each.search(info)) else None for each in (_MEMORY, _TOTAL))
    sizes: list[float | None] = [one]
    if one is not None and one >= _LEAST_MIB:
        sizes = [one / 1024 / (_number(count) or 1.0), one / 1024] if total == one else [one / 1024]
    stated, inside = _NAME.search(info), _IN_INSTANCE.fullmatch(instance)
    machine = "" if inside is None else str(inside[inside.lastgroup or 0]).replace("_", " ")
    known = [
        (name, size, load_specs()[key])
        for size in sizes
        for name in (stated[1] if stated else "", machine, gpu)
        if name and (key := offered_gpu_key(name, size)) is not None
    ]
    exact = [each for each in known if not each[2].variants]
    name, size, _ = next(iter(exact or known), (gpu, sizes[0], None))
    return name, _PLAIN_MEMORY_GIB.get(name) if size is None else size


def _number(text: str) -> float | None:
    value = figure_in(text)
    return value if value is not None and 0 < value < 1e6 else None


def _over_zones(quotes: Iterable[Quote]) -> Iterator[Quote]:
    # Yield one quote per instance, region and pricing: the median if zones of a region differ.
    groups = grouped(
        ((each.instance, each.region, each.gpu, str(each.gpu_count), each.pricing), each) for each in quotes
    )
    for group in groups.values():
        prices = [_number(str(quote.price)) for quote in group]
        known = [price for price in prices if price is not None]
        if len(group) == 1 or len(known) < len(group):
            yield group[0]
        else:
            yield msgspec.structs.replace(group[0], price=median(known), note=f"median of {len(group)} zones")
