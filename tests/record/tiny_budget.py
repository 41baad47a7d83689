"""A pytest plugin for the benchmarks that the tests run.

Every case takes a fraction of a second, and every processor counts as one with bf16.
"""

from __future__ import annotations

import msgspec

from gpubench.measure import budget, plan
from gpubench.probe import host

_instructions = host.instructions
host.instructions = lambda *root: _instructions(*root) | {"avx512_bf16"}

plan.budget_of = lambda name, *, on_cpu: msgspec.structs.replace(
    budget.budget_of(name, on_cpu=on_cpu), warmup_least_s=0.1, warmup_most_s=0.5, timed_s=1.0, window_s=0.1
)
