"""Llama 3 of 8 billion parameters, frozen in 4 bits, with adapters that are trained."""

from __future__ import annotations

from gpubench_workloads._llama import EIGHT_QLORA as WORKLOAD

__all__ = ["WORKLOAD"]
