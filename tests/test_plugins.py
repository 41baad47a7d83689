"""Packages that are installed beside gpubench and do not load: every verb goes on without them, by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BODIES = {
    "raises": 'raise RuntimeError("out of luck")',
    "exits": "raise SystemExit(3)",
    "lacks": "import no_such_module_here",
    "does not parse": "def broken(:",
}


@pytest.fixture
def installed(tmp_path):
    """``installed(group, body)`` puts a package in the way of Python and returns the environment that has it."""

    def put(group: str, body: str, name: str = "boom") -> dict[str, str]:
        site = tmp_path / "site"
        info = site / "bad_luck-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-luck\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = bad_luck_module:THING\n")
        (site / "bad_luck_module.py").write_text(f"{body}\nTHING = object()\n")
        return {
            **os.environ,
            "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "GPUBENCH_RESULTS": str(tmp_path / "results"),
            "COLUMNS": "300",
        }

    return put


def gpubench(env, *words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "gpubench", *words],
        env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "body"), [*(("probe", body) for body in BODIES), ("doctor", "raises"), ("doctor", "exits")]
)
def test_probe_and_doctor_go_on_without_a_backend_that_does_not_load(installed, verb, body):
    done = gpubench(installed("gpubench.backends", BODIES[body]), verb)
    assert done.returncode in ({0} if verb == "probe" else {0, 1, 3}), done.stderr
    assert "bad-luck" in done.stdout + done.stderr


@pytest.mark.parametrize("body", [*BODIES.values(), ""], ids=[*BODIES, "is none"])
def test_refresh_goes_on_without_a_source_that_does_not_load(installed, body):
    done = gpubench(installed("gpubench.offers", body), "offers", "refresh", "--provider", "nobody")
    assert (done.returncode, "bad_luck_module" in done.stderr) == (2, True)


@pytest.mark.parametrize("body", [BODIES["exits"], ""], ids=["exits", "is none"])
def test_the_other_sources_are_left(installed, body):
    from gpubench.offers.sources import own_sources

    listed = "from gpubench.offers.sources import all_sources; print(len(all_sources(print)))"
    done = subprocess.run(
        [sys.executable, "-c", listed],
        env=installed("gpubench.offers", body), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said, count = done.stdout.strip().rsplit("\n", 1)
    assert int(count) == len(own_sources())
    assert "bad_luck_module" in said


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_workload_that_does_not_load_is_named(installed, body):
    done = gpubench(
        installed("gpubench.workloads", body, name="boom_net"), "run", "boom_net", "--device", "cpu"
    )
    assert done.returncode == 2
    assert "bad-luck" in done.stderr


def test_beside_a_workload_that_does_not_load_the_others_are_listed(installed):
    assert gpubench(installed("gpubench.workloads", BODIES["exits"]), "list").returncode == 0
