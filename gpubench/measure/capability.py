"""Which precisions, executions and frameworks a device supports, and why it does not support the others.

This module also lists each framework's packages, environment variables and executions, but imports none.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import msgspec

from gpubench import precisions
from gpubench.children import run_child
from gpubench.errors import GpuBenchError, MisuseError, NoDeviceError
from gpubench.folders import write_log
from gpubench.groups import grouped
from gpubench.installing import pip_install
from gpubench.models import (
    Case,
    Cause,
    DeviceProfile,
    Execution,
    Finding,
    FindingKind,
    Framework,
    MicroResult,
    ParallelMode,
    Precision,
    StartState,
    TaskKind,
    WorkloadProfile,
)
from gpubench.probe import health, probe
from gpubench.probe.backend import DeviceGoneError
from gpubench.probe.host import on_battery
from gpubench.probe.torch_view import explain, first_words
from gpubench.profile.cache import Answer, contradiction
from gpubench.specs import load_specs
from gpubench.units import Seconds, plain
from gpubench.user_model import is_own

# --- the peak rate of a precision, from datasheet and clock -----------------------------------------------


# Maps each number format of matrix products to the precision of the steps that use it; if several precisions
# use it, to the usual one.
GEMM_PRECISIONS = {p.facts.format.name: p for p in Precision} | {
    p.facts.format.name: p for p in Precision if p.is_usual
}

# Sizes n of the n x n products that are timed on a GPU, by number format.
GEMM_SIZES = {precision.facts.format.name: precision.facts.format.sizes for precision in Precision}
CPU_GEMM_SIZES = (1024, 2048)


def peak_flops_per_s(device: DeviceProfile, precision: Precision) -> float | None:
    """Return the dense peak rate at this card's highest clock [FLOP/s]; None without a datasheet figure."""
    sheet = _datasheet_flops_per_s(device, precision)
    return None if sheet is None else sheet * clock_ratio(device)


def clock_ratio(device: DeviceProfile) -> float:
    """Return the ratio of this card's highest SM clock to its datasheet clock, at least 1; 1 if unknown.

    Consumer cards boost beyond the clock that the datasheet figures assume: an RTX 4090 reaches 3105 MHz
    where its datasheet says 2520. The datasheet clock follows from the fp32 figure: two operations per core
    per cycle.
    """
    spec = load_specs().get(device.gpu_key or "")
    if spec is None or not (spec.fp32_flops_per_s and spec.cuda_core_count and device.sm_clock_max_hz):
        return 1.0
    return max(1.0, device.sm_clock_max_hz * 2 * spec.cuda_core_count / spec.fp32_flops_per_s)


def _datasheet_flops_per_s(device: DeviceProfile, precision: Precision) -> float | None:
    spec = load_specs().get(device.gpu_key or "")
    peak: float | None = None if spec is None else getattr(spec, precision.facts.format.peak)
    return peak


def best_gemm(results: Sequence[MicroResult]) -> dict[Precision, float]:
    """Return the best matrix-product rate measured on this device for each training precision [FLOP/s].

    Products that were not computed at their stated precision are ignored.
    """
    rates = grouped(
        (result.precision, result.value)
        for result in results
        if result.name == "gemm" and all(f.kind is not FindingKind.TF32_IN_FORCE for f in result.findings)
    )
    return {p: max(rates[p.facts.format.name]) for p in Precision if p.facts.format.name in rates}


def best_products(results: Sequence[MicroResult]) -> frozenset[tuple[str | None, str]]:
    """Return precision and size of the fastest product at each precision that was timed at several sizes."""
    products = grouped((result.precision, result) for result in results if result.name == "gemm")
    best = (max(found, key=lambda result: result.value) for found in products.values() if len(found) > 1)
    return frozenset((result.precision, result.size) for result in best)


def datasheet_peak(device: DeviceProfile, result: MicroResult) -> float | None:
    """Return the datasheet figure for a micro-benchmark: peak rate or memory bandwidth; None if unknown."""
    if result.name == "gemm" and result.precision in GEMM_PRECISIONS:
        return _datasheet_flops_per_s(device, GEMM_PRECISIONS[result.precision])
    spec = load_specs().get(device.gpu_key or "")
    if spec is not None and result.name == "device copy":
        return spec.memory_bandwidth_bytes_per_s
    if spec is not None and (result.name, result.precision) == ("multiply-add", "fp32"):
        return spec.fp32_flops_per_s
    return None


def datasheet_share(device: DeviceProfile, result: MicroResult) -> float | None:
    """Return the ratio of a micro-benchmark to the datasheet's peak or memory bandwidth; None if unknown."""
    peak = datasheet_peak(device, result)
    return result.value / peak if peak else None


# --- whether the device is free, and still works ----------------------------------------------------------


def preflight(
    device: DeviceProfile, *, allow_shared: bool, sleep: Callable[[Seconds], None] = time.sleep
) -> tuple[Finding, ...]:
    """Return findings on unusual conditions, such as battery power; raise if the device is in use.

    Raises:
        NoDeviceError: If the compute mode excludes this run, or if another program uses the device and
            ``allow_shared`` is not set.
    """
    battery = (Finding(kind=FindingKind.ON_BATTERY),) if on_battery() else ()
    if device.is_cpu:
        return battery
    with probe.open_telemetry(device) as readings:
        return battery + health.preflight(device, readings, allow_shared=allow_shared, wait=sleep)


def newcomers(device: DeviceProfile, *, sleep: Callable[[Seconds], None] = time.sleep) -> tuple[Finding, ...]:
    """Return a finding if another process has started to use the device during the run.

    Call this after the measuring processes have ended, so that they are not counted. If the device is lost,
    there is no finding, because its rows already report the loss.
    """
    if device.is_cpu:
        return ()
    try:
        with probe.open_telemetry(device) as readings:
            sharing = health.look_twice(device, readings, wait=sleep)
    except NoDeviceError:
        return ()
    return () if sharing is None else (sharing.finding,)


def start_state(device: DeviceProfile) -> StartState | None:
    """Return the state of the device before the run; None for a CPU, or if no driver lists the device.

    The power reading, averaged over a second, counts as idle power only if nothing runs on the device.
    """
    backend = None if device.is_cpu else probe.load_backends().found.get(device.backend)
    if backend is None:
        return None
    report = backend.devices()
    found = zip(report.devices, report.states, strict=False)
    wanted = (device.index, device.uuid)
    state = next((state for each, state in found if (each.index, each.uuid) == wanted), None)
    if state is None:
        return None
    idle = (
        state.utilization is not None and state.utilization <= health.BUSY_LIMIT and not state.process_count
    )
    return StartState(
        temperature_c=state.temperature_c,
        idle_power_w=state.power_w if idle else None,
        persistence_mode=state.persistence_mode,
        pcie_generation=state.pcie_generation_now,
        pcie_width=state.pcie_width_now,
    )


def fault_of(device: DeviceProfile) -> str | None:
    """Return the fault that the driver reports after a process has died on the device.

    Returns:
        ``gpu_lost``, ``reset_required``, ``driver_hung`` or ``driver_closed``; None if the device works.
    """
    if device.is_cpu:
        return None
    try:
        with probe.open_telemetry(device) as readings:
            return readings.fault  # a reading that hangs is not a device fault, so the run goes on
    except NoDeviceError as error:
        return error.fault if isinstance(error, DeviceGoneError) else "gpu_lost"


def why_refused(error: NoDeviceError, device: DeviceProfile | None = None) -> str:
    """Say why a device could not be opened: its fault, else an explanation of torch's message or its start.

    Args:
        error: The measuring process's error, or gpubench's own, which needs no explanation.
        device: The device as probed; None if none has been chosen yet.
    """
    fault = None if device is None else fault_of(device)
    if fault is not None:
        return describe_fault(fault)
    known = explain(str(error), device)
    return first_words(str(error)) if known is None else known.line()


def describe_fault(fault: str) -> str:
    """Describe what the driver reports about a failed device, and what to do.

    >>> describe_fault("reset_required")
    'reset_required: the GPU needs a reset; end its processes and run nvidia-smi -r, or reboot'
    """
    texts = {
        "gpu_lost": "the GPU fell off the bus; reboot, and check its power supply and seating",
        "reset_required": "the GPU needs a reset; end its processes and run nvidia-smi -r, or reboot",
        "driver_hung": "the driver has stopped answering; look for Xid lines in the kernel log, then reboot",
        "driver_closed": "the driver can no longer be opened; see gpubench doctor",
    }
    return f"{fault}: {texts.get(fault, 'the driver has given up on the GPU; reboot')}"


class NotHereError(GpuBenchError):
    """A library lacks something on this machine or for this model, so the case is unsupported.

    gpubench never runs the case eagerly or in a wider type instead.
    """

    def __init__(self, reason: str, cause: Cause | None = None) -> None:
        super().__init__(reason)
        self.cause = cause


def why_no_precision(precision: Precision, device: DeviceProfile) -> str | None:
    """Say why a device does not support a precision; None if it does."""
    facts, capability, least = precision.facts, device.compute_capability, precision.facts.least_capability
    if precision is Precision.FP32:
        return None
    if device.is_cpu and facts.of_nvidia:
        return f"{precision} is a mode of NVIDIA tensor cores, but this device is a CPU"
    if device.is_cpu and not facts.on_cpu:
        return f"{precision} needs a GPU; on a CPU, amp means {best_amp(device)}"
    if device.is_cpu:
        outside_products = "bf16" if facts.whole_model == "bfloat16" else facts.format.name
        has = device.tensor_core_precisions or ()
        lacks = next((name for name in (facts.format.name, outside_products) if name not in has), None)
        return None if lacks is None else f"this CPU has no {lacks} instructions"
    if not device.is_nvidia:
        return f"{precision} is a mode of NVIDIA tensor cores" if facts.of_nvidia else None
    if least is None or precision.within(capability):
        return None
    needs = f"{precision} needs compute capability {least[0]}.{least[1]}"
    if capability is None:
        return f"{needs}, but this device does not report its own"
    return f"{needs}, but this device has {capability[0]}.{capability[1]}"


def why_no_execution(execution: Execution, device: DeviceProfile, gpu_count: int = 1) -> str | None:
    """Say why a device, or several together, cannot run an execution; None if they can."""
    if gpu_count > 1 and not execution.facts.on_several_gpus:
        return f"jobs on several GPUs are measured eagerly, so {execution} is not offered for them"
    if execution.facts.needs_cuda and not device.is_torch_cuda:
        return f"{execution} needs CUDA graphs, which this device ({device.backend}) does not have"
    return None


def why_not_for_task(case: Case) -> str | None:
    """Say why a case's precision is not offered for its task; None if it is."""
    if case.new_tokens and case.precision.facts.only == "infer":
        return f"{case.precision} is not offered for generation: use --recipe weight-type=int8 or int4"
    return case.precision.why_not_for(case.task)


def no_blocks(workload: str) -> str:
    """Say that a model cannot be sharded."""
    return f"fsdp shards a model block by block, and {workload} has no repeated block: use --jobs ddp"


def why_not_together(case: Case, profile: WorkloadProfile) -> str | None:
    """Say why several GPUs cannot run a case in one job; None if they can, or if the case needs only one."""
    if case.gpu_count == 1:
        return None
    if TaskKind.TRAIN not in profile.tasks:
        return "a workload that is never trained cannot be a data-parallel job"
    if case.parallel_mode is not ParallelMode.FSDP:
        return None
    if profile.blocks is None:
        return no_blocks(case.workload)
    if case.task is not TaskKind.TRAIN:
        return "fsdp is only for training: measure inference with --jobs ddp"
    if case.precision.facts.scales_gradients:
        return f"{case.precision} scales gradients, which does not work with fsdp: use amp-bf16"
    return None


def best_amp(*devices: DeviceProfile) -> Precision:
    """Return the precision that ``amp`` means on a device, or on several together; on a CPU, always bf16."""
    return precisions.best_amp(
        lambda each: all(device.is_cpu or why_no_precision(each, device) is None for device in devices)
    )


def default_executions(
    framework: Framework, device: DeviceProfile, *, publish: bool, gpu_count: int
) -> tuple[Execution, ...]:
    """Return the executions to measure if none is requested.

    In torch, the default is graph on a GPU that supports it, else eager; to publish, every execution that the
    GPU supports. A CPU and a job on several GPUs only run eagerly. Each Keras backend has its own default.
    """
    if framework is not Framework.TORCH:
        return KERAS[framework].usual
    if device.is_cpu or gpu_count > 1:
        return (Execution.EAGER,)
    usable = tuple(e for e in Execution if not e.facts.of_tensorflow and why_no_execution(e, device) is None)
    if publish:
        return usable
    return (Execution.GRAPH if Execution.GRAPH in usable else Execution.EAGER,)


# A user's own model that takes longer than this to build most likely never finishes.
OWN_LIMIT_S: Seconds = 120.0


class KerasFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a Keras backend.

    Attributes:
        backend: Its name in ``KERAS_BACKEND``, which is also the name of the module to import.
        on_cpu, on_cuda: The package to install for CPUs, and for CUDA, as pip names it.
        executions: The executions that it supports.
        usual: The executions that are measured by default: those that Keras itself or most users choose.
    """

    backend: str
    on_cpu: str
    on_cuda: str
    executions: tuple[Execution, ...]
    usual: tuple[Execution, ...]


TENSORFLOW_CPU = "tensorflow-cpu"
KERAS = {
    Framework.KERAS_TORCH: KerasFacts(
        backend="torch",
        on_cpu="torch",
        on_cuda="torch",
        executions=(Execution.EAGER, Execution.COMPILE),
        usual=(Execution.EAGER,),
    ),
    Framework.KERAS_TENSORFLOW: KerasFacts(
        backend="tensorflow",
        on_cpu=TENSORFLOW_CPU,
        on_cuda="tensorflow[and-cuda]",
        executions=(Execution.EAGER, Execution.COMPILE, Execution.TF_GRAPH),
        usual=(Execution.COMPILE, Execution.TF_GRAPH),
    ),
    Framework.KERAS_JAX: KerasFacts(
        backend="jax",
        on_cpu="jax",
        on_cuda="jax[cuda13]",
        executions=(Execution.EAGER, Execution.COMPILE),
        usual=(Execution.COMPILE,),
    ),
}


# Packages that a record lists in addition to torch, CUDA and cuDNN, if they are installed.
PACKAGES = {
    Framework.TORCH: ("torchao",),
    Framework.KERAS_TORCH: ("keras", "torch"),
    Framework.KERAS_TENSORFLOW: ("keras", "tensorflow", "tensorflow-cpu"),
    Framework.KERAS_JAX: ("keras", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
}


def versions(framework: Framework) -> dict[str, str]:
    """Return the versions of the packages that a framework uses, without importing them."""
    return {name: version for name in PACKAGES[framework] if (version := version_of(name)) is not None}


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def need_frameworks(wanted: Sequence[Framework], device: DeviceProfile) -> None:
    """Check, without importing them, that the packages of every framework are installed.

    Raises:
        MisuseError: With the exact command that installs the first missing one.
    """
    for framework in (each for each in wanted if each is not Framework.TORCH):
        facts = KERAS[framework]
        lacking = [name for name in ("keras", facts.backend) if find_spec(name) is None]
        package = facts.on_cpu if device.is_cpu else facts.on_cuda
        if package == TENSORFLOW_CPU and (sys.platform, platform.machine()) != ("linux", "x86_64"):
            package = "tensorflow"  # tensorflow-cpu is built only for Linux on x86-64
        if lacking:
            line = pip_install(*(package if name == facts.backend else name for name in lacking))
            raise MisuseError(f"{framework} lacks {' and '.join(lacking)} here: {line}")


@cache
def fewer_parameters() -> Mapping[str, int]:
    """Return how many fewer parameters each workload's Keras model has than its torch model.

    The keys are workload names. Keras itself is not imported.
    """
    from gpubench.discovery import keras_models

    module = keras_models()
    return {name: module.FEWER_PARAMETERS.get(name, 0) for name in module.MODELS}


def why_no_framework(case: Case, device: DeviceProfile, *, is_own: bool) -> str | None:
    """Say why a case cannot be measured in its framework; None if it can."""
    framework, execution = case.framework, case.execution
    if framework is Framework.TORCH:
        if execution.facts.of_tensorflow:
            return f"{execution} is a TensorFlow graph: add --framework {Framework.KERAS_TENSORFLOW}"
        return None
    if not is_own and case.workload not in fewer_parameters():
        return (
            f"{case.workload} is not available as a Keras model; available: {', '.join(fewer_parameters())}"
        )
    if execution not in KERAS[framework].executions:
        owner = "TensorFlow" if execution.facts.of_tensorflow else "torch"
        return f"{framework} has no {execution}: only {owner} has it"
    if case.precision.facts.keras_policy is None:
        return f"Keras has no policy for {case.precision}"
    if case.task is not TaskKind.TRAIN:
        return "Keras models are only measured in training"
    if case.gpu_count > 1:
        return f"{framework} is only measured on one device"
    if not (device.is_cpu or device.is_nvidia):
        return f"{framework} is measured only on CPUs and NVIDIA GPUs, but this device is {device.backend}"
    if case.setup.keys() - {"framework", "weight_type"}:
        return "a Keras model has no recipe other than the workload's own"
    return None


def variables_of(framework: Framework, device: DeviceProfile) -> dict[str, str]:
    """Return the environment variables of a framework's child process.

    They choose the Keras backend and turn off memory preallocation; torch needs none.
    """
    if framework is Framework.TORCH:
        return {}
    return {
        "KERAS_BACKEND": KERAS[framework].backend,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu" if device.is_cpu else "cuda,cpu",
        **({"CUDA_VISIBLE_DEVICES": ""} if device.is_cpu else {}),
    }


def profiles_in(
    wanted: Sequence[Framework],
    references: Sequence[str],
    asked: Mapping[str, Any],
    device: DeviceProfile,
    *,
    gpu_count: int = 1,
    precisions: Sequence[str] = (),
) -> dict[str, WorkloadProfile]:
    """Profile several workloads, by reference; a user's own model is profiled in its own framework.

    Args:
        wanted: The frameworks in which the workloads will run.
        references: The workloads.
        asked: The requested recipe, by field.
        device: The device, which determines the environment of a Keras process.
        gpu_count: Number of GPUs of the largest job.
        precisions: The requested precisions; empty means the defaults.

    Raises:
        MisuseError: As in ``profiles_of``, or if a user's own model is requested both in torch and in Keras.
    """
    from gpubench.profile import profiles_of

    own = [reference for reference in references if is_own(reference)]
    keras = [framework for framework in wanted if framework is not Framework.TORCH]
    if not (own and keras):
        return profiles_of(references, asked, gpu_count=gpu_count, precisions=precisions)
    if len(keras) < len(wanted):
        raise MisuseError(
            f"{plain(own[0], 200)} is your own model, and it cannot be both a torch and a Keras model: "
            "leave either torch or Keras out of --framework"
        )
    others = profiles_of(
        [reference for reference in references if reference not in own], asked, gpu_count=gpu_count
    )
    return {
        reference: _own_profile(reference, keras[0], device) if reference in own else others[reference]
        for reference in references
    }


def _own_profile(reference: str, framework: Framework, device: DeviceProfile) -> WorkloadProfile:
    name = plain(reference.rpartition("/")[2])
    answer = run_child(
        ("-m", "gpubench.measure.keras_case"),
        [reference, framework.value],
        Answer,
        time_limit_s=OWN_LIMIT_S,
        environment={**os.environ, **variables_of(framework, device)},
    )
    reply = answer.answer
    if reply is None or reply.profile is None:
        error = None if reply is None else reply.error
        kept = write_log(name, None if reply is None else reply.traceback, answer.output)
        raise MisuseError(f"{error or f'{name}: while building it, its process {answer.how}'} ({kept})")
    if wrong := contradiction(reference, reply.profile):
        raise MisuseError(f"{name}: what its process reported cannot be true: {wrong}")
    return reply.profile
