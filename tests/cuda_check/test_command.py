"""Output and exit codes of ``gpubench check --cuda``, on made-up checks."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from cuda_check.builders import H200, blocks, check, clock, faults, row, with_part
from gpubench.cli.app import app
from gpubench.cuda_check import run as cuda_check
from gpubench.cuda_check.run import STEPS
from gpubench.models import (
    CudaCheck,
    PartState,
    Status,
)


@pytest.fixture
def command(monkeypatch, tmp_path):
    """``command(check, *arguments)``: the command as if that check had been read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpubench.probe.select.select_device", lambda name: (H200, None))

    def run(made: CudaCheck, *arguments: str):
        def read(device, path, *, full, on_part):
            del device, full
            path.write_text("{}")
            for part in made.parts:
                on_part(part, 1, len(made.parts))
            return made

        monkeypatch.setattr(cuda_check, "check_cuda", read)
        return CliRunner().invoke(app, ["check", "--cuda", *arguments])

    return run


BAD = check(clock=clock(by_hand=blocks(1.2)))
OPEN = check(clock=clock(by_hand=blocks(1.0, noise=0.05)))
LATE = with_part(check(), "graph", state=PartState.LEFT_OUT, reason="no time left: use --full")
CUT = with_part(check(), "graph", state=PartState.CUT_OFF, reason="cut off during timed: its time was over")


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        (check(), 0, "to tests/data/confirmed/"),
        (BAD, 1, "a part failed"),
        (OPEN, 0, "1 judgment undecided"),
        (LATE, 0, "a part is missing"),
        (CUT, 1, "did not finish in time"),
    ],
    ids=["sound", "failed", "undecided", "late", "cut"],
)
def test_the_last_lines_say_what_to_do_with_the_file(command, tmp_path, made, code, words):
    done = command(made)
    assert done.exit_code == code, done.output
    last = done.stderr.splitlines()[-1]
    assert words in last
    (path,) = tmp_path.iterdir()
    assert path.name in last
    assert path.name.startswith("cuda-check-nvidia-h200-sxm-141gb-")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((), "at most 5 min"), (("--full",), "without a time limit; ")],
    ids=["in five minutes", "full"],
)
def test_the_duration_is_announced_with_each_part(command, arguments, words):
    said = command(check(), *arguments).stderr
    assert words in said.splitlines()[0]
    assert len(said.splitlines()) == 1 + len(STEPS) + 1


def test_each_judgment_is_a_line_of_the_table_and_each_reason_is_reported(command):
    done = command(check(faults=faults(waiting=row(Status.FAILED, "no such kernel"))))
    text = " ".join(done.stdout.split())
    for part in ("precision", "clock", "graph", "load", "cases", "faults"):
        assert part in text
    assert "FAILED" in text
    assert "no such kernel" in text


def test_the_file_may_be_named_and_json_is_one_document(command, tmp_path):
    done = command(check(), "--json", "-o", "mine.json")
    document = json.loads(done.stdout)
    assert document["file"] == "mine.json"
    assert document["confirms"] is True
    assert {"part", "what", "state", "found", "limit", "reason"} == document["verdicts"][0].keys()
    assert (tmp_path / "mine.json").exists()
