"""The GPU of an Apple chip, as macOS names it: torch reaches it as ``mps``; it has no telemetry here.

Written after the manual pages of sysctl and system_profiler, and tested with stand-ins of these two
commands. No Mac was at hand.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import msgspec
import psutil

from gpubench.children import text_of
from gpubench.models import DeviceProfile
from gpubench.probe.backend import NO_SPEC, BackendReport, WithoutReadings
from gpubench.probe.plausible import SMS
from gpubench.specs import find_spec

_LIMIT_S = 10.0


class _Display(msgspec.Struct):
    sppci_model: str | None = None
    sppci_cores: str | None = None


class _Displays(msgspec.Struct):
    displays: list[_Display] = msgspec.field(name="SPDisplaysDataType", default_factory=list)


@dataclass(frozen=True)
class AppleBackend(WithoutReadings):
    """The one GPU of an Apple chip; nothing on any other machine."""

    name: str = "mps"

    def devices(self) -> BackendReport:
        """List the GPU of this chip."""
        if platform.system() != "Darwin" or platform.machine() != "arm64":
            return BackendReport()
        display = _display()
        unavailable = {}
        if display.sppci_model is None:
            unavailable["name"] = "system_profiler SPDisplaysDataType: no model"
        try:
            cores = SMS(int(display.sppci_cores or ""))
        except ValueError:  # no number, or none that a chip can have
            cores = None
            unavailable["sm_count"] = "system_profiler SPDisplaysDataType: no core count"
        spec = None if display.sppci_model is None else find_spec(display.sppci_model)
        if spec is None:
            unavailable["gpu_key"] = NO_SPEC
        profile = DeviceProfile(
            backend="mps",
            vendor="Apple",
            name=display.sppci_model,
            gpu_key=None if spec is None else spec.key,
            index=0,
            architecture="Apple",
            sm_count=cores,
            memory_bytes=int(psutil.virtual_memory().total),
            unified_memory=True,
            unavailable=unavailable,
        )
        return BackendReport(devices=(profile,), states=(None,))


BACKEND = AppleBackend()


def _display() -> _Display:
    """The first display adapter that macOS lists; empty where it does not tell."""
    said = text_of(["system_profiler", "SPDisplaysDataType", "-json"], time_limit_s=_LIMIT_S)
    try:
        listed = msgspec.json.decode(said or "", type=_Displays).displays
    except msgspec.MsgspecError:
        return _Display()
    return listed[0] if listed else _Display()
