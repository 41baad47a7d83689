"""The peak of a precision on a device, from its datasheet: what a measured rate is held against."""

from __future__ import annotations

from gpubench.models import DeviceProfile, Precision
from gpubench.specs import load_specs


def peak_flops_per_s(device: DeviceProfile, precision: Precision) -> float | None:
    """Return the dense datasheet peak [FLOP/s]; None for a device that the table does not have."""
    spec = load_specs().get(device.gpu_key or "")
    if spec is None:
        return None
    return {
        Precision.FP32: spec.fp32_flops_per_s,
        Precision.TF32: spec.tf32_tensor_flops_per_s,
        Precision.AMP_FP16: spec.fp16_tensor_flops_per_s,
        Precision.AMP_BF16: spec.bf16_tensor_flops_per_s,
    }[precision]
