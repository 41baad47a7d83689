"""The gate to NVML: one open session owns every error, every older name of a function, and the time limits.

A driver that refuses gives ``Refused`` with the reason, never an exception, so that one field that a
card does not report costs that field and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar

from gpubench.probe.guard import Guard, HungCallError
from gpubench.units import Seconds

T = TypeVar("T")

TIMEOUT, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED = 10, 13, 15, 16
START_FACTOR = 3.0
"""The call that opens a GPU may have to start it first, and then takes 1 to 3 s (NVIDIA's notes on driver
persistence), more on a busy machine: it is waited for longer than the others by this factor."""
_OLDER_NAMES: Mapping[str, tuple[str, ...]] = {
    "nvmlDeviceGetCurrentClocksEventReasons": ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    "nvmlDeviceGetComputeRunningProcesses": ("nvmlDeviceGetComputeRunningProcesses_v2",),
    "nvmlDeviceGetGraphicsRunningProcesses": ("nvmlDeviceGetGraphicsRunningProcesses_v2",),
    "nvmlSystemGetCudaDriverVersion_v2": ("nvmlSystemGetCudaDriverVersion",),
}


@dataclass(frozen=True)
class Refused:
    """The driver did not answer: its return code, and the reason in words with the function's name."""

    code: int
    reason: str


@dataclass(frozen=True)
class Device:
    """A device handle and how it is called in a dump: "0", or "0/1" for the second slice of device 0."""

    handle: Any
    label: str


@dataclass
class Session:
    """NVML, opened. Every call goes through ``ask``, on the guard's thread.

    Attributes:
        calls: Every call with its answer, where a dump is wanted.
        fatal: The code that says that a device is lost or needs a reset, by its label.
        unasked: Labels of devices that were not asked everything, because their time was over.
        stuck: Whether some call never came back; then NVML cannot be shut down.
    """

    nvml: ModuleType
    guard: Guard
    library: str | None = None
    calls: list[dict[str, Any]] | None = None
    fatal: dict[str, int] = field(default_factory=dict)
    unasked: set[str] = field(default_factory=set)
    stuck: bool = False

    def ask(self, function: str, device: Device | None = None, *arguments: Any) -> Any:
        """Call one driver function; an older name of it where the driver lacks the new one.

        Returns:
            What pynvml returns (native units), or ``Refused``.
        """
        answer = self._ask_one(function, device, arguments)
        for older in _OLDER_NAMES.get(function, ()):
            if not isinstance(answer, Refused) or answer.code != FUNCTION_NOT_FOUND:
                break
            answer = self._ask_one(older, device, arguments)
        return answer

    def memory(self, device: Device | None) -> Any:
        """Total and used memory [B]. The first version counts the driver's own reserve as used."""
        answer = self.ask("nvmlDeviceGetMemoryInfo", device, self.nvml.nvmlMemory_v2)
        return self.ask("nvmlDeviceGetMemoryInfo", device) if isinstance(answer, Refused) else answer

    def device(self, index: int) -> Device | Refused:
        """The device at this place in PCI order."""
        answer = self.ask("nvmlDeviceGetHandleByIndex", None, index)
        return answer if isinstance(answer, Refused) else Device(answer, str(index))

    def mig_slice(self, parent: Device, index: int) -> Device | Refused:
        """A MIG slice of a device."""
        answer = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", parent, index)
        return answer if isinstance(answer, Refused) else Device(answer, f"{parent.label}/{index}")

    def guarded(self, work: Callable[[], T], budget_s: Seconds = math.inf) -> T:
        """Do several calls on the guard's thread; each has its own time limit.

        Args:
            work: Calls ``ask`` as often as it likes.
            budget_s: After this time ``ask`` refuses the calls that are left [s].

        Raises:
            HungCallError: If a call does not come back in time.
        """
        return self.guard.call(work, budget_s)

    def renewed(self) -> Session:
        """The same session on a thread of its own, after a call of this one's has not come back."""
        return replace(self, guard=Guard(self.guard.limit_s), stuck=True)

    def close(self) -> None:
        """Shut NVML down, unless a call is stuck in it."""
        if self.guard.hung:
            return
        if not self.stuck:
            try:
                self.guard.call(lambda: self._ask_one("nvmlShutdown", None, ()))
            except HungCallError:
                return
        self.guard.close()

    def _ask_one(self, function: str, device: Device | None, arguments: tuple[Any, ...]) -> Any:
        nvml = self.nvml
        call = getattr(nvml, function, None)
        mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
        code, answer = 0, None
        starts = function == "nvmlDeviceGetHandleByIndex"
        if not self.guard.begin(function, START_FACTOR * self.guard.limit_s if starts else None):
            self.unasked.add("" if device is None else device.label)
            return Refused(TIMEOUT, f"{function}: not asked, the time for this GPU was over")
        try:
            if call is None:
                raise nvml.NVMLError(FUNCTION_NOT_FOUND)  # noqa: TRY301 - the binding lacks what a driver may lack
            answer = call(*(() if device is None else (device.handle,)), *arguments)
        except UnicodeDecodeError as error:  # pynvml decodes strictly; a name may hold any byte
            answer = bytes(error.object).decode("utf-8", "replace")
        except nvml.NVMLError as error:
            code = int(error.value)
            answer = Refused(code, f"{function}: {error}")
        except mismatch:
            code = FUNCTION_NOT_FOUND
            answer = Refused(code, f"{function}: Function Not Found")
        if code in {GPU_IS_LOST, RESET_REQUIRED} and device is not None:
            self.fatal[device.label] = code
        if self.calls is not None:
            self.calls.append(_recorded(function, device, arguments, code, answer))
        return answer


def _recorded(
    function: str, device: Device | None, arguments: tuple[Any, ...], code: int, answer: Any
) -> dict[str, Any]:
    value = None if code else answer
    if "Handle" in function and code == 0:
        place = arguments[0] if arguments else 0
        value = str(place) if device is None else f"{device.label}/{place}"
    return {
        "function": function,
        "device": None if device is None else device.label,
        "arguments": list(arguments),
        "code": code,
        "value": _plain(value),
    }


def _plain(value: Any) -> Any:
    """A pynvml answer as JSON has it: structures become objects."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    fields = getattr(value, "_fields_", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name, *_ in fields}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return dict(vars(value)) if hasattr(value, "__dict__") else value
