"""For any answer of a driver, no reading exceeds what a device can have, and each omission has a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvml.script import change, load_dump
from test_amd import MI300X, Library

from gpubench.models import DeviceProfile
from gpubench.probe import amd, nvidia
from gpubench.probe.probe import open_telemetry

ALL_BITS = 2**32 - 1
V2 = 0x02000028
WATTS, BYTES = (0, 10_000), (0, 2**46)
# Field -> minimum and maximum of any device, in SI units; chosen independently of the limits in the package.
POSSIBLE = {
    "compute_capability": (0, 99),
    "sm_count": (1, 10_000),
    "cuda_core_count": (1, 1_000_000),
    "memory_bytes": (2**20, 2**46),
    "memory_bandwidth_bytes_per_s": (1e6, 2e15),
    "sm_clock_max_hz": (1e6, 10e9),
    "memory_clock_max_hz": (1e6, 50e9),
    "power_limit_w": (1, 10_000),
    "power_limit_default_w": (1, 10_000),
    "pcie_generation": (1, 9),
    "pcie_generation_now": (1, 9),
    "pcie_generation_card": (1, 9),
    "pcie_width": (1, 32),
    "pcie_width_now": (1, 32),
    "nvlink_count": (0, 18),
    "sm_clock_hz": (0, 10e9),
    "memory_clock_hz": (0, 50e9),
    "power_w": WATTS,
    "temperature_c": (-50, 150),
    "utilization": (0, 1),
    "memory_used_bytes": BYTES,
    "memory_in_use_bytes": BYTES,
    "energy_j": (0, 1e13),
    "held_s": (0, 1e9),
    "ecc_uncorrected": (0, 2**53),
}
EXTREME = (0, 1, 2, 3, 16, 17, 255, 65535, 10**6, 2**31 - 1, 2**31, 2**32 - 2, ALL_BITS)
RAW32 = st.sampled_from(EXTREME) | st.integers(0, ALL_BITS)
RAW64 = RAW32 | st.sampled_from((2**53, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)) | st.integers(0, 2**64 - 1)
MEMORY = st.fixed_dictionaries({"total": RAW64, "free": RAW64, "used": RAW64})
PAIR = st.tuples(RAW32, RAW32).map(list)
# (function, its arguments) -> its possible answers.
ANSWERS = {
    **{
        (function, ()): RAW32
        for function in (
            "nvmlDeviceGetArchitecture",
            "nvmlDeviceGetComputeMode",
            "nvmlDeviceGetCurrPcieLinkGeneration",
            "nvmlDeviceGetCurrPcieLinkWidth",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetGpuMaxPcieLinkGeneration",
            "nvmlDeviceGetMaxPcieLinkGeneration",
            "nvmlDeviceGetMaxPcieLinkWidth",
            "nvmlDeviceGetMemoryBusWidth",
            "nvmlDeviceGetNumGpuCores",
            "nvmlDeviceGetPersistenceMode",
            "nvmlDeviceGetPowerManagementDefaultLimit",
            "nvmlDeviceGetPowerUsage",
        )
    },
    **{("nvmlDeviceGetMaxClockInfo", (n,)): RAW32 for n in (1, 2)},
    **{("nvmlDeviceGetClockInfo", (n,)): RAW32 for n in (1, 2)},
    ("nvmlDeviceGetTemperature", (0,)): RAW32,
    ("nvmlDeviceGetNvLinkState", (0,)): RAW32,
    ("nvmlDeviceGetNvLinkState", (1,)): RAW32,
    ("nvmlDeviceGetMigMode", ()): PAIR,
    ("nvmlDeviceGetEccMode", ()): PAIR,
    ("nvmlDeviceGetCudaComputeCapability", ()): st.tuples(
        st.sampled_from((-1, 0, 1, 9, 12, 255, 2**31 - 1)), st.sampled_from((-1, 0, 9, 2**31 - 1))
    ).map(list),
    ("nvmlDeviceGetUtilizationRates", ()): st.fixed_dictionaries({"gpu": RAW32, "memory": RAW32}),
    ("nvmlDeviceGetMemoryInfo", ()): MEMORY,
    ("nvmlDeviceGetMemoryInfo", (V2,)): MEMORY.map(lambda m: {"version": V2, "reserved": 0, **m}),
    ("nvmlDeviceGetAttributes", ()): st.fixed_dictionaries({"multiprocessorCount": RAW32}),
    ("nvmlDeviceGetTotalEnergyConsumption", ()): RAW64,
    ("nvmlDeviceGetTotalEccErrors", (1, 0)): RAW64,
    ("nvmlDeviceGetCurrentClocksEventReasons", ()): RAW64,
    ("nvmlDeviceGetViolationStatus", (0,)): st.fixed_dictionaries(
        {"referenceTime": RAW64, "violationTime": RAW64}
    ),
}


def impossible(values: dict[str, object]) -> dict[str, object]:
    """Return the impossible values; an unknown value is not impossible."""
    wrong = {}
    for name, value in values.items():
        if value is None or isinstance(value, bool | str):
            continue
        least, most = POSSIBLE[name]
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(math.isfinite(n) and least <= n <= most for n in numbers):
            wrong[name] = value
    return wrong


def fields(struct: object) -> dict[str, object]:
    names = set(struct.__struct_fields__) & set(POSSIBLE)
    return {name: getattr(struct, name) for name in names}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.fixed_dictionaries(ANSWERS))
def test_implausible_nvidia_readings_are_rejected(inside_nvml, answers: dict) -> None:
    calls = load_dump("h200")
    for (function, arguments), answer in answers.items():
        calls = change(calls, function, answer, arguments=list(arguments))
    inside_nvml(calls)
    report = nvidia.BACKEND.devices()
    assert report.devices or report.problems
    for device, state in zip(report.devices, report.states, strict=True):
        assert impossible(fields(device)) == {}
        assert impossible(fields(state)) == {}
        unknown = {f for f in device.__struct_fields__ if getattr(device, f) is None}
        assert unknown - {"device_id", "core_count", "unified_memory"} == set(device.unavailable)
    with open_telemetry(DeviceProfile(backend="cuda", name="NVIDIA H200", index=0)) as line:
        reading = line.sample()
        alone = {
            "energy_j": line.energy_j(),
            "ecc_uncorrected": line.ecc_uncorrected(),
            "memory_in_use_bytes": line.memory_in_use_bytes(),
            "held_s": tuple(line.held_clocks_s().values()),
        }
        assert impossible(fields(reading)) == impossible(alone) == {}
        unknown = {f for f in ("power_w", "sm_clock_hz", "utilization") if getattr(reading, f) is None}
        assert unknown <= set(line._fields.unavailable)


@pytest.mark.parametrize(
    ("function", "arguments", "field", "reason"),
    [
        (
            "nvmlDeviceGetEnforcedPowerLimit",
            [],
            "power_limit_w",
            "4294967295 mW is not a possible power limit",
        ),
        ("nvmlDeviceGetMaxClockInfo", [1], "sm_clock_max_hz", "4294967295 MHz is not a possible clock"),
        (
            "nvmlDeviceGetMemoryBusWidth",
            [],
            "memory_bandwidth_bytes_per_s",
            "4294967295 bit is not a possible",
        ),
        ("nvmlDeviceGetMaxPcieLinkWidth", [], "pcie_width", "4294967295 is not a known PCIe width"),
        (
            "nvmlDeviceGetMaxPcieLinkGeneration",
            [],
            "pcie_generation",
            "4294967295 is not a possible PCIe gen",
        ),
        ("nvmlDeviceGetNumGpuCores", [], "cuda_core_count", "4294967295 is not a possible core count"),
        ("nvmlDeviceGetArchitecture", [], "architecture", "4294967295 is not a known architecture"),
    ],
)
def test_a_value_with_all_bits_set_is_unknown_and_says_why(
    inside_nvml, function: str, arguments: list, field: str, reason: str
) -> None:
    inside_nvml(change(load_dump("h200"), function, ALL_BITS, arguments=arguments))
    (gpu,) = nvidia.BACKEND.devices().devices
    assert getattr(gpu, field) is None
    assert gpu.unavailable[field].startswith(f"{function}: {reason}")


def test_an_invalid_mode_does_not_cut_a_card_into_slices(inside_nvml) -> None:
    inside_nvml(change(load_dump("h200"), "nvmlDeviceGetMigMode", [ALL_BITS, ALL_BITS]))
    (gpu,) = nvidia.BACKEND.devices().devices
    assert gpu.mig_enabled is None
    assert "4294967295 " in gpu.unavailable["mig_enabled"]


def test_memory_in_use_beyond_the_total_is_unknown(inside_nvml) -> None:
    answer = {"version": V2, "total": 2**34, "reserved": 0, "free": 0, "used": 2**35}
    inside_nvml(change(load_dump("h200"), "nvmlDeviceGetMemoryInfo", answer, arguments=[V2]))
    (state,) = nvidia.BACKEND.devices().states
    assert (state.memory_used_bytes, state.memory_in_use_bytes) == (None, None)


def test_implausible_gpu_count_from_the_driver_lists_no_gpus(inside_nvml) -> None:
    calls = [c for c in load_dump("h200") if c["function"] != "nvmlDeviceGetCount"]
    calls.append(
        {"function": "nvmlDeviceGetCount", "device": None, "arguments": [], "code": 0, "value": ALL_BITS}
    )
    inside_nvml(calls)
    report = nvidia.BACKEND.devices()
    assert report.devices == ()
    assert "(nvmlDeviceGetCount: 4294967295" in report.problems[0].line()
    assert report.problems[0].exit_code == 3


class Telling(Library):
    """A fake of AMD's library that answers each call with a different number."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__((*MI300X[:3], numbers[8], *MI300X[4:]))
        clock, power, degrees, busy, used, cap, *of_the_card = numbers
        self.amdsmi_get_clock_info = lambda *_: {"clk": clock, "max_clk": numbers[7]}
        self.amdsmi_get_power_info = lambda _: {"current_socket_power": power}
        self.amdsmi_get_temp_metric = lambda *_: degrees
        self.amdsmi_get_gpu_activity = lambda _: {"gfx_activity": busy}
        self.amdsmi_get_gpu_memory_usage = lambda *_: used
        self.amdsmi_get_gpu_memory_total = lambda *_: of_the_card[0]
        self.amdsmi_get_power_cap_info = lambda _: dict.fromkeys(
            ("power_cap", "default_power_cap", "min_power_cap", "max_power_cap"), cap
        )


@settings(max_examples=60, deadline=None)
@given(numbers=st.lists(RAW64 | st.just(-1), min_size=9, max_size=9))
def test_implausible_amd_readings_are_rejected(numbers: list[int]) -> None:
    backend = amd.AmdBackend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amd, "open_library", lambda: Telling(numbers))
        (device,), (state,) = backend.devices().devices, backend.devices().states
        assert impossible(fields(device)) == impossible(fields(state)) == {}
        with backend.open_readings(device) as line:
            assert impossible(fields(line.sample())) == {}
