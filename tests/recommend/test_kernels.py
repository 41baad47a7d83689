"""A GPU without kernels in today's torch is not recommended, unless the buyer names it."""

from __future__ import annotations

from datetime import date

import pytest

from gpubench.errors import MisuseError
from gpubench.findings import FindingKind
from gpubench.recommend.rank import rank
from gpubench.sections.answer import remarks_of
from gpubench.specs import load_specs
from gpubench.torch_builds import runs_on_todays_torch

from .builders import H100, T4, offer, rank_of

V100, P40, K80 = "nvidia-tesla-v100-sxm2-16gb", "nvidia-tesla-p40-24gb", "nvidia-tesla-k80-12gb"
RX5700, ORIN = "amd-radeon-rx-5700-8gb", "nvidia-jetson-agx-orin-64gb"
RATES = {H100: 3000.0, V100: 900.0, P40: 300.0, K80: 100.0, T4: 300.0, RX5700: 100.0, ORIN: 50.0}
OFFERS = [offer(key, 0.01 if key in {V100, P40, K80} else 2.0) for key in RATES]


def keys_of(ranking):
    return {row.offer.gpu_key for row in ranking.rows}


def test_unsupported_gpu_is_excluded_with_a_reason_even_if_cheapest():
    found = rank_of(OFFERS, RATES)
    assert keys_of(found) == {H100, T4, RX5700, ORIN}
    reasons = {each.gpu_key: each.reason for each in found.excluded}
    assert reasons.keys() == {V100, P40, K80}
    assert "no kernels for compute capability 7.0: torch 2.14 cu126 still has them" in reasons[V100]
    assert "torch 2.7 cu118 still" in reasons[K80]
    assert any("V100" in note and "--gpu" in note for note in found.said("note"))


def test_explicitly_named_gpu_ranks_with_the_torch_build_it_needs():
    found = rank_of(OFFERS, RATES, gpus=("v100", "h100"))
    first = found.rows[0]
    assert keys_of(found) == {V100, H100}
    assert [f.value for f in first.findings if f.kind is FindingKind.NEEDS_TORCH_BUILD] == [
        "torch 2.14 cu126"
    ]
    assert "(torch 2.14 cu126)" in remarks_of(first)
    assert any("torch 2.14 cu126" in note for note in found.said("caution"))
    (h100,) = (row for row in found.rows if row.offer.gpu_key == H100)
    assert FindingKind.NEEDS_TORCH_BUILD not in {each.kind for each in h100.findings}


def test_ambiguous_name_prefers_the_gpu_that_torch_supports():
    assert keys_of(rank_of(OFFERS, RATES, gpus=("tesla",))) == {T4}


def test_gpu_missing_from_the_catalog_is_not_excluded():
    assert keys_of(
        rank_of([offer("cloud-of-tomorrow"), offer(H100)], {"cloud-of-tomorrow": 1.0, H100: 9.0})
    ) == {
        "cloud-of-tomorrow",
        H100,
    }


def test_error_for_an_empty_ranking_suggests_naming_the_gpu():
    with pytest.raises(MisuseError, match=r"no kernels .* to rank it anyway, name it with --gpu"):
        rank_of([offer(V100)], RATES)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"spot": True},
        {"region": ["eu"]},
        {"sort": "time"},
        {"buy": True},
        {"max_purchase_usd": 3000},
        {"gpu": ["tesla"]},
        {"relative": True},
    ],
)
def test_no_recommended_offer_has_a_gpu_that_torch_does_not_support(asked):
    found = rank("resnet50", **asked, draws=50, as_of=date(2026, 11, 20).isoformat())
    answers = [each.choice for each in found.answers.values()]
    beside = (found.cloud, found.best_to_own, *answers, *found.by_gpu)
    named = {*keys_of(found)} | {each.offer.gpu_key for each in beside if each is not None}
    assert named
    specs = load_specs()
    assert {
        k for k in named if k in specs and runs_on_todays_torch(specs[k].compute_capability) is False
    } == set()


def test_buyers_own_quote_counts_as_naming_its_gpu():
    found = rank("resnet50", have=["V100 PCIe 16GB, 300 USD"], draws=50, as_of="2026-11-20")
    assert {row.offer.provider for row in found.rows if "v100" in row.offer.gpu_key} == {"own"}
