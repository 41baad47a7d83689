"""A torch error about an unusable GPU is turned into one line that says what to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpubench.measure.privacy import scrub
from gpubench.models import DeviceProfile
from gpubench.probe import torch_view
from gpubench.probe.torch_view import explain, first_words, no_kernels

P100 = DeviceProfile(
    backend="cuda",
    name="Tesla P100-PCIE-16GB",
    index=0,
    compute_capability=(6, 0),
    driver_version="470.82.01",
    cuda_driver_version="11.4",
)
ADVICE = (
    "\nSearch for `cudaErrorX' in https://docs.nvidia.com/cuda/x.html for more information."
    "\nCUDA kernel errors might be asynchronously reported at some other API call."
    "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
)
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
    "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx "
    "Alternatively, go to: https://pytorch.org to install a PyTorch version that has been compiled with your "
    "version of the CUDA driver."
)


@pytest.fixture(autouse=True)
def _a_cuda_13_build(monkeypatch) -> None:
    build = torch_view.TorchBuild(version="2.13.0+cu130", cuda="13.0", hip=None)
    monkeypatch.setattr(torch_view, "torch_build", lambda: build)


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (TOO_OLD, "built for a newer CUDA", "install its CUDA 11 build"),
        ("CUDA driver version is insufficient for CUDA runtime version", "built for a newer CUDA", "CUDA 11"),
        (
            "CUDA error: no kernel image is available for execution on the device",
            "torch 2.13.0+cu130 has no kernels for Tesla P100-PCIE-16GB (compute capability 6.0)",
            "install its CUDA 12.6 build",
        ),
        (
            "the provided PTX was compiled with an unsupported toolchain.",
            "too old to compile",
            "update the driver",
        ),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "compute mode", "-c DEFAULT"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "compute mode", "-c DEFAULT"),
        ("Found no NVIDIA driver on your system. Please check that you", "libcuda", "compute,utility"),
        ("No CUDA GPUs are available", "no program can use it", "Xid"),
        ("CUDA error: no CUDA-capable device is detected", "no program can use it", "Xid"),
        (
            "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            "links",
            "fabric",
        ),
        ("Error 804: forward compatibility was attempted on non supported HW", "do not match", "reboot"),
        (
            "Error 803: system has unsupported display driver / cuda driver combination",
            "do not match",
            "reboot",
        ),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "start", "nvidia_uvm"),
        ("Torch not compiled with CUDA enabled", "has no CUDA", "install its CUDA 11 build"),
        ("CUDA error: uncorrectable ECC error encountered", "damaged", "nvidia-smi -r"),
        ("CUDA error: out of memory", "memory is full", "nvidia-smi"),
    ],
)
@pytest.mark.parametrize("way", [str, lambda words: words + ADVICE, lambda words: scrub(words + ADVICE)])
def test_torch_and_cuda_error_messages_are_explained(words: str, what: str, fix: str, way) -> None:
    problem = explain(way(words), P100)
    assert (problem.exit_code, problem.backend) == (3, "torch")
    assert what in problem.seen()
    assert fix in problem.fix
    line = problem.line()
    assert "\n" not in line
    assert "DSA" not in line


def test_both_versions_are_named_and_torchs_driver_version_counts() -> None:
    assert explain(TOO_OLD, P100).value.endswith("driver 470.82.01 has CUDA 11.4")
    untold = replace(P100, cuda_driver_version=None, driver_version=None)
    assert explain(TOO_OLD, untold).value.endswith("driver has CUDA 11.4")
    assert explain(TOO_OLD).fix == explain(TOO_OLD, P100).fix


@pytest.mark.parametrize(
    ("capability", "build"),
    [
        ((6, 1), "CUDA 12.6 build"),
        ((7, 0), "CUDA 12.6 build"),
        ((8, 6), "CUDA 11 build"),
        ((12, 0), "CUDA 12.8 or"),
    ],
)
def test_advised_torch_build_has_kernels_for_the_card(capability: tuple[int, int], build: str) -> None:
    assert f"install its {build}" in no_kernels(replace(P100, compute_capability=capability), ["sm_90"]).fix


def test_an_unknown_error_keeps_torchs_message_without_its_advice() -> None:
    assert explain("CUDA error: unheard-of" + ADVICE, P100) is None
    assert first_words("error: something\nnew" + ADVICE).endswith("something new")
    assert first_words("\x1b[31mred") == "[31mred"


def test_nvidia_error_advice_is_not_given_for_other_vendors() -> None:
    assert explain("out of memory", replace(P100, backend="rocm")) is None
