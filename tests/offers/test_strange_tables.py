"""Tables that people export or copy: what a number, a date, a heading and a remark in a cell mean."""

from __future__ import annotations

import json

import pytest

from gpubench.errors import MisuseError
from gpubench.offers.tables import read_own


@pytest.fixture
def read(tmp_path):
    """Read the text of a table."""

    def read_text(text, name="t.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return read_own(path)

    return read_text


def prices(table):
    return [float(offer.price_usd_per_hour) for offer in table.offers]


@pytest.mark.parametrize(
    ("heading", "cell", "why"),
    [
        ("unit", "month", "not for an hour"),
        ("billing", "monthly", "not for an hour"),
        ("billing period", "1 week", "not for an hour"),
        ("price unit", "USD/day", "not for an hour"),
        ("price unit", "minute", "not for an hour"),
        ("note", "price per month", "not for an hour"),
        ("note", "billed annually", "not for an hour"),
        ("unit", "per GPU-hour", "put it into a column usd_per_gpu_hour"),
        ("note", "8x node; price per GPU", "put it into a column usd_per_gpu_hour"),
        ("unit", "cents", "currency"),
        ("note", "1/7 slice", "whole GPUs"),
        ("note", "shared GPU", "whole GPUs"),
        ("remarks", "MIG 2g", "whole GPUs"),
        ("mig profile", "1g.10gb", "whole GPUs"),
        ("fraction", "0.5", "whole GPUs"),
        ("share", "25%", "whole GPUs"),
        ("instance", "H100 slice", "its GPU is"),
        ("instance", "shared H100", "its GPU is"),
        ("pricing model", "3-year reserved", "demand"),
        ("purchase plan", "1-year subscription", "demand"),
        ("tier", "Community spot", "demand"),
        ("purchase option", "savings plan", "demand"),
        ("provider", "acme (spot)", "demand"),
        ("instance", "h100 preempt", "demand"),
        ("note", "12-month commitment", "demand"),
        ("is_spot", "True", "spot price"),
        ("status", "sold-out", "cannot be ordered"),
        ("status", "No capacity", "cannot be ordered"),
        ("in_stock", "❌", "cannot be ordered"),
        ("availability", "0%", "cannot be ordered"),
        ("rented", "true", "cannot be ordered"),
        ("stock", "0 left", "cannot be ordered"),
        ("type", "low-priority", "demand"),
        ("min rental", "1 month", "demand"),
        ("lease", "36mo", "demand"),
        ("offering", "Convertible 3yr", "demand"),
        ("payment option", "All Upfront", "demand"),
        ("price per", "minute", "not for an hour"),
        ("gpu portion", "0.25", "whole GPUs"),
        ("minimum gpus", "64", "fewer GPUs cannot be ordered"),
        ("hours", "100", "instance for an hour"),
    ],
)
def test_a_cell_that_makes_a_price_false_sets_its_row_aside(read, heading, cell, why):
    """Each of these rows was read as eight whole GPUs on demand for an hour, and many of them would win."""
    table = read(f'gpu,gpus,price,{heading},date\nH100 SXM,8,3,"{cell}",2026-11-20\n')
    assert not prices(table)
    ((_, reason),) = table.set_aside
    assert why in reason
    is_advice_right = why in {"demand", "currency"} and heading != "instance"
    assert ("add a column pricing" in reason) == is_advice_right


@pytest.mark.parametrize(
    ("heading", "cell"),
    [
        ("unit", "hour"),
        ("unit", "USD/h"),
        ("billing", "per second"),
        ("billing", "hourly"),
        ("billing increment", "second"),
        ("partition", "gpu-long"),
        ("cpu share", "50%"),
        ("rate", "effective"),
        ("min rental", "1 hour"),
        ("disk capacity", "0"),
        ("plan type", "On-demand (no commitment)"),
        ("plan type", "commitment-free"),
        ("note", "MIG supported"),
        ("note", "backups daily"),
        ("note", "25.50 per GPU"),
        ("tenancy", "shared"),
        ("fraction", "1"),
        ("share", "100%"),
        ("plan", "not interruptible"),
        ("type", "pay as you go"),
        ("availability", "99%"),
        ("rented", "false"),
        ("minimum gpus", "8"),
        ("hours", "1"),
        ("is_spot", "False"),
        ("spot", ""),
        ("cuda", "1/2/2026"),
    ],
)
def test_a_harmless_cell_costs_no_row(read, heading, cell):
    assert prices(read(f"gpu,gpus,price,{heading},date\nH100 SXM,8,30,{cell},2026-11-20\n")) == [30]


def test_a_note_about_the_reserved_price_of_its_row_does_not_cost_the_row(read):
    head = "gpu,on_demand_usd_per_h,reserved_1y_usd_per_h,note,date"
    assert prices(read(f"{head}\nH100 SXM,4.41,3.26,12-month reserved,2026-11-20\n")) == [4.41, 3.26]


def test_ones_and_zeros_in_a_column_of_spot_prices_say_whether_a_price_is_one(read):
    table = read("gpu,price,spot\nH100 SXM,0.9,1\nH200,3,0\n")
    assert prices(table) == [3]
    assert "spot" in table.set_aside[0].reason
    assert prices(read("gpu,price,spot\nH100 SXM,2,1\nH200,3,1.5\n")) == [2, 1, 3, 1.5]


@pytest.mark.parametrize(
    ("rows", "usd"),
    [
        # The other cells of the table tell what a comma or point before three digits means.
        ("gpu;price\nH100 SXM;1.234\nL4;0,8\n", [1234, 0.8]),
        ("gpu;price\nH100 SXM;1.234,50\nL4;19,20\n", [1234.5, 19.2]),
        ("gpu;price\nH100 SXM;2,934\nL4;0.8\n", [2934, 0.8]),
        ("gpu;price\nH100 SXM;2,934\n", [2.934]),
        ("gpu;price\nH100 SXM;2.934\n", [2.934]),
        ("gpu\tprice\nH100 SXM\t1,234.50\nL4\t1,234\n", [1234.5, 1234]),
        ('gpu,price\nH100 SXM,"19,20"\nL4,"0,812"\n', [19.2, 0.812]),
        (
            "gpu,price\nH100 SXM,1'234.50\nL4,1’234\nT4,1 234.5\nA10,1\u202f234\n",
            [1234.5, 1234, 1234.5, 1234],
        ),
        # Nothing tells what this comma means, and a point may be right besides a comma.
        ("gpu\tprice\nH100 SXM\t1,234\nL4\t2\n", [2]),
        ("gpu;price;score\nH100 SXM;2.345;9,5\nL4;0.85;8,5\n", [2.345, 0.85]),
    ],
)
def test_commas_and_points_in_numbers(read, rows, usd):
    assert prices(read(rows)) == usd


@pytest.mark.parametrize(
    ("cell", "day"),
    [
        ("2026-11-20 10:30:00", "2026-11-20"),
        ("2026-11-20T10:30:00Z", "2026-11-20"),
        ("2026/11/2", "2026-11-02"),
        ("20.11.2026", "2026-11-20"),
        ("3.11.2026", "2026-11-03"),
        ("11/20/2026", "2026-11-20"),
        ("20/11/2026", "2026-11-20"),
        ("11/11/2026", "2026-11-11"),
        ("10/11/2026", None),  # in October or in November
        ("20.13.2026", None),
        ("46346", None),
    ],
)
def test_a_date_as_spreadsheets_write_it(read, cell, day):
    assert [each.price_date for each in read(f"gpu,price,date\nL4,0.5,{cell}\n").offers] == (
        [day] if day else []
    )


ROW = "H100 SXM,2.1,2026-11-20"


@pytest.mark.parametrize(
    ("text", "name", "encoding"),
    [
        (f"GPU prices of November\n\ngpu,price,date\n{ROW}\n", "t.csv", "utf-8"),
        (f"Prices; in USD,,\n,,\ngpu,price,date\n{ROW}\n,,\n", "t.csv", "utf-8"),
        (f"# from the web\ngpu,price,date\n# checked\n{ROW}\n", "t.csv", "utf-8"),
        (f"| gpu | price | date |\n|:---|---:|---|\n| {ROW.replace(',', ' | ')} |\n", "t.md", "utf-8"),
        (f"gpu,price,date\n{ROW}\n".replace(",", "\t"), "t.txt", "utf-16"),
        ('{"gpu": "H100 SXM", "price": 2.1}\n{"gpu": "H100 SXM", "price": "2.10", "region": "eu"}\n', "t.jsonl", "utf-8"),
        ('[{"gpu": "H100 SXM", "price": 2.1}]', "t.txt", "utf-8"),
        ("gpu,gpus,price per card\nH100 SXM,x1,2.1\n", "t.csv", "utf-8"),
        ("gpu,gpus,$/GPUh\nH100 SXM,1x,2.1\n", "t.csv", "utf-8"),
    ],
)  # fmt: skip
def test_titles_comments_markdown_utf_16_and_json_lines(read, text, name, encoding):
    table = read(text, name, encoding)
    assert {*prices(table)} == {2.1}
    assert not table.set_aside


def test_lines_count_from_the_top_of_a_file_with_a_title(read):
    assert read("Prices\n\ngpu,price\nL4,0.5\nbanana,1\n").set_aside[0].row.startswith("t.csv:5 ")


@pytest.mark.parametrize(
    "header", ["gpu,price 2025,price 2026", "gpu,price,Price", "gpu,$/hr,price per hour"]
)
def test_two_columns_that_may_both_be_the_price_are_refused(read, header):
    """The first of them was taken, last year's price for example."""
    with pytest.raises(MisuseError, match="two columns of one price"):
        read(f"{header}\nH100 SXM,1,3\n")


def test_a_heading_in_another_language_or_unit_is_refused_with_what_to_do(read):
    for header in ("GPU;Anzahl;Preis", "GPU;Count;Price per month"):
        with pytest.raises(MisuseError, match=r"no column on_demand_usd_per_h .*rename yours, and convert"):
            read(f"{header}\nH100 SXM;8;19,20\n")


def test_a_value_that_is_no_number_in_a_list_is_passed_over(read):
    rows = [{"gpu": "H100 SXM", "price": {"usd": 2}}, {"gpu": "L4", "price": 0.5}]
    table = read(json.dumps(rows), "t.json")
    assert prices(table) == [0.5]
    assert table.set_aside[0].reason == "no price"
