"""Compute a row of data/model_profiles.csv from the trace of a network."""

from __future__ import annotations

import csv
import io
import re

import torch
from torch.torch_version import TorchVersion

from gpubench.models import OperatorKind, TaskKind, WorkloadProfile

DECIMALS = {
    "ops_per_step": 0,
    "params_m": 2,
    "gflop_conv3x3": 4,
    "gflop_conv_other": 4,
    "gflop_matmul": 4,
    "gflop_depthwise": 4,
    "gb_fp32_per_sample": 5,
    "gb_fp32_fixed": 5,
}
"""The numeric columns, and how many decimals the table keeps of each."""
KINDS = {
    "gflop_conv3x3": OperatorKind.CONV3X3,
    "gflop_conv_other": OperatorKind.CONV,
    "gflop_matmul": OperatorKind.MATMUL,
    "gflop_depthwise": OperatorKind.DEPTHWISE,
}
TRACED_WITH = re.compile(r"; operators as torch (\S+)(?: to (\S+))? runs them$")
"""The end of a profile's source, if torch runs other operators in other tested versions."""
OF_ANOTHER_TORCH = 0.06
"""The largest relative difference between versions in the number of operators, and in the bytes that they move or keep."""


def is_of_this_torch(source: str) -> bool:
    """Whether a profile must match a trace with this torch, according to the end of its source."""
    stated = TRACED_WITH.search(source)
    here = TorchVersion(torch.__version__.partition("+")[0])
    return stated is None or stated[1] <= here <= (stated[2] or stated[1])


def totals(profile: WorkloadProfile, task: TaskKind = TaskKind.TRAIN) -> dict[str, float]:
    """Return the totals of one step of a task; the optimizer counts as an operator, but its bytes do not count."""
    operators = profile.train if task is TaskKind.TRAIN else profile.infer
    moved = [o for o in operators if o.kind is not OperatorKind.OPTIMIZER]
    flops = {
        column: sum(o.count * o.flops_per_sample for o in operators if o.kind is kind)
        for column, kind in KINDS.items()
    }
    return {
        "ops_per_step": sum(o.count for o in operators),
        "params_m": profile.parameters / 1e6,
        **{column: value / 1e9 for column, value in flops.items()},
        "gb_fp32_per_sample": sum(o.count * o.bytes_per_sample for o in moved) / 1e9,
        "gb_fp32_fixed": sum(o.count * o.bytes_fixed for o in moved) / 1e9,
    }


def line(
    model: str,
    profile: WorkloadProfile,
    source: str,
    approximate: str = "",
    task: TaskKind = TaskKind.TRAIN,
) -> str:
    """Return a model's line in the table of a task."""
    numbers = [
        round(value, digits) if digits else int(value)
        for (_, value), digits in zip(totals(profile, task).items(), DECIMALS.values(), strict=True)
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([model, *numbers, source, approximate])
    return text.getvalue()
