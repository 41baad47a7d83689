"""Cards to which a driver gives one name: each is identified by its memory and its power limit, or not at all."""

from __future__ import annotations

import pytest
from nvml.synthetic import card, system

from gpubench.probe.nvidia import BACKEND
from gpubench.specs import find_spec, load_specs, offered_gpu_key
from gpubench.units import GIB, MIB

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
