"""At any width, a terminal table keeps figures whole and names every column that it omits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.blocks.parts import (
    Block,
    Bullets,
    Column,
    Fact,
    Facts,
    Paragraph,
    Table,
    as_html,
    number,
    table,
    text,
)
from gpubench.blocks.terminal import fitted, show

WORDS = st.text(alphabet="abcdefgh -_", min_size=1, max_size=40).map(str.strip).filter(bool)
FIGURES = st.from_regex(r"[1-9][0-9]{0,5}(\.[0-9]{1,2})?( [kMG]B)?", fullmatch=True)
CELLS = {True: st.lists(FIGURES, min_size=1, max_size=2), False: st.lists(WORDS, min_size=1, max_size=2)}


@st.composite
def tables(draw) -> Table:
    columns = tuple(
        Column(
            title=f"{draw(WORDS)} {i}",
            numeric=i > 0 and draw(st.booleans()),
            optional=i and draw(st.integers(0, 7)),
        )
        for i in range(draw(st.integers(1, 7)))
    )
    rows = draw(
        st.lists(
            st.tuples(*(CELLS[column.numeric].map("\n".join) for column in columns)), min_size=1, max_size=4
        )
    )
    return Table(caption="", columns=columns, rows=tuple(rows))


@given(tables(), st.integers(80, 200))
def test_only_optional_columns_are_dropped_and_they_are_named(made, width):
    shown, widths, hidden = fitted(made, width)
    assert {c.title for c in made.columns} == {c.title for c in shown.columns} | set(hidden)
    assert all(next(c for c in made.columns if c.title == title).optional for title in hidden)
    total = sum(widths) + 2 * (len(widths) - 1)
    if total <= width and all(not c.numeric for c in made.columns if not c.optional):
        for i, column in enumerate(shown.columns):
            assert not column.numeric or widths[i] >= max(
                len(row[i].partition("\n")[0]) for row in shown.rows
            )


def test_tallest_column_gets_the_spare_width_and_values_keep_their_units(capsys, monkeypatch):
    made = Table(
        caption="",
        columns=(Column(title="name", numeric=False), Column(title="time", numeric=True)),
        rows=(("a name of many words in a row", "9 of 100\n12 days of 34 to 56 days"),),
    )
    lines = printed(capsys, monkeypatch, made, columns=34)
    words = [line.split("  ")[-1].strip() for line in lines[2:]]
    assert " ".join(words) == "9 of 100 12 days of 34 to 56 days"
    assert words[-1].endswith("56 days")


@given(tables())
def test_a_file_gets_every_column_and_one_line_per_row(made):
    shown, _, hidden = fitted(made, 10_000)
    assert hidden == []
    assert [len(cell.split("\n")) for row in shown.rows for cell in row] == [1] * (
        len(made.columns) * len(made.rows)
    )


def printed(capsys, monkeypatch, *parts, columns=80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    show(*parts)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("columns", ["0", "-80", "wide", "", "9" * 5000])
def test_an_invalid_width_counts_as_not_set(capsys, monkeypatch, columns):
    made = Table(caption="", columns=(Column(title="GPU"),), rows=(("1x L4 of some provider",),))
    monkeypatch.delenv("COLUMNS", raising=False)
    show(made)
    unset = capsys.readouterr().out
    assert printed(capsys, monkeypatch, made, columns=columns) == [
        each.rstrip() for each in unset.splitlines()
    ]
    assert "1x L4 of some provider" in unset


def test_table_has_a_minimum_width(capsys, monkeypatch):
    made = Table(caption="", columns=(Column(title="GPU"),), rows=(("1x L4 of some provider",),))
    assert printed(capsys, monkeypatch, made, columns=1) == printed(capsys, monkeypatch, made, columns=20)


@pytest.mark.parametrize("columns", range(20, 32))
def test_a_detail_of_the_first_column_is_printed_whole_at_any_width(capsys, monkeypatch, columns):
    """If the column is no wider than the indent, the detail is not indented."""
    made = Table(
        caption="",
        columns=(Column(title="GPU"), *(Column(title=f"column {i}") for i in range(6))),
        rows=(("L4\nabcdefgh", *["words"] * 6),),
    )
    _, (first, *_), _ = fitted(made, columns)
    lines = printed(capsys, monkeypatch, made, columns=columns)
    assert "L4abcdefgh" in "".join(line[:first].strip() for line in lines)


def test_footnote_mark_of_a_dropped_column_moves_to_the_first_column(capsys, monkeypatch):
    made = Table(
        caption="",
        columns=(
            Column(title="GPU"),
            Column(title="price", numeric=True),
            Column(title="Basis", optional=1, glyph=True),
        ),
        rows=(("1x L4", "$1", "●\u00a0measured"), ("1x T4", "$2", "○\u00a0predicted")),
    )
    wide = printed(capsys, monkeypatch, made, columns=40)
    assert [line.split() for line in wide[2:]] == [
        ["1x", "L4", "$1", "●", "measured"],
        ["1x", "T4", "$2", "○", "predicted"],
    ]
    narrow = printed(capsys, monkeypatch, made, columns=20)
    assert [line.split() for line in narrow[2:4]] == [["●", "1x", "L4", "$1"], ["○", "1x", "T4", "$2"]]
    assert "Basis (● measured, ○ predicted)" in " ".join(narrow[4:])


def test_the_least_needed_column_is_dropped_first_and_named(capsys, monkeypatch):
    made = table(
        "",
        ["x" * 30],
        text("Name", str),
        number("Big", lambda _: "1" * 20, optional=1),
        number("Bigger", lambda _: "2" * 20, optional=2),
    )
    lines = printed(capsys, monkeypatch, made, columns=60)
    assert "Bigger" not in lines[0]
    assert lines[-1] == "Not shown at this width: Bigger."
    assert all(len(line) <= 60 for line in lines)


def test_an_empty_column_is_left_out(capsys, monkeypatch):
    made = table(
        "", ["a", "b"], text("Name", str), number("Memory", lambda _: "—"), text("Findings", lambda _: "none")
    )
    assert printed(capsys, monkeypatch, made)[0] == "Name"


def test_figures_are_right_aligned_with_their_bounds_below(capsys, monkeypatch):
    made = table("", ["5\n4 to 6", "1,234\n1,200 to 1,300"], text("Case", lambda _: "c"), number("Rate", str))
    lines = printed(capsys, monkeypatch, made, columns=20)
    assert [line[-14:] for line in lines[2:]] == [
        "             5", "        4 to 6", "         1,234", "1,200 to 1,300",
    ]  # fmt: skip
    wide = printed(capsys, monkeypatch, made, columns=60)
    assert [line[-22:].strip() for line in wide[2:]] == ["5 (4 to 6)", "1,234 (1,200 to 1,300)"]


HOSTILE = "\x1b]0;owned\x07[red]\u202egnp.exe[/red]\x9b2J<b>"


@pytest.mark.parametrize(
    "part",
    [
        Paragraph(text=HOSTILE),
        Bullets(items=(HOSTILE,)),
        Facts(rows=(Fact(term=HOSTILE, value=HOSTILE),)),
        Table(caption=HOSTILE, columns=(Column(title=HOSTILE),), rows=((HOSTILE,),)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_no_escape_markup_or_bidirectional_text_reaches_the_terminal(part, capsys, monkeypatch):
    out = "\n".join(printed(capsys, monkeypatch, part))
    assert "[red]gnp.exe[/red]2J<b>" in out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", out)


def test_a_notebook_gets_the_same_block_as_markup_without_a_script():
    block = Block(title="T", parts=(Paragraph(text="<i>"), table("", ["a"], text("Name", str))))
    html = block._repr_html_()
    assert html == as_html(block)
    assert "&lt;i&gt;" in html
    assert "<td" in html or '<th scope="row">a</th>' in html
    assert "<script" not in html
