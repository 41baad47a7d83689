"""Rows of data/model_profiles.csv, held against the trace of the network that they say they are of."""

from __future__ import annotations

import csv
from decimal import Decimal

import pytest

from definitions import resnet50_cifar
from gpubench.models import Operator, OperatorKind
from gpubench.profile.trace import profile_workload
from gpubench.shipped import data_text

DEFINITIONS = (resnet50_cifar.DEFINITION,)
KINDS = {
    "gflop_conv3x3": OperatorKind.CONV3X3,
    "gflop_conv_other": OperatorKind.CONV,
    "gflop_matmul": OperatorKind.MATMUL,
    "gflop_depthwise": OperatorKind.DEPTHWISE,
}


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.name)
def test_a_shipped_row_is_the_trace_of_its_definition(definition):
    """To the last printed digit: the table rounds, and nothing else may part them."""
    profile = profile_workload(definition)
    table = data_text("model_profiles.csv")
    (row,) = (r for r in csv.DictReader(table.splitlines()) if r["model"] == definition.name)
    traced = _totals(profile.train) | {"params_m": profile.parameters / 1e6}
    assert set(traced) == set(row) - {"model"}
    for column, value in traced.items():
        last_digit = 10.0 ** Decimal(row[column]).as_tuple().exponent
        assert value == pytest.approx(float(row[column]), rel=0, abs=0.5 * last_digit), column


def _totals(operators: tuple[Operator, ...]) -> dict[str, float]:
    """Totals in the columns of the table; the optimizer counts as an operator, its bytes stand elsewhere."""
    moved = [o for o in operators if o.kind is not OperatorKind.OPTIMIZER]
    return {
        column: sum(o.count * o.flops_per_sample for o in operators if o.kind is kind) / 1e9
        for column, kind in KINDS.items()
    } | {
        "gb_fp32_per_sample": sum(o.count * o.bytes_per_sample for o in moved) / 1e9,
        "gb_fp32_fixed": sum(o.count * o.bytes_fixed for o in moved) / 1e9,
        "ops_per_step": sum(o.count for o in operators),
    }
