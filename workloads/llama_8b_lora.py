"""Llama 3 of 8 billion parameters, frozen, with adapters that are trained."""

from __future__ import annotations

from gpubench_workloads._llama import EIGHT_LORA as WORKLOAD

__all__ = ["WORKLOAD"]
