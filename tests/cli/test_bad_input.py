"""``gpubench run`` on an unusable GPU, through the real pynvml: one line, and the exit code for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import gpubench, here
from nvml.script import Fault, change, load_dump

from gpubench.probe import torch_view
from gpubench.record import store

# The installed torch with the version file of a CUDA build; opening CUDA fails with a given message.
TORCH = """
import importlib, sys
from pathlib import Path

here = str(Path(__file__).parents[1])
sys.path = [place for place in sys.path if place != here]
del sys.modules["torch"]
torch = importlib.import_module("torch")

def init():
    raise RuntimeError({words!r})

torch.cuda.init = init
"""
RUN = ("run", "cnn", "--quick", "--micro", "none")
ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call."
    "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


def torch_that_says(words: str, folder: Path, cuda: str | None = "13.0") -> dict[str, str]:
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(TORCH.format(words=words))
    version = f"__version__ = '2.13.0+{'cpu' if cuda is None else 'cu130'}'\ncuda = {cuda!r}\nhip = None\n"
    (package / "version.py").write_text(version.replace("cuda = None", "cuda: None = None"))
    return {"PYTHONPATH": str(folder)}


def typed(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    done = gpubench(environment | {"OMP_NUM_THREADS": "1"}, *arguments)
    return done.returncode, done.stdout, done.stderr


def run(environment: dict[str, str], root: Path, *options: str) -> tuple[int, str]:
    """Return the exit code and the last line of stderr."""
    code, _, said = typed(environment, *RUN, "--results", str(root), *options)
    assert "Traceback" not in said
    return code, said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by",
            "(torch 2.13.0+cu130 needs CUDA 13.0, driver 580.159.04 has CUDA 12.4); update the driver, or",
            marks=pytest.mark.slow,
        ),
        (
            "CUDA error: no kernel image is available for execution on the device" + ADVICE,
            "torch 2.13.0+cu130 has no kernels for NVIDIA H200 (compute capability 9.0); pip uninstall torch",
        ),
        (
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable" + ADVICE,
            "the GPU is in use: its compute mode allows one process at a time",
        ),
        pytest.param(
            "CUDA error: something new" + ADVICE, "CUDA error: something new", marks=pytest.mark.slow
        ),
    ],
)
def test_cuda_initialization_error_becomes_one_line_with_a_remedy(
    fake_nvml, tmp_path, words: str, said: str
) -> None:
    environment = fake_nvml("h200") | torch_that_says(words, tmp_path)
    code, line = run(environment, tmp_path / "results")
    assert code == 3
    assert said in line
    assert line.startswith("gpubench: ")
    assert "LAUNCH_BLOCKING" not in line


def test_torch_errors_are_also_explained_by_the_python_api(fake_nvml, tmp_path) -> None:
    words = "CUDA error: no kernel image is available for execution on the device" + ADVICE
    environment = fake_nvml("h200") | torch_that_says(words, tmp_path)
    program = (
        "import sys, gpubench\n"
        "try: gpubench.run('cnn', quick=True, micro='none', results=sys.argv[1])\n"
        "except gpubench.NoDeviceError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "results")],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert "NVIDIA H200 (compute capability 9.0)" in line


def test_cpu_only_torch_never_falls_back_silently_when_a_gpu_is_present(fake_nvml, tmp_path) -> None:
    environment = fake_nvml("h200") | torch_that_says("", tmp_path, cuda=None)
    for device in ("auto", "cuda"):
        code, line = run(environment, tmp_path / "results", "--device", device)
        assert code == 3
        assert "NVIDIA H200 (torch 2.13.0+cpu)" in line
        assert "its CUDA 13 build" in line
    code, checks, _ = typed(environment, "doctor", "--results", str(tmp_path / "results"))
    assert code == 1
    assert "its CUDA 13 build" in " ".join(checks.split())


TAKEN = change(
    change(load_dump("h200"), "nvmlDeviceGetComputeMode", 3),
    "nvmlDeviceGetComputeRunningProcesses",
    [{"pid": 7, "usedGpuMemory": 1 << 30}],
)


@pytest.mark.parametrize(
    ("machine", "visible", "code", "said"),
    [
        (("h200", Fault("nvmlInit", code=9)), None, 3, "the NVIDIA kernel module is not loaded"),
        (("h200",), "1", 2, "CUDA_VISIBLE_DEVICES: '1' names no GPU of this machine, which has GPU 0;"),
        (
            ("h200",),
            "GPU-9",
            2,
            "CUDA_VISIBLE_DEVICES: 'GPU-9' names no GPU of this machine, which has GPU 0;",
        ),
        (("h200",), "", 3, "CUDA_VISIBLE_DEVICES='' hides every GPU; unset it"),
        (("h200",), "NoDevFiles", 3, "the scheduler gave this job no GPU; ask it for one"),
        (
            (TAKEN,),
            None,
            3,
            "GPU 0 (NVIDIA H200) is in compute mode exclusive_process and in use (PIDs 7); end",
        ),
        (
            ("a100_mig", Fault("nvmlDeviceGetMigDeviceHandleByIndex", code=6)),
            None,
            3,
            "GPU 0 is in MIG mode and has no slice; create one with nvidia-smi mig -cgi",
        ),
        (
            ("h200", Fault("nvmlDeviceGetHandleByIndex", code=15)),
            None,
            3,
            "GPU 0 is lost (nvmlDeviceGetHandle",
        ),
    ],
)
def test_unusable_gpu_or_cuda_visible_devices_is_explained(  # noqa: PLR0917 - fixtures and parameters
    inside_nvml, monkeypatch, tmp_path, machine: tuple, visible: str | None, code: int, said: str
) -> None:
    """The driver says enough, so torch is not asked; thus this process can run the verb."""
    inside_nvml(machine[0], faults=machine[1:])
    built = torch_view.TorchBuild(version="2.13.0+cu130", cuda="13.0", hip=None)
    for module in ("probe", "select", "torch_view"):
        monkeypatch.setattr(f"gpubench.probe.{module}.torch_build", lambda: built)
    monkeypatch.setattr(torch_view, "ChildProcess", None)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    done = here(*RUN, "--results", tmp_path / "results", "--device", "cuda")
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, said in line) == (code, True), line
    assert store.read_runs(tmp_path / "results").runs == ()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_without_a_driver_the_loaders_error_is_shown_and_exit_is_3(tmp_path) -> None:
    environment = {
        k: v for k, v in os.environ.items() if k not in {"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"}
    }
    code, line = run(environment, tmp_path / "results", "--device", "cuda")
    assert code == 3
    assert "libnvidia-ml.so.1: " in line
    assert line.startswith("gpubench: NVIDIA driver")


def test_a_training_ranking_is_refused_for_a_workload_that_is_never_trained() -> None:
    arguments = ("rank", "llama_8b", "--task", "train")
    done = here(*arguments)
    assert done.returncode == 2
    assert "llama_8b is never trained" in done.stderr
