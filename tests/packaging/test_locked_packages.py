"""The lock of CI names the versions of constraints.txt, each with the hash of its file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"(?P<name>[a-z0-9._-]+)==(?P<version>\S+) --hash=sha256:[0-9a-f]{64}")


def pins(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_is_locked_by_its_hash_and_at_the_version_of_the_constraints():
    locked = {
        plain(LINE.fullmatch(line)["name"]): LINE.fullmatch(line)["version"]
        for line in pins(ROOT / "constraints.lock")
    }
    told = {
        plain(name): version
        for name, _, version in (line.partition("==") for line in pins(ROOT / "constraints.txt"))
    }
    both = locked.keys() & told.keys()
    assert both >= {"numpy", "pandas", "msgspec", "typer", "rich", "jinja2", "psutil", "nvidia-ml-py"}
    assert {name: locked[name] for name in both} == {name: told[name] for name in both}
    assert "torch" not in locked
