"""Three texts that commands, answers and screens must follow, written before the code was changed.

``options.csv`` states the fate of each option, ``ranking_keys.json`` the keys of a ranking. The sentences of
the screens ship with the package. A test that is expected to fail names the work that completes it.
"""

from __future__ import annotations

import csv
import json
import re
import string
from functools import cache
from importlib import resources
from pathlib import Path

import click
import pytest
from command import here

from gpubench.cli.app import app
from gpubench.sentences import say

HERE = Path(__file__).parent
SHARED = {"json", "brief", "results", "limit", "table", "explain", "help"}
OPTIONS = {"rank": 34, "run": 24, "memory": 13, "predict show": 14, "report": 7, "offers list": 6}
OPTIONS |= {"offers import": 3, "offers refresh": 3, "check": 3, "compare": 3, "try": 3, "list": 2}
OPTIONS |= {"feed": 2, "predict score": 2, "predict seal": 1, "new-workload": 1, "probe": 1}
WENT = {"calibrate", "predict evaluate"}
"""Removed verbs in the table; each one says what to use instead."""
MOST_WORDS = 30
LATER: dict[str, dict[str, str]] = {}
"""Options in the table that do not exist yet, or that remain for now, with the work that will change that."""


@cache
def option_rows() -> tuple[dict[str, str], ...]:
    with (HERE / "options.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


@cache
def keys() -> dict:
    return json.loads((HERE / "ranking_keys.json").read_text(encoding="utf-8"))


@cache
def sentences() -> dict:
    shipped = resources.files("gpubench").joinpath("data", "sentences.json")
    return json.loads(shipped.read_text(encoding="utf-8"))


def planned(verb: str) -> set[str]:
    return {row["new"] for row in option_rows() if row["verb"] == verb and row["becomes"] in {"stays", "new"}}


@cache
def offered() -> dict[str, set[str]]:
    """The options of each verb, and of each action of a verb, as in the parser."""
    found: dict[str, set[str]] = {}

    def walk(command, words: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                walk(command.get_command(context, name), (*words, name))
        else:
            found[" ".join(words)] = {
                option.removeprefix("--")
                for parameter in command.params
                for option in parameter.opts
                if not getattr(parameter, "hidden", False) and option.startswith("--")
            } - {"help"}

    context = click.Context(app)
    walk(app, ())
    return found


# --- options ------------------------------------------------------------------------------------------------


def test_every_current_option_is_in_the_table():
    told: dict[str, set[str]] = {}
    for row in option_rows():
        told.setdefault(row["verb"], set()).update({row["option"], row["new"]} - {""})
    now = {verb: options for verb, options in offered().items() if verb in told}
    assert set(now) >= set(told) - WENT
    assert not WENT & set(now)
    missing = {verb: options - told[verb] - SHARED for verb, options in now.items()}
    assert not {verb: options for verb, options in missing.items() if options}


def test_a_planned_removal_names_the_replacement():
    for row in option_rows():
        assert row["becomes"] in {"stays", "new", "shared", "recipe", "renamed", "setting", "verb", "gone"}
        goes = row["becomes"] in {"recipe", "renamed", "setting", "verb", "gone"}
        assert bool(row["instead"]) == goes, row


@pytest.mark.parametrize("verb", OPTIONS)
def test_the_planned_options_stay_within_their_limit(verb):
    assert len(planned(verb)) <= OPTIONS[verb]


@pytest.mark.parametrize("verb", OPTIONS)
def test_a_verb_has_the_options_of_the_table(verb):
    now, later = offered()[verb] - SHARED, LATER.get(verb, {})
    assert now - later.keys() == planned(verb) - later.keys()
    assert not [name for name in later if (name in now) == (name in planned(verb))], (
        "met: take it off the list"
    )


def test_a_removed_option_gives_the_message_of_the_table():
    text = resources.files("gpubench").joinpath("data", "gone.csv").read_text(encoding="utf-8")
    gone = csv.DictReader(text.splitlines())
    told = {(row["verb"], row["option"].removeprefix("--")): row["instead"] for row in gone}
    now = offered()
    for row in option_rows():
        if row["instead"] and row["verb"] not in WENT and row["option"] not in now[row["verb"]]:
            assert told.pop((row["verb"], row["option"])) == row["instead"]
    assert not [key for key in told if key[1] in now.get(key[0], set())]


# --- the ranking --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranking_text() -> str:
    done = here("rank", "resnet50", "--limit", "5", "--json")
    assert done.returncode == 0
    return done.stdout


def test_each_key_is_listed_once_and_an_interval_by_its_three_keys():
    row = keys()["row"]
    assert len(set(row)) == len(row)
    assert {name.rpartition("_")[0] for name in row if name.endswith(("_low", "_high"))} <= set(row)


def test_a_ranking_has_the_keys_of_the_table(ranking_text):
    ranking = json.loads(ranking_text)
    assert ranking["schema"] == keys()["schema"]
    assert list(ranking) == keys()["top"]
    assert list(ranking["rows"][0]) == keys()["row"]
    assert set(ranking["answers"]) == set(keys()["answers"])


def test_a_short_ranking_is_a_short_document(ranking_text):
    assert len(ranking_text.encode()) <= keys()["most_bytes"]["rank --limit 5 --json"]


def test_the_brief_ranking_has_the_listed_keys_and_stays_small():
    done = here("rank", "resnet50", "--json", "--brief")
    assert done.returncode == 0
    assert len(done.stdout.encode()) <= keys()["most_bytes"]["rank --json --brief"]
    assert list(json.loads(done.stdout)) == keys()["brief"]


# --- the sentences ------------------------------------------------------------------------------------------


def test_each_sentence_has_a_known_kind_and_is_used():
    package = Path(str(resources.files("gpubench")))
    code = [
        path for suffix in ("py", "js") for path in package.rglob(f"*.{suffix}") if "vendor" not in path.parts
    ]
    words = set(re.findall(r"[\"'](\w+)[\"']", "".join(path.read_text(encoding="utf-8") for path in code)))
    table = sentences()
    told = table["sentences"]
    assert len({each["id"] for each in told}) == len(told)
    for each in told:
        assert each["kind"] in table["kinds"]
        assert each["id"] in words
        assert each["text"].endswith(".")


@pytest.mark.parametrize("each", sentences()["sentences"], ids=lambda each: each["id"])
def test_a_sentence_is_short_plain_english_with_named_fields(each):
    fields = [name for _, name, _, _ in string.Formatter().parse(each["text"]) if name is not None]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in fields)
    words = re.sub(r"`[^`]*`", "x", each["text"]).split()
    assert len(words) <= MOST_WORDS
    assert not re.search(r"^Of what|\bsuch\b|\bwhose\b|\bthat which\b", each["text"])


def test_a_sentence_is_reported_with_its_fields():
    assert say("relax_budget", usd="$12.30") == "A budget of $12.30 would be enough."
    with pytest.raises(KeyError):
        say("relax_budget")
