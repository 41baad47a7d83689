"""Llama 3 with 70 billion parameters, full fine-tuning: described on the meta device, never built."""

from __future__ import annotations

from gpubench_workloads._llama import SEVENTY as WORKLOAD

__all__ = ["WORKLOAD"]
