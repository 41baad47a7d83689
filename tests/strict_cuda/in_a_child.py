"""The fake device in a child process: the changes of ``site/sitecustomize.py`` to a module after its import.

This module stays light: it never imports torch itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

VARIABLE = "GPUBENCH_STRICT_CUDA"

_machines: list[Any] = []
"""The machine of this process, once torch is imported; the fake stays until the process ends."""


@dataclass(frozen=True)
class Scene:
    """The environment of a child process, as plain values, because it is passed in a variable.

    Attributes:
        kernel_s: Run time of every kernel [s].
        memory_bytes: Memory of the device; None for the fake's default.
        old_allocator: Whether the allocator behaves as in torch up to 2.11.
        compiles_recurrent: Whether torch.compile compiles the other layers next to a recurrent one.
        tf32: As in ``machine.Machine``.
        cuda_faults: Fields of ``machine.Fault``; ``words`` instead of ``error``.
        tiny: Whether the standard workloads are built from their tiny presets.
        energy_scale: Ratio of the energy counter's rate to the reported power, on the device's clock; None
            keeps the recorded counter, which does not move.
        cuda: The CUDA release of the torch build, as stated in its files; None for a CPU build.
        properties: Torch's properties of the device that differ from the fake's H200.
    """

    kernel_s: float = 1e-3
    memory_bytes: int | None = None
    old_allocator: bool = True
    compiles_recurrent: bool = False
    tf32: str = "as switched"
    cuda_faults: list[dict[str, Any]] = field(default_factory=list)
    tiny: bool = True
    energy_scale: float | None = 1.0
    cuda: str | None = "13.0"
    properties: dict[str, Any] = field(default_factory=dict)

    def variable(self) -> str:
        """Return this scene as text for the variable."""
        return json.dumps(dataclasses.asdict(self))


def scene() -> Scene:
    """Return the scene that this process's variable describes."""
    return Scene(**json.loads(os.environ[VARIABLE]))


def is_in_place() -> bool:
    return bool(_machines)


def change(module: ModuleType) -> None:
    """Change a module right after its execution."""
    {
        "torch": _torch,
        "pynvml": _nvml,
        "gpubench.probe.torch_view": _build,
        "gpubench.discovery": _discovery,
        "gpubench.measure.checks": _checks,
    }[module.__name__](module)


def _torch(torch: ModuleType) -> None:
    """Replace torch.cuda with the fake until this process ends."""
    from strict_cuda.install import H200, installed
    from strict_cuda.machine import Fault, Machine

    asked = scene()
    faults = [Fault(error=_error(fault.pop("words")), **fault) for fault in asked.cuda_faults]
    machine = Machine(
        cost=lambda name: asked.kernel_s,
        old_allocator=asked.old_allocator,
        compiles_recurrent=asked.compiles_recurrent,
        tf32=asked.tf32,
        faults=faults,
        now_ns=time.perf_counter_ns(),  # times from before the import of torch stay comparable
    )
    if asked.memory_bytes is not None:
        machine.memory.total = asked.memory_bytes
    context = installed(machine, SimpleNamespace(**(vars(H200) | asked.properties)))
    context.__enter__()
    _machines.extend((machine, context))


def _error(words: str) -> Any:
    return lambda: RuntimeError(words)


def _nvml(pynvml: ModuleType) -> None:
    """Let the energy counter follow the clock of the device, since a recorded one does not move."""
    scale = scene().energy_scale
    recorded = pynvml.nvmlDeviceGetTotalEnergyConsumption

    def total(handle: Any) -> int:
        began = recorded(handle)  # a refusal is raised here
        if scale is None or not _machines:
            return began
        return began + round(scale * pynvml.nvmlDeviceGetPowerUsage(handle) * _machines[0].now_ns * 1e-9)

    pynvml.nvmlDeviceGetTotalEnergyConsumption = total


def _build(torch_build: ModuleType) -> None:
    """Make the installed torch claim to be built for CUDA."""
    installed = torch_build.torch_build
    cuda = scene().cuda

    def build() -> Any:
        found = installed()
        return torch_build.TorchBuild(version=found.version, cuda=cuda, hip=None)

    torch_build.torch_build = build


def _checks(checks: ModuleType) -> None:
    """Turn off the comparison with the parent's clock, because the fake device's clock has its own pace."""
    checks.LEAST_OF_ARRIVALS = float("-inf")  # it may even run ahead
    checks.CHILD_CLOCK_SLACK_S = float("inf")


def _discovery(discovery: ModuleType) -> None:
    """Build the standard workloads from their tiny presets."""
    if not scene().tiny:
        return
    load = discovery.load_workload

    def load_tiny(reference: str) -> Any:
        found = load(reference)
        return found if found.tiny is None else dataclasses.replace(found, build=found.tiny)

    discovery.load_workload = load_tiny
