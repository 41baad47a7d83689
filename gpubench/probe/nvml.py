"""Guarded access to NVML, and its readings of one NVIDIA device in SI units.

A driver call may never return, so calls run on their own thread, each with a time limit. The limit restarts
with each call, so many calls in a row may take longer. A hung call ends the session. If the driver refuses a
call, the answer is ``Refused`` with the reason, never an exception, so a missing field affects no other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, itemgetter, le
from types import ModuleType
from typing import Any, TypeVar

import psutil
from msgspec.structs import replace

from gpubench.models import DeviceProfile, GpuSpec, Precision
from gpubench.probe import plausible
from gpubench.probe.backend import NO_SPEC, DeviceState, bus_id
from gpubench.probe.plausible import Choice, ImplausibleError
from gpubench.specs import find_spec
from gpubench.units import Seconds, format_bytes

T = TypeVar("T")

# Return codes from the driver's header, nvml.h.
NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 4, 9, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, IN_USE, UNKNOWN = 15, 16, 18, 19, 999
CALL_LIMIT_S = 5.0
"""Time limit of a call: a healthy driver takes microseconds, a struggling one up to a second."""


class HungCallError(Exception):
    """A driver call did not return in time. Its thread is abandoned."""


class Guard:
    """A daemon thread that makes the calls, so a stuck call blocks neither the caller nor the exit."""

    def __init__(self, limit_s: Seconds = CALL_LIMIT_S) -> None:
        """Set the time limit of each call [s]; the thread starts with the first call."""
        self.limit_s = limit_s
        self.hung: HungCallError | None = None
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the thread; return what it returns or raise what it raises.

        Args:
            function: Announces each of its driver calls with ``begin``, as ``Session.ask`` does.

        Raises:
            HungCallError: If one of its calls, or an earlier one, did not return in time.
        """
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="gpubench-driver-calls", daemon=True)
                self._thread.start()
            self.begin("the driver")
            self._work.put(function)
            value, error = self._wait()
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def begin(self, call: str, limit_s: Seconds | None = None) -> None:
        """Announce a driver call.

        Args:
            call: Name of the function, for the message if it hangs.
            limit_s: Time limit of a call that may take longer than others [s].

        Raises:
            HungCallError: If this thread was abandoned, because its last call returned too late.
        """
        if self.hung is not None:
            raise HungCallError(*self.hung.args)
        limit_s = self.limit_s if limit_s is None else limit_s
        self._doing = f"{call} took over {limit_s:g} s", time.monotonic() + limit_s

    def close(self) -> None:
        """End the thread; a stuck thread ends when its call returns, if ever."""
        self._work.put(None)

    def _wait(self) -> tuple[Any, BaseException | None]:
        while True:
            doing = self._doing
            too_slow, until_s = doing
            try:
                return self._done.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                if self._doing is doing:  # otherwise another call has started meanwhile
                    self.hung = HungCallError(too_slow)
                    self.close()
                    raise self.hung from None

    def _serve(self) -> None:
        while (function := self._work.get()) is not None:
            try:
                self._done.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                self._done.put((None, error))


# Factor on the time limit of the call that opens a GPU. The driver may have to start the GPU first, which
# takes 1 to 3 s (NVIDIA's notes on driver persistence) and more on a busy machine.
_START_FACTOR = 3.0
_OLDER_NAMES: Mapping[str, str] = {
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetComputeRunningProcesses": "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlSystemGetCudaDriverVersion_v2": "nvmlSystemGetCudaDriverVersion",
}


@dataclass(frozen=True)
class Refused:
    """A refusal by the driver: its return code, and the function's name with the reason in words."""

    code: int
    reason: str


@dataclass(frozen=True)
class Device:
    """A device handle and its name in a dump: "0", or "0/1" for the second slice of device 0."""

    handle: Any
    label: str


@dataclass
class Session:
    """An open NVML session. Every call goes through ``ask``, on the guard's thread.

    Attributes:
        calls: Every call with its answer, if a dump was requested.
        fatal: By device label, the code for a lost device or one that needs a reset.
    """

    nvml: ModuleType
    guard: Guard
    library: str | None = None
    calls: list[dict[str, Any]] | None = None
    fatal: dict[str, int] = field(default_factory=dict)

    def ask(self, function: str, device: Device | None = None, *arguments: Any) -> Any:
        """Call one driver function, or its older name if the driver lacks the new one.

        Returns:
            What pynvml returns (native units), or ``Refused``.
        """
        answer = self._ask_one(function, device, arguments)
        older = _OLDER_NAMES.get(function)
        if older and isinstance(answer, Refused) and answer.code == FUNCTION_NOT_FOUND:
            return self._ask_one(older, device, arguments)
        return answer

    def memory(self, device: Device | None) -> Any:
        """Query total and used memory [B], or ``Refused``; an old driver counts its own reserve as used."""
        answer = self.ask("nvmlDeviceGetMemoryInfo", device, self.nvml.nvmlMemory_v2)
        return self.ask("nvmlDeviceGetMemoryInfo", device) if isinstance(answer, Refused) else answer

    def device(self, index: int) -> Device | Refused:
        """Return the device at this index in PCI order."""
        answer = self.ask("nvmlDeviceGetHandleByIndex", None, index)
        return answer if isinstance(answer, Refused) else Device(answer, str(index))

    def close(self) -> None:
        """Shut NVML down, unless a call is stuck in it."""
        with suppress(HungCallError):
            self.guard.call(lambda: self._ask_one("nvmlShutdown", None, ()))
            self.guard.close()

    def _ask_one(self, function: str, device: Device | None, arguments: tuple[Any, ...]) -> Any:
        nvml = self.nvml
        call = getattr(nvml, function, None)
        mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
        starts = function == "nvmlDeviceGetHandleByIndex"
        self.guard.begin(function, _START_FACTOR * self.guard.limit_s if starts else None)
        try:
            if call is None:
                raise nvml.NVMLError(FUNCTION_NOT_FOUND)  # noqa: TRY301 - an old binding is like an old driver
            answer = call(*(() if device is None else (device.handle,)), *arguments)
        except UnicodeDecodeError as error:  # pynvml decodes strictly; a name may hold any byte
            answer = bytes(error.object).decode("utf-8", "replace")
        except nvml.NVMLError as error:
            answer = Refused(int(error.value), f"{function}: {error}")
        except mismatch:
            answer = Refused(FUNCTION_NOT_FOUND, f"{function}: Function Not Found")
        code = answer.code if isinstance(answer, Refused) else 0
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
    """Return a pynvml answer as JSON: structures become objects."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    fields = getattr(value, "_fields_", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name, *_ in fields}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return dict(vars(value)) if hasattr(value, "__dict__") else value


# Selectors from the driver's header, nvml.h.
CLOCK_SM, CLOCK_MEMORY, SENSOR_GPU = 1, 2, 0
_NVLINK_MAX = 18
_ARCHITECTURE = Choice(
    "architecture",
    {
        2: "Kepler",
        3: "Maxwell",
        4: "Pascal",
        5: "Volta",
        6: "Turing",
        7: "Ampere",
        8: "Ada Lovelace",
        9: "Hopper",
        10: "Blackwell",
        13: "Rubin",
    },
)
_VIRTUALIZATION = Choice(
    "virtualization mode", {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}
)
COMPUTE_MODE = Choice(
    "compute mode", {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
)
# Checks for values in NVML's native units.
POWER = plausible.POWER.in_unit("mW", divisor=1000)
POWER_LIMIT = plausible.POWER_LIMIT.in_unit("mW", divisor=1000)
_UTILIZATION = plausible.part(attrgetter("gpu"), plausible.UTILIZATION)
_MULTIPROCESSORS = plausible.part(attrgetter("multiprocessorCount"), plausible.SMS)
_TOTAL = plausible.part(attrgetter("total"), plausible.MEMORY)
_USED = plausible.part(attrgetter("used"), plausible.MEMORY_USED)
# The current mode; NVML's answer is a pair with the mode after the next restart.
_CURRENT = plausible.part(itemgetter(0), plausible.SWITCH)
# CUDA cores per multiprocessor by compute capability: CUDA C++ programming guide, arithmetic throughput.
_CORES_PER_SM: Mapping[tuple[int, int], int] = {
    **dict.fromkeys([(3, 0), (3, 2), (3, 5), (3, 7)], 192),
    **dict.fromkeys([(5, 0), (5, 2), (5, 3), (6, 1), (6, 2)], 128),
    **dict.fromkeys([(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)], 64),
    **dict.fromkeys([(8, 6), (8, 7), (8, 9), (9, 0)], 128),
    **dict.fromkeys([(10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)], 128),
}
# Systems on a chip (Jetson, DGX Spark): TX1, TX2, Xavier, Orin, Thor, GB10. They use the machine's memory.
_INTEGRATED = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1)})
# Formats that the tensor cores support, by compute capability; ``partial(le, least)`` means least or newer.
_TENSOR_CORE_FORMATS: Mapping[str, Callable[[tuple[int, int]], bool]] = {
    "fp16": partial(le, (7, 0)),
    "bf16": Precision.AMP_BF16.within,
    "tf32": Precision.TF32.within,
    "int8": partial(le, (7, 2)),
    "fp8": Precision.FP8.within,
    "fp6": partial(le, (10, 0)),
    "fp4": partial(le, (10, 0)),
}
# Names of the clock event reason bits; a bit without a name is kept in hexadecimal.
GPU_IDLE = 0x1
CLOCK_EVENTS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
# Policies with a violation time (nvmlPerfPolicyType_t), which the driver counts in nanoseconds.
CLOCK_POLICIES = {
    0: "power",
    1: "thermal",
    2: "sync_boost",
    3: "board_limit",
    4: "low_utilization",
    5: "reliability",
}


@dataclass
class Fields:
    """Collects values by field name, and the reason for each value that the driver refused."""

    session: Session
    device: Device | None
    unavailable: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, convert: Callable[[Any], T], function: str, *arguments: Any) -> T | None:
        """Query a value in SI units; None, with the reason noted under ``name``, if there is none.

        Args:
            name: Name of the field.
            convert: Converts the answer; raises ``ImplausibleError`` for an impossible one.
            function: Driver function, by its name in pynvml.
            arguments: Arguments besides the device.
        """
        return self.take(name, convert, function, self.session.ask(function, self.device, *arguments))

    def take(self, name: str, convert: Callable[[Any], T], function: str, answer: Any) -> T | None:
        """Convert an answer that is already known."""
        if isinstance(answer, Refused):
            self.unavailable[name] = answer.reason
            return None
        return plausible.checked(convert, answer, name, self.unavailable, function)

    def memory(self, name: str, convert: Callable[[Any], T]) -> T | None:
        """Query the memory of the device, and convert the answer as ``take`` does."""
        return self.take(name, convert, "nvmlDeviceGetMemoryInfo", self.session.memory(self.device))


def read_driver(session: Session) -> DeviceProfile:
    """Query what all devices have in common: the versions of the driver and of its CUDA."""
    fields = Fields(session, None)
    return DeviceProfile(
        backend="cuda",
        vendor="NVIDIA",
        driver_version=fields.get("driver_version", plausible.text, "nvmlSystemGetDriverVersion"),
        cuda_driver_version=fields.get(
            "cuda_driver_version", _cuda_release, "nvmlSystemGetCudaDriverVersion_v2"
        ),
        unavailable=fields.unavailable,
    )


def read(
    session: Session, device: Device, index: int, driver: DeviceProfile
) -> list[tuple[DeviceProfile, Device]]:
    """Describe the device, or its MIG slices if it is in MIG mode, since CUDA sees only those."""
    whole = _profile(session, device, index, driver)
    if not whole.mig_enabled:
        return [(whole, device)]
    return [(_slice(session, piece, whole), piece) for piece in mig_slices(session, device)]


def mig_slices(session: Session, device: Device) -> list[Device]:
    """Return the slices of a card; none if the card does not report their maximum number."""
    most = Fields(session, device).get("slices", plausible.DEVICES, "nvmlDeviceGetMaxMigDeviceCount")
    function = "nvmlDeviceGetMigDeviceHandleByIndex"
    answers = (session.ask(function, device, place) for place in range(most or 0))
    return [
        Device(answer, f"{device.label}/{place}")
        for place, answer in enumerate(answers)
        if not isinstance(answer, Refused)
    ]


def read_state(session: Session, device: Device) -> DeviceState:
    """Query the current state of the device."""
    now = Fields(session, device)
    working = shared_readings(now)
    memory = session.memory(device)
    in_use = now.take("memory_used_bytes", memory_used, "nvmlDeviceGetMemoryInfo", memory)
    return DeviceState(
        **working,
        memory_used_bytes=in_use,
        memory_in_use_bytes=in_use if hasattr(memory, "reserved") else None,
        process_count=now.get("process_count", len, "nvmlDeviceGetComputeRunningProcesses"),
        pcie_generation_now=now.get("pcie", plausible.PCIE_GENERATION, "nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_width_now=now.get("pcie", plausible.PCIE_WIDTH, "nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_generation_card=now.get(
            "pcie", plausible.PCIE_GENERATION, "nvmlDeviceGetGpuMaxPcieLinkGeneration"
        ),
        persistence_mode=now.get("persistence", plausible.SWITCH, "nvmlDeviceGetPersistenceMode"),
        compute_mode=now.get("compute_mode", COMPUTE_MODE, "nvmlDeviceGetComputeMode"),
    )


def shared_readings(fields: Fields) -> dict[str, Any]:
    """Return the fields that a device state and a telemetry sample have in common."""
    reasons = fields.get(
        "clock_event_reasons", plausible.EVENT_BITS, "nvmlDeviceGetCurrentClocksEventReasons"
    )
    return {
        "power_w": fields.get("power_w", POWER, "nvmlDeviceGetPowerUsage"),
        "temperature_c": fields.get(
            "temperature_c", plausible.TEMPERATURE, "nvmlDeviceGetTemperature", SENSOR_GPU
        ),
        "utilization": fields.get("utilization", _UTILIZATION, "nvmlDeviceGetUtilizationRates"),
        "clock_event_reasons": None if reasons is None else event_names(reasons),
        "idle": None if reasons is None else bool(reasons & GPU_IDLE),
    }


def memory_used(memory: Any) -> int:
    """Return the memory in use [B], checked against total memory.

    Raises:
        ImplausibleError: If either is impossible, or more is in use than there is.
    """
    size, used = int(_TOTAL(memory)), int(_USED(memory))
    if used > size:
        raise ImplausibleError(f"{format_bytes(used)} in use of {format_bytes(size)} is not possible")
    return used


def event_names(bits: int) -> tuple[str, ...]:
    """Return the names of the clock event reasons except idle; bits without a name in hexadecimal."""
    known = tuple(name for bit, name in CLOCK_EVENTS.items() if bits & bit)
    named = sum(CLOCK_EVENTS) | GPU_IDLE
    rest = (1 << n for n in range(bits.bit_length()))
    return known + tuple(hex(bit) for bit in rest if bits & bit and not bit & named)


def tensor_core_precisions(capability: tuple[int, int], spec: GpuSpec | None, name: str) -> tuple[str, ...]:
    """Return the formats that the tensor cores support, by compute capability.

    Turing without tensor cores (GTX 16 series) has the same compute capability as Turing with them.
    """
    lacks_tensor_cores = "GTX 16" in name if spec is None else spec.tensor_core_count == 0
    if lacks_tensor_cores:
        return ()
    return tuple(kind for kind, has_format in _TENSOR_CORE_FORMATS.items() if has_format(capability))


def fp32_flops_per_s(device: DeviceProfile) -> float | None:
    """Return the peak of the CUDA cores, two operations per core and clock [FLOP/s]; None if unknown."""
    if device.cuda_core_count is None or device.sm_clock_max_hz is None:
        return None
    return 2 * device.cuda_core_count * device.sm_clock_max_hz


def _profile(session: Session, device: Device, index: int, driver: DeviceProfile) -> DeviceProfile:
    fields = Fields(session, device, dict(driver.unavailable))
    name = fields.get("name", plausible.text, "nvmlDeviceGetName")
    capability = fields.get("compute_capability", plausible.capability, "nvmlDeviceGetCudaComputeCapability")
    memory, unified = _memory(fields, capability)
    limit_w = fields.get("power_limit_default_w", POWER_LIMIT, "nvmlDeviceGetPowerManagementDefaultLimit")
    spec = None if name is None else find_spec(name, None if unified else memory, limit_w)
    if spec is None:
        fields.unavailable["gpu_key"] = f"{NO_SPEC} and memory"
    cores = fields.get("cuda_core_count", plausible.CORES, "nvmlDeviceGetNumGpuCores")
    memory_clock_hz = fields.get(
        "memory_clock_max_hz", plausible.HIGHEST_MEMORY_CLOCK, "nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY
    )
    if capability is None:
        fields.unavailable["tensor_core_precisions"] = fields.unavailable["compute_capability"]
    if spec is None or spec.l2_bytes is None:
        fields.unavailable["l2_bytes"] = "not in NVML, and not in the specification table"
    return replace(
        driver,
        name=name,
        gpu_key=None if spec is None else spec.key,
        index=index,
        compute_capability=capability,
        sm_count=_sm_count(fields, cores, capability),
        cuda_core_count=cores,
        memory_bytes=memory,
        unified_memory=unified,
        memory_bandwidth_bytes_per_s=_bandwidth(fields, memory_clock_hz),
        l2_bytes=None if spec is None else spec.l2_bytes,
        memory_clock_max_hz=memory_clock_hz,
        nvlink_count=_nvlinks(fields),
        tensor_core_precisions=(
            None if capability is None else tensor_core_precisions(capability, spec, name or "")
        ),
        power_limit_default_w=limit_w,
        **{field: fields.get(field, *asked) for field, asked in _ASKED.items()},
        unavailable=fields.unavailable,
    )


def _bus_id(info: Any) -> str:
    raw = info.busId
    text = (raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)).lower()
    if bus_id(text) is None:
        raise ImplausibleError(f"{text!r} is not a PCI bus id")
    return text


# Profile fields that come from a single driver answer, each with its plausibility check.
_ASKED: Mapping[str, tuple[Any, ...]] = {
    "uuid": (plausible.text, "nvmlDeviceGetUUID"),
    "pci_bus_id": (_bus_id, "nvmlDeviceGetPciInfo"),
    "architecture": (_ARCHITECTURE, "nvmlDeviceGetArchitecture"),
    "sm_clock_max_hz": (plausible.HIGHEST_SM_CLOCK, "nvmlDeviceGetMaxClockInfo", CLOCK_SM),
    "power_limit_w": (POWER_LIMIT, "nvmlDeviceGetEnforcedPowerLimit"),
    "pcie_generation": (plausible.PCIE_GENERATION, "nvmlDeviceGetMaxPcieLinkGeneration"),
    "pcie_width": (plausible.PCIE_WIDTH, "nvmlDeviceGetMaxPcieLinkWidth"),
    "ecc_enabled": (_CURRENT, "nvmlDeviceGetEccMode"),
    "mig_enabled": (_CURRENT, "nvmlDeviceGetMigMode"),
    "virtualization": (_VIRTUALIZATION, "nvmlDeviceGetVirtualizationMode"),
}


def _slice(session: Session, piece: Device, whole: DeviceProfile) -> DeviceProfile:
    """Describe a MIG slice: its own identity, processors and memory, without values of the entire card."""
    reason = "belongs to the whole card, not to the MIG slice"
    of_whole_card = (
        "gpu_key",
        "memory_bandwidth_bytes_per_s",
        "l2_bytes",
        "cuda_core_count",
        "power_limit_w",
        "power_limit_default_w",
    )
    fields = Fields(session, piece, dict.fromkeys(of_whole_card, reason))
    return DeviceProfile(
        backend="cuda",
        vendor="NVIDIA",
        name=fields.get("name", plausible.text, "nvmlDeviceGetName"),
        uuid=fields.get("uuid", plausible.text, "nvmlDeviceGetUUID"),
        index=whole.index,
        pci_bus_id=whole.pci_bus_id,
        architecture=whole.architecture,
        compute_capability=whole.compute_capability,
        sm_count=fields.get("sm_count", _MULTIPROCESSORS, "nvmlDeviceGetAttributes"),
        memory_bytes=fields.memory("memory_bytes", _TOTAL),
        sm_clock_max_hz=whole.sm_clock_max_hz,
        memory_clock_max_hz=whole.memory_clock_max_hz,
        pcie_generation=whole.pcie_generation,
        pcie_width=whole.pcie_width,
        driver_version=whole.driver_version,
        cuda_driver_version=whole.cuda_driver_version,
        ecc_enabled=whole.ecc_enabled,
        mig_enabled=True,
        virtualization=whole.virtualization,
        tensor_core_precisions=whole.tensor_core_precisions,
        unavailable=fields.unavailable,
    )


def _memory(fields: Fields, capability: tuple[int, int] | None) -> tuple[int | None, bool | None]:
    """Return total memory [B], and whether it is the machine's; each is None if unknown.

    The drivers of systems on a chip often report no memory: the machine's is then taken.
    """
    total = fields.memory("memory_bytes", _TOTAL)
    if capability is None:
        return total, None
    unified = capability in _INTEGRATED
    if total is None and unified:
        fields.unavailable.pop("memory_bytes")
        total = int(psutil.virtual_memory().total)
    return total, unified


def _sm_count(fields: Fields, cores: int | None, capability: tuple[int, int] | None) -> int | None:
    reported: int | None = fields.get("sm_count", _MULTIPROCESSORS, "nvmlDeviceGetAttributes")
    if reported is not None:
        return reported
    per_sm = None if capability is None else _CORES_PER_SM.get(capability)
    if cores is None or per_sm is None or cores % per_sm:
        if per_sm is None:
            fields.unavailable["sm_count"] += ", and cores per SM are not known"
        return None
    del fields.unavailable["sm_count"]
    return cores // per_sm


def _bandwidth(fields: Fields, memory_clock_hz: float | None) -> float | None:
    # Peak memory bandwidth [B/s]: two transfers per clock over the full bus width.
    bus_bits = fields.get("memory_bandwidth_bytes_per_s", plausible.BUS_WIDTH, "nvmlDeviceGetMemoryBusWidth")
    if bus_bits is None or memory_clock_hz is None:
        reason = fields.unavailable.get("memory_clock_max_hz", "")
        fields.unavailable.setdefault("memory_bandwidth_bytes_per_s", reason)
        return None
    return float(2 * memory_clock_hz * bus_bits / 8)


def _nvlinks(fields: Fields) -> int | None:
    active = 0
    for link in range(_NVLINK_MAX):
        up = fields.get("nvlink_count", plausible.SWITCH, "nvmlDeviceGetNvLinkState", link)
        if up is None:
            if link == 0:
                return None
            del fields.unavailable["nvlink_count"]  # the driver refuses the first link that does not exist
            break
        active += up
    return active


def _cuda_release(number: int) -> str:
    release = plausible.CUDA_RELEASE(number)
    return f"{release // 1000}.{release % 1000 // 10}"
