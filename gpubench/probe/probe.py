"""Device backends, the devices of this machine, and their telemetry, without torch.

Installed packages can add backends to the five built-in ones, through entry points of the group
``gpubench.backends`` that name their ``BACKEND``. ``UNMEASURED`` lists processors that people ask about but
on which no training step is timed. ``GpuGroup`` combines the telemetry of several GPUs of one job.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from statistics import fmean
from typing import TypeVar

import msgspec

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.foreign_code import load_plugin
from gpubench.models import DeviceProfile, Reading
from gpubench.options import takes_options_of
from gpubench.probe import amd, host, nvidia, opencl
from gpubench.probe.backend import Backend, BackendReport, Host, ProbeReport, Problem, Readings
from gpubench.probe.torch_view import torch_build, torch_problem

ENTRY_POINT_GROUP = "gpubench.backends"


class Backends(msgspec.Struct, frozen=True, kw_only=True):
    """Backends by name, GPUs first and the CPU last, and the problems of those that could not be loaded."""

    found: Mapping[str, Backend]
    problems: tuple[Problem, ...] = ()


def load_backends(points: Iterable[importlib.metadata.EntryPoint] | None = None) -> Backends:
    """Load every backend.

    Args:
        points: Entry points of other packages; None for the installed ones.

    Raises:
        MisuseError: If two backends have one name.
    """
    listed = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if points is None else points
    found: dict[str, Backend] = {b.name: b for b in (nvidia.BACKEND, amd.BACKEND, host.APPLE, opencl.BACKEND)}
    problems = []
    for point in listed:
        if point.name in found or point.name == host.CPU.name:
            raise MisuseError(
                f"two backends are called {point.name!r}; uninstall the package that provides {point.value}"
            )
        backend = _load(point)
        if isinstance(backend, Problem):
            problems.append(backend)
        else:
            found[point.name] = backend
    return Backends(found={**found, host.CPU.name: host.CPU}, problems=tuple(problems))


def _load(point: importlib.metadata.EntryPoint) -> Backend | Problem:
    try:
        backend: Backend = load_plugin("backend", point)
    except MisuseError as error:
        reason = str(error)
    else:
        if hasattr(backend, "devices") and hasattr(backend, "open_readings"):
            return backend
        reason = f"{point.value} has no devices() and open_readings()"
    return Problem(
        what=f"the backend {point.name} cannot be loaded",
        value=reason,
        fix="fix or uninstall the package that provides it",
        exit_code=0,
        backend=point.name,
    )


class ProbeRequest(msgspec.Struct, frozen=True):
    """A request without options: every device is listed."""


@takes_options_of(ProbeRequest)
def probe(_request: ProbeRequest) -> ProbeReport:
    """List the devices of this machine, GPUs first and the CPU last.

    A missing or broken driver becomes a Problem in the report, never an exception.
    """
    backends = load_backends()
    by_name = {name: backend.devices() for name, backend in backends.found.items() if name != opencl.NAME}
    if all(device.is_cpu for report in by_name.values() for device in report.devices):
        by_name = {opencl.NAME: opencl.BACKEND.devices()} | by_name  # GPUs that only OpenCL can reach
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


def _host(gpus: BackendReport) -> Host:
    torch = torch_build()
    return Host(
        os=host.os_name(),
        python=platform.python_version(),
        cpu=host.cpu_name(),
        cpu_core_count=host.core_count(),
        cpu_thread_count=host.usable_threads(),
        cpu_instructions=host.named_instructions(),
        ram_bytes=host.memory_bytes(),
        container=host.container(),
        torch=None if torch is None else torch.version,
        torch_cuda=None if torch is None else torch.cuda,
        torch_hip=None if torch is None else torch.hip,
        nvml_version=gpus.library_version,
        nvml_library=gpus.library,
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        cuda_device_order=os.environ.get("CUDA_DEVICE_ORDER"),
    )


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of processor without training measurements.

    Attributes:
        listed_by: What `gpubench probe` shows of it; None if gpubench does not look for it.
        known: What is known about it without a measurement.
        reason: Why its training is not measured.
        source: Source of ``known``.
    """

    name: str
    listed_by: str | None
    known: str
    reason: str
    source: str


UNMEASURED = (
    Unmeasured(
        name="Intel XPU (Arc, Data Center GPU Max)",
        listed_by="OpenCL: name, memory, compute units; micro-benchmarks with --micro only",
        known="torch has an xpu device; Intel's Level Zero reports clock and power",
        reason="no card was available, and gpubench cannot read its telemetry",
        source="docs.pytorch.org, notes/get_start_xpu",
    ),
    Unmeasured(
        name="Apple GPU (MPS)",
        listed_by="system_profiler: chip, cores, unified memory",
        known="torch has an mps device; only an administrator can read its power (powermetrics)",
        reason="no Mac was available: the code follows Apple's manual pages and was tested with mocks",
        source="docs.pytorch.org, notes/mps; man powermetrics",
    ),
    Unmeasured(
        name="NVIDIA Jetson",
        listed_by="NVML where its driver has it: name, capability; memory is the machine's",
        known="NVIDIA's own builds of CUDA and torch; power is read from the board's sensors, not NVML",
        reason="no board was available; without power and clock a throttled step looks like any other",
        source="docs.nvidia.com, Jetson Linux developer guide",
    ),
    Unmeasured(
        name="Google TPU",
        listed_by=None,
        known="jax and torch_xla reach it; a step is compiled by XLA, never run eagerly",
        reason="Keras on jax is measured only on CPUs and NVIDIA GPUs, and no TPU was available",
        source="docs.cloud.google.com/tpu",
    ),
    Unmeasured(
        name="Intel Neural Compute Stick",
        listed_by=None,
        known="inference only, in half precision; OpenVINO 2022.3 is the last release that supports it",
        reason="it cannot train, and its software is no longer maintained",
        source="docs.openvino.ai/2023.3, Supported Devices",
    ),
)


T = TypeVar("T", int, float, bool, tuple[str, ...])


def open_telemetry(device: DeviceProfile) -> Readings:
    """Open the readings of a device, for a ``with`` block.

    Raises:
        NoDeviceError: If the device's backend is not installed, or its driver no longer lists the device.
    """
    backend = load_backends().found.get(device.backend)
    if backend is None:
        raise NoDeviceError(
            f"no backend is called {device.backend!r} here; install the package that provides it"
        )
    return backend.open_readings(device)


class GpuGroup(Readings):
    """The readings of all GPUs of one job. A value that one GPU does not report is unknown for all."""

    def __init__(self, devices: Sequence[DeviceProfile], *, whole: bool = True) -> None:
        """Open each device.

        Args:
            devices: GPUs of this machine.
            whole: Whether these are all GPUs of the job. If not, power and energy are unknown, because the
                throughput includes other machines.

        Raises:
            NoDeviceError: If the driver no longer lists one of them.
        """
        self._whole = whole
        with ExitStack() as stack:
            self._each: tuple[Readings, ...] = tuple(stack.enter_context(open_telemetry(d)) for d in devices)
            self._stack = stack.pop_all()

    @property
    def source(self) -> str:
        """``hung`` or ``none`` if one of the GPUs has that source, else the source of the first GPU."""
        sources = [each.source for each in self._each]
        return next((bad for bad in ("hung", "none") if bad in sources), sources[0])

    @property
    def fault(self) -> str | None:
        """``gpu_lost`` or ``reset_required`` if the driver reports that fault for any GPU, else None."""
        return next((each.fault for each in self._each if each.fault), None)

    def sample(self) -> Reading:
        """Read all GPUs: lowest clocks, highest temperature, total power, every clock event reason.

        Utilization is the mean, and memory is the maximum. The group is idle if any GPU is.
        """
        seen = [each.sample() for each in self._each]
        return Reading(
            sm_clock_hz=_over(min, (r.sm_clock_hz for r in seen)),
            memory_clock_hz=_over(min, (r.memory_clock_hz for r in seen)),
            power_w=_over(sum, (r.power_w for r in seen)) if self._whole else None,
            temperature_c=_over(max, (r.temperature_c for r in seen)),
            utilization=_over(fmean, (r.utilization for r in seen)),
            memory_used_bytes=_over(max, (r.memory_used_bytes for r in seen)),
            clock_event_reasons=_over(
                lambda reasons: tuple(dict.fromkeys(chain.from_iterable(reasons))),
                (r.clock_event_reasons for r in seen),
            ),
            idle=_over(any, (r.idle for r in seen)),
        )

    def energy_j(self) -> float | None:
        """Read the sum of the energy counters [J]."""
        return _over(sum, (each.energy_j() for each in self._each)) if self._whole else None

    def held_clocks_s(self) -> dict[str, float]:
        """Read how long each policy has held clocks down, summed over the GPUs [s].

        The sum is an upper bound on the time during which any GPU was held.
        """
        all_held = [each.held_clocks_s() for each in self._each]
        common = set.intersection(*(set(held) for held in all_held))
        return {policy: sum(held[policy] for held in all_held) for policy in sorted(common)}

    def ecc_uncorrected(self) -> int | None:
        """Read the sum of uncorrected memory errors."""
        return _over(sum, (each.ecc_uncorrected() for each in self._each))

    def close(self) -> None:
        """Release every device."""
        self._stack.close()


def _over(combine: Callable[[Iterable[T]], T], values: Iterable[T | None]) -> T | None:
    # Combine the values of all GPUs; None if one of them is unknown.
    given = list(values)
    known = [value for value in given if value is not None]
    return combine(known) if len(known) == len(given) else None
