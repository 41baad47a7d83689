"""Llama 3.2 of 1 billion parameters, fine-tuned whole."""

from __future__ import annotations

from gpubench_workloads._llama import ONE as WORKLOAD

__all__ = ["WORKLOAD"]
