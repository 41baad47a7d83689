"""Each system call fails in turn, in every command that touches the store: no finished work is lost."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from telling import DAMAGED, launches_of, launches_printed, launches_told

from gpubench.record import store

pytestmark = [
    pytest.mark.timeout(28_800),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None, reason="builds a library for Linux"
    ),
]

HERE = Path(__file__).parent
FILES = ("open", "read", "write", "fsync", "rename", "unlink", "mkdir", "opendir", "stat")
DESCRIPTORS = ("close", "flock", "fstat", "lseek", "readdir")
CALLS = (*FILES, *DESCRIPTORS, "pipe", "fork")
SHORT = {"add": FILES, "resume": ("pipe", "fork"), "mend": ("write", "fsync", "rename")}
"""The short form: calls that files need, calls that children need, and calls that write instead of a damaged file."""
ERRORS = (errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOMEM, errno.ENOSPC)
RUN = ("run", "cnn", "lstm", "--micro", "none", "--device", "cpu", "--precision", "fp32", "--json")
COMMANDS = {
    "add": ("results", "add", "{place}/theirs.json"),
    "list": ("results", "list"),
    "rank": ("rank", "cnn", "--gpu", "h200"),
    "report": ("report", "-o", "{place}/page.html"),
    "resume": ("run", "--resume", "latest", "--device", "cpu", "--json"),
    "mend": ("run", "--resume", DAMAGED, "--device", "cpu", "--json"),
    "run": RUN,
}
"""Files are given by absolute paths: calls on files outside the folder never fail."""
NAMED = {"add": "theirs.json", "report": "page.html"}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("preload") / "failing_calls.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(path), str(HERE / "failing_calls.c"), "-ldl"], check=True
    )
    return path


ENVIRONMENT = os.environ | {
    "PYTHONPATH": f"{HERE.parent / 'measure'}",
    "GPUBENCH_SCRIPT": json.dumps({"torch": metadata.version("torch")}),
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def template(tmp_path, make_run):
    """A store with a finished run, and two runs with a process that died after the first launch."""
    place = tmp_path / "template"
    store.write_run(
        place / "results", make_run(run_id="20261119t000000z-00000001", finished_at="2026-11-19T01:00:00Z")
    )
    begun = subprocess.run(
        [*DRIVER, "begin", str(place), json.dumps(RUN)],
        env=ENVIRONMENT | folders(place), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert begun.returncode == 9, begun.stderr
    file = store.find_run(place / "results", "latest")
    other = file.with_name(f"{DAMAGED}.json")
    other.write_bytes(file.read_bytes().replace(file.stem.encode(), DAMAGED.encode()))
    path = store.write_run(tmp_path / "theirs", make_run(run_id="20261118t000000z-00000002"))
    shutil.copy(path, place / "theirs.json")
    for stored in (place / "results").rglob("*.json"):
        os.utime(stored, (0, 0))  # a file that was just written is not set aside
    return place


def folders(place: Path) -> dict[str, str]:
    """Everything that a command writes is in one folder; its data identify a device again."""
    return {
        "GPUBENCH_RESULTS": str(place / "results"),
        "XDG_CACHE_HOME": str(place / "cache"),
        "XDG_DATA_HOME": str(place / "data"),
    }


DRIVER = [sys.executable, str(HERE / "failing_calls.py")]


def run_all(library: Path, template: Path, place: Path, plan: list) -> Iterator[dict]:
    """Yield each result as it arrives, so a stopped pass has checked as many as it reports."""
    environment = ENVIRONMENT | {"LD_PRELOAD": str(library)} | folders(place)
    told, said = place.with_name("plan"), place.with_name("said")
    told.write_text(json.dumps(plan))
    command = [*DRIVER, str(library), str(template), str(place)]
    with told.open() as orders, said.open("w") as errors:
        driver = subprocess.Popen(
            command, env=environment, stdin=orders, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    with driver:
        yield from map(json.loads, driver.stdout)
    assert driver.returncode == 0, said.read_text()


@pytest.mark.parametrize(
    "every", [pytest.param(False, id="short"), pytest.param(True, id="full", marks=pytest.mark.stress)]
)
def test_no_failing_call_loses_a_finished_launch_or_renames_a_healthy_file(
    library, template, tmp_path, every
):
    before = set().union(*map(launches_of, store.read_runs(template / "results").runs))
    assert len(before) == 3
    place = tmp_path / "place"
    commands = {name: [word.format(place=place) for word in words] for name, words in COMMANDS.items()}
    calls_of = dict.fromkeys(COMMANDS, CALLS) if every else SHORT
    never = [[commands[name], " ".join(calls), 0, 0] for name, calls in calls_of.items()]
    unharmed = list(run_all(library, template, place, never))
    assert {result["code"] for result in unharmed} == {0}, [r["said"] for r in unharmed if r["code"] != 0][:1]
    assert all(launches_told(r["said"]) for r in unharmed if "run" in r["arguments"])
    counted = {
        (tuple(result["arguments"]), call): calls
        for result in unharmed
        for call, calls in result["calls"].items()
    }
    seen: Counter[str] = Counter()
    for (_, call), calls in counted.items():
        seen[call] += calls
    assert all(seen[call] for calls in calls_of.values() for call in calls), seen
    plan = [
        [list(arguments), call, nth, number]
        for (arguments, call), calls in counted.items()
        for nth in range(1, calls + 1)
        for number in (ERRORS if every else ERRORS[nth % len(ERRORS) :][:1])
    ]
    chance = random.Random(int(os.environ.get("GPUBENCH_STRESS_SEED", "20261122")))
    whole = len(plan)
    plan = chance.sample(plan, min(whole, int(os.environ.get("GPUBENCH_STRESS_COUNT", whole))))
    codes: Counter[int] = Counter()
    refused: set[str] = set()
    for result in run_all(library, template, place, plan):
        check(result, before)
        codes[result["code"]] += 1
        refused |= {file for file in NAMED.values() if f"{place}/{file}: " in result["said"]}
        if codes.total() % 50 == 0:
            print(f"{codes.total()} of {len(plan)}", flush=True)
    print(
        f"\n{len(plan)} of {whole} failed calls of {len(counted)} kinds: exit codes {dict(sorted(codes.items()))}"
    )
    assert codes.total() == len(plan)
    if len(plan) > whole // 10:  # if only a few were drawn, none may be of these
        assert refused == {NAMED[name] for name in calls_of if name in NAMED}


def check(result: dict, before: set[str]) -> None:
    """Earlier finished work still exists, no healthy file is renamed, and reported launches are stored.

    If the damaged file cannot be replaced, the run is printed.
    """
    lost = before - set(result["launches"])
    if lost:
        assert (result["code"], DAMAGED in result["arguments"]) == (5, True), result
        assert lost <= set().union(*map(launches_printed, result["said"].splitlines())), result
        assert len(result["problems"]) == 1, result
        return
    assert set(result["aside"]) <= (
        {f"{DAMAGED}.json.corrupt"} if DAMAGED in result["arguments"] else set()
    ), result
    assert result["problems"] == [], result
    assert result["code"] in {0, 1, 2, 3, 4, 5}, result
    assert "Traceback" not in result["said"], result
    gained = set(result["launches"]) - before
    assert len(gained) >= launches_told(result["said"]), result
    assert set(result["printed"]) <= set(result["launches"]), result
    if result["code"] == 0 and "run" in result["arguments"]:
        assert gained or "not be started" in result["said"], result
