"""The pages are correct: generated pages are current, and every command on a page exists as written."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from golden import pages
from golden.produce import frozen_tables, run

from gpubench.discovery import workload_names
from gpubench.models import Ranking, Row
from gpubench.offers.sources import own_sources

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


@pytest.fixture(scope="module")
def maker():
    with frozen_tables():
        yield pages


@pytest.mark.parametrize("name", sorted(pages.PAGES))
def test_a_generated_page_is_current(maker, name):
    """Update it with ``python tests/golden/pages.py``; that runs every command of the cookbook."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == maker.PAGES[name]()


def test_every_price_source_is_in_the_table_of_prices():
    table = (
        (ROOT / "docs" / "prices.md")
        .read_text(encoding="utf-8")
        .partition("## Refresh")[2]
        .partition("\n- ")[0]
    )
    named = set(re.findall(r"`([\w-]+\*?)`", "".join(re.findall(r"(?m)^\|([^|]+)\|", table))))
    own = {source.name for source in own_sources() if not source.name.startswith("gpuhunt-")}
    assert named == own | {"gpuhunt-*"}


def test_every_workload_is_listed_with_the_question_that_it_answers():
    table = (
        (ROOT / "docs" / "workloads.md")
        .read_text(encoding="utf-8")
        .partition("\n\n|")[2]
        .partition("\n\n")[0]
    )
    first_cells = "".join(line.split("|")[0 if at == 0 else 1] for at, line in enumerate(table.splitlines()))
    assert set(workload_names()) <= set(re.findall(r"`(\w+)`", first_cells))


def test_the_parts_of_a_ranking_in_python_exist_as_named():
    text = (ROOT / "docs" / "recommendation.md").read_text(encoding="utf-8").partition("## In Python")[2]
    named = set(re.findall(r"`(\w+)`", text)) - {"Interval"}
    assert "answers" in named
    assert named <= {*Ranking.__struct_fields__, *Row.__struct_fields__}


def commands() -> list[tuple[str, str]]:
    """Return each command that begins with gpubench, in a shell block or between backticks, with its page."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```sh\n(.+?)```", text, flags=re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        lines += re.findall(r"`(gpubench [a-z][^`\n]*)`", text)
        parts = (part.strip() for line in lines for part in line.split("&&"))
        found += [(page.name, part.split("#")[0].strip()) for part in parts if part.startswith("gpubench ")]
    return sorted(set(found))


@cache
def help_of(verb: tuple[str, ...]) -> tuple[int, str]:
    with frozen_tables():
        code, out, _ = run(*verb, "--help", columns=200)
    return code, out


def test_the_pages_contain_commands_to_check():
    assert len(commands()) > 60


@pytest.mark.parametrize("page", sorted({page for page, _ in commands()}))
def test_every_command_on_a_page_exists_with_its_options(page):
    for name, line in commands():
        if name != page:
            continue
        words = shlex.split(line)[1:]
        verb = [word for word in words[:1] if re.fullmatch(r"[a-z-]+", word)]
        if (
            words[0] in {"offers", "results", "predict"}
            and len(words) > 1
            and re.fullmatch(r"[a-z]+", words[1])
        ):
            verb.append(words[1])
        code, text = help_of(tuple(verb))
        assert code == 0, line
        for option in (word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)):
            assert re.search(rf"{re.escape(option)}(?![\w-])", text), (line, option)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
