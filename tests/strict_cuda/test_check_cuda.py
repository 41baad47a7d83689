"""``gpubench check --cuda`` as it runs: a parent, real measuring processes, and the strict fake in them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from command import gpubench
from cuda_check.builders import read_check
from nvml.script import Fault
from patience import Stopwatch

from gpubench.cuda_check import run as cuda_check
from gpubench.cuda_check.judge import confirms, judge, states_of
from gpubench.cuda_check.run import STEPS, Amounts, check_cuda
from gpubench.errors import NoDeviceError
from gpubench.measure.launcher import PHASE_LIMITS_S
from gpubench.models import PartState, Status
from strict_cuda.conftest import BRIEF

BUDGET = msgspec.structs.replace(BRIEF, timed_s=0.3)
LITTLE = Amounts(
    fours=2,
    block_s=0.05,
    load_s=3.0,
    settle_s=0.5,
    cap_bytes=300 * 2**20,
    budget=BUDGET,
    workloads=("cnn", "lstm"),
)
"""Everything that a check does, at small size; the workloads are their tiny presets."""
ROOMY_GIB = 72
"""Memory of the fake device.

The cap, a share of what the driver shows, leaves 150 MiB, 128 of them for cuBLAS on the two streams of a graph.
"""


def ends(made) -> dict[str, PartState]:
    return {part.name: part.state for part in made.parts}


def only(monkeypatch, *names: str) -> None:
    monkeypatch.setattr(cuda_check, "STEPS", {name: STEPS[name] for name in names})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("full", [False, True])
def test_a_sound_device_passes_every_part_and_is_confirmed(inside_gpu, tmp_path, monkeypatch, full):
    device = inside_gpu(kernel_s=1e-3, memory_bytes=ROOMY_GIB * 2**30)
    monkeypatch.setattr(cuda_check, "LIMIT_S", 900.0)  # in real time; a fake device needs more of it
    longer = msgspec.structs.replace(BUDGET, warmup_most_s=2.0, timed_s=2.0)
    enough = msgspec.structs.replace(LITTLE, budget=longer)  # steps for the loss to fall at the largest batch
    path, heard = tmp_path / "check.json", []
    made = check_cuda(
        device, path, full=full, amounts=enough, on_part=lambda log, number, total: heard.append(log.state)
    )
    verdicts = judge(read_check(path))
    assert made.limit_s == (None if full else 900.0)
    assert made.left_out == {}
    assert len(made.cases) == 2 * 4 * 2 + 2  # workloads, precisions, executions; and the compiled ones
    assert [v for v in verdicts if v.state not in {"ok", "shown"}] == []
    assert confirms(read_check(path))
    assert set(ends(made).values()) == {PartState.DONE}
    assert heard == [PartState.RUNNING, PartState.DONE] * len(made.parts)
    assert made.identity == "PCI bus id"
    assert {row.case.execution for row in made.cases} == {"eager", "graph", "compile"}
    assert made.faults.after_waiting.status is Status.OK
    assert made.faults.after_too_large.status is Status.OK
    text = path.read_text()
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", text, re.IGNORECASE)
    assert str(tmp_path.parent) not in text
    assert "0000:00:06" not in text


@pytest.mark.parametrize(
    ("end", "told"), [("die", "SIGKILL"), pytest.param("hang", "no report", marks=pytest.mark.slow)]
)
def test_a_process_that_dies_or_hangs_loses_only_its_part(inside_gpu, tmp_path, monkeypatch, end, told):
    device = inside_gpu()
    only(monkeypatch, "device", "clock", "load")
    monkeypatch.setenv("AILING", json.dumps({"clock": end}))
    monkeypatch.setitem(PHASE_LIMITS_S, "second look", 2.0)
    path = tmp_path / "check.json"
    made = check_cuda(device, path, amounts=LITTLE, module="strict_cuda.ailing_child")
    assert read_check(path) == made
    assert list(ends(made).values()) == [PartState.DONE, PartState.FAILED, PartState.DONE]
    assert told in made.parts[1].reason
    assert made.clock is None
    assert made.load.sampled.first_s
    assert made.finished_at is not None


@pytest.mark.slow
def test_crashed_process_loses_only_its_case(inside_gpu, tmp_path, monkeypatch):
    device = inside_gpu()
    only(monkeypatch, "cases")
    monkeypatch.setattr(cuda_check, "CLASSIC", ("cnn",))
    monkeypatch.setenv("AILING", json.dumps({"cnn amp-bf16 graph batch 512": "die"}))
    few = msgspec.structs.replace(LITTLE, workloads=("cnn",))
    made = check_cuda(device, tmp_path / "check.json", amounts=few, module="strict_cuda.ailing_child")
    assert ends(made) == {"cases": PartState.DONE}
    seen = {row.case.label: row for row in made.cases}
    assert len(seen) == 4 * 2 + 1  # precisions, executions; and a compiled one
    dead = seen.pop("cnn amp-bf16 graph batch 512")
    assert dead.status is Status.FAILED
    assert "SIGKILL" in dead.reason
    assert {row.status for row in seen.values()} == {Status.OK}
    assert all(row.precision_errors.keys() == {"matmul", "conv"} for row in seen.values())


PART_S = 2.5
"""The time limit of a part that hangs."""


@pytest.fixture
def hanging(inside_gpu, tmp_path, monkeypatch):
    """``hanging(limit_s, part, order)``: a check of one part that hangs at a request."""

    def check(limit_s: float, part: str, order: str, amounts=LITTLE):
        device = inside_gpu()
        only(monkeypatch, part)
        monkeypatch.setattr(cuda_check, "LIMIT_S", limit_s)
        monkeypatch.setattr(cuda_check, "LEAST_PART_S", PART_S / 2)
        monkeypatch.setenv("AILING", json.dumps({order: "hang"}))
        return check_cuda(device, tmp_path / "check.json", amounts=amounts, module="strict_cuda.ailing_child")

    return check


def test_memory_that_the_driver_does_not_report_comes_from_torch(inside_gpu, tmp_path, monkeypatch):
    """Without that figure no cap could be set, and a lack of memory could not be excused."""
    only(monkeypatch, "precision")
    refused = Fault("nvmlDeviceGetMemoryInfo", code=3)
    device = inside_gpu(faults=[refused], memory_bytes=ROOMY_GIB * 2**30)
    assert device.memory_bytes is None
    made = check_cuda(device, tmp_path / "check.json", amounts=LITTLE)
    assert made.device.memory_bytes == ROOMY_GIB * 2**30


SLICE = {
    "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    "multi_processor_count": 42,
    "major": 8,
    "pci_bus_id": 7,
    "pci_device_id": 0,
}


@pytest.mark.slow
def test_a_slice_of_a_card_is_checked_against_its_own_values(inside_gpu, tmp_path, monkeypatch):
    """A slice has its own UUID, and CUDA releases differ in which UUID they show, so the bus id identifies the card."""
    device = inside_gpu("a100_mig", properties=SLICE)
    only(monkeypatch, "device", "precision", "load")
    path = tmp_path / "check.json"
    made = check_cuda(device, path, amounts=LITTLE)
    assert {log.name: (log.state, log.reason) for log in made.parts} == dict.fromkeys(
        ("device", "precision", "load"), (PartState.DONE, None)
    )
    assert made.identity == "PCI bus id"
    assert {v.state for v in judge(read_check(path))} <= {"ok", "shown", "left out"}
    assert "MIG-3" not in path.read_text()


def test_parts_without_time_left_are_left_out(hanging):
    made = hanging(PART_S / 4, "clock", "clock")
    assert ends(made) == {"clock": PartState.LEFT_OUT}
    assert "no time left" in made.parts[0].reason
    assert {v.state for v in judge(made)} == {"left out"}
    assert not confirms(made)


@pytest.mark.parametrize("part", ["clock", pytest.param("load", marks=pytest.mark.slow)])
def test_a_part_that_hangs_until_its_limit_is_cut_off(hanging, part):
    made = hanging(PART_S, part, part)
    assert ends(made) == {part: PartState.CUT_OFF}
    assert "cut off during" in made.parts[0].reason
    assert "cut off" in states_of(judge(made))
    assert not confirms(made)


@pytest.mark.parametrize(
    ("part", "label"),
    [
        ("cases", "cnn amp-bf16 graph batch 512"),
        pytest.param("faults", "waiting amp-bf16 graph batch 8", marks=pytest.mark.slow),
    ],
)
def test_a_case_that_hangs_cuts_off_its_part_and_is_named(hanging, monkeypatch, part, label):
    """The case is the first of its part, since a slow machine has no time for later ones."""
    monkeypatch.setattr(cuda_check, "CLASSIC", ("cnn",))
    few = msgspec.structs.replace(LITTLE, workloads=("cnn",))
    made = hanging(PART_S, part, label, few)
    assert ends(made) == {part: PartState.CUT_OFF}
    assert "cut off" in states_of(judge(made))
    if part == "cases":
        assert made.parts[0].reason.startswith("cnn amp-bf16 ")
        assert label in made.left_out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "compute mode"),
        ("CUDA error: no kernel image is available for execution on the device", "pip uninstall torch"),
    ],
)
def test_a_card_that_torch_cannot_open_ends_the_check_with_the_fix_in_the_file(
    inside_gpu, tmp_path, words, told
):
    device = inside_gpu(cuda_faults=[{"operator": "init", "words": words}])
    path = tmp_path / "check.json"
    with pytest.raises(NoDeviceError, match=told):
        check_cuda(device, path, amounts=LITTLE)
    made = read_check(path)
    assert ends(made)["precision"] is PartState.FAILED
    assert told in next(part.reason for part in made.parts if part.name == "precision")
    assert made.finished_at is None
    assert made.nvml


def test_a_check_of_a_card_that_falls_off_the_bus_keeps_earlier_readings(
    inside_gpu, inside_nvml, tmp_path, monkeypatch
):
    device = inside_gpu()
    only(monkeypatch, "device", "clock", "graph")
    monkeypatch.setenv("AILING", json.dumps({"clock": "die"}))

    def fall(log, number, total) -> None:
        if log.name == "clock":
            inside_nvml("h200", [Fault("*", code=15)])

    path = tmp_path / "check.json"
    made = check_cuda(device, path, amounts=LITTLE, on_part=fall, module="strict_cuda.ailing_child")
    assert list(ends(made).values()) == [PartState.DONE, PartState.FAILED, PartState.LEFT_OUT], made.parts
    for part in made.parts[1:]:
        assert "off the bus" in part.reason
    assert "FAILED" in states_of(judge(read_check(path)))
    assert made.nvml


BUSY = [{"pid": 4711, "usedGpuMemory": 8 * 2**30, "gpuInstanceId": 0, "computeInstanceId": 0}]


def test_card_in_use_by_another_process_is_not_checked(inside_gpu, tmp_path):
    device = inside_gpu(faults=[Fault("nvmlDeviceGetComputeRunningProcesses", values=[BUSY])])
    path = tmp_path / "check.json"
    with pytest.raises(NoDeviceError):
        check_cuda(device, path, amounts=LITTLE)
    assert ends(read_check(path))["device"] is PartState.FAILED
    assert "4711" not in path.read_text()


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """An empty working folder."""
    made = tmp_path / "here"
    made.mkdir()
    return made


def run(environment: dict[str, str], folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    return gpubench(environment, "check", *arguments, cwd=folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["latest", "--cuda"], "leave out the run"),
        (["--full"], "--full requires --cuda"),
        (["latest", "-o", "x.json"], "-o requires --cuda"),
        (["--cuda", "--device", "cuda:7"], "choose the GPU with CUDA_VISIBLE_DEVICES"),
    ],
)
def test_misuse_is_one_line_and_leaves_no_file(gpu_environment, folder, arguments, words):
    done = run(gpu_environment(), folder, *arguments)
    assert done.returncode in {2, 3}
    assert words in done.stderr.splitlines()[-1]
    assert list(folder.iterdir()) == []


def test_without_a_gpu_the_exit_code_is_3(folder):
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    done = run(environment, folder, "--cuda")
    assert (done.returncode, list(folder.iterdir())) == (3, [])


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"cuda": None}, 3, "CPU-only build"),
        ({"cuda": "14.0"}, 3, "newer CUDA"),
        (
            {"devices": "a100_mig", "faults": [Fault("nvmlDeviceGetMigDeviceHandleByIndex", code=6)]},
            3,
            "MIG",
        ),
        ({"visible": "7"}, 2, "CUDA_VISIBLE_DEVICES"),
    ],
    ids=["a torch without CUDA", "a driver that is too old", "MIG without a slice", "an absent card"],
)
def test_the_reason_why_torch_cannot_use_the_card_is_one_line_with_its_exit_code(
    gpu_environment, folder, asked, code, words
):
    visible = asked.get("visible")
    environment = gpu_environment(**{name: value for name, value in asked.items() if name != "visible"})
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    done = run(environment, folder, "--cuda")
    assert (done.returncode, done.stdout, list(folder.iterdir())) == (code, "", [])
    (line,) = done.stderr.splitlines()
    assert words in line


@pytest.mark.usefixtures("heeded_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_keeps_its_readings(gpu_environment, folder, number):
    with subprocess.Popen(
        [sys.executable, "-m", "gpubench", "check", "--cuda"],
        env=gpu_environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            found = list(folder.glob("cuda-check-*.json"))
            if found and ends(read_check(found[0]))["precision"] is PartState.RUNNING:
                break
            time.sleep(0.1)
        process.send_signal(number)
        watch = Stopwatch()
        _, errors = process.communicate(timeout=60)
    assert watch.free_s() < 3
    assert process.returncode == 130
    assert "the readings so far" in errors.splitlines()[-1]
    (path,) = folder.iterdir()
    assert path.name.startswith("cuda-check-nvidia-h200-sxm-141gb-2.")
    seen = ends(read_check(path))
    assert seen["device"] is PartState.DONE
    assert seen["precision"] is PartState.INTERRUPTED
    assert set(list(seen.values())[2:]) == {PartState.NOT_REACHED}
