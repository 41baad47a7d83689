"""Each broken state of a driver: one line with the cause and the fix, and the exit code of the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import gpubench
from nvml.script import Fault, change, load_dump

from gpubench.models import DeviceProfile
from gpubench.probe import nvidia, torch_view
from gpubench.probe.select import select_device

ASK = """
import json, sys
import msgspec
from gpubench.errors import GpuBenchError
from gpubench.probe.probe import probe
from gpubench.probe.select import select_device

answers = {}
for name in sys.argv[1:]:
    try:
        device, said = select_device(name)
        answers[name] = [0, f"{device.backend} | {said}"]
    except GpuBenchError as error:
        answers[name] = [error.exit_code, str(error)]
answers["probe"] = msgspec.to_builtins(probe())
print(json.dumps(answers))
"""


def ask(environment: dict[str, str], *devices: str) -> dict:
    """Return the exit code and message of ``--device`` for each of these, and the probe, from one child process."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, *devices], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def select(environment: dict[str, str], device: str) -> tuple[int, str]:
    code, said = ask(environment, device)[device]
    assert "\n" not in said
    return code, said


def without_driver() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in {"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"}}


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
class TestWithoutDriver:
    def test_auto_measures_on_the_cpu_and_cuda_is_refused_with_the_fix(self) -> None:
        answers = ask(without_driver(), "auto", "cuda")
        code, said = answers["auto"]
        assert (code, said.startswith("cpu | NVIDIA driver")) == (0, True)
        code, said = answers["cuda"]
        assert (code, said.startswith("NVIDIA driver not")) == (3, True)
        assert "(libnvidia-ml.so.1: " in said
        assert "install its driver" in said
        assert [d["backend"] for d in answers["probe"]["devices"]] == ["cpu"]
        assert answers["probe"]["problems"][0]["what"].startswith("NVIDIA driver")

    @pytest.mark.parametrize("visible", ["0", "0,1", "GPU-1234", "", "nonsense"])
    def test_visible_device_variables_have_no_effect_without_a_driver(
        self, monkeypatch, visible: str
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", visible)
        assert select_device("auto")[0].backend == "cpu"

    def test_gpubench_without_arguments_or_gpu_answers_a_popular_job(self) -> None:
        done = gpubench(without_driver())
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        assert lines[0] == "This machine has no GPU. To train resnet50, for example:"
        assert lines[1].startswith("resnet50, 90 epochs of ImageNet")
        assert {"Cheapest", "Fastest"} <= {line.split()[0] for line in lines}
        assert "For your own job: gpubench llama-3.1-8b --lora" in lines[-1]
        assert "libnvidia" not in done.stdout


def test_a_truncated_library_shows_the_loaders_message_and_the_path(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(b"\x7fELF")
    environment = dict(without_driver(), LD_LIBRARY_PATH=str(tmp_path))
    answers = ask(environment, "cuda", "auto")
    for device in ("cuda", "auto"):
        code, said = answers[device]
        assert code == 3
        assert f"{library}: file too" in said
    assert answers["probe"]["problems"][0]["exit_code"] == 3


@pytest.mark.parametrize(
    ("text", "platform", "absent"),
    [
        ("libnvidia-ml.so.1: cannot open shared object file: No such file or directory", "linux", True),
        ("Error loading shared library libnvidia-ml.so.1: No such file or directory", "linux", True),
        ("libcuda-part.so: cannot open shared object file: No such file or directory", "linux", False),
        ("/usr/lib/libnvidia-ml.so.1: file too short", "linux", False),
        ("libnvidia-ml.so.1: cannot open shared object file: Permission denied", "linux", False),
        ("libnvidia-ml.so.1: wrong ELF class: ELFCLASS32", "linux", False),
        ("dlopen(libnvidia-ml.so.1, 0x0006): tried: 'libnvidia-ml.so.1' (no such file)", "darwin", True),
        ("Could not find module 'nvml.dll' (or one of its dependencies)", "win32", True),
    ],
)
def test_a_missing_and_a_broken_driver_are_distinguished_by_the_loaders_message(
    text: str, platform: str, absent: bool
) -> None:
    assert nvidia.is_absent(text, platform) is absent


def test_a_library_that_the_loader_skips_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").write_bytes(b"made for another processor")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    problem = nvidia.not_opened(12, "", None, root=tmp_path)
    assert problem.exit_code == 3
    assert f" {tmp_path}/usr/lib64/libnvidia-ml.so.1" in problem.line()


def test_a_stub_library_is_named_with_its_path(fake_nvml) -> None:
    environment = fake_nvml("h200", missing=["nvmlInitWithFlags"])
    code, said = select(environment, "cuda")
    assert code == 3
    assert f"stub without functions ({environment['LD_LIBRARY_PATH']}/libnvidia-ml.so.1)" in said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, ["kernel module is not loaded", "modprobe nvidia"]),
        (18, ["different versions", "library 13.580.159.04, module", "reload the module"]),
        (4, ["may not open the NVIDIA driver", "/dev/nvidia*"]),
        (999, ["does not start", "nvmlInit: Unknown Error"]),
        (15, ["reboot"]),
    ],
)
def test_a_driver_that_does_not_start_is_one_line_and_exit_3(fake_nvml, code: int, words: list[str]) -> None:
    environment = fake_nvml("h200", faults=[Fault("nvmlInit", code=code)])
    answers = ask(environment, "cuda", "auto")
    for device in ("cuda", "auto"):
        exit_code, said = answers[device]
        assert exit_code == 3
        assert all(word in said for word in words), said
        assert "\n" not in said
    document = answers["probe"]
    assert [d["backend"] for d in document["devices"]] == ["cpu"]
    assert document["problems"][0]["exit_code"] == 3


def test_both_versions_are_named_after_an_upgrade(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
    )
    problem = nvidia.not_opened(18, "", "12.555.42", root=tmp_path)
    assert problem.value == "library 12.555.42, module 550.90.07"


def test_an_unknown_error_in_a_container_names_the_cgroup(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/kubepods/besteffort/pod1\n")
    assert "recreate the container" in nvidia.not_opened(999, "Unknown Error", None, root=tmp_path).fix


def test_no_gpu_and_a_cpu_only_torch_are_distinguished(fake_nvml, tmp_path: Path) -> None:
    calls = change(load_dump("h200"), "nvmlDeviceGetCount", 0)
    calls = [dict(c, device=None) if c["function"] == "nvmlDeviceGetCount" else c for c in calls]
    none = fake_nvml(calls)
    answers = ask(none, "auto", "cuda")
    assert answers["auto"][0] == 0
    assert answers["auto"][1].startswith("cpu | the NVIDIA")
    code, said = answers["cuda"]
    assert (code, "lists no GPU (driver 580.159.04)" in said) == (3, True)

    beside = dict(fake_nvml("h200"), PYTHONPATH=str(torch_folder(tmp_path, cuda=None)))
    answers = ask(beside, "auto", "cuda")
    for device in ("auto", "cuda"):
        code, said = answers[device]
        assert code == 3
        assert "cannot reach NVIDIA H200" in said
    assert "CPU-only" in answers["probe"]["problems"][0]["what"]


def test_a_torch_for_a_newer_cuda_than_the_driver_names_both_versions(fake_nvml, tmp_path: Path) -> None:
    calls = [
        dict(c, value=12040) if c["function"].startswith("nvmlSystemGetCudaDriverVersion") else c
        for c in load_dump("h200")
    ]
    environment = dict(fake_nvml(calls), PYTHONPATH=str(torch_folder(tmp_path, cuda="13.0")))
    code, said = select(environment, "cuda")
    assert code == 3
    assert "driver 580.159.04 has CUDA 12.4" in said


@pytest.mark.parametrize(
    ("platform", "words"), [("linux", "(torch 2.11.0+cpu)"), ("win32", "pip install torch on Windows")]
)
def test_a_cpu_only_torch_is_reported_with_how_to_replace_it(monkeypatch, platform: str, words: str) -> None:
    build = torch_view.TorchBuild(version="2.11.0+cpu", cuda=None, hip=None)
    monkeypatch.setattr(torch_view, "torch_build", lambda: build)
    gpu = DeviceProfile(backend="cuda", name="NVIDIA GeForce RTX 4090", cuda_driver_version="12.8")
    problem = torch_view.torch_problem(gpu, platform)
    assert problem.exit_code == 3
    assert words in problem.line()
    assert "its CUDA 12 build" in problem.fix
    assert problem.fix.endswith("--device cpu")


def torch_folder(folder: Path, cuda: str | None) -> Path:
    """Make a torch with only a version file, because the selection must not import torch."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text("raise AssertionError('imported')\n")
    (folder / "torch/version.py").write_text(
        f"from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )
    return folder


def test_a_usable_gpu_is_chosen_without_importing_torch(fake_nvml, tmp_path: Path) -> None:
    environment = dict(fake_nvml("h200"), PYTHONPATH=str(torch_folder(tmp_path, cuda="13.0")))
    assert select(environment, "auto") == (0, "cuda | None")
