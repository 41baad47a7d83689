"""What torch sees of a GPU, asked in a child process: torch here would cost seconds and hold the GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from gpubench.bounded import run_bounded
from gpubench.errors import NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe.backend import Problem
from gpubench.probe.identity import check_same_device, child_environment
from gpubench.probe.torch_kernels import how_it_runs
from gpubench.probe.torch_words import explain, first_words, no_kernels
from gpubench.units import plain

_LIMIT_S = 90.0
_UNKNOWN = "mend what torch says; gpubench measures with this torch"
_MARK = "gpubench-torch-view "
# Says what it sees before it computes: a build without kernels for the GPU fails only there.
_CHILD = f"""
import json

def tell(**view):
    print({_MARK!r} + json.dumps(view), flush=True)

try:
    import torch
    tell(architectures=torch.cuda.get_arch_list())
    torch.cuda.init()
    p = torch.cuda.get_device_properties(0)
    bus = None
    if hasattr(p, "pci_bus_id"):
        place = getattr(p, "pci_domain_id", 0), p.pci_bus_id, getattr(p, "pci_device_id", 0)
        bus = "%04x:%02x:%02x.0" % place
    tell(
        name=p.name, uuid=str(p.uuid) if hasattr(p, "uuid") else None,
        sm_count=p.multi_processor_count, pci_bus_id=bus,
    )
    torch.ones(64, device="cuda").sum().item()
    tell(computed=True)
except Exception as error:
    tell(error=str(error) or type(error).__name__)
"""


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """What the child has told, all lines together."""

    architectures: tuple[str, ...] = ()
    name: str | None = None
    uuid: str | None = None
    sm_count: int | None = None
    pci_bus_id: str | None = None
    computed: bool = False
    error: str | None = None


def torch_view(device: DeviceProfile, variables: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Open a GPU with torch in a child process.

    Returns:
        What was seen, and how to mend it; None as the second where torch reaches the same device.
    """
    environment = {**(os.environ if variables is None else variables), **child_environment(device)}
    ended = run_bounded([sys.executable, "-P", "-c", _CHILD], time_limit_s=_LIMIT_S, environment=environment)
    if ended.exit_code is None:
        return (
            f"torch did not open it in {_LIMIT_S:g} s",
            "end stuck processes (nvidia-smi), or reboot",
        )
    view = _view(ended.tail)
    if not view.computed:
        return _why_not(view, device) or (_last_words(ended.tail, ended.exit_code), _UNKNOWN)
    try:
        check_same_device(
            device, name=view.name, uuid=view.uuid, sm_count=view.sm_count, pci_bus_id=view.pci_bus_id
        )
    except NoDeviceError as error:
        seen, _, mend = str(error).partition("; ")
        return seen, mend
    compiled = (
        "" if _way(view, device) != "ptx" else ", by kernels that the driver compiles at their first use"
    )
    return f"torch computes on {plain(device.name or 'it')}{compiled}", None


def _why_not(view: _View, device: DeviceProfile) -> tuple[str, str] | None:
    """What was seen of a failure, and how to mend it; None for a child that died without a word."""
    if view.error is None:
        return None
    opened = view.name is not None
    if opened and view.architectures and device.compute_capability and _way(view, device) is None:
        known: Problem | None = no_kernels(device, view.architectures)
    else:
        known = explain(view.error, device)
    return (first_words(view.error), _UNKNOWN) if known is None else (known.seen(), known.mend)


def _way(view: _View, device: DeviceProfile) -> str | None:
    capability = device.compute_capability
    return None if capability is None else how_it_runs(capability, view.architectures)


def _view(text: str) -> _View:
    told: dict[str, Any] = {}
    for line in text.splitlines():
        _, mark, view = line.partition(_MARK)
        if mark:
            told |= msgspec.json.decode(view, type=dict[str, Any])
    return msgspec.convert(told, _View)


def _last_words(text: str, code: int) -> str:
    lines = [line for line in text.splitlines() if line.strip() and _MARK not in line]
    if lines:
        return plain(lines[-1], limit=300)
    return f"torch was killed by signal {-code}" if code < 0 else f"torch ended with status {code}"
