"""Llama 3 with 8 billion frozen parameters and trained adapters (LoRA)."""

from __future__ import annotations

from gpubench_workloads._llama import EIGHT_LORA as WORKLOAD

__all__ = ["WORKLOAD"]
