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
from gpubench.probe.identity import check_same_device, child_environment
from gpubench.units import plain

_LIMIT_S = 90.0
_MARK = "gpubench-torch-view "
_CHILD = f"""
import json, torch
torch.cuda.init()
p = torch.cuda.get_device_properties(0)
bus = None
if hasattr(p, "pci_bus_id"):
    bus = "%04x:%02x:%02x.0" % (getattr(p, "pci_domain_id", 0), p.pci_bus_id, getattr(p, "pci_device_id", 0))
torch.ones(64, device="cuda").sum().item()
print({_MARK!r} + json.dumps({{
    "name": p.name, "uuid": str(p.uuid) if hasattr(p, "uuid") else None,
    "sm_count": p.multi_processor_count, "pci_bus_id": bus,
}}))
"""


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
    if ended.exit_code != 0:
        return _last_words(ended.tail, ended.exit_code), _mend(ended.tail)
    view = next((x for x in ended.tail.splitlines() if x.startswith(_MARK)), None)
    if view is None:
        return (
            "torch opened it and said nothing",
            "try: python -c 'import torch; torch.cuda.init()'",
        )
    try:
        check_same_device(device, **_fields(view.removeprefix(_MARK)))
    except NoDeviceError as error:
        seen, _, mend = str(error).partition("; ")
        return seen, mend
    return f"torch computes on {plain(device.name or 'it')}", None


def _fields(text: str) -> dict[str, Any]:
    view = msgspec.json.decode(text, type=dict[str, Any])
    return {name: view.get(name) for name in ("name", "uuid", "sm_count", "pci_bus_id")}


def _last_words(text: str, code: int) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    ended = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
    return plain(lines[-1], limit=300) if lines else ended


def _mend(text: str) -> str:
    if "driver" in text and ("too old" in text or "insufficient" in text):
        return "update the driver, or install a torch built for an older CUDA"
    if "busy or unavailable" in text:
        return "another program holds the GPU (compute mode): end it, or nvidia-smi -c DEFAULT"
    if "out of memory" in text:
        return "another program holds its memory: see nvidia-smi"
    return "mend what torch says; gpubench measures with this torch"
