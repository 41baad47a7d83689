"""The output of gpubench for a frozen fixture is the stored one: see README.md in this folder."""

from __future__ import annotations

import difflib

import pytest

from golden import produce
from golden.make import only_figures
from golden.produce import EXPECTED, LAYERS, figures, frozen_tables, normalized, run, visible_text
from gpubench.offers.snapshot import embedded_offers
from gpubench.specs import load_specs

MOST_LINES = 60
CASES = [(layer, name) for layer, goldens in LAYERS.items() for name in goldens]


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    with frozen_tables():
        yield


def differences(expected: str, now: str, layer: str, name: str) -> str:
    """Return a short unified diff, and the command that accepts the new output."""
    before, after = (
        (text.replace(',"', ',\n"') if text.count("\n") < 2 else text) for text in (expected, now)
    )
    lines = list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"{layer}/{name}", "now", n=1, lineterm=""
        )
    )
    more = [f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    renew = f"if this is meant: python tests/golden/make.py {layer}"
    return "\n".join(["", *(line[:300] for line in lines[:MOST_LINES]), *more, renew])


@pytest.mark.parametrize(("layer", "name"), CASES, ids=[f"{layer}/{name}" for layer, name in CASES])
def test_output_matches_its_golden(layer, name):
    path, now = EXPECTED / layer / name, LAYERS[layer][name]()
    expected = path.read_text(encoding="utf-8") if path.is_file() else ""
    assert now == expected, differences(expected, now, layer, name)


@pytest.mark.parametrize("layer", LAYERS)
def test_no_golden_is_left_over(layer):
    assert {path.name for path in (EXPECTED / layer).iterdir()} == set(LAYERS[layer])


def test_golden_fixture_replaces_the_shipped_tables():
    assert len(load_specs()) == 12
    assert len(embedded_offers().offers) == 20
    assert {offer.source for offer in embedded_offers().offers} == {"frozen test table"}


def test_outside_the_goldens_the_shipped_tables_are_read_again():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GPUBENCH_DATA")
        produce._forget_tables()
        assert len(load_specs()) > 100
    produce._forget_tables()
    assert len(load_specs()) == 12


def test_a_difference_is_shown_with_the_command_that_updates_its_layer():
    shown = differences("a\nb\nc\n", "a\nx\nc\n", "words", "rank-80.txt")
    assert "-b\n+x\n" in shown
    assert shown.endswith("python tests/golden/make.py words")


def test_figures_are_extracted_with_their_labels_and_without_prose():
    text = "## Value\n\n| GPU | images/s |\n| --- | --- |\n| RTX 4090 | 1,180 (900 to 1,300) |\n\nIt pays after 30 months.\n"
    found = figures(text)
    assert found.splitlines() == [
        "Value / GPU: 4090",
        "Value / RTX 4090 / images/s: 1,180 900 1,300",
        "Value: 30",
    ]
    assert only_figures(found) == only_figures(figures(text.replace("images/s", "pictures")))
    assert only_figures(found) != only_figures(figures(text.replace("900", "901")))


def test_a_page_is_compared_as_text_and_rows():
    page = "<h2>A</h2><script>var x = 1;</script><table><tr><th>n</th></tr><tr><td>1</td><td>&lt;2</td></tr></table>"
    assert visible_text(page) == "## A\n| n |\n| 1 | <2 |\n"


@pytest.mark.parametrize("columns", produce.WIDTHS)
def test_a_terminal_is_as_wide_as_it_says(columns):
    """If the width did not reach the tables, the goldens of both widths would be the same."""
    _, out, _ = run("compare", produce.SOUND, produce.DOUBTFUL, columns=columns, terminal=True)
    assert columns - 30 < max(map(len, normalized(out).splitlines())) <= columns
