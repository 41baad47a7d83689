"""What each framework has: its packages, its variables, its executions, and why not where it has not.

No framework is imported here.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import msgspec

from gpubench.children import ask_child
from gpubench.errors import MisuseError
from gpubench.measure.capability import CUDA_BACKENDS
from gpubench.models import Case, DeviceProfile, Execution, Framework, Precision, TaskKind, WorkloadProfile
from gpubench.profile.cache import Answer, contradiction
from gpubench.profile.log import write_log
from gpubench.units import Seconds, plain
from gpubench.workload import is_own

OWN_LIMIT_S: Seconds = 120.0
"""A model of the user's own that has not been built by then never will be, in all likelihood."""

POLICIES = {
    Precision.FP32: "float32",
    Precision.TF32: "float32",
    Precision.AMP_FP16: "mixed_float16",
    Precision.AMP_BF16: "mixed_bfloat16",
    Precision.BF16: "bfloat16",
}
"""Keras's name for the types of weights and arithmetic at a precision; the backend parts fp32 from tf32."""


class KerasFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend of Keras is.

    Attributes:
        backend: Its name in ``KERAS_BACKEND``.
        module: What is imported.
        on_cpu, on_cuda: The packages to install, as pip takes them.
        executions: Those that it has.
        usual: Those that Keras itself chooses, or a user first; measured by default.
    """

    backend: str
    module: str
    on_cpu: str
    on_cuda: str
    executions: tuple[Execution, ...]
    usual: tuple[Execution, ...]


TENSORFLOW_CPU = "tensorflow-cpu"
KERAS = {
    Framework.KERAS_TORCH: KerasFacts(
        backend="torch",
        module="torch",
        on_cpu="torch",
        on_cuda="torch",
        executions=(Execution.EAGER, Execution.COMPILE),
        usual=(Execution.EAGER,),
    ),
    Framework.KERAS_TENSORFLOW: KerasFacts(
        backend="tensorflow",
        module="tensorflow",
        on_cpu=TENSORFLOW_CPU,
        on_cuda='"tensorflow[and-cuda]"',
        executions=(Execution.EAGER, Execution.COMPILE, Execution.TF_GRAPH),
        usual=(Execution.COMPILE, Execution.TF_GRAPH),
    ),
    Framework.KERAS_JAX: KerasFacts(
        backend="jax",
        module="jax",
        on_cpu="jax",
        on_cuda='"jax[cuda13]"',
        executions=(Execution.EAGER, Execution.COMPILE),
        usual=(Execution.COMPILE,),
    ),
}


def pip_line(framework: Framework, device: DeviceProfile, lacking: Sequence[str]) -> str:
    """Return the line that installs the modules that a framework lacks on a device."""
    facts = KERAS[framework]
    package = facts.on_cuda if not device.is_cpu else facts.on_cpu
    if package == TENSORFLOW_CPU and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        package = "tensorflow"  # the smaller package is built for no other machine
    return f"pip install {' '.join(package if name == facts.module else name for name in lacking)}"


PACKAGES = {
    Framework.TORCH: ("torchao",),
    Framework.KERAS_TORCH: ("keras", "torch"),
    Framework.KERAS_TENSORFLOW: ("keras", "tensorflow", "tensorflow-cpu"),
    Framework.KERAS_JAX: ("keras", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
}
"""What a record names beside torch, CUDA and cuDNN, where it is installed."""


def versions(framework: Framework) -> dict[str, str]:
    """Return the versions of the packages that compute for a framework; nothing is imported."""
    told = {name: version_of(name) for name in PACKAGES[framework]}
    return {name: version for name, version in told.items() if version is not None}


def version_of(package: str) -> str | None:
    """Return the version of a package as it is installed; None where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def need_frameworks(wanted: Sequence[Framework], device: DeviceProfile) -> None:
    """Check, without importing them, that the packages of every framework are installed.

    Raises:
        MisuseError: With the exact line that installs the first that lacks.
    """
    for framework in wanted:
        if framework is Framework.TORCH:
            continue
        lacking = [name for name in ("keras", KERAS[framework].module) if find_spec(name) is None]
        if lacking:
            raise MisuseError(
                f"{framework} needs {' and '.join(lacking)}, not installed here: "
                f"{pip_line(framework, device, lacking)}"
            )


@cache
def fewer_parameters() -> Mapping[str, int]:
    """Parameters that a workload lacks as a Keras model, by name; only those that are one are in it.

    Keras itself is not imported.
    """
    from gpubench.discovery import keras_models

    module = keras_models()
    return {name: module.FEWER_PARAMETERS.get(name, 0) for name in module.MODELS}


def executions_of(
    framework: Framework, asked: Sequence[Execution], usual: Sequence[Execution]
) -> tuple[Execution, ...]:
    """Return the executions asked for, or those that a framework is measured in by default.

    Args:
        framework: Whose.
        asked: Empty where none was named.
        usual: Of torch.
    """
    if asked:
        return tuple(asked)
    return tuple(usual) if framework is Framework.TORCH else KERAS[framework].usual


def why_no_framework(case: Case, device: DeviceProfile, *, is_own: bool) -> str | None:
    """Say why a case cannot be measured in its framework; None where it can."""
    framework, execution = case.framework, case.execution
    if framework is Framework.TORCH:
        if execution.facts.of_tensorflow:
            return f"{execution} is a graph of TensorFlow: add --framework {Framework.KERAS_TENSORFLOW}"
        return None
    if not is_own and case.workload not in fewer_parameters():
        return f"{case.workload} is no Keras model here; there are {', '.join(fewer_parameters())}"
    if execution not in KERAS[framework].executions:
        what = "a CUDA graph of torch" if execution is Execution.GRAPH else "a graph of TensorFlow"
        return f"{framework} has no {execution}, {what}"
    if case.precision not in POLICIES:
        return f"Keras has no policy of {case.precision}"
    if case.task is not TaskKind.TRAIN:
        return "Keras models are measured in training"
    if case.gpu_count > 1:
        return f"{framework} is measured on one device"
    if not device.is_cpu and device.backend not in CUDA_BACKENDS:
        return f"{framework} is measured on CPUs and NVIDIA GPUs, and this device is {device.backend}"
    if case.setup.keys() - {"framework", "weight_type"}:
        return "a Keras model has no recipe other than the workload's own"
    return None


def variables_of(framework: Framework, device: DeviceProfile) -> dict[str, str]:
    """Return the variables of a child of a framework: its backend, and no memory taken in advance."""
    if framework is Framework.TORCH:
        return {}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device.is_cpu else {}
    return {
        "KERAS_BACKEND": KERAS[framework].backend,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu" if device.is_cpu else "cuda,cpu",
        **hidden,
    }


def profiles_in(
    wanted: Sequence[Framework],
    references: Sequence[str],
    asked: Mapping[str, Any],
    device: DeviceProfile,
    *,
    gpu_count: int = 1,
) -> dict[str, WorkloadProfile]:
    """Profile several workloads, by reference: a model of the user's own in the framework that it is of.

    Raises:
        MisuseError: As ``profiles_of``; or a model of the user's own is asked for in torch and in Keras.
    """
    from gpubench.profile import profiles_of

    own = [reference for reference in references if is_own(reference)]
    keras = [framework for framework in wanted if framework is not Framework.TORCH]
    if not (own and keras):
        return profiles_of(references, asked, gpu_count=gpu_count)
    if len(keras) < len(wanted):
        raise MisuseError(
            f"{plain(own[0], 200)} is a model of your own, and one of torch is none of Keras: leave "
            "torch out of --framework, or Keras"
        )
    others = profiles_of(
        [reference for reference in references if reference not in own], asked, gpu_count=gpu_count
    )
    found = {reference: _own_profile(reference, keras[0], device) for reference in own}
    return {reference: (others | found)[reference] for reference in references}


def _own_profile(reference: str, framework: Framework, device: DeviceProfile) -> WorkloadProfile:
    name = plain(reference.rpartition("/")[2])
    answer = ask_child(
        ("-m", "gpubench.measure.keras_own_child"),
        [reference, framework.value],
        Answer,
        time_limit_s=OWN_LIMIT_S,
        environment={**os.environ, **variables_of(framework, device)},
    )
    said = answer.answer
    if said is None or said.profile is None:
        error = None if said is None else said.error
        kept = write_log(name, None if said is None else said.traceback, answer.output)
        raise MisuseError(f"{error or f'{name}: its process {answer.how}, while it was built'} ({kept})")
    if wrong := contradiction(reference, said.profile):
        raise MisuseError(f"{name}: what its process reported cannot be true: {wrong}")
    return said.profile
