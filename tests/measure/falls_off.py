"""A scripted measuring process: its first case is sound, and it dies after two rounds of the next one.

The tests of a lost GPU run it as a child. With DIES_AT_ONCE it dies in its first case. With HANGS it goes
silent instead of dying, like a process that waits for a GPU that is gone. REFUSES_AGAIN names a file: the
first process of a run creates it and opens the device, and later ones refuse.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from gpubench.measure import messages
from gpubench.models import Launch, Round, Status

ROUNDS = tuple(
    Round(steps=10, wall_s=wall_s, loss=2.0 - n / 100) for n, wall_s in enumerate((0.01, 0.0101, 0.0099) * 8)
)


def main() -> None:
    incoming, outgoing = os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb")

    def tell(report: messages.Report) -> None:
        outgoing.write(msgspec.json.encode(report) + b"\n")
        outgoing.flush()

    sound_cases = 0 if "DIES_AT_ONCE" in os.environ else 1
    for line in incoming:
        match msgspec.json.decode(line, type=messages.Command):
            case messages.Setup():
                if _refuses():
                    tell(messages.Refused(reason="No CUDA GPUs are available", exit_code=3))
                    return
                tell(messages.Phase(name="import"))
                tell(messages.Ready(torch="2.13.0", cuda="13.0"))
            case messages.MeasureCase(launch=index) if sound_cases:
                sound_cases -= 1
                for done in ROUNDS:
                    tell(messages.RoundDone(timed=True, round=done))
                tell(messages.CaseDone(status=Status.OK, launch=_launch(index)))
            case messages.MeasureCase():
                tell(messages.Phase(name="timed"))
                for done in ROUNDS[:2]:
                    tell(messages.RoundDone(timed=True, round=done))
                if "HANGS" in os.environ:
                    time.sleep(60)
                os.abort()


def _refuses() -> bool:
    mark = os.environ.get("REFUSES_AGAIN")
    if mark is None:
        return False
    there = Path(mark).exists()
    Path(mark).touch()
    return there


def _launch(index: int) -> Launch:
    return Launch(
        index=index,
        rounds=ROUNDS,
        telemetry_source="nvml",
        energy_source="counter",
        timed_steps=sum(r.steps for r in ROUNDS),
        precision_errors={"matmul": 5e-7, "conv": 4e-7},
    )


if __name__ == "__main__":
    main()
