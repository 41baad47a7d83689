"""One system call after the other fails, in every command that touches the store: nothing that is finished goes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from gpubench.models import Measurement, Status
from gpubench.record import store

pytestmark = [
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None, reason="builds a library for Linux"
    ),
]

HERE = Path(__file__).parent
CALLS = ("open", "read", "write", "fsync", "rename", "unlink", "mkdir", "opendir", "stat")
ERRORS = (errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOMEM, errno.ENOSPC)
COMMANDS = {
    "run": ("run", "cnn", "--no-micro", "--device", "cpu", "--precision", "fp32"),
    "resume": ("run", "--resume", "20261120t000000z-abcd1234", "--device", "cpu"),
    "add": ("results", "add", "theirs.json"),
    "list": ("results", "list"),
    "rank": ("rank", "cnn", "--gpu", "h200"),
    "report": ("report", "-o", "page.html"),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("preload") / "failing_calls.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(path), str(HERE / "failing_calls.c"), "-ldl"], check=True
    )
    return path


@pytest.fixture
def template(tmp_path, make_run):
    """A store of a finished run and one that was cut off after a launch, whose line its file does not have yet."""
    place = tmp_path / "template"
    store.write_run(
        place / "results", make_run(run_id="20261119t000000z-00000001", finished_at="2026-11-19T01:00:00Z")
    )
    begun = make_run()
    (row,) = begun.measurements
    cut_off = msgspec.structs.replace(begun, measurements=(), planned=(row.case,), launch_count=3)
    store.write_run(place / "results", cut_off)
    store.note_launch(
        place / "results", cut_off, Measurement(case=row.case, status=Status.OK, launches=row.launches)
    )
    path = store.write_run(tmp_path / "theirs", make_run(run_id="20261118t000000z-00000002"))
    shutil.copy(path, place / "theirs.json")
    for stored in (place / "results").rglob("*.json"):
        os.utime(stored, (0, 0))  # a file that was just written is not set aside
    return place


def run_all(library: Path, template: Path, place: Path, plan: list) -> list[dict]:
    script = {"torch": metadata.version("torch")}
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "PYTHONPATH": f"{HERE.parent / 'measure'}",
        "GPUBENCH_SCRIPT": json.dumps(script),
        "GPUBENCH_RESULTS": str(place / "results"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "failing_calls.py"), str(library), str(template), str(place), json.dumps(plan)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "every", [pytest.param(False, id="short"), pytest.param(True, id="full", marks=pytest.mark.stress)]
)
def test_no_failing_call_costs_a_finished_launch_or_renames_a_healthy_file(
    library, template, tmp_path, every
):
    before = {
        f"{run.run_id} {m.case.label} {x.index}"
        for run in store.read_runs(template / "results").runs
        for m in run.measurements
        for x in m.launches
    }
    assert len(before) == 2
    commands = COMMANDS if every else {"add": COMMANDS["add"]}
    never = [[arguments, call, 0, 0] for arguments in commands.values() for call in CALLS]
    counted = {
        (tuple(r["arguments"]), r["call"]): r["calls"]
        for r in run_all(library, template, tmp_path / "place", never)
    }
    assert sum(counted.values()) > 20
    plan = [
        [list(arguments), call, nth, number]
        for (arguments, call), calls in counted.items()
        for nth in range(1, calls + 1)
        for number in (ERRORS if every else ERRORS[nth % len(ERRORS) :][:1])
    ]
    results = run_all(library, template, tmp_path / "place", plan)
    assert len(results) == len(plan)
    for result in results:
        assert before <= set(result["launches"]), result
        assert (result["aside"], result["problems"]) == ([], []), result
        assert result["code"] in {0, 1, 2, 3, 4, 5}, result
        assert "Traceback" not in result["said"], result
    print(f"\n{len(results)} failed calls: exit codes {sorted({result['code'] for result in results})}")
