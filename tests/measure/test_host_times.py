"""CPU time used by other processes, from a folder that looks like Linux's /proc."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from gpubench.measure.launch import HostTimes, Others

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """``host(user=..., own_s=...)`` sets the counters of the host, and the CPU time of this process."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    def set_to(*, user=0, system=0, idle=0, iowait=0, steal=0, own_s=0.0) -> None:
        line = f"cpu  {user} 0 {system} {idle} {iowait} 0 0 {steal} 0 0\n"
        (tmp_path / "stat").write_text(f"{line}cpu0 1 1 1 1 1 1 1 1 0 0\n")
        monkeypatch.setattr(os, "times", lambda: (own_s, 0.0, 0.0, 0.0, 0.0))

    return set_to


def test_others_time_is_everything_except_idle_time_and_our_own(host):
    host(user=1000, idle=5000)
    before = HostTimes.now()
    host(user=1000 + 700, idle=5000 + 200, iowait=100, own_s=100 / TICKS_PER_S)
    assert before.others_since() == Others(load=pytest.approx(0.6), steal=0.0)


def test_the_processes_of_one_job_are_not_other_programs(host):
    host()
    before = HostTimes.now(4)
    host(user=400, idle=600, own_s=100 / TICKS_PER_S)
    assert before.others_since().load == 0.0


def test_time_that_other_guests_took_is_distinguished(host):
    host()
    before = HostTimes.now()
    host(user=300, idle=600, steal=100, own_s=300 / TICKS_PER_S)
    assert before.others_since() == Others(load=0.0, steal=0.1)


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3", "cpu a b c d e f g h i j"])
def test_an_unreadable_value_is_unknown_and_not_idle(tmp_path, monkeypatch, text):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert HostTimes.now().others_since() == Others(None, None)


def test_counters_that_did_not_move_or_went_back_are_unknown(host):
    host(user=100, idle=100)
    before = HostTimes.now()
    assert before.others_since() == Others(None, None)
    host(user=50, idle=50)
    assert before.others_since() == Others(None, None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the counters of Linux")
def test_another_program_is_detected_on_the_real_host():
    busy = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    before = HostTimes.now()
    for other in others:
        other.communicate()
    seen = before.others_since()
    assert seen.load is not None
    assert seen.load > 0.5 / (os.cpu_count() or 1)
