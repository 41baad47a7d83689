"""The driver functions of the fake library: symbol, inputs, outputs, and their names in pynvml."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import pynvml

UINT, ULONG, INT = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_int
HANDLE = ctypes.c_void_p


@dataclass(frozen=True)
class Text:
    """A caller's buffer and its length."""


@dataclass(frozen=True)
class Items:
    """A count, in and out, and an array of structures; the count is requested first."""

    of: type[ctypes.Structure]


Output = type | Text | Items


@dataclass(frozen=True)
class Signature:
    """One driver function. Inputs: ``device``, ``uint`` or ``text``, in the order of the call."""

    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]


def _device(*outputs: Output) -> Signature:
    return Signature(("device",), outputs)


def _chosen(*outputs: Output) -> Signature:
    return Signature(("device", "uint"), outputs)


_PROCESSES = Items(pynvml.c_nvmlProcessInfo_v2_t)

SIGNATURES: Mapping[str, Signature] = {
    "nvmlInitWithFlags": Signature(("uint",), ()),
    "nvmlShutdown": Signature((), ()),
    "nvmlSystemGetDriverVersion": Signature((), (Text(),)),
    "nvmlSystemGetNVMLVersion": Signature((), (Text(),)),
    "nvmlSystemGetCudaDriverVersion": Signature((), (INT,)),
    "nvmlSystemGetCudaDriverVersion_v2": Signature((), (INT,)),
    "nvmlDeviceGetCount_v2": Signature((), (UINT,)),
    "nvmlDeviceGetHandleByIndex_v2": Signature(("uint",), (HANDLE,)),
    "nvmlDeviceGetHandleByUUID": Signature(("text",), (HANDLE,)),
    "nvmlDeviceGetMigDeviceHandleByIndex": _chosen(HANDLE),
    "nvmlDeviceGetName": _device(Text()),
    "nvmlDeviceGetUUID": _device(Text()),
    "nvmlDeviceGetSerial": _device(Text()),
    "nvmlDeviceGetPciInfo_v3": _device(pynvml.nvmlPciInfo_t),
    "nvmlDeviceGetAttributes_v2": _device(pynvml.c_nvmlDeviceAttributes),
    "nvmlDeviceGetMemoryInfo": _device(pynvml.c_nvmlMemory_t),
    "nvmlDeviceGetMemoryInfo_v2": _device(pynvml.c_nvmlMemory_v2_t),
    "nvmlDeviceGetUtilizationRates": _device(pynvml.c_nvmlUtilization_t),
    "nvmlDeviceGetComputeRunningProcesses_v3": _device(_PROCESSES),
    "nvmlDeviceGetComputeRunningProcesses_v2": _device(_PROCESSES),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _device(_PROCESSES),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": _device(_PROCESSES),
    "nvmlDeviceGetCudaComputeCapability": _device(INT, INT),
    "nvmlDeviceGetEccMode": _device(UINT, UINT),
    "nvmlDeviceGetMigMode": _device(UINT, UINT),
    "nvmlDeviceGetPowerManagementLimitConstraints": _device(UINT, UINT),
    "nvmlDeviceGetVirtualizationMode": _device(ULONG),
    "nvmlDeviceGetCurrentClocksEventReasons": _device(ULONG),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _device(ULONG),
    "nvmlDeviceGetTotalEnergyConsumption": _device(ULONG),
    "nvmlDeviceGetViolationStatus": _chosen(pynvml.c_nvmlViolationTime_t),
    "nvmlDeviceGetTotalEccErrors": Signature(("device", "uint", "uint"), (ULONG,)),
    "nvmlDeviceGetClockInfo": _chosen(UINT),
    "nvmlDeviceGetMaxClockInfo": _chosen(UINT),
    "nvmlDeviceGetTemperature": _chosen(UINT),
    "nvmlDeviceGetNvLinkState": _chosen(UINT),
    **{
        name: _device(UINT)
        for name in (
            "nvmlDeviceGetArchitecture",
            "nvmlDeviceGetComputeMode",
            "nvmlDeviceGetCurrPcieLinkGeneration",
            "nvmlDeviceGetCurrPcieLinkWidth",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            "nvmlDeviceGetMaxMigDeviceCount",
            "nvmlDeviceGetMaxPcieLinkGeneration",
            "nvmlDeviceGetMaxPcieLinkWidth",
            "nvmlDeviceGetMemoryBusWidth",
            "nvmlDeviceGetNumGpuCores",
            "nvmlDeviceGetPersistenceMode",
            "nvmlDeviceGetPowerManagementDefaultLimit",
            "nvmlDeviceGetPowerManagementLimit",
            "nvmlDeviceGetPowerUsage",
        )
    },
}

# Names of functions in pynvml that differ from the symbol in the library.
SYMBOLS: Mapping[str, str] = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetAttributes": "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetComputeRunningProcesses": "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses": "nvmlDeviceGetGraphicsRunningProcesses_v3",
}


def symbol_of(function: str, arguments: tuple[int | str, ...]) -> str:
    """Return the symbol that pynvml calls for one of its functions with these arguments."""
    if function == "nvmlDeviceGetMemoryInfo" and arguments:
        return "nvmlDeviceGetMemoryInfo_v2"
    return SYMBOLS.get(function, function)
