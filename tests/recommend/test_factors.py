"""The properties by which buyers compare GPUs, as filters and as columns."""

from __future__ import annotations

import pytest

from gpubench.errors import MisuseError
from gpubench.recommend.factors import cooling_of, factors_of, lines_meant, link_of
from gpubench.specs import load_specs

from .builders import A100, H100, L4, RTX5090, T4, offer, rank_of

RATES = {H100: 3000.0, A100: 1700.0, L4: 500.0, T4: 200.0, RTX5090: 900.0}


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"memory_type": "HBM"}, {H100, A100}),
        ({"memory_type": "gddr6"}, {L4, T4}),
        ({"min_bandwidth_gbps": 1000}, {H100, A100, RTX5090}),
        ({"lines": ("geforce",)}, {RTX5090}),
        ({"lines": ("data centre",)}, {H100, A100, L4, T4}),
        ({"architectures": ("hopper", "Turing")}, {H100, T4}),
        ({"max_watts": 75}, {L4, T4}),
        ({"nvlink": True}, {H100, A100}),
        ({"min_cores": 16000}, {H100, RTX5090}),
        ({"min_tensor_cores": 600}, {RTX5090}),
        ({"cooling": "active"}, {RTX5090}),
        ({"cooling": "passive"}, {L4, T4}),
    ],
)
def test_each_property_filters_the_offers(options, left):
    ranking = rank_of([offer(key, 1.0) for key in RATES], RATES, **options)
    assert {row.offer.gpu_key for row in ranking.rows} == left
    assert all(e.reason for e in ranking.excluded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lines": ("gforce",)}, "unknown line 'gforce'; nearest known: GeForce"),
        ({"architectures": ("hoper",)}, "unknown architecture 'hoper'; nearest known: Hopper"),
        ({"memory_type": ""}, "the setting memory-type '' is unknown; choose from GDDR5"),
        ({"memory_type": "DRAM"}, "the setting memory-type 'DRAM' is unknown; choose from GDDR5"),
    ],
)
def test_an_unknown_property_value_is_refused_with_the_nearest_known(options, message):
    with pytest.raises(MisuseError, match=message):
        rank_of([offer(H100)], RATES, **options)


def test_the_factors_of_a_gpu_are_those_of_its_data_sheet_and_a_row_has_its_link():
    factors = factors_of(load_specs()[H100])
    assert factors["memory_type"] == "HBM3"
    assert factors["architecture"] == "Hopper"
    assert factors["core_count"] == 16896
    assert factors["link"] == rank_of([offer(H100)], RATES).rows[0].flat()["link"] == "nvlink"
    assert factors["ecc"] is True


def test_every_gpu_has_its_factors():
    columns = set(factors_of(None))
    for spec in load_specs().values():
        assert set(factors_of(spec)) == columns
        assert cooling_of(spec) in {"active", "passive", "liquid", "module", None}
        assert link_of(spec) is None or link_of(spec)


def test_buyer_terms_map_to_catalog_lines():
    known = {spec.line for spec in load_specs().values()}
    for word in ("geforce", "quadro", "Tesla", "data center", "jetson", "radeon", "instinct"):
        assert set(lines_meant(word)) & known


def test_nvlink_means_a_built_in_link_and_not_a_bridge_sold_separately():
    linked = {key for key, spec in load_specs().items() if spec.is_linked}
    assert {
        "nvidia-h100-sxm-80gb",
        "nvidia-tesla-v100-sxm2-16gb",
        "nvidia-gh200-96gb",
        "amd-mi300x-192gb",
    } <= linked
    bridged = {
        "nvidia-a100-pcie-80gb",
        "nvidia-a40-48gb",
        "nvidia-geforce-rtx-3090-24gb",
        "nvidia-h100-nvl-94gb",
    }
    assert all(load_specs()[key].nvlink_bytes_per_s for key in bridged)
    assert not linked & bridged
    assert {link_of(load_specs()[key])[:4] for key in bridged} == {"pcie"}
    assert "nvidia-a100-unstated-80gb" not in linked
