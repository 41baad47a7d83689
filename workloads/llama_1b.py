"""Llama 3.2 with 1 billion parameters, full fine-tuning."""

from __future__ import annotations

from gpubench_workloads._llama import ONE as WORKLOAD

__all__ = ["WORKLOAD"]
