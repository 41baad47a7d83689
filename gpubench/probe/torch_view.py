"""What torch sees of a GPU, asked in a child process: torch here would cost seconds and hold the GPU.

The child is this module as a program. It tells what it sees before it computes: a build without kernels for
the GPU fails only there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from gpubench.children import ChildEndedError, ChildLateError, ChildProcess
from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.parent import ParentChannel
from gpubench.probe.backend import TOLD_BY_TORCH, Problem
from gpubench.probe.identity import check_same_device, child_environment, told_by_torch
from gpubench.probe.nvml_profile import tensor_core_precisions
from gpubench.probe.torch_problems import explain, first_words, no_kernels
from gpubench.specs import find_spec
from gpubench.torch_builds import how_it_runs
from gpubench.units import plain

_LIMIT_S = 90.0
_UNKNOWN = "fix what torch says; gpubench measures with this torch"
_PROGRAM = ("-m", "gpubench.probe.torch_view")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the child has seen so far; its last is the one with ``computed`` or ``error``."""

    architectures: tuple[str, ...] = ()
    cuda: str | None = None
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    pci_bus_id: str | None = None
    computed: bool = False
    error: str | None = None


_decoder = msgspec.json.Decoder(View)


def torch_view(device: DeviceProfile, variables: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Open a GPU with torch in a child process.

    Returns:
        What was seen, and how to fix it; None as the second where torch reaches the same device.
    """
    environment = {**(os.environ if variables is None else variables), **child_environment(device)}
    try:
        view = _look(environment)
    except ChildLateError:
        return (
            f"torch did not open it in {_LIMIT_S:g} s",
            "end stuck processes (nvidia-smi), or reboot",
        )
    except ChildEndedError as error:
        return f"the process of torch {error}", _UNKNOWN
    if view.error is not None:
        return _why_not(view.error, view, device)
    try:
        check_same_device(
            device, name=view.name, uuid=view.uuid, sm_count=view.sm_count, pci_bus_id=view.pci_bus_id
        )
    except NoDeviceError as error:
        return error.seen, error.fix
    is_compiled = _way(view, device) == "ptx"
    compiled = ", by kernels that the driver compiles at their first use" if is_compiled else ""
    return f"torch computes on {plain(device.name or 'it')}{compiled}", None


def _look(environment: Mapping[str, str]) -> View:
    """Return what a child saw that opened the first GPU of its torch; errors as ``ChildProcess.receive``."""
    child = ChildProcess(_PROGRAM, _decoder, environment=environment)
    view, until_s = View(), time.monotonic() + _LIMIT_S
    try:
        while not (view.computed or view.error):
            view = child.receive(until_s)
    finally:
        child.end(at_once=True)
    return view


def seen_by_torch() -> DeviceProfile | None:
    """Describe the first NVIDIA GPU that torch computes on, where its driver library cannot be asked.

    Containers may be given CUDA without the library. None where torch computes on none.
    """
    try:
        view = _look(os.environ)
    except (ChildLateError, ChildEndedError):
        return None
    if not view.computed or view.name is None or view.cuda is None:
        return None
    spec = find_spec(view.name, view.memory_bytes)
    mig = "MIG" in view.name
    return DeviceProfile(
        backend="cuda",
        vendor="NVIDIA",
        name=view.name,
        gpu_key=None if spec is None or mig else spec.key,
        uuid=f"GPU-{view.uuid}" if view.uuid and not mig else None,
        pci_bus_id=view.pci_bus_id,
        architecture=None if spec is None else spec.architecture,
        compute_capability=view.compute_capability,
        sm_count=view.sm_count,
        memory_bytes=view.memory_bytes,
        l2_bytes=None if spec is None else spec.l2_bytes,
        mig_enabled=mig,
        tensor_core_precisions=tensor_core_precisions(view.compute_capability or (0, 0), spec, view.name),
        unavailable={"driver_version": TOLD_BY_TORCH},
    )


def _why_not(error: str, view: View, device: DeviceProfile) -> tuple[str, str]:
    """What was seen of a failure, and how to fix it."""
    opened = view.name is not None
    if opened and view.architectures and device.compute_capability and _way(view, device) is None:
        known: Problem | None = no_kernels(device, view.architectures)
    else:
        known = explain(error, device)
    return (first_words(error), _UNKNOWN) if known is None else (known.seen(), known.fix)


def _way(view: View, device: DeviceProfile) -> str | None:
    capability = device.compute_capability
    return None if capability is None else how_it_runs(capability, view.architectures, view.cuda)


def main() -> None:
    """Be the child: open the first GPU that torch sees, tell what it is, and compute on it."""
    parent, view = ParentChannel(), View()
    try:
        import torch

        built_for = tuple(torch.cuda.get_arch_list())
        parent.send(view := replace(view, architectures=built_for, cuda=torch.version.cuda))
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        uuid, bus_id = told_by_torch(properties)
        view = replace(
            view,
            name=properties.name,
            uuid=uuid,
            memory_bytes=properties.total_memory,
            compute_capability=(properties.major, properties.minor),
            sm_count=properties.multi_processor_count,
            pci_bus_id=bus_id,
        )
        parent.send(view)
        torch.ones(64, device="cuda").sum().item()
        parent.send(replace(view, computed=True))
    except Exception as error:  # noqa: BLE001 - a broken torch raises anything; its words are explained above
        parent.send(replace(view, error=str(error) or type(error).__name__))


if __name__ == "__main__":
    main()
