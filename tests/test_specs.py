"""The specification table parses, and no name means two GPUs."""

from __future__ import annotations

import pytest

from gpubench.errors import MisuseError
from gpubench.specs import find_spec, load_specs, require_spec
from gpubench.units import GIB


def test_every_row_has_a_source_and_sane_figures():
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
