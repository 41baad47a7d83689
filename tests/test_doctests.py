"""The examples in docstrings are correct."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "gpubench").rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_docstring_examples_of_a_module_are_correct(name):
    failed, attempted = doctest.testmod(import_module(name))
    assert attempted > 0
    assert failed == 0
