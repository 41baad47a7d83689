"""Every name that drivers, frameworks and price lists use means one key, or is reported as unknown."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench import names
from gpubench.errors import MisuseError
from gpubench.folders import data_table
from gpubench.offers.listing import list_offers
from gpubench.offers.quotes import Machine, find_machine
from gpubench.offers.request import OffersRequest
from gpubench.offers.snapshot import embedded_offers
from gpubench.recommend.filters import match_gpus, meant_by
from gpubench.specs import find_spec, load_specs, matching_keys, offered_gpu_key
from gpubench.units import MIB

# The answers of NVML and torch.cuda.get_device_name, with the memory that the device reports [MiB].
DRIVER_NAMES = [
    ("Tesla K80", 11441, "nvidia-tesla-k80-12gb"),
    ("Tesla P100-PCIE-16GB", 16280, "nvidia-tesla-p100-pcie-16gb"),
    ("Tesla V100-SXM2-16GB", 16160, "nvidia-tesla-v100-sxm2-16gb"),
    ("Tesla V100-SXM2-32GB", 32510, "nvidia-tesla-v100-sxm2-32gb"),
    ("Tesla T4", 15109, "nvidia-tesla-t4-16gb"),
    ("NVIDIA A10G", 22731, "nvidia-a10g-24gb"),
    ("NVIDIA A100-PCIE-40GB", 40536, "nvidia-a100-pcie-40gb"),
    ("NVIDIA A100 80GB PCIe", 81920, "nvidia-a100-pcie-80gb"),
    ("NVIDIA A100-SXM4-40GB", 40536, "nvidia-a100-sxm-40gb"),
    ("NVIDIA A100-SXM4-80GB", 81920, "nvidia-a100-sxm-80gb"),
    ("NVIDIA H100 PCIe", 81559, "nvidia-h100-pcie-80gb"),
    ("NVIDIA H100 80GB HBM3", 81559, "nvidia-h100-sxm-80gb"),
    ("NVIDIA H100 NVL", 95830, "nvidia-h100-nvl-94gb"),
    ("NVIDIA H200", 143771, "nvidia-h200-sxm-141gb"),
    ("NVIDIA B200", 183359, "nvidia-b200-sxm-180gb"),
    ("NVIDIA GH200 480GB", 97871, "nvidia-gh200-96gb"),
    ("NVIDIA L4", 23034, "nvidia-l4-24gb"),
    ("NVIDIA L40S", 46068, "nvidia-l40s-48gb"),
    ("NVIDIA GeForce RTX 3080", 10240, "nvidia-geforce-rtx-3080-10gb"),
    ("NVIDIA GeForce RTX 3080", 12288, "nvidia-geforce-rtx-3080-12gb"),
    ("NVIDIA GeForce RTX 3060", 12288, "nvidia-geforce-rtx-3060-12gb"),
    ("NVIDIA GeForce RTX 3060", 8192, "nvidia-geforce-rtx-3060-8gb"),
    ("NVIDIA GeForce RTX 4060 Ti", 8188, "nvidia-geforce-rtx-4060-ti-8gb"),
    ("NVIDIA GeForce RTX 4060 Ti", 16380, "nvidia-geforce-rtx-4060-ti-16gb"),
    ("NVIDIA GeForce RTX 4090", 24564, "nvidia-geforce-rtx-4090-24gb"),
    ("NVIDIA GeForce RTX 5090", 32607, "nvidia-geforce-rtx-5090-32gb"),
    ("Quadro RTX 6000", 22698, "nvidia-quadro-rtx-6000-24gb"),
    ("NVIDIA RTX A6000", 49140, "nvidia-rtx-a6000-48gb"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "nvidia-rtx-6000-ada-48gb"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "nvidia-rtx-pro-6000-blackwell-server-96gb"),
    ("AMD Instinct MI300X", 196288, "amd-mi300x-192gb"),
]

# SkyPilot's accelerator names, with the memory of its GpuInfo [GiB] if it has one.
SKYPILOT_NAMES = [
    ("A100", 40, "nvidia-a100-unstated-40gb"),
    ("A100-80GB", 80, "nvidia-a100-unstated-80gb"),
    ("A100-80GB-SXM", 80, "nvidia-a100-sxm-80gb"),
    ("A10G", 24, "nvidia-a10g-24gb"),
    ("H100", 80, "nvidia-h100-unstated-80gb"),
    ("H100", 94, "nvidia-h100-nvl-94gb"),
    ("H100-SXM", 80, "nvidia-h100-sxm-80gb"),
    ("H200", 141, "nvidia-h200-sxm-141gb"),
    ("V100", 16, "nvidia-v100-unstated-16gb"),
    ("V100-32GB", 32, "nvidia-v100-unstated-32gb"),
    ("RTX4090", 24, "nvidia-geforce-rtx-4090-24gb"),
    ("RTX6000-Ada", 48, "nvidia-rtx-6000-ada-48gb"),
    ("RTXA6000", 48, "nvidia-rtx-a6000-48gb"),
    ("MI300X", 192, "amd-mi300x-192gb"),
    ("Gaudi HL-205", None, "intel-gaudi-32gb"),
    ("Trainium", None, "aws-trainium-32gb"),
]

# Every name of SkyPilot's list of accelerators (skypilot-catalog v8, common/accelerators.csv @001ca549).
SKYPILOT_LIST = """
A10 A100 A100-80GB A100-80GB-SXM A10G A30 A40 A4000 A6000 A800 B200 GH200 GTX1660S H100 H100-MEGA H100-NVL
H100-NVLINK H100-SXM H200 H200-SXM K80 L4 L40 L40S M4000 M60 MI300X P100 P4 P4000 RTX3060 RTX3070 RTX3080 RTX3090
RTX4000-Ada RTX4090 RTX5060 RTX5090 RTX6000 RTX6000-Ada RTX6000Ada RTXA4000 RTXA4500 RTXA5000 RTXA6000 RTXPRO6000S
RTXPRO6000WS T4 T4g V100 V100-32GB tpu-v2 tpu-v3 tpu-v4 tpu-v5litepod tpu-v5p tpu-v6e
"""
SKYPILOT_OF_TWO_WORDS = ("Gaudi HL-205", "Radeon MI25", "Radeon Pro V520")
SKYPILOT_NOT_IN_THE_TABLE = {
    "A800", "H100-NVLINK", "M4000", "P4000", "Radeon MI25", "Radeon Pro V520", "T4g",
}  # fmt: skip
SKYPILOT_SIZE_OPEN = {"A100", "RTX6000", "V100"}

# Google's accelerator types, which determine the form factor by their machine.
GCP_TYPES = [
    ("nvidia-tesla-t4", "nvidia-tesla-t4-16gb"),
    ("nvidia-l4", "nvidia-l4-24gb"),
    ("nvidia-tesla-a100", "nvidia-a100-sxm-40gb"),
    ("nvidia-a100-80gb", "nvidia-a100-sxm-80gb"),
    ("nvidia-h100-80gb", "nvidia-h100-sxm-80gb"),
    ("nvidia-h100-mega-80gb", "nvidia-h100-sxm-80gb"),
    ("nvidia-h200-141gb", "nvidia-h200-sxm-141gb"),
    ("nvidia-b200", "nvidia-b200-sxm-180gb"),
    ("nvidia-tesla-v100", "nvidia-tesla-v100-sxm2-16gb"),
    ("nvidia-tesla-p100", "nvidia-tesla-p100-pcie-16gb"),
    ("nvidia-rtx-pro-6000", "nvidia-rtx-pro-6000-blackwell-server-96gb"),
]

# The names under which published training measurements are collected.
PUBLISHED_NAMES = [
    ("Ironwood", "google-tpu-v7x"),
    ("Jetson Orin 32GB", "nvidia-jetson-agx-orin-32gb"),
    ("M3 Max", "apple-m3-max"),
    ("RX 5700", "amd-radeon-rx-5700-8gb"),
    ("TPU v5e", "google-tpu-v5e"),
    ("TPU v7", "google-tpu-v7x"),
    ("A10", "nvidia-a10-24gb"),
    ("A100-PCIe-40GB", "nvidia-a100-pcie-40gb"),
    ("A100-PCIe-80GB", "nvidia-a100-pcie-80gb"),
    ("A100-SXM4-40GB", "nvidia-a100-sxm-40gb"),
    ("A100-SXM4-80GB", "nvidia-a100-sxm-80gb"),
    ("A40", "nvidia-a40-48gb"),
    ("GTX 1080", "nvidia-geforce-gtx-1080-8gb"),
    ("GTX 1080 Ti", "nvidia-geforce-gtx-1080-ti-11gb"),
    ("H100-PCIe", "nvidia-h100-pcie-80gb"),
    ("H100-SXM5", "nvidia-h100-sxm-80gb"),
    ("H20", "nvidia-h20-sxm-96gb"),
    ("H200-SXM", "nvidia-h200-sxm-141gb"),
    ("K80", "nvidia-tesla-k80-12gb"),
    ("L4", "nvidia-l4-24gb"),
    ("M60", "nvidia-tesla-m60-8gb"),
    ("P100-PCIe", "nvidia-tesla-p100-pcie-16gb"),
    ("P4", "nvidia-tesla-p4-8gb"),
    ("Quadro RTX 5000", "nvidia-quadro-rtx-5000-16gb"),
    ("Quadro RTX 6000", "nvidia-quadro-rtx-6000-24gb"),
    ("Quadro RTX 8000", "nvidia-quadro-rtx-8000-48gb"),
    ("RTX 2070 Max-Q", "nvidia-geforce-rtx-2070-maxq-8gb"),
    ("RTX 2080 Max-Q", "nvidia-geforce-rtx-2080-maxq-8gb"),
    ("RTX 2080 Super Max-Q", "nvidia-geforce-rtx-2080-super-maxq-8gb"),
    ("RTX 2080 Ti", "nvidia-geforce-rtx-2080-ti-11gb"),
    ("RTX 3070", "nvidia-geforce-rtx-3070-8gb"),
    ("RTX 3080", "nvidia-geforce-rtx-3080-10gb"),
    ("RTX 3080 Max-Q", "nvidia-geforce-rtx-3080-maxq-16gb"),
    ("RTX 3090", "nvidia-geforce-rtx-3090-24gb"),
    ("RTX 4090", "nvidia-geforce-rtx-4090-24gb"),
    ("RTX 5090", "nvidia-geforce-rtx-5090-32gb"),
    ("RTX 6000 Ada", "nvidia-rtx-6000-ada-48gb"),
    ("RTX A4000", "nvidia-rtx-a4000-16gb"),
    ("RTX A4500", "nvidia-rtx-a4500-20gb"),
    ("RTX A5000", "nvidia-rtx-a5000-24gb"),
    ("RTX A5500", "nvidia-rtx-a5500-24gb"),
    ("RTX A6000", "nvidia-rtx-a6000-48gb"),
    ("RTX PRO 6000 BW", "nvidia-rtx-pro-6000-blackwell-workstation-96gb"),
    ("T4", "nvidia-tesla-t4-16gb"),
    ("TITAN RTX", "nvidia-titan-rtx-24gb"),
    ("TITAN V", "nvidia-titan-v-12gb"),
    ("TITAN X (Maxwell)", "nvidia-titan-x-maxwell-12gb"),
    ("TITAN Xp", "nvidia-titan-xp-12gb"),
    ("V100-PCIe-32GB", "nvidia-tesla-v100-pcie-32gb"),
    ("V100-SXM2-16GB", "nvidia-tesla-v100-sxm2-16gb"),
    ("V100-SXM2-32GB", "nvidia-tesla-v100-sxm2-32gb"),
    ("V100S-PCIe-32GB", "nvidia-tesla-v100s-pcie-32gb"),
]

# A cloud's instance determines what its GPU name leaves open.
INSTANCES = [
    ("aws", "p5.48xlarge", "nvidia-h100-sxm-80gb"),
    ("aws", "p5en.48xlarge", "nvidia-h200-sxm-141gb"),
    ("aws", "g6e.12xlarge", "nvidia-l40s-48gb"),
    ("aws", "g6.12xlarge", "nvidia-l4-24gb"),
    ("azure", "Standard_NC40ads_H100_v5", "nvidia-h100-nvl-94gb"),
    ("azure", "standard_nd96isr_h100_v5", "nvidia-h100-sxm-80gb"),
    ("gcp", "a2-ultragpu-8g", "nvidia-a100-sxm-80gb"),
    ("gcp", "a3-highgpu-8g", "nvidia-h100-sxm-80gb"),
    ("lambda", "gpu_1x_h100_pcie", "nvidia-h100-pcie-80gb"),
    ("lambda", "gpu_8x_a100", "nvidia-a100-sxm-40gb"),
    ("oci", "BM.GPU.H100.8", "nvidia-h100-sxm-80gb"),
]

# GPUs known to gpuhunt but not in the specification table; a new one fails the test once.
NOT_IN_THE_TABLE = {
    "MI308X", "n150", "n300", "p100a", "p150", "p300", "tt-galaxy-bh", "tt-galaxy-wh",
}  # fmt: skip
# Known with another size: a full card of two dies, a wrong memory, two editions of one name.
LEFT_OPEN = {"MI250", "MI250X", "MI325X", "RTXPRO4500"}


@pytest.mark.parametrize(("name", "memory_mib", "key"), DRIVER_NAMES)
def test_device_is_identified_from_driver_name_and_memory(name, memory_mib, key):
    spec = find_spec(name, memory_mib * MIB)
    assert spec
    assert spec.key == key


@pytest.mark.parametrize(("name", "key"), PUBLISHED_NAMES)
def test_published_measurements_match_the_gpu_table(name, key):
    spec = find_spec(name)
    assert spec
    assert spec.key == key


@pytest.mark.parametrize(("name", "memory_gib", "key"), SKYPILOT_NAMES)
def test_skypilot_names(name, memory_gib, key):
    assert offered_gpu_key(name, memory_gib) == key


def test_skypilot_names_missing_from_the_catalog_match_the_expected_list():
    unknown = {
        name for name in (*SKYPILOT_LIST.split(), *SKYPILOT_OF_TWO_WORDS) if offered_gpu_key(name) is None
    }
    assert unknown == SKYPILOT_NOT_IN_THE_TABLE | SKYPILOT_SIZE_OPEN


@pytest.mark.parametrize(("name", "key"), GCP_TYPES)
def test_google_types_name_the_form_factor(name, key):
    assert offered_gpu_key(name) == key


@pytest.mark.parametrize(("provider", "instance", "key"), INSTANCES)
def test_an_instance_determines_the_form_factor(provider, instance, key):
    machine = find_machine(provider, instance)
    assert machine
    assert machine.gpu_key == key


def test_instances_name_known_gpus_and_nothing_is_guessed_for_others():
    assert find_machine("aws", "m5.large") is None
    assert find_machine("aws", "g6") is None
    assert find_machine("nobody", "p5.48xlarge") is None
    assert {machine.gpu_key for machine in data_table("instances.csv", Machine)} <= set(load_specs())


def test_gpuhunt_accelerators_missing_from_the_catalog_match_the_expected_list():
    known = pytest.importorskip("gpuhunt").KNOWN_ACCELERATORS
    unknown = {gpu.name for gpu in known if offered_gpu_key(gpu.name, gpu.memory or None) is None}
    assert unknown == NOT_IN_THE_TABLE | LEFT_OPEN


def test_a_hyphen_may_replace_a_space_but_a_space_never_replaces_a_hyphen():
    assert offered_gpu_key("H100-NVL") == "nvidia-h100-nvl-94gb"
    assert offered_gpu_key("RTX-4090") == "nvidia-geforce-rtx-4090-24gb"
    assert offered_gpu_key("nvidia-h100-80gb") == "nvidia-h100-sxm-80gb"
    assert offered_gpu_key("nvidia h100 80gb") == "nvidia-h100-unstated-80gb"


def test_unstated_form_factor_is_not_guessed():
    assert find_spec("H100") is None
    assert offered_gpu_key("H100") == "nvidia-h100-unstated-80gb"
    assert offered_gpu_key("NVIDIA H100 80GB") == "nvidia-h100-unstated-80gb"
    assert offered_gpu_key("A100") is None, "the size is open too, 40 or 80 GB"
    assert offered_gpu_key("A100 SXM4") is None
    assert offered_gpu_key("A100 SXM4", 39.0) == "nvidia-a100-sxm-40gb"


def test_an_unstated_row_has_the_lowest_figures_of_its_variants():
    specs = load_specs()
    for spec in specs.values():
        for variant in (specs[key] for key in spec.variants):
            for figure in ("fp32_flops_per_s", "fp16_tensor_flops_per_s", "memory_bandwidth_bytes_per_s"):
                lowest, its = getattr(spec, figure), getattr(variant, figure)
                assert (lowest is None and its is None) or lowest <= its
    open_h100 = specs["nvidia-h100-unstated-80gb"]
    assert open_h100.fp32_flops_per_s == specs["nvidia-h100-pcie-80gb"].fp32_flops_per_s


@pytest.mark.parametrize("key", load_specs())
def test_every_name_that_is_printed_can_be_typed_back(key):
    """In any case, with spaces, underscores or none, a row's key, name and short name mean only this row."""
    spec = load_specs()[key]
    for printed in (key, spec.name, spec.short_name):
        for typed in (printed, printed.upper(), printed.lower(), printed.replace(" ", "_"), f" {printed} "):
            assert matching_keys(typed) == (key,), typed
            assert meant_by(typed, load_specs()) == {key}, typed


def test_every_name_of_a_printed_offer_can_be_typed_back():
    offers = embedded_offers().offers
    for offer in offers:
        wanted = OffersRequest(
            providers=(offer.provider.upper(),),
            regions=((offer.region or "any").upper(),),
            gpus=(load_specs()[offer.gpu_key].short_name,),
        )
        found = list_offers([offer], wanted, date(2026, 11, 20))
        assert [row.offer for row in found] == [offer], wanted


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("h1000", "nvidia-h100-sxm-80gb"),
        ("H-1000", "nvidia-h100-sxm-80gb"),
        ("RTX 4O90", "nvidia-geforce-rtx-4090-24gb"),
        ("rtx-4o9o", "nvidia-geforce-rtx-4090-24gb"),
        ("geforce4091", "nvidia-geforce-rtx-4090-24gb"),
        ("A1OO SXM", "nvidia-a100-sxm-80gb"),
        ("mi3OOx", "amd-mi300x-192gb"),
        ("l4os", "nvidia-l40s-48gb"),
    ],
)
def test_a_mistyped_name_finds_its_neighbor_in_every_verb(typed, near):
    with pytest.raises(MisuseError, match=near):
        matching_keys(typed)
    with pytest.raises(MisuseError, match=near):
        match_gpus(typed, [near])


def test_gpu_without_offers_is_still_a_known_name():
    with pytest.raises(MisuseError, match=r"GPU 'jetson' \(nvidia-jetson"):
        match_gpus("jetson", ["nvidia-l4-24gb"])
    assert len(matching_keys("jetson")) == 7


@pytest.mark.parametrize("line", ["Instinct", "Radeon", "Quadro", "Data Center", "Apple silicon"])
def test_a_product_line_names_its_cards(line):
    of_it = {key for key, spec in load_specs().items() if spec.line == line}
    assert of_it
    assert of_it <= set(matching_keys(line))


@pytest.mark.parametrize("architecture", ["Blackwell", "ada", "hopper", "AMPERE", "ada lovelace", "CDNA3"])
def test_an_architecture_names_its_cards_whether_or_not_their_keys_have_it(architecture):
    words = set(architecture.lower().split())
    of_it = {k for k, spec in load_specs().items() if words <= {*(spec.architecture or "").lower().split()}}
    assert of_it
    assert set(matching_keys(architecture)) == of_it
    assert meant_by(architecture, load_specs()) == of_it


def test_a_misspelled_architecture_is_named_and_a_card_is_not_taken_for_one():
    for typed, meant in (("hoper", "Hopper"), ("blackwel", "Blackwell"), ("amper", "Ampere")):
        with pytest.raises(MisuseError, match=rf"unknown GPU '{typed}'; nearest known: {meant}\b"):
            matching_keys(typed)
    with pytest.raises(MisuseError, match="nearest known: nvidia-h100"):
        matching_keys("h1oo")


def test_no_name_matches_two_devices():
    seen: dict[str, str] = {}
    for key, spec in load_specs().items():
        for name in () if spec.variants else (key, spec.name, *spec.aliases):
            squeezed = names.squeeze(name)
            assert seen.setdefault(squeezed, key) == key or name in {"RTX 6000", "RTX5000"}, (
                name,
                key,
                seen[squeezed],
            )


@pytest.mark.parametrize(
    ("name", "slice_"),
    [("tpu-v5litepod-8", ("v5e", 8)), ("v6e-4", ("v6e", 4)), ("tpu-v2-8", ("v2", 4)), ("v5p-8", ("v5p", 4)), ("v9-8", None), ("T4", None)],
)  # fmt: skip
def test_tpu_slices_are_counted_in_chips(name, slice_):
    assert names.tpu_slice(name) == slice_


@given(st.text(max_size=60), st.none() | st.floats(0.1, 1000))
def test_no_text_breaks_resolution(name, memory_gib):
    key = offered_gpu_key(name, memory_gib)
    assert key is None or key in load_specs()


@given(st.sampled_from([n for n, _, _ in DRIVER_NAMES]), st.randoms(use_true_random=False))
def test_case_spaces_and_trademark_signs_do_not_matter(name, random):
    noisy = "".join(random.choice((c.upper(), c.lower())) for c in name).replace(
        " ", random.choice(("  ", "_", "\t"))
    )
    assert names.squeeze(noisy + random.choice(("", "™", "(R)"))) == names.squeeze(name)
