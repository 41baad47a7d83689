"""The GPU of an Apple chip, as macOS names it: torch reaches it as ``mps``; it has no telemetry here.

Written after the manual page of system_profiler, and tested with stand-ins of it. No Mac was at hand.
"""

from __future__ import annotations

import platform
from typing import Any

import msgspec
import psutil

from gpubench.children import text_of
from gpubench.models import DeviceProfile
from gpubench.probe.backend import NO_SPEC, BackendReport, WithoutReadings
from gpubench.probe.plausible import SMS
from gpubench.specs import find_spec

_LIMIT_S = 10.0


class AppleBackend(WithoutReadings):
    """The one GPU of an Apple chip; nothing on any other machine."""

    name = "mps"

    def devices(self) -> BackendReport:
        """List the GPU of this chip."""
        if platform.system() != "Darwin" or platform.machine() != "arm64":
            return BackendReport()
        said = text_of(["system_profiler", "SPDisplaysDataType", "-json"], time_limit_s=_LIMIT_S)
        try:
            listed = msgspec.json.decode(said or "", type=dict[str, list[dict[str, Any]]])
            display = listed["SPDisplaysDataType"][0]
        except (msgspec.MsgspecError, LookupError):
            display = {}
        unavailable = {}
        if (name := display.get("sppci_model")) is None:
            unavailable["name"] = "system_profiler SPDisplaysDataType: no model"
        try:
            cores = SMS(int(display.get("sppci_cores", "")))
        except ValueError:  # no number, or none that a chip can have
            cores = None
            unavailable["sm_count"] = "system_profiler SPDisplaysDataType: no core count"
        spec = None if name is None else find_spec(name)
        if spec is None:
            unavailable["gpu_key"] = NO_SPEC
        profile = DeviceProfile(
            backend="mps",
            vendor="Apple",
            name=name,
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
