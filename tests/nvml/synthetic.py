"""Make the dumps of machines that were not available, from their datasheets and users' reports.

Run it as a script from the folder ``tests``: ``python -m nvml.synthetic``. Each file is marked synthetic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nvml.script import DATA, Scene

NOT_SUPPORTED = 3
MIB = 1024**2
MEMORY_V2 = 0x02000028
REFUSED: Any = object()

# Default answers of the cards below.
_COMMON: Mapping[str, Any] = {
    "nvmlDeviceGetAttributes": REFUSED,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetEccMode": REFUSED,
    "nvmlDeviceGetMigMode": REFUSED,
    "nvmlDeviceGetPersistenceMode": 0,
    "nvmlDeviceGetUtilizationRates": {"gpu": 0, "memory": 0},
    "nvmlDeviceGetVirtualizationMode": 0,
    "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
}


def card(
    scene: Scene,
    index: int,
    *,
    name: str,
    uuid: str,
    bus: int,
    architecture: int,
    capability: tuple[int, int],
    cores: int,
    memory_mib: int | None,
    reserved_mib: int = 300,
    bus_bits: int | None = None,
    memory_mhz: int | None = None,
    sm_mhz: int | None = None,
    power_w: int | None = None,
    pcie: tuple[int, int, int, int] = (3, 16, 1, 16),
    **others: Any,
) -> None:
    """Add one card; the driver refuses values of None. ``pcie`` is the maximum generation and width, then the current ones."""
    label = str(index)
    milliwatts = REFUSED if power_w is None else power_w * 1000
    answers: dict[str, Any] = {
        **_COMMON,
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetPciInfo": {"domain": 0, "bus": bus, "device": 0, "busId": f"00000000:{bus:02X}:00.0"},
        "nvmlDeviceGetArchitecture": architecture,
        "nvmlDeviceGetCudaComputeCapability": list(capability),
        "nvmlDeviceGetNumGpuCores": cores,
        "nvmlDeviceGetMemoryBusWidth": REFUSED if bus_bits is None else bus_bits,
        "nvmlDeviceGetEnforcedPowerLimit": milliwatts,
        "nvmlDeviceGetPowerManagementDefaultLimit": milliwatts,
        "nvmlDeviceGetPowerManagementLimitConstraints": REFUSED
        if power_w is None
        else [milliwatts // 2, milliwatts],
        "nvmlDeviceGetPowerUsage": REFUSED if power_w is None else milliwatts // 10,
        "nvmlDeviceGetMaxPcieLinkGeneration": pcie[0],
        "nvmlDeviceGetMaxPcieLinkWidth": pcie[1],
        "nvmlDeviceGetCurrPcieLinkGeneration": pcie[2],
        "nvmlDeviceGetCurrPcieLinkWidth": pcie[3],
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": pcie[0],
        **others,
    }
    scene.add("nvmlDeviceGetHandleByIndex", label, arguments=[index])
    for function, value in answers.items():
        _answer(scene, function, value, label)
    _answer(scene, "nvmlDeviceGetMaxClockInfo", REFUSED if sm_mhz is None else sm_mhz, label, 1)
    _answer(scene, "nvmlDeviceGetMaxClockInfo", REFUSED if memory_mhz is None else memory_mhz, label, 2)
    _answer(scene, "nvmlDeviceGetClockInfo", REFUSED if sm_mhz is None else 300, label, 1)
    _answer(scene, "nvmlDeviceGetClockInfo", REFUSED if memory_mhz is None else 405, label, 2)
    _answer(scene, "nvmlDeviceGetTemperature", 36, label, 0)
    _answer(scene, "nvmlDeviceGetNvLinkState", others.get("nvmlDeviceGetNvLinkState", REFUSED), label, 0)
    _memory(scene, label, memory_mib, reserved_mib)


def mig_slice(
    scene: Scene, index: int, place: int, *, name: str, uuid: str, sms: int, memory_mib: int
) -> None:
    """Add a slice of a card; asked about it, the driver refuses the values of the whole card."""
    label = f"{index}/{place}"
    scene.add("nvmlDeviceGetMigDeviceHandleByIndex", label, device=str(index), arguments=[place])
    attributes = {"multiprocessorCount": sms, "gpuInstanceSliceCount": 1, "memorySizeMB": memory_mib}
    answers = {
        **dict.fromkeys(_COMMON, REFUSED),
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetAttributes": attributes,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetPowerUsage": REFUSED,
        "nvmlDeviceGetCurrPcieLinkGeneration": REFUSED,
    }
    for function, value in answers.items():
        _answer(scene, function, value, label)
    _answer(scene, "nvmlDeviceGetTemperature", REFUSED, label, 0)
    _memory(scene, label, memory_mib, 1)


def system(driver: str, cuda: int, count: int) -> Scene:
    """Start a machine, with the driver's answers about the system."""
    scene = Scene()
    scene.add("nvmlSystemGetDriverVersion", driver)
    scene.add("nvmlSystemGetNVMLVersion", f"{cuda // 1000}.{driver}")
    scene.add("nvmlSystemGetCudaDriverVersion", cuda)
    scene.add("nvmlSystemGetCudaDriverVersion_v2", cuda)
    scene.add("nvmlDeviceGetCount", count)
    return scene


def t4() -> Scene:
    """A Tesla T4 in a cloud machine, an older driver."""
    scene = system("535.183.01", 12020, 1)
    card(
        scene, 0, name="Tesla T4", uuid="GPU-0000t4", bus=4, architecture=6, capability=(7, 5), cores=2560,
        memory_mib=15360, bus_bits=256, memory_mhz=5001, sm_mhz=1590, power_w=70, pcie=(3, 16, 1, 16),
        nvmlDeviceGetEccMode=[1, 1], nvmlDeviceGetVirtualizationMode=1,
    )  # fmt: skip
    return scene


def a100_mig() -> Scene:
    """An A100 40 GB cut into two slices."""
    scene = system("550.90.07", 12040, 1)
    card(
        scene, 0, name="NVIDIA A100-SXM4-40GB", uuid="GPU-0000a100", bus=7, architecture=7, capability=(8, 0),
        cores=6912, memory_mib=40960, reserved_mib=600, bus_bits=5120, memory_mhz=1215, sm_mhz=1410, power_w=400,
        pcie=(4, 16, 4, 16), nvmlDeviceGetEccMode=[1, 1], nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=7, nvmlDeviceGetUtilizationRates=REFUSED, nvmlDeviceGetNvLinkState=1,
    )  # fmt: skip
    mig_slice(
        scene, 0, 0, name="NVIDIA A100-SXM4-40GB MIG 3g.20gb", uuid="MIG-00003g", sms=42, memory_mib=19968
    )
    mig_slice(
        scene, 0, 1, name="NVIDIA A100-SXM4-40GB MIG 2g.10gb", uuid="MIG-00002g", sms=28, memory_mib=9856
    )
    return scene


def laptop() -> Scene:
    """An RTX 4090 of a laptop with a display; its power limits cannot be read."""
    scene = system("560.35.03", 12060, 1)
    card(
        scene, 0, name="NVIDIA GeForce RTX 4090 Laptop GPU", uuid="GPU-0000laptop", bus=1, architecture=8,
        capability=(8, 9), cores=9728, memory_mib=16376, reserved_mib=390, bus_bits=256, memory_mhz=9001,
        sm_mhz=3105, pcie=(4, 16, 1, 8), nvmlDeviceGetPowerUsage=9_000,
        nvmlDeviceGetGraphicsRunningProcesses=[{"pid": 2000, "usedGpuMemory": 8 * MIB}],
    )  # fmt: skip
    return scene


def gb10() -> Scene:
    """A DGX Spark: the GPU shares the machine's memory, and the driver reports none of it."""
    scene = system("580.95.05", 13000, 1)
    card(
        scene, 0, name="NVIDIA GB10", uuid="GPU-0000gb10", bus=15, architecture=10, capability=(12, 1), cores=6144,
        memory_mib=None, sm_mhz=3003, pcie=(5, 16, 1, 16), nvmlDeviceGetPowerUsage=12_000,
    )  # fmt: skip
    return scene


def four() -> Scene:
    """A workstation with four RTX 4090: one in a narrow slot, one capped, one used by others."""
    scene = system("570.124.06", 12080, 4)
    own: list[dict[str, Any]] = [
        {},
        {"pcie": (4, 4, 1, 4)},
        {"nvmlDeviceGetEnforcedPowerLimit": 300_000},
        {
            "nvmlDeviceGetComputeRunningProcesses": [{"pid": 4100, "usedGpuMemory": 9 << 30}],
            "nvmlDeviceGetUtilizationRates": {"gpu": 97, "memory": 40},
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
        },
    ]
    for index, special in enumerate(own):
        options = {"pcie": (4, 16, 1, 16), **special}
        card(
            scene, index, name="NVIDIA GeForce RTX 4090", uuid=f"GPU-{index + 1}4090", bus=16 * (index + 1),
            architecture=8, capability=(8, 9), cores=16384, memory_mib=24564, reserved_mib=430, bus_bits=384,
            memory_mhz=10501, sm_mhz=3105, power_w=450, **options,
        )  # fmt: skip
    return scene


def vgpu() -> Scene:
    """Half of an A10 in a virtual machine: no power, no clock event reasons, no fixed share of the card."""
    scene = system("550.90.07", 12040, 1)
    refused = dict.fromkeys(
        (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetTotalEnergyConsumption",
            "nvmlDeviceGetTemperature",
        ),
        REFUSED,
    )
    card(
        scene, 0, name="NVIDIA A10-12Q", uuid="GPU-0000vgpu", bus=2, architecture=7, capability=(8, 6), cores=9216,
        memory_mib=12288, bus_bits=384, memory_mhz=6251, sm_mhz=1695, pcie=(4, 16, 4, 16),
        nvmlDeviceGetVirtualizationMode=2, **refused,
    )  # fmt: skip
    return scene


def jetson() -> Scene:
    """A Jetson Orin: a driver library that answers hardly any call."""
    scene = system("540.4.0", 12060, 1)
    answered = (
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetArchitecture",
    )
    card(
        scene, 0, name="Orin (nvgpu)", uuid="GPU-0000orin", bus=0, architecture=7, capability=(8, 7), cores=2048,
        memory_mib=None,
    )  # fmt: skip
    for call in scene.calls:
        if call["device"] is not None and call["function"] not in answered:
            call.update(code=NOT_SUPPORTED, value=None)
    return scene


MACHINES = {m.__name__: m for m in (t4, a100_mig, laptop, gb10, four, vgpu, jetson)}


def _answer(scene: Scene, function: str, value: Any, label: str, *arguments: int) -> None:
    code = NOT_SUPPORTED if value is REFUSED else 0
    scene.add(function, None if code else value, device=label, arguments=arguments, code=code)


def _memory(scene: Scene, label: str, total_mib: int | None, reserved_mib: int) -> None:
    if total_mib is None:
        _answer(scene, "nvmlDeviceGetMemoryInfo", REFUSED, label)
        _answer(scene, "nvmlDeviceGetMemoryInfo", REFUSED, label, MEMORY_V2)
        return
    total, reserved = total_mib * MIB, reserved_mib * MIB
    free = total - reserved
    _answer(scene, "nvmlDeviceGetMemoryInfo", {"total": total, "free": free, "used": reserved}, label)
    second = {"version": MEMORY_V2, "total": total, "reserved": reserved, "free": free, "used": 0}
    _answer(scene, "nvmlDeviceGetMemoryInfo", second, label, MEMORY_V2)


def text(name: str) -> str:
    """Return the dump of one machine; each UUID is derived from the label in the machine's function."""
    body = ",\n".join(json.dumps(_with_uuid(call)) for call in MACHINES[name]().calls)
    note = " ".join((MACHINES[name].__doc__ or "").split())
    return f'{{"layout": 2, "origin": "synthetic", "note": {json.dumps(note)}, "calls": [\n{body}\n]}}\n'


def _with_uuid(call: dict[str, Any]) -> dict[str, Any]:
    if call["function"] != "nvmlDeviceGetUUID" or call["value"] is None:
        return call
    kind, _, word = call["value"].partition("-")
    digits = word.encode().hex().ljust(32, "0")[:32]
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return {**call, "value": f"{kind}-{uuid}"}


if __name__ == "__main__":
    for machine in MACHINES:
        (DATA / f"{machine}.json").write_text(text(machine), encoding="utf-8")
