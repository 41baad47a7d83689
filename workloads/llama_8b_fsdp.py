"""Llama 3 with 8 billion parameters, full fine-tuning at 8,192 tokens, on several GPUs if necessary."""

from __future__ import annotations

from gpubench_workloads._llama import EIGHT_FSDP as WORKLOAD

__all__ = ["WORKLOAD"]
