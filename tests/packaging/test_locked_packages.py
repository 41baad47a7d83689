"""The lock lists everything that CI installs, at the versions of constraints.txt, with hashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from lock import ALL, LEFT_OUT, LOCK, OF_THE_MACHINE, RUN, all_constraints, pins, run_constraints
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from gpubench.installing import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+) --hash=sha256:[0-9a-f]{64}")
RENEW = "update the lock: tests/packaging/lock.py says how"


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    found = [LINE.fullmatch(line) for line in pins(LOCK)]
    return {canonicalize_name(each["name"]): each["version"] for each in found}


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    split = (line.partition("==") for line in pins(ALL))
    return {canonicalize_name(name): version for name, _, version in split}


def test_the_constraints_are_a_torch_and_the_lock(locked, told):
    torch = told["torch"]
    assert told == locked | {"torch": torch}, RENEW
    assert ALL.read_text(encoding="utf-8") == all_constraints(f"torch=={torch}"), RENEW
    assert not LEFT_OUT & locked.keys()


def test_the_setup_command_has_these_versions_as_upper_bounds_and_no_torch(told):
    assert RUN.read_text(encoding="utf-8") == run_constraints(), RENEW
    held = [Requirement(line) for line in pins(RUN)]
    assert {canonicalize_name(each.name): str(each.specifier) for each in held} == {
        name: f"<={version}" for name, version in told.items() if name not in OF_THE_MACHINE
    }


def test_constraints_leave_torch_dependencies_unpinned():
    left, needed = ["torch", "torchao"], set()
    while left:
        name = left.pop()
        needed.add(name)
        with suppress(metadata.PackageNotFoundError):
            asked = asked_for(metadata.requires(name) or (), frozenset())
            left += {canonicalize_name(each.name) for each in asked} - needed
    assert {name for name in needed if not name.startswith(("nvidia-", "cuda-", "triton"))} <= OF_THE_MACHINE
    held = {canonicalize_name(Requirement(line).name) for line in pins(RUN)}
    assert {"numpy", "pandas", "plotly"} <= held
    assert not held & (OF_THE_MACHINE | needed)


UNBROKEN = frozenset({"amdsmi", "jinja2", "platformdirs", "psutil", "pyopencl", "rich"})
"""No major version of these has changed what gpubench uses; the major versions of pyopencl are years."""


def test_upper_bounds_follow_breaking_or_missing_major_versions(locked):
    """torch has no upper bound, so that an environment keeps the torch it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: lines for name, lines in project["optional-dependencies"].items() if name not in {"test", "dev"}
    }
    asked = [
        Requirement(line)
        for line in (*project["dependencies"], *(each for lines in extras.values() for each in lines))
    ]
    bare = {
        canonicalize_name(each.name) for each in asked if not any(s.operator == "<" for s in each.specifier)
    }
    assert bare == UNBROKEN | LEFT_OUT
    for each in asked:
        floor, ceiling = (
            next((Version(s.version).major for s in each.specifier if s.operator == operator), None)
            for operator in (">=", "<")
        )
        assert floor != 0 or ceiling == 1, each
        assert canonicalize_name(each.name) in LEFT_OUT or each.specifier.contains(
            locked.get(canonicalize_name(each.name), "1")
        ), each


def test_a_workflow_with_write_access_installs_by_hash():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").iterdir()]
    writing = [text for text in texts if "contents: write" in text]
    assert writing
    for text in writing:
        installs = [line for line in text.splitlines() if "pip install" in line]
        assert all("--no-deps" in line for line in installs)
        assert "--require-hashes -r constraints.lock" in installs[0]


def asked_for(lines: Iterable[str], extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield the dependencies among these lines that apply here with these extras."""
    for line in lines:
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in extras or {""}]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield requirement


def test_the_lock_lists_everything_that_tests_and_linters_install(locked):
    """Dependencies of a package count too if its installed version is the locked one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    left = [*asked_for(project["dependencies"], frozenset()), *asked_for(extras["dev"], frozenset())]
    lacks, seen = set(), set()
    while left:
        each = left.pop()
        name = canonicalize_name(each.name)
        if name == DISTRIBUTION:
            left += asked_for((line for extra in each.extras for line in extras[extra]), frozenset())
        if name in LEFT_OUT or (name, frozenset(each.extras)) in seen:
            continue
        seen.add((name, frozenset(each.extras)))
        if name not in locked:
            lacks.add(name)
            continue
        try:
            there = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if there.version == locked[name]:
            left += asked_for(there.requires or (), frozenset(each.extras))
    assert not lacks, RENEW
    assert len(seen) > 60
