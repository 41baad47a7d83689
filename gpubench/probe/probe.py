"""List every device of this machine, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import structs

from gpubench.probe import cpu, nvidia, opencl, system
from gpubench.probe.backend import BackendReport, Host, ProbeReport
from gpubench.probe.backends import load_backends
from gpubench.probe.torch_build import torch_build, torch_problem


def probe() -> ProbeReport:
    """Say what the devices of this machine are, GPUs first, the CPU last.

    A driver that is missing or broken becomes a Problem in the report, never an exception.
    """
    backends = load_backends()
    by_name = {name: backend.devices() for name, backend in backends.found.items()}
    by_name[opencl.NAME] = _through_opencl_alone(by_name)
    gpus, reports = by_name[nvidia.BACKEND.name], by_name.values()
    first = next(d for r in reports for d in r.devices)
    unreachable = None if first.is_cpu else torch_problem(first)
    return ProbeReport(
        devices=tuple(d for r in reports for d in r.devices),
        states=tuple(s for r in reports for s in r.states),
        problems=(
            *(p for r in reports for p in r.problems),
            *backends.problems,
            *((unreachable,) if unreachable else ()),
        ),
        host=_host(gpus),
    )


def _through_opencl_alone(by_name: Mapping[str, BackendReport]) -> BackendReport:
    """OpenCL's devices of the makers whose own driver lists none."""
    listed = by_name[opencl.NAME]
    others = {d.vendor for name, r in by_name.items() for d in r.devices if name not in {opencl.NAME, "cpu"}}
    alone = tuple(d for d in listed.devices if d.vendor not in others)
    return structs.replace(listed, devices=alone, states=(None,) * len(alone))


def _host(gpus: BackendReport) -> Host:
    torch = torch_build()
    return Host(
        os=system.os_name(),
        python=system.python_version(),
        cpu=cpu.cpu_name(),
        cpu_core_count=cpu.core_count(),
        cpu_thread_count=system.usable_threads(),
        cpu_instructions=cpu.named_instructions(),
        ram_bytes=cpu.memory_bytes(),
        container=system.container(),
        torch=None if torch is None else torch.version,
        torch_cuda=None if torch is None else torch.cuda,
        torch_hip=None if torch is None else torch.hip,
        nvml_version=gpus.library_version,
        nvml_library=gpus.library,
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cuda_device_order=os.environ.get("CUDA_DEVICE_ORDER"),
    )
