"""Processors that people ask for and that no training step is timed on here: what is known, and why not."""

from __future__ import annotations

import msgspec


class Unmeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of processor.

    Attributes:
        listed_by: What of it `gpubench probe` shows; None where it is not looked for.
        known: What can be said of it without a measurement.
        reason: Why no figure of training stands for it.
        source: Where ``known`` is from.
    """

    name: str
    listed_by: str | None
    known: str
    reason: str
    source: str


UNMEASURED = (
    Unmeasured(
        name="Intel XPU (Arc, Data Center GPU Max)",
        listed_by="OpenCL: name, memory, compute units; micro-benchmarks with --micro-only",
        known="torch has a device xpu; clock and power are told by Intel's Level Zero",
        reason="no card was at hand, and nothing here reads its telemetry",
        source="docs.pytorch.org, notes/get_start_xpu",
    ),
    Unmeasured(
        name="Apple GPU (MPS)",
        listed_by="system_profiler: chip, cores, unified memory",
        known="torch has a device mps; power is told to the administrator alone (powermetrics)",
        reason="written after Apple's manual pages and tested with stand-ins: no Mac was at hand",
        source="docs.pytorch.org, notes/mps; man powermetrics",
    ),
    Unmeasured(
        name="NVIDIA Jetson",
        listed_by="NVML where its driver has it: name, capability; memory is the machine's",
        known="CUDA and torch builds of NVIDIA's own; power is read from the board's sensors, not NVML",
        reason="no board was at hand; without power and clock a throttled step looks like any other",
        source="docs.nvidia.com, Jetson Linux developer guide",
    ),
    Unmeasured(
        name="Google TPU",
        listed_by=None,
        known="jax and torch_xla reach it; a step is compiled by XLA, never run eagerly",
        reason="Keras on jax is measured on CPUs and NVIDIA GPUs alone, and no TPU was at hand",
        source="docs.cloud.google.com/tpu",
    ),
    Unmeasured(
        name="Intel Neural Compute Stick",
        listed_by=None,
        known="inference alone, in half precision; OpenVINO dropped it in 2023.0, the last with it is 2022.3",
        reason="it trains nothing, and nobody maintains its software",
        source="docs.openvino.ai/2023.3, Supported Devices",
    ),
)
