"""Checks of real cards, judged by today's rules; and the list of them in the README."""

from __future__ import annotations

import getpass
import json
import platform
import re
from pathlib import Path

import msgspec
import pytest

from cuda_check.builders import blocks, check, clock
from gpubench.cuda_check import run
from gpubench.cuda_check.bench import ProcessLostError
from gpubench.cuda_check.cases import _every_trial, _in_order, slowness
from gpubench.cuda_check.judge import CORE, confirms, failed, judge
from gpubench.cuda_check.plan import (
    AMOUNTS,
    COLD_START_S,
    LIMIT_S,
    MOST_FIRST_CASE_S,
    STARTS,
    make_plan,
)
from gpubench.cuda_check.store import file_name, read_check, scrubbed, write_check
from gpubench.measure.estimate import PROCESS_START_S
from gpubench.models import CudaCheck, PartState

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
    """How the page of limits lists a confirmed card."""
    return f"{stored.device.name}, torch {stored.environment.torch}"


def test_every_confirmed_card_still_passes_and_stands_on_the_page_of_limits():
    listed = re.search(
        r"Confirmed on: (.+?)\n\n", (ROOT / "docs" / "limits.md").read_text(encoding="utf-8"), re.DOTALL
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


class Clock:
    """In place of the module ``time``: a moment that parts move on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize("path", sorted(CONFIRMED.glob("*.json")), ids=lambda path: path.stem)
def test_what_proves_the_harness_is_expected_to_take_what_it_took(path):
    """By today's arithmetic, at the amounts of the file: the H200's comparisons were of five times four blocks.

    No part took longer, on hosts of which one starts a process in 4 s and the other in 6; of the first case the plan
    cannot know whether cuDNN's trials will take 3 s or 22.
    """
    stored = read_check(path)
    logs = {log.name: log for log in stored.parts}
    fours = len(stored.clock.by_hand.first_s) // 2
    started_s = sum(logs["precision"].phases_s[phase] for phase in run.STARTING)
    assert started_s < PROCESS_START_S + COLD_START_S
    expected_s = make_plan(stored.device, amounts=msgspec.structs.replace(AMOUNTS, fours=fours)).expected_s
    over_s = {
        name: expected_s[name] - logs[name].took_s
        for name in ("device", "precision", "clock", "graph", "load", "faults")
    }
    assert min(over_s.values()) >= 0.0, over_s
    assert max(over_s.values()) <= 6.0, over_s
    assert max(over_s["graph"], over_s["load"]) <= 1.0, over_s


@pytest.mark.parametrize("path", sorted(CONFIRMED.glob("*.json")), ids=lambda path: path.stem)
def test_the_cases_that_a_card_tried_are_expected_to_take_what_they_took(path):
    """All of them together, each part's process among them: a case by itself takes seconds more or less."""
    stored = read_check(path)
    took_s = {row.case: row.took_s for row in stored.cases}
    made = make_plan(stored.device)
    known = tuple(_every_trial(stored.device, (), slowness(stored.device)))
    every = _in_order([t for t in known if t.case in took_s], known, made.proof)
    expected_s = MOST_FIRST_CASE_S + sum(t.expected_s for t in every)  # the first in the process of fp32
    assert sum(took_s[t.case] for t in every) == pytest.approx(expected_s, rel=0.1)
    compiled_s = {t.case: t.expected_s for t in made.compiled}
    for case, seconds in took_s.items():
        if case in compiled_s:
            assert seconds <= compiled_s[case]


def test_the_quick_part_takes_what_is_announced_within_a_fifth():
    for path in sorted(CONFIRMED.glob("*.json")):
        quick = read_check(path).quick
        assert quick.took_s == pytest.approx(quick.expected_s, rel=0.2), path.name


@pytest.mark.parametrize("late_start_s", [0.0, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("path", sorted(CONFIRMED.glob("*.json")), ids=lambda path: path.stem)
def test_a_confirmed_card_would_be_confirmed_by_the_plan_of_today(path, late_start_s, tmp_path, monkeypatch):
    """Its own times in today's plan, also on a machine whose processes start later: no core part is cut off.

    Parts that leave out what does not fit end in time; any other takes as long as it took.
    """
    stored, now = read_check(path), Clock()
    logs = {log.name: log for log in stored.parts}

    def taking(name: str):
        def do(work):
            late_s = STARTS.get(name, 0) * late_start_s
            took_s, left_s = logs[name].took_s + late_s, work.until_s - now.now_s
            elastic = name in {"cases", "compile", "fp32", "quick"}
            now.now_s += min(took_s, left_s)
            if took_s > left_s and not elastic:
                raise ProcessLostError("its time was over", late=True)
            if name == "precision":
                started = run.STARTING[0]
                work.bench.phases.took_s.update(logs[name].phases_s)
                work.bench.phases.took_s[started] += late_start_s

        return do

    monkeypatch.setattr(run, "time", now)
    monkeypatch.setattr(run, "STEPS", {name: taking(name) for name in logs})
    made = run.check_cuda(stored.device, tmp_path / "check.json")
    ends = {log.name: log.state for log in made.parts}
    assert {ends[name] for name in CORE | {"load", "cases", "compile"}} == {PartState.DONE}, made.parts
    started_s = late_start_s + sum(logs["precision"].phases_s[phase] for phase in run.STARTING)
    given_up = started_s > 15.0  # three times what a process is expected to take
    assert ends["quick"] is (PartState.LEFT_OUT if given_up else PartState.DONE)
    assert now.now_s <= LIMIT_S
