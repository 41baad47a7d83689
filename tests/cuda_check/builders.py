"""Makes a check as a sound card would write it, in which each test changes one thing, and reads its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gpubench.cuda_check.run import STEPS
from gpubench.errors import MisuseError
from gpubench.files import read_json
from gpubench.models import (
    CHECK_VERSION,
    Blocks,
    Case,
    CaseRow,
    Cause,
    ClockProof,
    CudaCheck,
    DeviceProfile,
    Environment,
    Execution,
    FaultProof,
    GraphProof,
    LoadProof,
    PartLog,
    PartState,
    Precision,
    PrecisionProof,
    Status,
    Switches,
    TaskKind,
    TelemetrySample,
)
from gpubench.units import MIB, plain

H200 = DeviceProfile(
    backend="cuda",
    name="NVIDIA H200",
    gpu_key="nvidia-h200-sxm-141gb",
    compute_capability=(9, 0),
    memory_bytes=150_754_820_096,
    memory_bandwidth_bytes_per_s=4.8e12,
)
T4 = DeviceProfile(
    backend="cuda",
    name="Tesla T4",
    gpu_key="nvidia-tesla-t4-16gb",
    compute_capability=(7, 5),
    memory_bytes=16 * 1024**3,
    memory_bandwidth_bytes_per_s=320e9,
)
ERRORS = {
    Precision.FP32: 3e-7,
    Precision.TF32: 3e-4,
    Precision.AMP_FP16: 4e-4,
    Precision.AMP_BF16: 3e-3,
    Precision.BF16: 3e-3,
    Precision.FP8: 4e-2,
    Precision.INT8: 1e-2,
}


def case(**changes: Any) -> Case:
    fields = {
        "workload": "cnn",
        "workload_version": 1,
        "task": TaskKind.TRAIN,
        "precision": Precision.AMP_BF16,
        "execution": Execution.EAGER,
        "memory_format": None,
        "batch_size": 64,
        "sample_unit": "image",
    }
    return Case(**(fields | changes))


def row(status: Status = Status.OK, reason: str | None = None, **changes: Any) -> CaseRow:
    of_case = {k: changes.pop(k) for k in [*changes] if k in Case.__struct_fields__}
    fields: dict[str, Any] = {"reference_error": 1e-5, "peak_memory_bytes": 10**8}
    made = case(**of_case)
    if made.execution is not Execution.EAGER:
        fields["graph_error"] = 0.0
    return CaseRow(case=made, status=status, reason=reason, **(fields | changes))


def blocks(ratio: float = 1.0, noise: float = 0.0, fours: int = 5) -> Blocks:
    """Return blocks with a ratio; ``noise`` makes every second group of four larger by this share, the rest smaller."""
    first = [0.02 * ratio * (1 + noise * (-1) ** n) for n in range(fours) for _ in range(2)]
    return Blocks(first_s=tuple(first), second_s=(0.02,) * (2 * fours))


def proof(precision: Precision, error: float | None = None) -> PrecisionProof:
    on = precision is not Precision.FP32
    name = "tf32" if on else "ieee"
    switches = Switches(
        cudnn_allow_tf32=on,
        matmul_allow_tf32=on,
        conv_fp32_precision=name,
        rnn_fp32_precision=name,
        matmul_fp32_precision=name,
    )
    errors = dict.fromkeys(("matmul", "conv", "rnn"), error or ERRORS[precision])
    return PrecisionProof(precision=precision, switches=switches, errors=errors)


def load(scale: float = 1.0, watts: float = 650.0, region_s: float = 10.0, **changes: Any) -> LoadProof:
    samples = tuple(
        TelemetrySample(t_s=round(0.1 * n, 4), power_w=watts if n >= 0 else 200.0) for n in range(-20, 101)
    )
    edges = (1000.0, 1000.0 + scale * watts * region_s)
    fields = {
        "case": case(workload="vgg16"),
        "telemetry_source": "nvml",
        "samples": samples,
        "region_s": region_s,
        "energy_edges_j": edges,
        "sampled": blocks(1.0005),
    }
    return LoadProof(**(fields | changes))


def clock(**changes: Any) -> ClockProof:
    fields = {
        "case": case(workload="vgg16"),
        "by_hand": blocks(1.001),
        "events": blocks(1.004),
        "issue_s": (0.004, 0.005, 0.004),
    }
    return ClockProof(**(fields | changes))


def faults(**changes: Any) -> FaultProof:
    graph = {"execution": Execution.GRAPH}
    refused = "CUDA error: operation not permitted when stream is capturing"
    fields = {
        "waiting": row(
            Status.UNSUPPORTED, refused, cause=Cause.REFUSED_IN_CAPTURE, workload="waiting", **graph
        ),
        "after_waiting": row(**graph),
        "cap_bytes": 1024**3,
        "too_large": row(Status.OUT_OF_MEMORY, "batch 17748: CUDA out of memory", batch_size=17748),
        "after_too_large": row(),
    }
    return FaultProof(**(fields | changes))


def check(**changes: Any) -> CudaCheck:
    """Make a complete check that passes every rule."""
    executions = [Execution.EAGER, Execution.GRAPH]
    rows = [row(precision=p, execution=e) for p in Precision for e in executions]
    fields: dict[str, Any] = {
        "started_at": "2026-11-22T10:00:00Z",
        "finished_at": "2026-11-22T10:04:40Z",
        "limit_s": 300.0,
        "device": H200,
        "environment": Environment(gpubench="0", python="3.12.1", os="Linux", torch="2.13.0+cu130"),
        "identity": "UUID",
        "parts": tuple(PartLog(name=n, state=PartState.DONE, took_s=1.0) for n in STEPS),
        "precisions": tuple(proof(p) for p in Precision),
        "clock": clock(),
        "graph": GraphProof(case=case(workload="vgg16", execution=Execution.GRAPH), by_hand=blocks(1.003)),
        "load": load(),
        "cases": (*rows, row(execution=Execution.COMPILE)),
        "faults": faults(),
    }
    return CudaCheck(**(fields | changes))


def with_part(made: CudaCheck, name: str, **changes: Any) -> CudaCheck:
    """Return the check with a changed log of one part."""
    parts = tuple(msgspec.structs.replace(p, **changes) if p.name == name else p for p in made.parts)
    return msgspec.structs.replace(made, parts=parts)


MOST_BYTES = 16 * MIB
"""A complete check has a few hundred kilobytes."""


def read_check(path: Path) -> CudaCheck:
    """Read the file of a check from any author, which CI receives in a pull request."""
    check = read_json(path, CudaCheck, MOST_BYTES, what="a check of gpubench", follow_links=True)
    if check.kind != "cuda-check" or not 1 <= check.schema_version <= CHECK_VERSION:
        raise MisuseError(
            f"{path.name} is {plain(check.kind)} of schema {check.schema_version}; this gpubench reads "
            f"cuda-check up to {CHECK_VERSION}"
        )
    return check
