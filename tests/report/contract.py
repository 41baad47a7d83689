"""The contract of a report section: subclass it and define a fixture ``section`` with the key of the section."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

from plotly import graph_objects

from gpubench.blocks.parts import Block, Bullets, Charts, Facts, Paragraph, Table, escape, printable
from gpubench.report.page import render
from gpubench.sections import data
from gpubench.sections.data import ReportData

from . import samples

DATA = {
    "gpu and cpu": lambda: samples.report_data(samples.h200_run(), samples.cpu_run()),
    "cpu": lambda: samples.report_data(samples.cpu_run()),
    "nothing measured": samples.report_data,
    "no ranking": lambda: samples.report_data(samples.h200_run(), ranking=None, ranking_problem="none"),
    "nothing at all": lambda: ReportData(today=samples.TODAY),
    "hostile": samples.hostile_data,
}


@cache
def data_called(name: str) -> ReportData:
    """Return a sample, made once, because sections cannot change it."""
    return DATA[name]()


@cache
def markdown_of(name: str) -> str:
    return render(data_called(name), "md")


@cache
def block_of(section: str, name: str) -> Block | None:
    """Return a section's output for a sample, made once, because the tests below only read it."""
    return data.block_of(section, data_called(name))


class SectionContract:
    """The contract of every section, whatever the data: each test uses every sample of ``DATA``."""

    def test_it_returns_a_block_or_nothing(self, section: str):
        for name in DATA:
            block = block_of(section, name)
            assert block is None or (isinstance(block, Block) and block.title and block.parts), name

    def test_section_is_deterministic(self, section: str):
        for name in DATA:
            assert data.block_of(section, data_called(name)) == block_of(section, name), name

    def test_text_contains_no_control_character(self, section: str):
        for text in (text for name in DATA for text in _texts_of(section, name)):
            assert not [c for c in text if unicodedata.category(c).startswith("C") and c != "\n"], text

    def test_every_chart_has_a_description_and_a_table_with_rows(self, section: str):
        for name, charts in _charts_of(section):
            assert charts.figures, name
            assert charts.twin.rows, name
            assert all(len(figure.alt) > 20 and figure.height_px > 0 for figure in charts.figures), name

    def test_figures_are_plain_json_and_contain_no_pseudo_markup(self, section: str):
        for _, charts in _charts_of(section):
            for figure in charts.figures:
                json.dumps(figure.figure, allow_nan=False)
                for text in _strings(figure.figure):
                    assert "<" not in text.replace("<br>", "").replace("<extra></extra>", ""), text

    def test_figures_follow_the_schema_of_plotly(self, section: str):
        for name, charts in _charts_of(section):
            for figure in charts.figures:
                # Plotly refuses a property or a value that it does not know.
                made = graph_objects.Figure(figure.figure)
                assert len(made.data) == len(figure.figure["data"]), name

    def test_section_block_appears_in_the_markdown_page(self, section: str):
        for name in DATA:
            block = block_of(section, name)
            assert block is None or f"\n## {escape(block.title)}\n" in markdown_of(name), name


def _charts_of(section: str) -> list[tuple[str, Charts]]:
    """Return the charts of a section, each with the name of its sample."""
    blocks = ((name, block_of(section, name)) for name in DATA)
    return [
        (name, part) for name, block in blocks if block for part in block.parts if isinstance(part, Charts)
    ]


def texts(block: Block) -> list[str]:
    """Return every text of a block, in reading order."""
    found = [block.title]
    for part in block.parts:
        match part:
            case Paragraph():
                found.append(part.text)
            case Facts():
                found += [text for fact in part.rows for text in (fact.term, fact.value, fact.detail)]
            case Bullets():
                found += part.items
            case Table():
                found += _table_texts(part)
            case Charts():
                found += [figure.alt for figure in part.figures]
                found += [figure.title for figure in part.figures if figure.title]
                found += [part.caption or "", *_table_texts(part.twin)]
    return found


def _texts_of(section: str, name: str) -> list[str]:
    block = block_of(section, name)
    return [] if block is None else texts(printable(block))


def _table_texts(table: Table) -> list[str]:
    return [table.caption, *(c.title for c in table.columns), *(cell for row in table.rows for cell in row)]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
