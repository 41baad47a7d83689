"""A child process that speaks the measuring protocol and answers from a table, not from a device.

``GPUBENCH_SCRIPT`` holds a JSON object: ``by_hand`` (case label, with " sampler" behind it for the cost of
telemetry: ratio) and ``die`` (labels at which the process ends).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import msgspec

from gpubench.measure import messages

SCRIPT: dict[str, Any] = json.loads(os.environ["GPUBENCH_SCRIPT"])


def answers(command: messages.Command) -> list[messages.Report]:
    match command:
        case messages.Setup():
            return [messages.Phase(name="import"), messages.Ready(torch="2.11")]
        case messages.ByHand(case=case) if case.label in SCRIPT["die"]:
            print(f"MemoryError: no room for {case.workload}", flush=True)
            sys.exit(3)
        case messages.ByHand(case=case, sampler=sampler):
            ratio = SCRIPT["by_hand"].get(f"{case.label} sampler" if sampler else case.label)
            reason = None if ratio else "too noisy"
            return [messages.Phase(name="timed"), messages.ByHandDone(ratio=ratio, reason=reason)]
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
