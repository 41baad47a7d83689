"""Profiles written by hand from published totals, so these tests need no torch."""

from __future__ import annotations

from gpubench.models import Operator, OperatorKind, TaskKind, WorkloadProfile
from gpubench.profile import load_profiles
from tools.published import PROFILES, published_rows


def published(
    model: str, *, is_image: bool = True, batches: tuple[int, ...] = (32, 64, 128)
) -> WorkloadProfile:
    """Build the profile of a published model, with its totals spread over as many operators as it has.

    The memory is traced if the model is also a shipped workload, and empty otherwise.
    """
    row = next(r for r in published_rows(PROFILES[TaskKind.TRAIN]) if r["model"] == model)
    flops = {
        OperatorKind.CONV3X3: float(row["gflop_conv3x3"]),
        OperatorKind.CONV: float(row["gflop_conv_other"]),
        OperatorKind.MATMUL: float(row["gflop_matmul"]),
        OperatorKind.DEPTHWISE: float(row["gflop_depthwise"]),
    }
    parameters = round(float(row["params_m"]) * 1e6)
    count = int(row["ops_per_step"])
    moving = Operator(
        kind=OperatorKind.MEMORY,
        count=count - 1 - sum(1 for f in flops.values() if f),
        bytes_per_sample=float(row["gb_fp32_per_sample"]) * 1e9 / count,
        bytes_fixed=float(row["gb_fp32_fixed"]) * 1e9 / count,
    )
    computing = tuple(
        Operator(kind=kind, count=1, flops_per_sample=gflop * 1e9) for kind, gflop in flops.items() if gflop
    )
    update = Operator(kind=OperatorKind.OPTIMIZER, count=1, bytes_fixed=20.0 * parameters)
    return WorkloadProfile(
        name=model,
        version=1,
        sample_unit="images",
        sample_shape=(3, 224, 224),
        is_image=is_image,
        source="published",
        optimizer="sgd",
        parameters=parameters,
        trainable_parameters=parameters,
        batches=batches,
        forward_flops_per_sample=sum(flops.values()) * 1e9 / 3,
        train_flops_per_sample=sum(flops.values()) * 1e9,
        saved_bytes_per_sample=float(row["gb_fp32_per_sample"]) * 1e9 / 5,
        optimizer_bytes_per_parameter=4.0,
        train=(*computing, moving, update),
        infer=(*computing, moving),
        memory=load_profiles()[model].memory if model in load_profiles() else (),
    )
