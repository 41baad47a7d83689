"""The line before a run: how much there is to do, and how long it takes."""

from __future__ import annotations

import msgspec

from gpubench.cli.progress import line_of
from gpubench.measure.events import RunPlanned

PLANNED = RunPlanned(cases=6, launches=3, expected_s=60.0, most_s=300.0, budget="default", device="a GPU")


def test_a_run_says_how_long_it_takes_and_only_the_most_where_that_is_expected_too() -> None:
    head = "measuring 6 cases x 3 launches on a GPU, budget default: "
    assert line_of(PLANNED) == f"{head}about 1 min 0 s, at most 5 min 0 s"
    assert line_of(msgspec.structs.replace(PLANNED, expected_s=300.0)) == f"{head}at most 5 min 0 s"


def test_a_run_that_goes_on_says_how_much_of_it_is_left() -> None:
    left = msgspec.structs.replace(PLANNED, left=7)
    assert line_of(left) == (
        "measuring what is left, 7 of 18 launches, on a GPU, budget default: about 1 min 0 s, at most 5 min 0 s"
    )
    single = line_of(msgspec.structs.replace(left, launches=1, left=2))
    assert single is not None
    assert single.startswith("measuring what is left, 2 of 6 cases, on a GPU")
