"""Each screen at common terminal widths: whole words, and no more lines than fit."""

from __future__ import annotations

import re

import pytest
from command import here

WIDE = "10000"
SCREENS = {
    ("predict", "show", "vgg16"): 40,
    ("predict", "show", "vgg16", "--table"): None,
    ("predict", "show", "vgg16", "--sort", "energy"): 40,
    ("predict", "show", "vgg16", "--power-limit", "250"): 40,
    ("memory",): 30,
    ("memory", "vgg16"): 30,
    ("memory", "vgg16", "--table"): None,
    ("rank", "resnet50"): 24,
    ("rank", "resnet50", "--table", "--explain"): None,
    ("list",): None,
    ("list", "--gpus"): None,
    ("probe",): 30,
    ("offers", "list", "--provider", "aws"): None,
}
"""The maximum number of lines on each command's first screen; None if the user asked for everything."""
PLACELESS = {"list", "probe"}


def words(lines: list[str]) -> set[str]:
    """Return the words of a screen; a long name may be broken after punctuation."""
    return {word for line in lines for word in re.sub(r"[(),;·─._-]", " ", line).split()}


@pytest.mark.parametrize("command", SCREENS, ids=" ".join)
def test_no_word_is_broken_and_lines_stay_within_their_limits(command, tmp_path, monkeypatch):
    shown = {}
    for columns in ("80", "120", WIDE):
        monkeypatch.setenv("COLUMNS", columns)
        place = () if command[0] in PLACELESS else ("--results", tmp_path)
        done = here(*command, *place)
        assert done.returncode == 0, done.stderr
        shown[columns] = done.stdout.splitlines()
    for columns in ("80", "120"):
        assert max(map(len, shown[columns])) <= int(columns)
        left_out = {"Not", "shown", "at", "this", "width:"}
        broken = words(shown[columns]) - words(shown[WIDE]) - left_out
        assert not {word for word in broken if len(word) > 1}, (columns, broken)
    most = SCREENS[command]
    assert most is None or len(shown["80"]) <= most


@pytest.mark.parametrize(
    ("asked", "columns"),
    [(("--sort", "energy"), ("Joules per sample",)), (("--power-limit", "250"), ("Time", "Energy"))],
    ids=["order", "limit"],
)
@pytest.mark.parametrize("whole", [(), ("--table",)], ids=["head", "table"])
def test_the_answer_about_energy_is_on_the_screen(asked, columns, whole, monkeypatch):
    monkeypatch.setenv("COLUMNS", WIDE)
    told = here("predict", "show", "vgg16", *asked, *whole).stdout
    (titles,) = (line for line in told.splitlines() if line.startswith("GPU "))
    assert all(column in titles for column in columns)
    assert ("under a limit of 250 W" in told) == ("--power-limit" in asked)
