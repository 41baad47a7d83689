"""The fake device in a child process: what ``site/sitecustomize.py`` changes of a module once it is imported.

Light on purpose: torch is imported by whoever needs it, never by this.
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
"""The machine of this process, once torch is imported; the fake stays to the end of the process."""


@dataclass(frozen=True)
class Scene:
    """What a child process is to find, as plain values, because it travels in a variable.

    Attributes:
        kernel_s: Run time of every kernel [s].
        memory_bytes: Of the device; None as the fake has it.
        old_allocator: Whether torch's allocator is that of torch up to 2.11.
        compiles_recurrent: Whether torch.compile compiles what stands beside a recurrent layer.
        tf32: As in ``machine.Machine``.
        cuda_faults: Fields of ``machine.Fault``; ``words`` instead of ``error``.
        tiny: Whether the standard workloads are built from their tiny presets.
        energy_scale: The driver's energy counter runs at this many times the power that it shows, on the clock of
            the device; None leaves the recorded counter as it is, which stands still.
        cuda: The CUDA release of the torch build, as its files tell it; None for a CPU build.
        properties: What torch says of the device, where that is not the H200 of the fake.
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
        """Return the value of the variable."""
        return json.dumps(dataclasses.asdict(self))


def scene() -> Scene:
    """Return what the variable of this process asks for."""
    return Scene(**json.loads(os.environ[VARIABLE]))


def is_in_place() -> bool:
    return bool(_machines)


def change(module: ModuleType) -> None:
    """Change a module that has just been executed."""
    {
        "torch": _torch,
        "pynvml": _nvml,
        "gpubench.probe.torch_view": _build,
        "gpubench.discovery": _discovery,
        "gpubench.measure.checks": _checks,
    }[module.__name__](module)


def _torch(torch: ModuleType) -> None:
    """Put the fake instead of torch.cuda until this process ends."""
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
        now_ns=time.perf_counter_ns(),  # times that were taken before torch was imported stay comparable
    )
    if asked.memory_bytes is not None:
        machine.memory.total = asked.memory_bytes
    context = installed(machine, SimpleNamespace(**(vars(H200) | asked.properties)))
    context.__enter__()
    _machines.extend((machine, context))


def _error(words: str) -> Any:
    return lambda: RuntimeError(words)


def _nvml(pynvml: ModuleType) -> None:
    """Let the energy counter run with the clock of the device: a recorded one stands still."""
    scale = scene().energy_scale
    recorded = pynvml.nvmlDeviceGetTotalEnergyConsumption

    def total(handle: Any) -> int:
        began = recorded(handle)  # a refusal is raised here
        if scale is None or not _machines:
            return began
        return began + round(scale * pynvml.nvmlDeviceGetPowerUsage(handle) * _machines[0].now_ns * 1e-9)

    pynvml.nvmlDeviceGetTotalEnergyConsumption = total


def _build(torch_build: ModuleType) -> None:
    """Say of the installed torch that it is built for CUDA."""
    installed = torch_build.torch_build
    cuda = scene().cuda

    def build() -> Any:
        found = installed()
        return torch_build.TorchBuild(version=found.version, cuda=cuda, hip=None)

    torch_build.torch_build = build


def _checks(checks: ModuleType) -> None:
    """Compare no round with the parent's clock: that of the fake device goes at its own pace."""
    checks.LEAST_OF_ARRIVALS = 0.0
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
