"""Tables in our own columns: good rows become offers, bad rows are set aside with a reason, and bad files give one line."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from gpubench.errors import MisuseError
from gpubench.folders import data_text
from gpubench.models import Pricing
from gpubench.offers import tables, text_table
from gpubench.offers.snapshot import embedded_offers
from gpubench.offers.table import offer_key
from gpubench.offers.tables import read_own
from gpubench.units import GIB

RATE = "not a number from 0.0000001 to 10 USD"


def test_one_row_gives_an_offer_for_each_of_its_prices(write_table):
    table = read_own(
        write_table(
            {"spot_usd_per_h": "0.2", "reserved_1y_usd_per_h": "0.3", "reserved_3y_usd_per_h": "0.25"}
        )
    )
    assert table.set_aside == ()
    assert [(o.pricing, o.term_years, o.price_usd_per_hour) for o in table.offers] == [
        (Pricing.ON_DEMAND, None, Decimal("0.50")),
        (Pricing.SPOT, None, Decimal("0.2")),
        (Pricing.RESERVED, 1, Decimal("0.3")),
        (Pricing.RESERVED, 3, Decimal("0.25")),
    ]
    offer = table.offers[0]
    assert (offer.vcpus, offer.ram_bytes, offer.region) == (4, 16 * GIB, "moon-1")


def test_blank_cells_are_unknown(write_table):
    (offer,) = read_own(
        write_table({"vcpus": "", "ram_gib": "", "region": "any", "note": "", "source": "", "kind": ""})
    ).offers
    assert (offer.vcpus, offer.ram_bytes, offer.region, offer.note, offer.kind) == (
        None,
        None,
        None,
        None,
        "vm",
    )
    assert offer.source.endswith(" prices.csv")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"on_demand_usd_per_h": "0"}, "price 0 is not above 0"),
        ({"on_demand_usd_per_h": "-1"}, "price -1 is not above 0"),
        ({"on_demand_usd_per_h": "nan"}, "not finite"),
        ({"on_demand_usd_per_h": "Infinity"}, "not finite"),
        ({"on_demand_usd_per_h": "1e999999"}, "outside"),
        ({"on_demand_usd_per_h": "1e-400"}, "outside"),
        ({"on_demand_usd_per_h": "1,2,5"}, "'1,2,5' is not a number"),
        ({"on_demand_usd_per_h": ""}, "no price"),
        ({"currency": "EUR"}, "currency 'EUR' without usd_per_unit and rate_date"),
        ({"currency": "EUR", "usd_per_unit": "1.1", "rate_date": ""}, "without usd_per_unit and rate_date"),
        ({"currency": "EUR", "usd_per_unit": "0", "rate_date": "2026-11-01"}, RATE),
        ({"currency": "EUR", "usd_per_unit": "nan", "rate_date": "2026-11-01"}, RATE),
        ({"currency": "EUR", "usd_per_unit": "1000000", "rate_date": "2026-11-01"}, RATE),
        ({"currency": "EUR", "usd_per_unit": "1.1", "rate_date": "now"}, "price date 'now'"),
        ({"on_demand_usd_per_h": "sNaN"}, "is not a number"),
        ({"gpu_count": "0"}, "gpu_count 0 is not above 0 and at most 1,024"),
        ({"gpu_count": "-1"}, "gpu_count -1 is not above 0"),
        ({"gpu_count": "0.5"}, "not a whole number"),
        ({"gpu_count": "nan"}, "is not a number"),
        ({"gpu_count": "inf"}, "is not a number"),
        ({"gpu_count": "many"}, "'many' is not a number"),
        ({"gpu_count": "9" * 5000}, "gpu_count '9"),
        ({"gpu_key": "banana-9000"}, "GPU 'banana-9000' is unknown: name it by its key"),
        ({"gpu_key": ""}, "is unknown: name it by its key"),
        ({"price_date": ""}, "no price date"),
        ({"price_date": "yesterday"}, "price date 'yesterday'"),
        ({"price_date": "2026-02-31"}, "not a day of the calendar"),
        ({"price_date": "2062-11-01"}, "is in the future"),
        ({"provider": ""}, "no provider"),
        ({"kind": "gift"}, "kind 'gift' is not one of"),
        ({"vcpus": "-2"}, "vcpus -2"),
        ({"ram_gib": "nan"}, "RAM"),
        ({"ram_gib": "1e305"}, "RAM"),
        ({"provider": '=HYPERLINK("http://x")'}, "formula"),
        ({"note": "@SUM(A1)"}, "formula"),
        ({"instance": "a\x1b[2Jb"}, "control characters"),
        ({"instance": "a\u202eb"}, "control characters"),
        ({"instance": "x" * 601}, "longer than 600"),
    ],
)
def test_a_row_that_cannot_be_used_is_set_aside_with_the_reason_and_the_rest_counts(
    write_table, change, reason
):
    table = read_own(write_table(change | {"instance": change.get("instance", "bad")}, {"instance": "good"}))
    assert [offer.instance for offer in table.offers] == ["good"]
    ((row, why),) = table.set_aside
    assert reason in why
    assert row.startswith("prices.csv:2 ")
    assert row.isprintable()


def test_a_bad_spot_price_does_not_drop_the_good_on_demand_price(write_table):
    table = read_own(write_table({"spot_usd_per_h": "0"}))
    assert [offer.pricing for offer in table.offers] == [Pricing.ON_DEMAND]
    assert table.set_aside[0].reason.startswith("price 0 ")


def test_another_currency_counts_with_its_rate_and_the_day_of_the_rate(write_table):
    row = {"currency": "eur", "usd_per_unit": "1.10", "rate_date": "2026-11-02", "note": "a quote"}
    (offer,) = read_own(write_table(row)).offers
    assert offer.price_usd_per_hour == Decimal("0.55")
    assert offer.note.startswith("a quote; ")
    assert "EUR at 1.10 USD" in offer.note
    assert "2026-11-02" in offer.note


@pytest.mark.parametrize(
    ("price", "currency", "rate"), [("4000", "KRW", "0.00072"), ("28000", "IDR", "0.00006"), ("9", "USD", "")]
)
def test_a_currency_of_small_units_is_converted(write_table, price, currency, rate):
    row = {
        "on_demand_usd_per_h": price,
        "currency": currency,
        "usd_per_unit": rate,
        "rate_date": "2026-11-02",
    }
    (offer,) = read_own(write_table(row)).offers
    assert offer.price_usd_per_hour == Decimal(price) * Decimal(rate or 1)


BY_FIELD = {
    "provider": "acme",
    "instance": "big.1",
    "gpu_key": "T4",
    "gpu_count": "2",
    "price_date": "2026-11-01",
    "price_usd_per_hour": "0.5",
    "pricing": "reserved",
    "term_years": "3",
    "ram_bytes": str(16 * GIB),
}


def _by_field(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, BY_FIELD)
        writer.writeheader()
        writer.writerows(BY_FIELD | row for row in rows)
    return path


def test_columns_may_be_named_like_the_fields_of_an_offer_with_one_price_per_row(tmp_path):
    spot = {"pricing": "spot", "term_years": "", "price_usd_per_hour": "0.2"}
    table = read_own(_by_field(tmp_path / "a.csv", {}, spot, {"pricing": "", "term_years": ""}))
    assert table.set_aside == ()
    assert [(o.pricing, o.term_years, o.price_usd_per_hour) for o in table.offers] == [
        (Pricing.RESERVED, 3, Decimal("0.5")),
        (Pricing.SPOT, None, Decimal("0.2")),
        (Pricing.ON_DEMAND, None, Decimal("0.5")),
    ]
    assert {(o.gpu_key, o.ram_bytes) for o in table.offers} == {("nvidia-tesla-t4-16gb", 16 * GIB)}


def test_shipped_offer_table_can_be_passed_as_a_user_table(tmp_path):
    path = tmp_path / "offers.csv"
    path.write_text(data_text("offers.csv"), encoding="utf-8")
    table = read_own(path)
    assert {why.partition(" price")[2] for _, why in table.set_aside} == {
        " of this instance in this region; the newer one is kept, else the first"
    }

    def by_key(offers):
        return {offer_key(o): msgspec.structs.replace(o, note=None) for o in offers}

    assert by_key(table.offers) == by_key(embedded_offers().offers)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pricing": "owned"}, "pricing 'owned' is not one of on_demand, spot, reserved"),
        ({"pricing": "gift", "term_years": ""}, "pricing 'gift' is not one of"),
        ({"term_years": ""}, "with term_years None"),
        ({"term_years": "0.5"}, "not a whole number"),
        ({"term_years": "11"}, "term_years 11 is not above 0 and at most 10"),
        ({"pricing": "spot"}, "with term_years 3"),
        ({"ram_bytes": "1e20"}, "ram_bytes 100000000000000000000 is not"),
        ({"price_usd_per_hour": ""}, "no price"),
    ],
)
def test_an_unknown_pricing_is_set_aside(tmp_path, change, reason):
    table = read_own(_by_field(tmp_path / "a.csv", change, {"instance": "good"}))
    assert [offer.instance for offer in table.offers] == ["good"]
    ((row, why),) = table.set_aside
    assert row == "a.csv:2 acme big.1 T4"
    assert reason in why


def test_free_is_a_separate_kind_with_price_zero(write_table):
    table = read_own(
        write_table({"kind": "free", "on_demand_usd_per_h": "0"}, {"kind": "free", "instance": "b"})
    )
    assert [(offer.kind, offer.price_usd_per_hour) for offer in table.offers] == [("free", Decimal(0))]
    assert table.set_aside[0].reason.startswith("price 0.50 ")


def test_a_duplicate_is_set_aside_and_the_first_is_kept(write_table):
    table = read_own(write_table({}, {"on_demand_usd_per_h": "0.75"}, {"region": "moon-2"}))
    assert [offer.price_usd_per_hour for offer in table.offers] == [Decimal("0.50"), Decimal("0.50")]
    ((row, reason),) = table.set_aside
    assert "second on-demand price" in reason
    assert ":3 " in row


def test_a_gpu_without_its_form_factor_is_marked(write_table):
    (offer,) = read_own(write_table({"gpu_key": "H100", "note": "a quote"})).offers
    assert offer.gpu_key == "nvidia-h100-unstated-80gb"
    assert "form factor" in offer.note


def test_the_documented_example_is_a_table(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "prices.md").read_text(encoding="utf-8")
    path = tmp_path / "quote.csv"
    path.write_text(page.partition("```csv\n")[2].partition("```")[0])
    table = read_own(path)
    assert table.set_aside == ()
    assert [(o.gpu_key, o.pricing, float(o.price_usd_per_hour)) for o in table.offers] == [
        ("nvidia-h100-sxm-80gb", Pricing.ON_DEMAND, 19.2),
        ("nvidia-h100-sxm-80gb", Pricing.RESERVED, 15.6),
    ]


def test_a_spreadsheet_with_semicolons_and_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "quote.csv"
    path.write_text(
        "\ufeffProvider;Instance;GPU_key;gpu_count;price_date;on_demand_usd_per_h\nAcme;big.1;T4;1;2026-11-01;0.5\n",
        encoding="utf-8",
    )
    (offer,) = read_own(path).offers
    assert (offer.provider, offer.instance) == ("acme", "big.1")


@pytest.mark.parametrize("delimiter", [";", ",", "\t"])
def test_the_line_that_tells_excel_the_delimiter_is_no_header(tmp_path, delimiter):
    path = tmp_path / "quote.csv"
    lines = [
        ("provider", "instance", "gpu_key", "price"),
        ("acme", "big.1", "T4", "0.5"),
        ("acme", "big.2", "T4", "?"),
    ]
    path.write_text("\n".join((f"sep={delimiter}", *map(delimiter.join, lines))), encoding="utf-8-sig")
    table = read_own(path)
    assert [offer.instance for offer in table.offers] == ["big.1"]
    assert table.set_aside[0].row.startswith("quote.csv:4 "), "lines count from the top of the file"


def test_json_is_read_like_csv(tmp_path):
    path = tmp_path / "quote.json"
    path.write_text(
        '[{"provider": "acme", "instance": "b", "gpu_key": "T4", "gpu_count": 2, "price_date": "2026-11",'
        ' "spot_usd_per_h": 0.25, "note": null}]'
    )
    (offer,) = read_own(path).offers
    assert (offer.gpu_count, offer.price_usd_per_hour, offer.pricing) == (2, Decimal("0.25"), Pricing.SPOT)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "empty"),
        ("a.csv", b"provider,instance\n1,2\n", "has no column gpu_key .* and no column on_demand_usd_per_h"),
        ("a.csv", b"\xff\xfe\x00", "not UTF-8"),
        ("a.xlsx", b"PK\x03\x04\x14\x00\xff", "a spreadsheet or archive: save the table as CSV"),
        ("a.csv", b'provider,"' + b"x" * 200_000, "field larger than field limit"),
        ("a.json", b"{", "not a JSON list"),
        ("a.json", b'[{"provider": NaN}]', "not a JSON list"),
        ("a.json", b"[" * 100_000, "not a JSON list"),
        ("a.json", b'{"provider": "x"}', "not a JSON list"),
    ],
)
def test_a_file_that_is_no_price_table_is_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MisuseError, match=message) as caught:
        read_own(path)
    assert "\n" not in str(caught.value)


def test_a_row_that_is_too_short_or_too_long_is_set_aside_and_trailing_blanks_are_not(tmp_path):
    path = tmp_path / "a.csv"
    head = "provider,instance,gpu_key,gpu_count,price_date,on_demand_usd_per_h,note\n"
    good = "acme,{},T4,1,2026-11-01,0.5"
    rows_ = [
        good.format("short"),
        good.format("blanks") + ",,,,",
        good.format("long") + ",a, comma",
        "acme,cut",
    ]
    path.write_text(head + "\n".join(rows_) + "\n")
    table = read_own(path)
    assert [offer.instance for offer in table.offers] == ["short", "blanks"]
    assert [row.partition(" ")[0] for row, _ in table.set_aside] == ["a.csv:4", "a.csv:5"]
    assert table.set_aside[0].reason == "more cells than the header has columns"


def test_too_many_rows_are_refused(write_table, monkeypatch):
    monkeypatch.setattr(text_table, "MAX_ROWS", 3)
    assert len(read_own(write_table(*({"instance": str(n)} for n in range(3)))).offers) == 3
    with pytest.raises(MisuseError, match="more than 3 rows"):
        read_own(write_table(*({"instance": str(n)} for n in range(4))))


def test_a_table_that_is_too_wide_is_refused_before_its_rows_are_filled_up(tmp_path):
    csv_table, json_table = tmp_path / "a.csv", tmp_path / "a.json"
    csv_table.write_text(",".join(f"c{n}" for n in range(200_000)) + "\n" + "x\n" * 100_000)
    json_table.write_text(json.dumps([{f"c{n}": 1} for n in range(100_000)]))
    for path, columns in ((csv_table, "200,000"), (json_table, "100,000")):
        with pytest.raises(MisuseError, match=rf"{path.name} has {columns} columns for 100,000 rows, over"):
            read_own(path)


@pytest.mark.parametrize("column", tables.PAGES)
def test_the_page_of_an_offer_is_added_to_its_source(write_table, column):
    (offer,) = read_own(write_table({column: "https://shop.example/a", "source": "a quote"})).offers
    assert offer.source == "a quote https://shop.example/a"


def test_an_invalid_address_is_not_a_page(write_table):
    (offer,) = read_own(
        write_table({"url": "javascript:alert(1)", "link": "nvlink", "source": "a quote"})
    ).offers
    assert offer.source == "a quote"


def test_only_line_breaks_of_csv_end_a_row(tmp_path):
    table = tmp_path / "prices.csv"
    table.write_text("gpu,price,note\nL4,0.5,two\u2028lines\nT4,0.2,\n", encoding="utf-8")
    read = read_own(table)
    assert [offer.gpu_key for offer in read.offers] == ["nvidia-l4-24gb", "nvidia-tesla-t4-16gb"]
    assert read.set_aside == ()
