"""A hint names the missing package with our bounds; no text installs gpubench by its name on the index."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpubench import installing
from gpubench.installing import DISTRIBUTION, pip_install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BY_INDEX = re.compile(
    r"""\bpip3?\s+install\b[^\n`&;|#]*?[ '"]gpubench(?:-suite)?(?![\w./-])|\bgpubench(?:-suite)?\[\w"""
)
"""Names that pip would look up on its index: ``gpubench`` itself, or an extra of it."""


def texts() -> Iterator[Path]:
    """Yield every file that people read or the program prints, except tests."""
    for folder in ("gpubench", "workloads", "docs", "examples", "results/example", "results/example-cpu"):
        kinds = {".py", ".pyi", ".md", ".html", ".js", ".j2", ".csv", ".ipynb"}
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in kinds)
    yield from ROOT.glob("*.md")
    yield from (ROOT / ".github").rglob("*.yml")
    yield ROOT / ".ci" / "run"


def test_the_distribution_is_the_one_of_the_project():
    assert PROJECT["name"] == DISTRIBUTION
    assert PROJECT["scripts"].keys() == {"gpubench"}


def test_no_text_installs_gpubench_by_its_name():
    found = {
        path.relative_to(ROOT).as_posix(): hits
        for path in texts()
        if (hits := BY_INDEX.findall(path.read_text(encoding="utf-8")))
    }
    assert not found
    assert len(list(texts())) > 300


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("pip install gpubench", True),
        ("pip install -U 'gpubench-suite'", True),
        ("the extra gpubench[hf]", True),
        ("pip install '.[hf]' && gpubench run", False),
        ("pip install 'torchao>=0.15,<1'", False),
        ("pip install --quiet --python ~/gpubench-venv/bin/python wheel", False),
    ],
)
def test_install_by_index_name_is_detected(line, is_one):
    assert bool(BY_INDEX.search(line)) == is_one


LISTS = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
ASKED = [each for lines in LISTS for line in lines if (each := Requirement(line)).name != DISTRIBUTION]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)
def test_a_hint_has_the_bounds_of_the_project(asked):
    *command, package = shlex.split(pip_install(asked.name))
    assert command == ["pip", "install"]
    assert Requirement(package).specifier == asked.specifier


def test_install_hint_has_bare_names_if_gpubench_is_not_installed(monkeypatch):
    monkeypatch.setattr(installing, "DISTRIBUTION", "installed-by-nobody")
    assert pip_install("torchao", "jax[cuda13]") == "pip install torchao 'jax[cuda13]'"
