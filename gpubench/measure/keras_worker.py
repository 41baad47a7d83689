"""The child process that measures in Keras; it speaks as ``worker`` does, and has one backend."""

from __future__ import annotations

import time

from gpubench.children import ParentChannel
from gpubench.measure import messages
from gpubench.measure.frameworks import versions
from gpubench.measure.keras_case import KerasBench, measure_case
from gpubench.measure.keras_steps import check_backend, check_gpu
from gpubench.probe.telemetry import open_telemetry


def open_bench(setup: messages.Setup, line: ParentChannel, began_s: float) -> KerasBench:
    """Say what this process computes with, and return what it measures on.

    Args:
        setup: The first message.
        line: To the parent.
        began_s: When the import of the framework began, on ``time.perf_counter`` [s].
    """
    check_backend(setup.framework)
    findings = check_gpu(setup.device, setup.framework)
    telemetry = open_telemetry(setup.device)
    line.send(
        messages.Ready(
            cold_s={"import": time.perf_counter() - began_s},
            findings=findings,
            packages=versions(setup.framework),
        )
    )
    return KerasBench.serving(setup, line, telemetry, framework=setup.framework)


def serve(command: messages.Command, bench: KerasBench, line: ParentChannel) -> None:
    """Carry out one command and report its end."""
    if not isinstance(command, messages.MeasureCase):
        raise TypeError(f"no such command in Keras: {type(command).__name__}")
    line.send(messages.scrubbed(measure_case(command, bench)))
