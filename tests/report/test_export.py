"""Exports: complete, readable again, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.blocks import parts
from gpubench.interval import Interval
from gpubench.models import Run
from gpubench.report.page import CSV_COLUMNS, as_csv, as_json, embedded, guard, render

from . import samples


def rows_of(data) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(data), newline="")))


def test_the_csv_has_a_line_for_every_figure():
    run = samples.h200_run()
    data = samples.report_data(run)
    rows = rows_of(data)
    assert [row["kind"] for row in rows].count("measurement") == len(run.measurements)
    assert [row["kind"] for row in rows].count("offer") == len(data.ranking.rows)
    assert list(rows[0]) == list(CSV_COLUMNS)


def test_unknown_is_empty_and_never_zero():
    failed = next(
        row for row in rows_of(samples.report_data(samples.h200_run())) if row["status"] == "out_of_memory"
    )
    assert (failed["samples_per_s"], failed["mfu"], failed["rank"]) == ("", "", "")


def test_figures_in_the_csv_match_the_run():
    run = samples.h200_run()
    row = rows_of(samples.report_data(run))[0]
    assert float(row["samples_per_s"]) == run.measurements[0].samples_per_s
    assert float(row["samples_per_s"]) * float(row["step_time_s"]) == pytest.approx(
        run.measurements[0].case.batch_size
    )


def test_the_listed_price_and_the_expected_one_have_a_column_each():
    data = samples.report_data(samples.h200_run())
    row = msgspec.structs.replace(data.ranking.rows[0], usd_per_hour=Interval(9.0))
    data = replace(data, ranking=msgspec.structs.replace(data.ranking, rows=(row,)))
    (written,) = (each for each in rows_of(data) if each["kind"] == "offer")
    assert (written["price_usd_per_hour"], written["expected_usd_per_hour"]) == ("0.34", "9.0")


@given(
    st.text(max_size=40),
    st.sampled_from(["=", "+", "-", "@", "\t", "\r", " =", "\t=", "\uff1d", " \uff0b", "\uff20", "\ufe63"]),
)
def test_no_text_cell_is_ever_a_formula(text, start):
    guarded = guard(start + text)
    read = unicodedata.normalize("NFKC", guarded)  # as a spreadsheet in an East Asian locale may
    assert not read.lstrip().startswith(("=", "+", "-", "@", "\t", "\r"))
    assert guarded == "" or not guarded[0].isspace() or guarded.strip() == ""


@given(st.text(alphabet="abcXYZ019 _", max_size=40))
def test_harmless_text_is_left_alone(text):
    assert guard(text) == text


def test_negative_numbers_are_not_formulas():
    data = samples.report_data(samples.h200_run())
    row = msgspec.structs.replace(data.ranking.rows[0], usd_per_hour=Interval(-9.0))
    data = replace(data, ranking=msgspec.structs.replace(data.ranking, rows=(row,)))
    assert [each["expected_usd_per_hour"] for each in rows_of(data) if each["kind"] == "offer"] == ["-9.0"]


def test_hostile_names_are_guarded_in_the_csv():
    rows = rows_of(samples.hostile_data())
    assert any(row["provider"] == "'=HYPERLINK(1)" for row in rows)
    for row in rows:
        assert not any(cell.lstrip().startswith(("=", "+", "@")) for cell in row.values())


def test_runs_in_the_json_can_be_read_back_unchanged():
    run = samples.h200_run()
    document = json.loads(as_json(samples.report_data(run)))
    assert document["runs"][0]["measurements"][0]["samples_per_s"] == run.measurements[0].samples_per_s
    assert msgspec.convert(document["runs"][0], Run) == run


def test_the_markdown_contains_every_table_and_no_live_markup():
    text = render(samples.hostile_data(), "md")
    assert set(re.findall(r"<[^>]*>", text)) <= {"<br>"}
    assert "<script" not in text
    assert "<img" not in text
    assert "](" not in text
    assert "://" not in text


def test_markdown_shows_commands_as_commands_and_second_lines_as_lines():
    text = render(samples.report_data(), "md")
    assert "`gpubench run` measures this device" in text
    assert "12.5 million<br>9.3 to 16.7 million" in text


def test_a_table_cut_short_in_markdown_says_how_many_rows_there_are_and_where_they_are():
    """The HTML page does not have every row either, so the text names the JSON report."""
    cards = parts.table("Cards", range(parts.MOST_ROWS + 1), parts.text("Card", str))
    document = parts.as_markdown("a", "b", [parts.Block(title="c", parts=(cards,))])
    assert "Left out: 1 row; see the JSON report." in document
    shown = samples.ranking(rows=samples.ranking().rows * 5, offer_count=1200)
    assert "The first 20 of 1,200 offers; the JSON report has all of them" in render(
        samples.report_data(ranking=shown), "md"
    )


def test_markdown_rows_have_as_many_cells_as_their_header():
    lines = render(samples.report_data(samples.h200_run(), samples.cpu_run()), "md").splitlines()
    width = None
    for line in lines:
        if not line.startswith("|"):
            width = None
            continue
        cells = line.replace("\\|", "").count("|")
        width = width or cells
        assert cells == width, line


def test_nan_and_lone_surrogates_become_valid_json():
    run = samples.h200_run()
    first = msgspec.structs.replace(run.measurements[0], loss_trace=(float("nan"), 1.0))
    data = samples.report_data(samples.h200_run(measurements=(first,), notes=("a\udcff",)))
    document = json.loads(as_json(data))
    assert document["runs"][0]["measurements"][0]["loss_trace"] == [None, 1.0]
    assert document["runs"][0]["notes"] == ["a?"]


def test_the_page_contains_the_runs_it_uses_and_thins_long_telemetry():
    run, old = samples.h200_run(), samples.h200_run(run_id="old", started_at="2026-01-01T00:00:00Z")
    data = samples.report_data(run, old)
    content, step = embedded(data, most_samples=100_000)
    assert [r["run_id"] for r in content["runs"]] == [run.run_id]
    assert step == 1
    total = sum(len(x.telemetry) for m in run.measurements for x in m.launches)
    content, step = embedded(data, most_samples=total // 10)
    assert step == 10
    measurements = content["runs"][0]["measurements"]
    assert sum(len(x["telemetry"]) for m in measurements for x in m["launches"]) == total // 10
    content, step = embedded(data, most_samples=total - 1)
    assert step == 2, "one sample above the limit thins them, too"


def test_the_page_contains_twelve_digits_of_every_figure():
    data = samples.report_data(samples.h200_run())
    content, _ = embedded(data, most_samples=100_000)
    whole = json.loads(as_json(data))
    inside = list(_floats(content))
    assert inside == pytest.approx(list(_floats(whole)), rel=5e-12)
    assert all(value == float(f"{value:.12g}") for value in inside)


def _floats(value):
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _floats(item)
