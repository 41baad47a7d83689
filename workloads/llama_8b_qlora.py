"""Llama 3 with 8 billion parameters frozen in 4 bits and trained adapters (QLoRA)."""

from __future__ import annotations

from gpubench_workloads._llama import EIGHT_QLORA as WORKLOAD

__all__ = ["WORKLOAD"]
