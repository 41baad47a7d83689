"""Checks of real cards, judged by today's rules, and their list in docs/limits.md."""

from __future__ import annotations

import getpass
import json
import platform
import re
from pathlib import Path

import pytest

from cuda_check.builders import H200, blocks, check, clock, read_check
from gpubench.cuda_check import run
from gpubench.cuda_check.judge import (
    CORE,
    confirms,
    file_name,
    judge,
    scrubbed,
    states_of,
    write_check,
)
from gpubench.cuda_check.run import STEPS, PartEndedError
from gpubench.models import CudaCheck, PartState

ROOT = Path(__file__).parents[2]
CONFIRMED = ROOT / "tests" / "data" / "confirmed"
NONE_YET = "not yet confirmed on any card"


@pytest.fixture(autouse=True)
def _nobody(monkeypatch):
    """Set the names of user and machine, because a file is scrubbed of both when it is written."""
    monkeypatch.setattr(platform, "node", lambda: "machine-of-nobody")
    monkeypatch.setattr(getpass, "getuser", lambda: "nobody-at-all")


def replay(path: Path) -> CudaCheck:
    """Read a confirmed file and apply all of today's rules."""
    stored = read_check(path)
    wrong = [
        f"{v.part}, {v.what}: {v.found} ({v.limit}): {v.reason}" for v in judge(stored) if v.state == "FAILED"
    ]
    assert not wrong, f"{path.name}: {wrong}"
    assert confirms(stored), f"{path.name} fails nothing and confirms nothing: a part is missing or undecided"
    assert path.name == file_name(stored.device, stored.environment.torch)
    document = json.loads(path.read_bytes())
    assert scrubbed(document) == document, f"{path.name} contains text that would be scrubbed today"
    return stored


def line_of(stored: CudaCheck) -> str:
    """Return the entry of a confirmed card on the page of limits."""
    return f"{stored.device.name}, torch {stored.environment.torch}"


def test_every_confirmed_card_still_passes_and_is_on_the_page_of_limits():
    listed = re.search(
        r"Confirmed on: (.+?)\n\n", (ROOT / "docs" / "limits.md").read_text(encoding="utf-8"), re.DOTALL
    )
    stored = [replay(path) for path in sorted(CONFIRMED.glob("*.json"))]
    assert listed is not None
    text = " ".join(listed[1].split())
    assert text.rstrip(".") == ("; ".join(map(line_of, stored)) or NONE_YET)


def test_a_file_is_replayed_by_name_content_and_rules(tmp_path):
    """The replay itself, on made-up files, which are never shipped."""
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
    assert "FAILED" not in states_of(judge(made))


def test_a_file_of_an_older_gpubench_with_fewer_fields_is_replayed(tmp_path):
    """The file lacks fields that were added later, and nothing in it is rewritten."""
    made = check()
    path = tmp_path / file_name(made.device, made.environment.torch)
    write_check(path, made)
    document = json.loads(path.read_bytes())
    for field in ("findings", "schema_version"):
        del document[field]
    path.write_text(json.dumps(document, indent=3))
    assert confirms(replay(path))


class Clock:
    """Replaces the module ``time`` with a clock that the parts advance."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize("late_start_s", [0.0, 5.0, 15.0])
@pytest.mark.parametrize("path", sorted(CONFIRMED.glob("*.json")), ids=lambda path: path.stem)
def test_confirmed_card_would_finish_within_todays_time_limits(path, late_start_s, tmp_path, monkeypatch):
    """With the times of that card, even if processes start slower, no core part is cut off.

    Parts that skip what does not fit end in time; every other part takes as long as it did then. Strict fp32, which
    had its own process, is now among the cases.
    """
    stored, now = read_check(path), Clock()
    took_s = {log.name: log.took_s or 0.0 for log in stored.parts}
    took_s["cases"] += took_s.pop("fp32") + took_s.pop("compile")
    starts = {"precision": 1, "faults": 4, "cases": 1}

    def taking(name: str):
        def do(work):
            needs_s, left_s = took_s[name] + starts.get(name, 0) * late_start_s, work.until_s - now.now_s
            now.now_s += min(needs_s, left_s)
            if needs_s > left_s and name != "cases":
                raise PartEndedError(PartState.CUT_OFF, "its time was over")

        return do

    monkeypatch.setattr(run, "time", now)
    monkeypatch.setattr(run, "STEPS", {name: taking(name) for name in STEPS if name in took_s})
    made = run.check_cuda(stored.device, tmp_path / "check.json")
    ends = {log.name: log.state for log in made.parts}
    assert {ends[name] for name in CORE | {"load"}} == {PartState.DONE}, made.parts
    assert ends["cases"] is PartState.DONE or late_start_s
    assert now.now_s <= run.LIMIT_S


def test_a_part_that_hangs_leaves_time_for_those_after_it(tmp_path, monkeypatch):
    now, ends_s = Clock(), {}

    def hang(name: str):
        def do(work):
            ends_s[name] = work.until_s
            now.now_s = work.until_s if name == "clock" else now.now_s + 1.0

        return do

    monkeypatch.setattr(run, "time", now)
    monkeypatch.setattr(run, "STEPS", {name: hang(name) for name in ("device", "clock", "graph", "cases")})
    made = run.check_cuda(H200, tmp_path / "check.json")
    assert ends_s["clock"] == pytest.approx(1.0 + 0.6 * 299.0)
    assert ends_s["graph"] > ends_s["clock"] + 60
    assert ends_s["cases"] == run.LIMIT_S
    assert {log.state for log in made.parts} == {PartState.DONE}
