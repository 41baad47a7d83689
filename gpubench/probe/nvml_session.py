"""The gate to NVML: one open session owns every error, every older name of a function, and the time limits.

Calls into a driver may never come back: they run on a thread of their own, each with a time limit. Slow is
not hung: a thread that keeps beginning calls is alive, however many there are. What bounds slow work is a
budget, after which it is told to begin no further call.

A driver that refuses gives ``Refused`` with the reason, never an exception, so that one field that a
card does not report costs that field and nothing else.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from gpubench.units import Seconds

T = TypeVar("T")

# Return codes of the driver's own header, nvml.h.
NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 4, 9, 10, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, IN_USE, UNKNOWN = 15, 16, 18, 19, 999
CALL_LIMIT_S = 5.0
"""Healthy driver calls take microseconds, those of a driver in trouble up to a second."""


class HungCallError(Exception):
    """A driver call did not return in time. Its thread is lost, and is asked nothing more.

    Attributes:
        call: What was called.
        limit_s: How long it was waited for [s].
    """

    def __init__(self, call: str, limit_s: Seconds) -> None:
        super().__init__(f"{call} took over {limit_s:g} s")
        self.call = call
        self.limit_s = limit_s


class _Doing(NamedTuple):
    call: str
    limit_s: Seconds
    until_s: Seconds


class Guard:
    """One daemon thread that makes the calls, so that a stuck one holds up neither us nor our exit."""

    def __init__(self, limit_s: Seconds = CALL_LIMIT_S) -> None:
        """Start no thread yet; ``limit_s`` bounds each call [s]."""
        self.limit_s = limit_s
        self.hung: HungCallError | None = None
        self._doing = _Doing("the driver", limit_s, math.inf)
        self._end_s = math.inf
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._one_at_a_time = threading.Lock()

    def call(self, function: Callable[[], T], budget_s: Seconds = math.inf) -> T:
        """Return what ``function`` returns or raise what it raises.

        Args:
            function: Work that announces each of its driver calls with ``begin``, as ``Session.ask`` does.
            budget_s: Time for all of its calls together; after it ``begin`` answers no, and ``ask`` refuses
                the calls that are left [s].

        Raises:
            HungCallError: If one of its calls, or one before, did not come back in time.
        """
        with self._one_at_a_time:
            try:
                value, error = self._hand_over(function, budget_s)
            finally:
                self._end_s = math.inf
        if error is not None:
            raise error
        return value

    def begin(self, call: str, limit_s: Seconds | None = None) -> bool:
        """Announce a driver call; say whether there is time for it.

        Args:
            call: What is called, for the message should it hang.
            limit_s: For a call that may take longer than others [s].

        Raises:
            HungCallError: On a thread that was given up: it came back too late to go on.
        """
        self._refuse_if_hung()
        now = time.monotonic()
        if now >= self._end_s:
            return False
        limit_s = self.limit_s if limit_s is None else limit_s
        self._doing = _Doing(call, limit_s, now + limit_s)
        return True

    def close(self) -> None:
        """End the thread, unless it is stuck; then it ends should it ever come back."""
        self._work.put(None)

    def _hand_over(self, function: Callable[[], T], budget_s: Seconds) -> tuple[T, BaseException | None]:
        self._refuse_if_hung()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="gpubench-driver-calls", daemon=True)
            self._thread.start()
        self._end_s = time.monotonic() + budget_s
        self._doing = _Doing("the driver", self.limit_s, time.monotonic() + self.limit_s)
        self._work.put(function)
        while True:
            doing = self._doing
            try:
                return self._done.get(timeout=max(0.0, doing.until_s - time.monotonic()))
            except queue.Empty:
                if self._doing is doing:  # else another call has begun meanwhile
                    break
        self.hung = HungCallError(doing.call, doing.limit_s)
        self.close()
        raise HungCallError(doing.call, doing.limit_s)

    def _refuse_if_hung(self) -> None:
        if self.hung is not None:
            raise HungCallError(self.hung.call, self.hung.limit_s)

    def _serve(self) -> None:
        while (function := self._work.get()) is not None:
            try:
                self._done.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                self._done.put((None, error))


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
