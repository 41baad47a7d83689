"""The child process that runs micro-benchmarks through OpenCL; it speaks as ``worker`` does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from gpubench.measure import messages
from gpubench.measure.worker import send_micro, serve_all
from gpubench.parent import ParentChannel

if TYPE_CHECKING:
    from gpubench.measure.opencl import Queue


def main() -> None:
    """Serve one parent until its end of the pipe closes."""
    line = ParentChannel()
    setup = msgspec.json.decode(line.first_line(), type=messages.Setup)
    serve_all(
        line, lambda: _open(setup, line), lambda command, opened, line: _serve(command, setup, opened, line)
    )


def _open(setup: messages.Setup, line: ParentChannel) -> Queue:
    line.send(messages.Phase(name="import"))
    began_s = time.perf_counter()
    from gpubench.measure.opencl import open_queue

    imported_s = time.perf_counter()
    line.send(messages.Phase(name="context"))
    opened = open_queue(setup.device)
    cold_s = {"import": imported_s - began_s, "context": time.perf_counter() - imported_s}
    line.send(messages.Ready(cold_s=cold_s))
    return opened


def _serve(command: messages.Command, setup: messages.Setup, opened: Queue, line: ParentChannel) -> None:
    from gpubench.measure.opencl import run_micro

    if not isinstance(command, messages.MeasureMicro):
        raise TypeError(f"no such command through OpenCL: {type(command).__name__}")
    send_micro(
        line, run_micro(opened, setup.device, setup.budget, strict=command.strict, time_s=command.time_s)
    )


if __name__ == "__main__":
    main()
