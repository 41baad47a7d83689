"""What torch sees of a GPU, asked in a child process: torch here would cost seconds and hold the GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import msgspec

from gpubench.children import ChildEndedError, ChildLateError, ChildProcess
from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe.backend import Problem
from gpubench.probe.identity import check_same_device, child_environment
from gpubench.probe.torch_kernels import how_it_runs
from gpubench.probe.torch_words import explain, first_words, no_kernels
from gpubench.units import plain

_LIMIT_S = 90.0
_UNKNOWN = "fix what torch says; gpubench measures with this torch"
_PROGRAM = ("-m", "gpubench.probe.torch_child")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What the child has seen so far; its last is the one with ``computed`` or ``error``."""

    architectures: tuple[str, ...] = ()
    name: str | None = None
    uuid: str | None = None
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
        child = ChildProcess(_PROGRAM, _decoder, environment=environment)
    except ChildEndedError as error:
        return f"the process of torch {error}", _UNKNOWN
    view, until_s = View(), time.monotonic() + _LIMIT_S
    try:
        while not (view.computed or view.error):
            view = child.receive(until_s)
    except ChildLateError:
        return (
            f"torch did not open it in {_LIMIT_S:g} s",
            "end stuck processes (nvidia-smi), or reboot",
        )
    except ChildEndedError as error:
        return f"the process of torch {error}", _UNKNOWN
    finally:
        child.end(at_once=True)
    if view.error is not None:
        return _why_not(view.error, view, device)
    try:
        check_same_device(
            device, name=view.name, uuid=view.uuid, sm_count=view.sm_count, pci_bus_id=view.pci_bus_id
        )
    except NoDeviceError as error:
        seen, _, fix = str(error).partition("; ")
        return seen, fix
    compiled = (
        "" if _way(view, device) != "ptx" else ", by kernels that the driver compiles at their first use"
    )
    return f"torch computes on {plain(device.name or 'it')}{compiled}", None


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
    return None if capability is None else how_it_runs(capability, view.architectures)
