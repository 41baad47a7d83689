"""The parent's handle on a child process that measures, and the environment that it runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpubench.children import ChildProcess
from gpubench.measure import messages
from gpubench.measure.frameworks import variables_of
from gpubench.measure.privacy import scrub
from gpubench.models import DeviceProfile, Framework
from gpubench.precisions import TF32_VARIABLES
from gpubench.probe.identity import child_environment
from gpubench.probe.system import memory_limit_bytes
from gpubench.units import format_bytes

MODULE = "gpubench.measure.worker"
JOB_MODULE = "gpubench.measure.job"
"""Of a child that stands for several processes."""
OPENCL_MODULE = "gpubench.measure.opencl_worker"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""By which torch and its libraries choose their number of threads when they load."""

_decoder: msgspec.json.Decoder[messages.Report] = msgspec.json.Decoder(messages.Report)


def module_of(device: DeviceProfile) -> str:
    """Return what the measuring process of a device runs."""
    return MODULE if device.runs_steps else OPENCL_MODULE


class Child(ChildProcess[messages.Report]):
    """A measuring process; what is said of it may be stored, so it names nothing of this machine."""

    def __init__(
        self,
        environment: Mapping[str, str],
        module: str = MODULE,
        *,
        arguments: Sequence[str] = (),
        descriptors: Sequence[int] = (),
    ) -> None:
        super().__init__(
            ("-m", module), _decoder, arguments=arguments, environment=environment, descriptors=descriptors
        )

    def last_words(self, limit: int = 300) -> str:
        """Return the last line that the child wrote, paths shortened."""
        return scrub(super().last_words(limit), limit)

    def memory_words(self) -> str:
        """The memory limit of this container."""
        limit = memory_limit_bytes()
        return "" if limit is None else f" (this container may use {format_bytes(limit)})"


def environment_of(
    device: DeviceProfile,
    inherited: Mapping[str, str],
    *,
    strict: bool,
    peers: Sequence[DeviceProfile] = (),
    framework: Framework = Framework.TORCH,
    threads: int = 0,
) -> dict[str, str]:
    """Return the environment of a child: it sees its GPUs alone, and TF32 is off or on as its cases need.

    ``NVIDIA_TF32_OVERRIDE`` is read when the math libraries load, hence a process of its own for strict
    fp32. No inherited variable decides on TF32. A GPU is named by UUID; where that is all zeros, by its place
    in PCI order. ``threads`` of a CPU compute; 0 leaves their number to the framework.
    """
    variables = {name: value for name, value in inherited.items() if name not in TF32_VARIABLES}
    variables["PYTHONUNBUFFERED"] = "1"
    if strict:
        variables["NVIDIA_TF32_OVERRIDE"] = "0"
    if threads:
        variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    return variables | child_environment(device, *peers) | variables_of(framework, device)
