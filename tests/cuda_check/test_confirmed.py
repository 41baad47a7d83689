"""Checks of real cards, judged by today's rules; and the list of them in the README."""

from __future__ import annotations

import getpass
import json
import platform
import re
from pathlib import Path

import pytest

from cuda_check.builders import blocks, check, clock
from gpubench.cuda_check.judge import confirms, failed, judge
from gpubench.cuda_check.store import file_name, read_check, scrubbed, write_check
from gpubench.models import CudaCheck

ROOT = Path(__file__).parents[2]
CONFIRMED = ROOT / "tests" / "data" / "confirmed"
NONE_YET = "not yet confirmed on any card"


@pytest.fixture(autouse=True)
def _nobody(monkeypatch):
    """Whoever runs these tests, and where: a file is scrubbed of its own machine when it is written."""
    monkeypatch.setattr(platform, "node", lambda: "machine-of-nobody")
    monkeypatch.setattr(getpass, "getuser", lambda: "nobody-at-all")


def replay(path: Path) -> CudaCheck:
    """Read a confirmed file and hold it to every rule of today."""
    stored = read_check(path)
    wrong = [
        f"{v.part}, {v.what}: {v.found} ({v.limit}): {v.reason}" for v in judge(stored) if v.state == "FAILED"
    ]
    assert not wrong, f"{path.name}: {wrong}"
    assert confirms(stored), f"{path.name} fails nothing and confirms nothing: a part is missing or undecided"
    assert path.name == file_name(stored.device, stored.environment.torch)
    document = json.loads(path.read_bytes())
    assert scrubbed(document) == document, f"{path.name} holds what would be scrubbed today"
    return stored


def line_of(stored: CudaCheck) -> str:
    """How the README lists a confirmed card."""
    return f"{stored.device.name}, torch {stored.environment.torch}"


def test_every_confirmed_card_still_passes_and_stands_in_the_readme():
    listed = re.search(
        r"Confirmed on: (.+?)\n\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    stored = [replay(path) for path in sorted(CONFIRMED.glob("*.json"))]
    assert listed is not None
    text = " ".join(listed[1].split())
    assert text.rstrip(".") == ("; ".join(map(line_of, stored)) or NONE_YET)


def test_a_file_is_replayed_by_name_content_and_rules(tmp_path):
    """The replay itself, on made-up files: no such file is ever shipped."""
    made = check()
    path = tmp_path / file_name(made.device, made.environment.torch)
    write_check(path, made)
    assert line_of(replay(path)) == "NVIDIA H200, torch 2.13.0+cu130"
    (tmp_path / "renamed.json").write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b'"Linux"', b'"/home/ann/x"'))
    for wrong in (tmp_path / "renamed.json", path):
        with pytest.raises(AssertionError):
            replay(wrong)
    for bad in (check(clock=clock(by_hand=blocks(1.1))), check(finished_at=None)):
        write_check(path, bad)
        with pytest.raises(AssertionError):
            replay(path)
    assert not failed(judge(made))


def test_a_file_of_an_older_gpubench_with_fewer_fields_is_replayed(tmp_path):
    """A field that is added later is not in it, and nothing of it is rewritten."""
    made = check()
    path = tmp_path / file_name(made.device, made.environment.torch)
    write_check(path, made)
    document = json.loads(path.read_bytes())
    for field in ("findings", "scaling", "schema_version"):
        del document[field]
    path.write_text(json.dumps(document, indent=3))
    assert confirms(replay(path))
