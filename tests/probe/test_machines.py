"""Many kinds of machines, from recorded or synthetic dumps: each gives a plausible profile and its own messages."""

from __future__ import annotations

import json

import psutil
import pytest
from nvml.script import DATA, Fault
from nvml.synthetic import MACHINES, card, system, text

from gpubench.probe import nvidia, select
from gpubench.probe.health import limits, preflight
from gpubench.probe.nvidia import BACKEND
from gpubench.probe.probe import open_telemetry, probe
from gpubench.probe.select import select_device
from gpubench.specs import find_spec, load_specs, offered_gpu_key
from gpubench.units import GIB, MIB


@pytest.mark.parametrize("name", MACHINES)
def test_the_stored_dumps_match_the_synthetic_machines(name: str) -> None:
    assert (DATA / f"{name}.json").read_text(encoding="utf-8") == text(name)


@pytest.mark.parametrize("file", sorted(DATA.glob("*.json")), ids=lambda f: f.stem)
def test_every_dump_states_its_origin_and_can_be_probed(inside_nvml, file) -> None:
    assert json.loads(file.read_text(encoding="utf-8"))["origin"] in {"recorded", "synthetic"}
    inside_nvml(file)
    gpus = [d for d in probe().devices if d.backend == "cuda"]
    assert gpus
    for gpu in gpus:
        assert gpu.memory_bytes is not None
        unknown = {f for f in gpu.__struct_fields__ if getattr(gpu, f) is None} - {"device_id", "core_count"}
        unexplained = unknown - set(gpu.unavailable)
        assert not unexplained or gpu.mig_enabled, f"{gpu.name}: no reason given for {unexplained}"
        assert not set(gpu.unavailable) - unknown
        with open_telemetry(gpu) as readings:
            assert readings.source == ("none" if file.stem == "jetson" else "nvml")
            readings.sample()


def test_a_t4_has_the_facts_of_its_dump(inside_nvml) -> None:
    inside_nvml("t4")
    (gpu,) = nvidia.BACKEND.devices().devices
    assert (gpu.gpu_key, gpu.sm_count, gpu.compute_capability) == ("nvidia-tesla-t4-16gb", 40, (7, 5))
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(320e9, rel=0.001)
    assert gpu.tensor_core_precisions == ("fp16", "int8")


def test_mig_slices_are_listed_as_devices_without_card_level_readings(inside_nvml, monkeypatch) -> None:
    monkeypatch.setattr(select, "check_torch", lambda device: None)
    inside_nvml("a100_mig")
    slices = nvidia.BACKEND.devices().devices
    assert [(s.sm_count, s.memory_bytes, s.index) for s in slices] == [
        (42, 19968 << 20, 0),
        (28, 9856 << 20, 0),
    ]
    assert [s.gpu_key for s in slices] == [None, None]
    assert {s.power_limit_w for s in slices} == {None}
    assert "whole card" in slices[0].unavailable["power_limit_w"]
    with open_telemetry(slices[1]) as readings:
        now = readings.sample()
        assert now.power_w is None
        assert now.utilization is None
        assert preflight(slices[1], readings) == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", slices[1].uuid)
    assert select_device("auto")[0].uuid == slices[1].uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # CUDA takes the first slice of a partitioned card
    assert select_device("cuda")[0].uuid == slices[0].uuid


def test_mig_without_a_slice_is_a_problem(inside_nvml) -> None:
    inside_nvml("a100_mig", faults=[Fault("nvmlDeviceGetMigDeviceHandleByIndex", code=6)])
    report = nvidia.BACKEND.devices()
    assert report.devices == ()
    assert report.problems[0].line().startswith("GPU 0 ")
    assert "MIG mode" in report.problems[0].line()


def test_slices_are_lost_with_their_card(inside_nvml) -> None:
    for function in ("nvmlDeviceGetTemperature", "nvmlDeviceGetName"):
        inside_nvml("a100_mig", faults=[Fault(function, code=15)])
        report = nvidia.BACKEND.devices()
        assert report.devices == ()
        assert [p.what for p in report.problems] == ["GPU 0 is lost"]


def test_card_with_a_hanging_mig_slice_is_reported_and_excluded(inside_nvml) -> None:
    inside_nvml("a100_mig", faults=[Fault("nvmlDeviceGetMigDeviceHandleByIndex", sleep_s=3, selector=(1,))])
    report = nvidia.NvidiaBackend(limit_s=1.0).devices()
    assert [(p.device_index, "not answer" in p.what) for p in report.problems] == [(0, True)]
    assert report.devices == ()


def test_unified_memory_is_the_machines_and_marked(inside_nvml) -> None:
    for name in ("gb10", "jetson"):
        inside_nvml(name)
        (gpu,) = nvidia.BACKEND.devices().devices
        assert (gpu.memory_bytes, gpu.unified_memory) == (psutil.virtual_memory().total, True)
    inside_nvml("h200", faults=[Fault("nvmlDeviceGetMemoryInfo", code=3)])
    (gpu,) = nvidia.BACKEND.devices().devices
    assert gpu.memory_bytes is None  # a card's own memory is never guessed from the machine's


def test_a_virtual_gpu_is_reported_as_virtual(inside_nvml) -> None:
    inside_nvml("vgpu")
    report = nvidia.BACKEND.devices()
    assert report.devices[0].gpu_key is None  # half an A10 is not an A10
    assert "virtual GPU (vgpu)" in limits(report.devices[0], report.states[0])[0]


def test_a_laptop_has_timings_and_no_power(inside_nvml) -> None:
    inside_nvml("laptop")
    report = nvidia.BACKEND.devices()
    assert report.devices[0].gpu_key is None  # a laptop chip is not the desktop card of that name
    assert report.devices[0].power_limit_w is None
    with open_telemetry(report.devices[0]) as readings:
        assert preflight(report.devices[0], readings) == ()  # the desktop itself is not another user


def test_each_of_four_gpus_reports_its_own_limit(inside_nvml) -> None:
    inside_nvml("four")
    report = nvidia.BACKEND.devices()
    said = ["; ".join(limits(d, s)) for d, s in zip(report.devices, report.states, strict=True)]
    assert said[0] == ""
    assert said[1].startswith("PCIe link of x4")
    assert said[2].startswith("power limit 300 W")
    assert "by sw_power_cap; 1 other process" in said[3]


# --- cards with one name ------------------------------------------------------------------------------------


SXM_94, SXM_96, NVL = "nvidia-h100-sxm-94gb", "nvidia-h100-sxm-96gb", "nvidia-h100-nvl-94gb"


@pytest.mark.parametrize(
    ("name", "memory_mib", "power_w", "key"),
    [
        ("NVIDIA H100", 95830, 700, SXM_94),
        ("NVIDIA H100", 97320, 500, SXM_96),
        ("NVIDIA H100", 95830, 400, None),  # neither: an NVL card has another name
        ("NVIDIA H100", 95830, None, None),
        ("NVIDIA H100", 81559, 700, None),
        ("NVIDIA H100 NVL", 95830, 400, NVL),
        ("NVIDIA H100 NVL", 95830, None, NVL),
        ("NVIDIA H100 80GB HBM3", 81559, 700, "nvidia-h100-sxm-80gb"),
        ("NVIDIA GH200 120GB", 97871, 900, "nvidia-gh200-96gb"),  # 120 GB is the CPU's memory
        ("NVIDIA GH200 480GB", 97871, 900, "nvidia-gh200-96gb"),
        ("NVIDIA GH200 480GB", 146831, 900, "nvidia-gh200-144gb"),
        ("NVIDIA GH200 144G HBM3e", 146831, 900, "nvidia-gh200-144gb"),
        ("NVIDIA A100-SXM4-64GB", 65536, 500, None),  # it has fewer SMs than the A100 cards in the table
    ],
)
def test_a_card_is_identified_by_its_memory_and_power(inside_nvml, name, memory_mib, power_w, key):
    scene = system("580.95.05", 13000, 1)
    card(
        scene, 0, name=name, uuid="GPU-0000h100", bus=0xC6, architecture=9, capability=(9, 0), cores=16896,
        memory_mib=memory_mib, sm_mhz=1980, memory_mhz=1593, bus_bits=5120, power_w=power_w, pcie=(5, 16, 5, 16),
    )  # fmt: skip
    inside_nvml(scene.calls)
    (device,) = BACKEND.devices().devices
    assert device.gpu_key == key


def test_price_list_name_resolves_to_the_card_on_sale():
    assert offered_gpu_key("H100", 94) == NVL
    assert find_spec("H100", 94 * GIB) is None


def test_every_card_that_shares_a_drivers_name_is_distinguished_from_its_twins():
    """By memory, or by power limits that differ by more than the tolerance."""
    named = [(spec, name) for spec in load_specs().values() for name in spec.driver_names]
    assert len(named) > len({name for _, name in named}), "some cards share a name"
    for spec, name in named:
        assert spec.memory_bytes
        found = find_spec(name, spec.memory_bytes, spec.tdp_w)
        assert found is not None, (spec.key, name)
        assert found.key == spec.key


def test_card_with_an_unknown_factory_power_limit_is_not_identified():
    assert find_spec("NVIDIA H100", 95830 * MIB, 585.0) is None


def test_later_variant_with_different_memory_is_unknown_and_the_probe_explains_it(inside_nvml):
    """Its name begins with that of a known card of 32 GB."""
    scene = system("580.95.05", 13000, 1)
    card(
        scene, 0, name="NVIDIA GeForce RTX 5090 D v2", uuid="GPU-00005090", bus=0x01, architecture=10,
        capability=(12, 0), cores=21760, memory_mib=24463, sm_mhz=2407, power_w=575, pcie=(5, 16, 5, 16),
    )  # fmt: skip
    inside_nvml(scene.calls)
    (device,) = BACKEND.devices().devices
    assert device.gpu_key is None
    assert device.unavailable["gpu_key"] == (
        "no single row of the specification table has this name and memory"
    )
