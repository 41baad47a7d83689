"""Rows of the profile tables, compared with the trace of the network that they name.

Only slow tests trace these networks; in the default suite, the standard workloads reveal a changed trace.
"""

from __future__ import annotations

import re
from decimal import Decimal

import pytest

from definitions.libraries import FORWARD as LIBRARY_FORWARD
from definitions.libraries import NETWORKS, source
from definitions.networks import DEFINITIONS, FORWARD
from definitions.rows import DECIMALS, OF_ANOTHER_TORCH, TRACED_WITH, is_of_this_torch, totals
from gpubench.models import TaskKind, WorkloadProfile
from gpubench.profile.trace import trace_operators
from tools.published import PROFILES, published_rows

# Parameters and multiply-adds of a forward pass [G], as others publish them.
TORCHVISION = "torchvision 0.29, meta data of the weights"
TIMM = "timm, results of its benchmarks"
TRANSFORMERS = "transformers, the same configuration"
PUBLISHED = {
    "bert_large_s512": (336_226_108, None, TRANSFORMERS),
    "gpt2_large_s1024": (774_030_080, None, TRANSFORMERS),
    "opt_13_s2048": (1_315_758_080, None, TRANSFORMERS),
    "bert_hf_mlm": (109_514_298, None, TRANSFORMERS),
    "convnext_large": (197_767_336, 34.361, TORCHVISION),
    "regnet_y_128gf": (644_812_894, 127.518, TORCHVISION),
    "swin_base_patch4_window7_224": (87_768_224, 15.47, TIMM),
    "t5_hf": (60_506_624, None, TRANSFORMERS),
    "tf_efficientnetv2_b0": (7_139_704, 0.73, TIMM),
    "vit_base_patch16_224": (86_567_656, 17.564, TORCHVISION),
    "whisper_hf": (8_307_458, None, TRANSFORMERS),
}

MOVED = frozenset({"ops_per_step", "gb_fp32_per_sample", "gb_fp32_fixed"})
FROM_CPU = frozenset({"convnext_large"})
"""Rows traced on the CPU, as the fit uses them: its layouts add a few copies to the meta device's."""


def table(task: TaskKind = TaskKind.TRAIN) -> dict[str, dict[str, str]]:
    return {row["model"]: row for row in published_rows(PROFILES[task])}


@pytest.mark.slow
@pytest.mark.parametrize("model", DEFINITIONS)
def test_a_shipped_row_is_the_trace_of_its_definition_which_has_the_published_size(model):
    """The row of the forward pass is compared too if there is one, and the size if it is published."""
    profile = trace_operators(DEFINITIONS[model]).profile
    assert differing(model, profile, TaskKind.TRAIN) == {}
    if model in FORWARD:
        assert differing(model, profile, TaskKind.INFER) == {}
    parameters, forward_gmac, _ = PUBLISHED.get(model, (profile.parameters, None, ""))
    assert profile.parameters == parameters
    if forward_gmac is not None:
        assert profile.forward_flops_per_sample / 2e9 == pytest.approx(forward_gmac, rel=0.02)


def test_each_published_size_and_each_forward_pass_is_of_a_definition():
    assert {*PUBLISHED, *FORWARD} <= {*DEFINITIONS}


def differing(model: str, profile: WorkloadProfile, task: TaskKind) -> dict[str, tuple[float, str]]:
    """Return the columns that differ by more than the table's rounding.

    A torch that the row does not name may run other operators; parameters and arithmetic are the same.
    """
    row, found = table(task)[model], {}
    stated = {"model", "source", "approximate", "tokens_per_sample"}  # columns that no trace gives
    assert set(DECIMALS) == set(row) - stated
    is_exact = is_of_this_torch(row["source"]) and model not in FROM_CPU
    for column, value in totals(profile, task).items():
        last_digit = 10.0 ** Decimal(row[column]).as_tuple().exponent
        apart = 0.0 if is_exact or column not in MOVED else OF_ANOTHER_TORCH
        if value != pytest.approx(float(row[column]), rel=apart, abs=0.5 * last_digit):
            found[column] = (value, row[column])
    return found


def test_each_row_states_its_source():
    """Each row is traced from a definition or from one version of a library; none is written by hand."""
    assert set(table()) == {*DEFINITIONS, *NETWORKS}
    assert not set(DEFINITIONS) & set(NETWORKS)
    for model, row in table().items():
        if model in DEFINITIONS:
            assert TRACED_WITH.sub("", row["source"]) == DEFINITIONS[model].source
        else:
            version = row["source"].partition(",")[0].partition(" ")[2]
            assert re.fullmatch(r"\d+(\.\d+)+", version), model
            assert row["source"] == source(NETWORKS[model], version)
            assert row["approximate"] == NETWORKS[model].approximate


def test_every_forward_pass_network_has_a_row():
    assert {*FORWARD, *LIBRARY_FORWARD} == set(table(TaskKind.INFER))


def test_each_row_of_a_forward_pass_states_its_source():
    for model, row in table(TaskKind.INFER).items():
        if model in FORWARD:
            assert TRACED_WITH.sub("", row["source"]) == DEFINITIONS[model].source
        else:
            version = row["source"].partition(",")[0].partition(" ")[2]
            assert row["source"] == source(LIBRARY_FORWARD[model], version)


def test_a_forward_pass_is_about_a_third_of_the_arithmetic_of_a_step():
    """The networks have rows in both tables. The first layer computes no gradient of its input."""
    steps, forward = table(), table(TaskKind.INFER)
    both = set(steps) & set(forward)
    assert len(both) > 30
    for model in both:
        total, part = (
            sum(float(v) for k, v in rows[model].items() if k.startswith("gflop_"))
            for rows in (steps, forward)
        )
        assert 0.30 < part / total < 0.42, model
