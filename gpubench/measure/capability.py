"""Which precisions and executions a device has, and why not where it has not."""

from __future__ import annotations

from gpubench import precisions
from gpubench.errors import GpuBenchError
from gpubench.models import Case, DeviceProfile, Execution, ParallelMode, Precision, TaskKind

CUDA_BACKENDS = frozenset({"cuda", "nvidia"})
HIP_BACKENDS = frozenset({"rocm", "amd", "hip"})


class NotHereError(GpuBenchError):
    """This cannot be had here, as only its own library knows; the case is unsupported, for this reason."""


def is_cuda(device: DeviceProfile) -> bool:
    """Whether torch reaches the device by its ``cuda`` name (NVIDIA, and AMD through HIP)."""
    return device.backend in CUDA_BACKENDS | HIP_BACKENDS


def why_no_precision(precision: Precision, device: DeviceProfile) -> str | None:
    """Say why a device does not have a precision; None where it has."""
    if precision is Precision.FP32:
        return None
    if device.is_cpu:
        return _why_no_precision_on_cpu(precision, device)
    if device.backend in CUDA_BACKENDS:
        return _why_no_precision_on_nvidia(precision, device)
    return f"{precision} is a mode of NVIDIA tensor cores" if precision.facts.of_nvidia else None


def why_no_execution(execution: Execution, device: DeviceProfile, gpu_count: int = 1) -> str | None:
    """Say why a device, or several together, cannot run an execution; None where they can."""
    if gpu_count > 1 and not execution.facts.on_several_gpus:
        return f"several GPUs are measured eagerly: {execution} is not offered for a data-parallel job"
    if execution.facts.needs_cuda and not is_cuda(device):
        return f"{execution} means a CUDA graph, and this device is {device.backend}"
    return None


def why_not_for_task(case: Case) -> str | None:
    """Say why a precision is not offered for the task of a case; None where it is."""
    if case.new_tokens and case.precision.facts.only == "infer":
        return f"{case.precision} is not offered for generation: use --weight-type int8 or int4"
    return case.precision.why_not_for(case.task)


def why_no_sharding(case: Case) -> str | None:
    """Say why a case is not measured with its model sharded; None where it is, or is no such case."""
    if case.parallel_mode is not ParallelMode.FSDP:
        return None
    if case.task is not TaskKind.TRAIN:
        return "fsdp shards what is trained: measure inference with --jobs ddp"
    if case.precision.facts.scales_gradients:
        return f"{case.precision} scales gradients, which fsdp does not agree on: use amp-bf16"
    return None


def best_amp(*devices: DeviceProfile) -> Precision:
    """Return what ``amp`` means on a device, or on several that work together; a CPU has bf16 alone."""
    return precisions.best_amp(
        lambda each: all(device.is_cpu or why_no_precision(each, device) is None for device in devices)
    )


def default_precisions(*devices: DeviceProfile) -> tuple[Precision, ...]:
    """Return fp32, tf32 where every device has such hardware, and the best AMP that all of them have."""
    wanted = (*(p for p in Precision if p.is_usual and not p.is_amp), best_amp(*devices))
    return tuple(p for p in wanted if all(why_no_precision(p, device) is None for device in devices))


def default_executions(device: DeviceProfile, *, publish: bool, gpu_count: int = 1) -> tuple[Execution, ...]:
    """Return eager, graph on a GPU that has it, and compile when figures are to be published."""
    if device.is_cpu or gpu_count > 1:
        return (Execution.EAGER,)
    wanted = (e for e in Execution if publish or not e.facts.when_published)
    usable = (e for e in wanted if not e.facts.of_tensorflow)
    return tuple(e for e in usable if why_no_execution(e, device) is None)


def _why_no_precision_on_nvidia(precision: Precision, device: DeviceProfile) -> str | None:
    capability, least = device.compute_capability, precision.facts.least_capability
    if least is None or precision.within(capability):
        return None
    needs = f"{precision} needs compute capability {least[0]}.{least[1]}"
    if capability is None:
        return f"{needs}, and this device does not tell its own"
    return f"{needs}, this device has {capability[0]}.{capability[1]}"


def _why_no_precision_on_cpu(precision: Precision, device: DeviceProfile) -> str | None:
    facts = precision.facts
    if facts.of_nvidia:
        return f"{precision} is a mode of NVIDIA tensor cores, and this device is a CPU"
    if not facts.on_cpu:
        return f"{precision} needs a GPU; on a CPU amp is {best_amp(device)}"
    rest = "bf16" if facts.whole_model == "bfloat16" else facts.format.name
    has = device.tensor_core_precisions or ()
    lacks = next((name for name in (facts.format.name, rest) if name not in has), None)
    return None if lacks is None else f"this CPU has no {lacks} instructions"
