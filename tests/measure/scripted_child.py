"""A child process that speaks the measuring protocol and answers from a table instead of a device.

``GPUBENCH_SCRIPT`` is a JSON object: ``step_s`` (case label: seconds per step), ``micro`` (a list of results),
``fail`` (case label: reason), ``torch`` (its version), ``threads`` (instead of the requested number),
``pause_s`` (duration of a case), and ``folder``. In that folder each case creates a file with its name when
it starts, and waits while ``wait-NAME`` exists.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from gpubench.measure import messages
from gpubench.models import Launch, MicroResult, Round, Status

SCRIPT: dict[str, Any] = json.loads(os.environ["GPUBENCH_SCRIPT"])


def begin(name: str) -> None:
    if (folder := SCRIPT.get("folder")) is None:
        return
    with (Path(folder) / f"began-{name}").open("a") as file:
        file.write(f"{os.getppid()}\n")
    while (Path(folder) / f"wait-{name}").exists():
        time.sleep(0.01)


def case_done(order: messages.MeasureCase) -> list[messages.Report]:
    label = order.case.label
    time.sleep(SCRIPT.get("pause_s", 0.0))
    begin(f"{order.case.workload}-{order.case.precision}")
    launch = Launch(index=order.launch)
    if label in SCRIPT.get("fail", {}):
        return [messages.CaseDone(status=Status.FAILED, reason=SCRIPT["fail"][label], launch=launch)]
    step_s = SCRIPT.get("step_s", {}).get(label, 0.02) * (1 + 0.0005 * order.launch)
    rounds = tuple(Round(steps=1, wall_s=step_s, loss=2.0 - 0.01 * index) for index in range(20))
    done = msgspec.structs.replace(launch, rounds=rounds, timed_steps=20, parameters_moved=True)
    told = [messages.RoundDone(timed=True, round=r) for r in rounds]
    return [*told, messages.CaseDone(status=Status.OK, launch=done)]


def answers(command: messages.Command) -> list[messages.Report]:
    match command:
        case messages.Setup():
            threads = SCRIPT.get("threads") or int(os.environ.get("OMP_NUM_THREADS", "4"))
            ready = messages.Ready(torch=SCRIPT.get("torch", "2.11"), cpu_threads=threads)
            return [messages.Phase(name="import"), ready]
        case messages.MeasureMicro(strict=strict):
            found = msgspec.convert(SCRIPT.get("micro", []), tuple[MicroResult, ...])
            mine = [messages.MicroDone(result=r) for r in found if (r.precision == "fp32") == strict]
            return [*mine, messages.MicroDone(last=True)]
        case messages.MeasureCase():
            return [messages.Phase(name="timed"), *case_done(command)]
        case _:
            raise TypeError(f"unexpected {type(command).__name__}")


def main() -> None:
    read_fd, write_fd = int(sys.argv[1]), int(sys.argv[2])
    decoder = msgspec.json.Decoder(messages.Command)
    with os.fdopen(read_fd, "rb") as incoming, os.fdopen(write_fd, "wb") as outgoing:
        for line in incoming:
            for report in answers(decoder.decode(line)):
                outgoing.write(msgspec.json.encode(report) + b"\n")
            outgoing.flush()


if __name__ == "__main__":
    main()
