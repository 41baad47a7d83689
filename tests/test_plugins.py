"""Installed plug-in packages that do not load: every verb continues without them and names them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command import gpubench, here

from gpubench import discovery

BODIES = {
    "raises": 'raise RuntimeError("out of luck")',
    "exits": "raise SystemExit(3)",
    "lacks": "import no_such_module_here",
    "does not parse": "def broken(:",
}


@pytest.fixture
def installed(tmp_path):
    """``installed(group, bodies)`` puts packages on Python's path and returns the environment with them."""

    def put(group: str, bodies: dict[str, str]) -> dict[str, str]:
        site = tmp_path / "site"
        for number, body in enumerate(bodies.values()):
            info = site / f"bad_luck_{number}-1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bad-luck-{number}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(
                f"[{group}]\nboom_{number} = bad_luck_module_{number}:THING\n"
            )
            (site / f"bad_luck_module_{number}.py").write_text(f"{body}\nTHING = object()\n")
        return {
            **os.environ,
            "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "GPUBENCH_RESULTS": str(tmp_path / "results"),
            "COLUMNS": "300",
        }

    return put


def told(text: str, pattern: str, count: int = len(BODIES)) -> bool:
    return all(pattern.format(number) in text for number in range(count))


def test_probe_and_doctor_continue_without_a_backend_that_does_not_load(installed):
    env = installed("gpubench.backends", BODIES)
    done = gpubench(env, "probe")
    assert done.returncode == 0, done.stderr
    assert told(done.stdout + done.stderr, "bad-luck-{}")
    done = gpubench(env, "doctor")
    assert done.returncode in {0, 1, 3}, done.stderr
    assert told(done.stdout + done.stderr, "bad-luck-{}")


def test_refresh_continues_without_a_source_that_does_not_load(installed):
    from gpubench.offers.sources import own_sources

    env = installed("gpubench.offers", BODIES | {"is none": ""})
    listed = "from gpubench.offers.sources import all_sources; print(len(all_sources(print)))"
    done = subprocess.run(
        [sys.executable, "-c", listed], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said, count = done.stdout.strip().rsplit("\n", 1)
    assert int(count) == len(own_sources())
    assert told(said, "bad_luck_module_{}", len(BODIES) + 1)
    done = gpubench(env, "offers", "refresh", "--provider", "nobody")
    assert (done.returncode, told(done.stderr, "bad_luck_module_{}", len(BODIES) + 1)) == (2, True)


@pytest.fixture
def fresh_discovery():
    discovery._installed.cache_clear()
    yield
    discovery._installed.cache_clear()


def test_a_workload_that_does_not_load_is_named_and_the_others_run(
    installed, monkeypatch, forked_children, fresh_discovery
):
    env = installed("gpubench.workloads", BODIES)
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])  # for the child that traces the workload
    monkeypatch.syspath_prepend(env["PYTHONPATH"].partition(os.pathsep)[0])
    for number in range(len(BODIES)):
        done = here("run", f"boom_{number}", "--device", "cpu")
        assert done.returncode == 2
        assert f"bad-luck-{number}" in done.stderr
    assert gpubench(env, "list").returncode == 0
