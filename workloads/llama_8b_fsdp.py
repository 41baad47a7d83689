"""Llama 3 of 8 billion parameters, fine-tuned whole at 8,192 tokens, by several GPUs where it must be."""

from __future__ import annotations

from gpubench_workloads._llama import EIGHT_FSDP as WORKLOAD

__all__ = ["WORKLOAD"]
