"""Sets a measuring child's environment variables, and records the run's software and host anonymously."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence

from gpubench import __version__
from gpubench.children import commit_of_checkout
from gpubench.executions import COMPILE_SWITCHES, Framework
from gpubench.measure.capability import variables_of
from gpubench.measure.messages import Ready
from gpubench.measure.privacy import scrub
from gpubench.models import DeviceProfile, Environment
from gpubench.precisions import CPU_MATH_VARIABLES, TF32_VARIABLES
from gpubench.probe.backend import child_environment
from gpubench.probe.host import container, cpu_governor, cpu_name, memory_bytes, os_name

# torch and its libraries read their number of threads from these when they load.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Variables that change what is measured; their values are stored without paths.
VARIABLES = (
    *TF32_VARIABLES,
    *CPU_MATH_VARIABLES,
    *COMPILE_SWITCHES,
    *THREAD_VARIABLES,
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_CACHE_DISABLE",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "LD_PRELOAD",
    "MIOPEN_FIND_MODE",
    "MKL_CBWR",
    "NCCL_ALGO",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "ONEDNN_MAX_CPU_ISA",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTRAOP_THREADS",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUDNN_V8_API_DISABLED",
    "XLA_FLAGS",
)


def environment(device: DeviceProfile, ready: Ready | None = None) -> Environment:
    """Return the software and hardware of this run.

    Args:
        device: The device; its driver is recorded.
        ready: The measuring child's report on its libraries; None before there is a child.
    """
    ready = ready or Ready()
    return Environment(
        gpubench=__version__,
        python=platform.python_version(),
        os=os_name(),
        cpu=cpu_name(),
        cpu_count=os.cpu_count(),
        cpu_threads=ready.cpu_threads,
        ram_bytes=memory_bytes(),
        git_commit=commit_of_checkout(),
        torch=ready.torch,
        cuda=ready.cuda,
        cudnn=ready.cudnn,
        nccl=ready.nccl,
        driver=device.driver_version,
        container=container(),
        cpu_governor=cpu_governor(),
        cudnn_benchmark=ready.cudnn_benchmark,
        variables={name: scrub(os.environ[name]) for name in sorted(VARIABLES) if name in os.environ},
        packages=ready.packages,
    )


def child_variables(
    device: DeviceProfile,
    inherited: Mapping[str, str],
    *,
    peers: Sequence[DeviceProfile] = (),
    framework: Framework = Framework.TORCH,
    threads: int = 0,
) -> dict[str, str]:
    """Return the environment variables of a child: it sees only its own GPUs, and no variable sets TF32.

    A GPU is identified by its UUID, or by its index in PCI order if the UUID is all zeros. ``threads`` is the
    number of CPU threads to use; 0 leaves the number to the framework.
    """
    variables = {name: value for name, value in inherited.items() if name not in TF32_VARIABLES}
    variables["PYTHONUNBUFFERED"] = "1"
    if threads:
        variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    return variables | child_environment(device, *peers) | variables_of(framework, device)
