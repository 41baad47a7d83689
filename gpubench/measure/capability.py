"""Which precisions and executions a device has, and why not where it has not."""

from __future__ import annotations

from gpubench.models import DeviceProfile, Execution, Precision

CUDA_BACKENDS = frozenset({"cuda", "nvidia"})
HIP_BACKENDS = frozenset({"rocm", "amd", "hip"})


def is_cpu(device: DeviceProfile) -> bool:
    """Whether the device is the CPU itself."""
    return device.backend == "cpu"


def is_cuda(device: DeviceProfile) -> bool:
    """Whether torch reaches the device by its ``cuda`` name (NVIDIA, and AMD through HIP)."""
    return device.backend in CUDA_BACKENDS | HIP_BACKENDS


def why_no_precision(precision: Precision, device: DeviceProfile) -> str | None:
    """Say why a device does not have a precision; None where it has."""
    if precision is Precision.FP32:
        return None
    if is_cpu(device):
        return _why_no_precision_on_cpu(precision, device)
    if device.backend in CUDA_BACKENDS:
        return _why_no_precision_on_nvidia(precision, device)
    if precision is Precision.TF32:
        return "tf32 is a mode of NVIDIA tensor cores"
    return None


def why_no_execution(execution: Execution, device: DeviceProfile, gpu_count: int = 1) -> str | None:
    """Say why a device, or several together, cannot run an execution; None where they can."""
    if gpu_count > 1 and execution is not Execution.EAGER:
        return f"several GPUs are measured eagerly: {execution} is not offered for a data-parallel job"
    if execution is Execution.GRAPH and not is_cuda(device):
        return f"graph means a CUDA graph, and this device is {device.backend}"
    return None


def best_amp(device: DeviceProfile) -> Precision:
    """Return the precision that ``amp`` means: bf16 from compute capability 8.0 and on a CPU, else fp16.

    Below 8.0 bf16 is emulated, slow, and on record as giving NaN.
    """
    if is_cpu(device) or why_no_precision(Precision.AMP_BF16, device) is None:
        return Precision.AMP_BF16
    return Precision.AMP_FP16


def default_precisions(device: DeviceProfile) -> tuple[Precision, ...]:
    """Return fp32, tf32 where there is such hardware, and the best AMP where the device has one."""
    wanted = (Precision.FP32, Precision.TF32, best_amp(device))
    return tuple(p for p in wanted if why_no_precision(p, device) is None)


def default_executions(device: DeviceProfile, *, publish: bool, gpu_count: int = 1) -> tuple[Execution, ...]:
    """Return eager, graph on a GPU that has it, and compile when figures are to be published."""
    if is_cpu(device) or gpu_count > 1:
        return (Execution.EAGER,)
    wanted = (Execution.EAGER, Execution.GRAPH, *((Execution.COMPILE,) if publish else ()))
    return tuple(e for e in wanted if why_no_execution(e, device) is None)


def _why_no_precision_on_nvidia(precision: Precision, device: DeviceProfile) -> str | None:
    capability = device.compute_capability
    if precision is Precision.AMP_FP16:
        return None
    if capability is None:
        return f"{precision} needs compute capability 8.0, and this device does not tell its own"
    if capability < (8, 0):
        return f"{precision} needs compute capability 8.0, this device has {capability[0]}.{capability[1]}"
    return None


def _why_no_precision_on_cpu(precision: Precision, device: DeviceProfile) -> str | None:
    if precision is Precision.TF32:
        return "tf32 is a mode of NVIDIA tensor cores, and this device is a CPU"
    if precision is Precision.AMP_FP16:
        return "amp-fp16 needs a GPU; on a CPU amp is amp-bf16"
    has_bf16 = "bf16" in (device.tensor_core_precisions or ())
    return None if has_bf16 else "this CPU has no bf16 instructions"
