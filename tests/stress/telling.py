"""What a command reported about finished launches: a line on stderr as each ended, on stdout the run so far."""

from __future__ import annotations

import re

import msgspec

from gpubench.models import Run, Status

DAMAGED = "20261117t000000z-00000003"
"""The run with a file that is damaged during the run."""
_FIGURE = re.compile(r"  .*: \S.* (?:images|sequences)/s")


def launches_of(run: Run) -> set[str]:
    """Every launch of a run that has a figure."""
    return {
        f"{run.run_id} {m.case.label} {x.index}"
        for m in run.measurements
        for x in m.launches
        if m.status is Status.OK
    }


def launches_told(err: str) -> int:
    """Number of launches that a command reported as finished, with a figure."""
    return sum(_FIGURE.match(line) is not None for line in err.splitlines())


def launches_printed(out: str) -> set[str]:
    """The launches of the run that a command with ``--json`` printed; none if it printed no run."""
    try:
        return launches_of(msgspec.json.decode(out, type=Run))
    except msgspec.MsgspecError:
        return set()
