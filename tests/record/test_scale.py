"""Ten thousand stored runs: listed, ranked and reported within limits of CPU time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timing, pytest.mark.skipif(os.name != "posix", reason="asks what a child has used")]

COUNT = 10_000
RUN = next((Path(__file__).parents[1] / "golden" / "data" / "results" / "runs" / "cpu").glob("*.json"))
USED = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A small process starts the command, because a child's peak memory is at least its parent's."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    folder = root / "runs" / "cpu"
    folder.mkdir(parents=True)
    content = RUN.read_bytes()
    for number in range(COUNT):
        run_id = f"20261119t{number:06d}z-{number:08x}"
        (folder / f"{run_id}.json").write_bytes(content.replace(RUN.stem.encode(), run_id.encode()))
    return root


def used(environment: dict[str, str], *arguments: str) -> tuple[float, float]:
    """Return the seconds of CPU and the MB of memory of a command, including its children."""
    command = [sys.executable, "-c", USED, sys.executable, "-m", "gpubench", *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    cpu_s, most_kb = map(float, done.stdout.split())
    return cpu_s, most_kb / 1000


@pytest.mark.parametrize(
    ("arguments", "limit_s", "limit_mb"),
    [(("results", "list"), 6.0, 400), (("rank",), 3.0, 200), (("report",), 10.0, 300)],
    ids=["list", "rank", "report"],
)
def test_ten_thousand_runs_stay_within_the_limits(tmp_path, stored, arguments, limit_s, limit_mb):
    """A listing reads all runs, and other verbs the newest runs of each device."""
    environment = os.environ | {"GPUBENCH_RESULTS": str(stored)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    page = ("-o", str(tmp_path / "page.html")) if arguments == ("report",) else ()
    taken = [used(environment, *arguments, *page) for _ in range(3)]
    least_s, most_mb = min(cpu_s for cpu_s, _ in taken), max(mb for _, mb in taken)
    print(f"\n{arguments[-1]} of {COUNT:,} runs: {least_s:.2f} s of CPU, {most_mb:.0f} MB")
    assert least_s <= limit_s
    assert most_mb <= limit_mb
