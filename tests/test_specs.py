"""The specification table can be parsed, and no name means two GPUs."""

from __future__ import annotations

import csv
from datetime import date
from pathlib import Path

import pytest

import gpubench.specs
from gpubench.errors import MisuseError
from gpubench.folders import data_rows
from gpubench.predict.question import FITTED_VENDOR, OTHER_VENDORS
from gpubench.specs import find_spec, load_specs, matching_keys, meaning_taken, require_spec, usual_spec
from gpubench.today import today
from gpubench.units import GIB


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100", "nvidia-h100-sxm-80gb"),
        ("h200", "nvidia-h200-sxm-141gb"),
        ("H100 NVL", "nvidia-h100-nvl-94gb"),
        ("nvidia-h100-pcie-80gb", "nvidia-h100-pcie-80gb"),
        ("A100", "nvidia-a100-sxm-80gb"),
        ("V100", "nvidia-tesla-v100-sxm2-32gb"),
    ],
)
def test_a_name_without_a_form_factor_means_the_module_and_says_so(name, key):
    assert usual_spec(name).key == key
    said = meaning_taken(name)
    assert (said is None) == (name not in {"H100", "A100", "V100"})
    assert said is None or said.startswith(f"{name} is read as {key}; it can also be nvidia-")


@pytest.mark.parametrize("name", ["RTX 6000", "no such card"])
def test_name_of_cards_with_different_specs_stays_ambiguous(name):
    with pytest.raises(MisuseError):
        usual_spec(name)
    assert meaning_taken(name) is None


def test_every_row_has_a_source_and_plausible_figures():
    for spec in load_specs().values():
        assert spec.source
        if spec.tf32_tensor_flops_per_s and spec.fp16_tensor_flops_per_s and spec.vendor == "NVIDIA":
            assert 1.5 < spec.fp16_tensor_flops_per_s / spec.tf32_tensor_flops_per_s < 4.5, spec.key
        if spec.fp32_flops_per_s and spec.cuda_core_count and spec.vendor == "NVIDIA":
            assert 0.6e9 < spec.fp32_flops_per_s / (2 * spec.cuda_core_count) < 2.9e9, spec.key


@pytest.mark.parametrize(
    ("name", "memory_bytes", "key"),
    [
        ("NVIDIA H200", 150754820096, "nvidia-h200-sxm-141gb"),
        ("Tesla T4", None, "nvidia-tesla-t4-16gb"),
        ("NVIDIA GeForce RTX 4090", 24 * GIB, "nvidia-geforce-rtx-4090-24gb"),
        ("H100", None, None),
        ("Banana 9000", None, None),
        ("NVIDIA GeForce RTX 4090", 12 * GIB, None),
    ],
)
def test_a_name_resolves_to_its_one_key_or_to_nothing(name, memory_bytes, key):
    spec = find_spec(name, memory_bytes)
    assert (spec and spec.key) == key


def test_an_unknown_name_shows_the_nearest_known():
    with pytest.raises(MisuseError, match="nvidia-geforce-rtx-4090-24gb"):
        require_spec("nvidia-geforce-rtx-4091-24gb")


def _rows():
    path = Path(gpubench.specs.__file__).parent / "data" / "gpus.csv"
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_every_row_is_dated_and_its_additions_name_their_source():
    for row in _rows():
        assert date.fromisoformat(row["as_of"]) <= today()
        board = (
            "base_clock_hz",
            "boost_clock_hz",
            "pcie_lanes",
            "fp64_flops_per_s",
            "ecc",
            "cooling",
            "slot_count",
            "power_connector",
        )
        if any(row[column] for column in board):
            assert row["board_source"], row["key"]


def test_board_facts_have_valid_values():
    for spec in load_specs().values():
        assert spec.cooling in {None, "active", "passive", "module"}
        assert spec.pcie_lanes in {None, 1, 4, 8, 16}
        assert spec.slot_count in {None, 1.0, 2.0, 2.5, 3.0}
        assert (
            spec.base_clock_hz is None
            or spec.boost_clock_hz is None
            or spec.base_clock_hz <= spec.boost_clock_hz
        )
        if spec.fp64_flops_per_s and spec.fp32_flops_per_s:
            assert 1 / 65 < spec.fp64_flops_per_s / spec.fp32_flops_per_s <= 1.03, spec.key


def test_fp32_is_two_flops_per_core_and_boost_clock():
    """NVIDIA's headline rate is kept if it is within 2.5 % of that."""
    for spec in load_specs().values():
        if spec.vendor == "NVIDIA" and spec.boost_clock_hz and spec.fp32_flops_per_s and spec.cuda_core_count:
            by_rule = 2 * spec.cuda_core_count * spec.boost_clock_hz
            assert spec.fp32_flops_per_s == pytest.approx(by_rule, rel=0.025), spec.key


def test_accelerators_outside_the_model_are_listed_without_rates_and_with_the_reason():
    listed = [spec for spec in load_specs().values() if spec.not_ranked_because]
    fitted = (FITTED_VENDOR, *OTHER_VENDORS)
    assert listed == [spec for spec in load_specs().values() if spec.vendor not in fitted]
    assert {spec.vendor for spec in listed} == {"Amazon", "Apple", "Google", "Intel"}
    assert {"Gaudi", "Arc", "Cloud TPU", "Apple silicon", "Movidius", "Trainium"} <= {
        spec.line for spec in listed
    }
    for spec in listed:
        assert spec.fp32_flops_per_s is spec.bf16_tensor_flops_per_s is spec.fp16_tensor_flops_per_s is None


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("4090", "nvidia-geforce-rtx-4090-24gb"),
        ("1080 ti", "nvidia-geforce-gtx-1080-ti-11gb"),
        ("2080ti", "nvidia-geforce-rtx-2080-ti-11gb"),
    ],
)
def test_the_number_of_a_geforce_suffices_if_only_one_family_has_it(typed, key):
    assert require_spec(typed).key == key
    assert key in matching_keys(typed)
    assert find_spec(typed) is None, "a name from a driver or a price list is never guessed"


@pytest.mark.parametrize("typed", ["6000", "16", "40", "4091"])
def test_an_unknown_or_ambiguous_geforce_number_is_not_guessed(typed):
    with pytest.raises(MisuseError, match="nearest"):
        require_spec(typed)


def test_an_ambiguous_name_lists_its_meanings():
    with pytest.raises(
        MisuseError, match=r"any of nvidia-h100-nvl-94gb, nvidia-h100-sxm-80gb and nvidia-h100-pcie"
    ):
        require_spec("H100")
    with pytest.raises(
        MisuseError,
        match="ambiguous GPU 'RTX 6000'; it can be any of nvidia-quadro-rtx-6000-24gb and nvidia-rtx-6000-ada-48gb",
    ):
        require_spec("RTX 6000")
    with pytest.raises(MisuseError, match="any of nvidia-quadro-rtx-5000-16gb and nvidia-rtx-5000-ada-32gb"):
        require_spec("RTX 5000")
    with pytest.raises(MisuseError, match=r"unknown .*nvidia-geforce-rtx-4090"):
        require_spec("RTX 4091")


@pytest.mark.parametrize("join", [" ", "-", "_", "  "])
@pytest.mark.parametrize("case", [str.upper, str.lower, str.title])
def test_a_name_matches_in_any_case_and_with_any_separator(case, join):
    """A name may be ambiguous until the memory is given: "V100-pcie" is two cards, with 32 GB it is one."""
    assert require_spec(case(join.join(("v100", "pcie", "32gb")))).key == "nvidia-tesla-v100-pcie-32gb"
    with pytest.raises(
        MisuseError, match=r"ambiguous GPU .* any of nvidia-tesla-v100-pcie-16gb and nvidia-tesla"
    ):
        require_spec(case(join.join(("v100", "pcie"))))
    with pytest.raises(MisuseError, match=r"nvidia-.* and \d+ more: name one"):
        require_spec("nvidia")


@pytest.mark.parametrize(
    "typed", ["RTX 4060 Ti", "4060 ti", "GeForce RTX 4060 Ti", "nvidia geforce rtx_4060_ti"]
)
def test_a_card_sold_with_two_sizes_of_memory_is_both_unless_the_size_is_named(typed):
    both = {"nvidia-geforce-rtx-4060-ti-8gb", "nvidia-geforce-rtx-4060-ti-16gb"}
    assert set(matching_keys(typed)) == both
    assert usual_spec(typed).key == "nvidia-geforce-rtx-4060-ti-16gb"
    assert meaning_taken(typed).endswith("16gb; it can also be nvidia-geforce-rtx-4060-ti-8gb")
    for size in ("8", "16"):
        assert matching_keys(f"{typed} {size}GB") == (f"nvidia-geforce-rtx-4060-ti-{size}gb",)
        assert meaning_taken(f"{typed} {size}GB") is None


def test_a_part_of_a_name_matches_every_card_that_has_it():
    assert set(matching_keys("h100 nvl")) == {"nvidia-h100-nvl-94gb"}
    assert len(matching_keys("H100")) == 6
    with pytest.raises(MisuseError):
        matching_keys("banana")


def test_a_power_limit_shared_with_a_cpu_does_not_count_as_that_of_the_gpu():
    specs = load_specs()
    shared = {key for key, spec in specs.items() if spec.module_tdp_w is not None}
    of_a_module = {"superchip module", "system on chip", "module"}
    assert shared == {
        key for key, spec in specs.items() if spec.vendor == "NVIDIA" and spec.form_factor in of_a_module
    }
    for key in shared:
        assert specs[key].board_power_w == specs[key].module_tdp_w
        assert specs[key].tdp_w is None or specs[key].tdp_w < specs[key].module_tdp_w
    gh200, h200 = specs["nvidia-gh200-96gb"], specs["nvidia-h200-sxm-141gb"]
    assert (gh200.tdp_w, gh200.board_power_w) == (900, 1000)
    assert h200.board_power_w == h200.tdp_w == 700


def test_cards_with_one_chip_differ_only_in_board_values():
    """Export and module editions have the arithmetic of the original card, and the values of their own board."""
    specs = load_specs()
    for key, sister in (
        ("nvidia-a800-sxm-80gb", "nvidia-a100-sxm-80gb"),
        ("nvidia-a800-pcie-80gb", "nvidia-a100-pcie-80gb"),
        ("nvidia-h800-sxm-80gb", "nvidia-h100-sxm-80gb"),
        ("nvidia-h800-pcie-80gb", "nvidia-h100-pcie-80gb"),
        ("nvidia-gh200-144gb", "nvidia-gh200-96gb"),
    ):
        one, other = specs[key], specs[sister]
        assert one.fp16_tensor_flops_per_s == other.fp16_tensor_flops_per_s
        assert one.sm_count == other.sm_count
        assert one.doubt
    assert specs["nvidia-a800-sxm-80gb"].nvlink_bytes_per_s == 400e9


def test_gb300_uses_the_announced_rate_because_measured_gemms_exceed_a_b300():
    gb300, b300 = (load_specs()[key] for key in ("nvidia-gb300-279gb", "nvidia-b300-sxm-270gb"))
    assert gb300.sm_count == b300.sm_count
    assert gb300.doubt
    (read,) = (row for row in data_rows("product_rates.csv") if row["gpu_key"] == gb300.key)
    assert b300.fp16_tensor_flops_per_s < float(read["best_flops_per_s"]) < gb300.fp16_tensor_flops_per_s


@pytest.mark.parametrize(
    ("key", "tera_ops"),
    [
        ("nvidia-rtx-pro-4000-blackwell-24gb", 1178),
        ("nvidia-rtx-pro-2000-blackwell-16gb", 545),
        ("nvidia-rtx-pro-6000-blackwell-maxq-96gb", 3511),
        ("nvidia-gb10-128gb", 1000),
    ],
)
def test_derived_rates_agree_with_the_announced_sparse_fp4_figure(key, tera_ops):
    """Sparse FP4 is eight times the dense FP16 rate on these chips, and NVIDIA only publishes the former."""
    assert 8 * load_specs()[key].fp16_tensor_flops_per_s == pytest.approx(tera_ops * 1e12, rel=0.055)


def test_a_rate_that_no_source_states_is_blank():
    specs = load_specs()
    assert specs["nvidia-geforce-rtx-5090-d-32gb"].fp16_tensor_flops_per_s is None
    assert specs["nvidia-h100-sxm-96gb"].memory_bandwidth_bytes_per_s is None
