"""A plugin of pytest for the benchmarks that the tests run: every case takes a fraction of a second."""

from __future__ import annotations

import msgspec

from gpubench.measure import budget, plan

plan.budget_of = lambda name, *, on_cpu: msgspec.structs.replace(
    budget.budget_of(name, on_cpu=on_cpu), warmup_least_s=0.1, warmup_most_s=0.5, timed_s=1.0, window_s=0.1
)
