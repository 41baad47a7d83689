"""Llama 3 of 70 billion parameters, fine-tuned whole: described on the meta device, never built."""

from __future__ import annotations

from gpubench_workloads._llama import SEVENTY as WORKLOAD

__all__ = ["WORKLOAD"]
