"""The cost of the strict fake: every case that a run offers, within a limit of processor time."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

MATRIX = Path(__file__).with_name("test_every_case.py")
LIMIT_S = 90.0


def used_by_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.timing
@pytest.mark.timeout(900)
def test_the_matrix_of_all_cases_takes_at_most_a_minute_and_a_half_of_processor_time():
    """The limit includes torch's import, the rest of the file, and the cases that the slow tests measure."""
    before_s = used_by_children_s()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", str(MATRIX)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    took_s = used_by_children_s() - before_s
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-2000:]
    print(f"{passed[1] if passed else 0} tests of every case: {took_s:.1f} s of processor time")
    assert took_s <= LIMIT_S
