"""Help texts are printed as written, for people."""

from __future__ import annotations

import inspect
import re

import click
import pytest
from click.testing import CliRunner
from command import here

from gpubench.cli.app import app


def verbs() -> dict:
    context = click.Context(app)
    return {name: app.get_command(context, name) for name in app.list_commands(context)}


@pytest.mark.parametrize("name", ["doctor", "run", "rank", "memory"])
def test_no_help_text_is_interpreted_as_markup(name: str) -> None:
    done = here(name, "--help", COLUMNS="400", TERMINAL_WIDTH="400")
    assert done.returncode == 0
    printed = re.sub(r"[\s│]", "", done.stdout)
    for parameter in verbs()[name].params:
        written = re.sub(r"\s", "", inspect.cleandoc(getattr(parameter, "help", None) or ""))
        assert written in printed, parameter.name


@pytest.mark.parametrize("name", list(verbs()))
def test_no_help_text_shows_a_python_type(name: str) -> None:
    """``<bool>`` next to a switch would mean that it takes a value."""
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    assert "--help" in shown
    assert not re.search(r"<(str|bool|int|float|path|list)\b", shown)


@pytest.mark.parametrize("name", ["rank", "report"])
def test_the_name_of_a_setting_is_never_broken_at_a_hyphen(name: str) -> None:
    """A reader copies the names into the settings file."""
    shown = CliRunner().invoke(app, [name, "--help"], terminal_width=80).output
    assert "accept-outliers" in shown.partition("Settings, in")[2]
    assert not re.search(r"-\n", shown.partition("Settings, in")[2])


def test_a_command_group_without_an_action_points_to_its_help() -> None:
    done = here("results")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("(see gpubench results --help)")
