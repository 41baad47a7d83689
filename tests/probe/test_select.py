"""The meaning of --device and CUDA_VISIBLE_DEVICES on a machine with four GPUs."""

from __future__ import annotations

import pytest
from nvml.script import Fault, change, load_dump

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.models import DeviceProfile
from gpubench.probe import nvidia, select
from gpubench.probe.backend import BackendReport, Problem
from gpubench.probe.select import select_device, select_peers
from gpubench.probe.torch_view import TorchBuild

UUIDS = [f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}-aaaa-bbbb-cccc-{n:012d}" for n in (1, 2, 3)] + [
    "GPU-33334444-aaaa-bbbb-cccc-000000000004"
]


def machine(names: tuple[str, ...] = ("NVIDIA H200",) * 4) -> list:
    calls = []
    for uuid, name in zip(UUIDS, names, strict=True):
        one = change(load_dump("h200"), "nvmlDeviceGetUUID", uuid)
        calls.append(change(one, "nvmlDeviceGetName", name))
    return calls


@pytest.fixture
def four(inside_nvml, monkeypatch):
    monkeypatch.setattr(select, "check_torch", lambda device: None)

    def put(visible: str | None = None, **options) -> None:
        inside_nvml(machine(**options))
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return put


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        (UUIDS[2], [2]),
        (UUIDS[2].upper(), [2]),
        ("GPU-2222", [1]),
        ("GPU-33333333", [2]),
        (f"3,{UUIDS[0]}", [3, 0]),
        ("1,-1,2", [1]),
    ],
)
def test_the_visible_devices_are_selected_in_their_order(
    four, visible: str | None, chosen: list[int]
) -> None:
    four(visible)
    assert [select_device(f"cuda:{n}")[0].index for n in range(len(chosen))] == chosen
    with pytest.raises(NoDeviceError, match="no such GPU"):
        select_device(f"cuda:{len(chosen)}")
    assert select_device("auto")[0].index == chosen[0]


MISSING = "names no GPU of this machine, which has GPUs 0 to 3; give"


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("4", f": '4' {MISSING}"),
        ("GPU-9", f": 'GPU-9' {MISSING}"),
        ("GPU-3333", ": 'GPU-3333' matches several GPUs; give"),
        *((visible, "") for visible in ("0,0", f"0,{UUIDS[0]}", "junk", "0,,1", "GPU-", "0x1", "9" * 5000)),
    ],
)
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_invalid_visible_devices_entry_is_an_error(four, visible: str, said: str, device: str) -> None:
    four(visible)
    with pytest.raises(MisuseError) as refused:
        select_device(device)
    assert str(refused.value).startswith(f"CUDA_VISIBLE_DEVICES{said}")


@pytest.mark.parametrize("visible", ["2,1,", "2,1, "])
def test_trailing_comma_in_the_device_list_is_read_as_cuda_reads_it(four, visible: str) -> None:
    four(visible)
    assert select_device("cuda")[0].index == 2


@pytest.mark.parametrize("visible", ["", " ", "-1", "-1,0"])
def test_an_empty_list_hides_every_gpu(four, visible: str) -> None:
    four(visible)
    device, said = select_device("auto")
    assert device.backend == "cpu"
    assert said.startswith("CUDA_VISIBLE_DEVICES hides")
    with pytest.raises(NoDeviceError, match="hides every GPU"):
        select_device("cuda")


@pytest.mark.parametrize("visible", ["NoDevFiles", " nodevfiles "])
def test_a_job_without_a_gpu_from_its_scheduler_measures_on_the_cpu_and_says_so(four, visible: str) -> None:
    four(visible)
    device, said = select_device("auto")
    assert device.backend == "cpu"
    assert said.startswith(f"CUDA_VISIBLE_DEVICES={visible.strip()} (the scheduler")
    with pytest.raises(NoDeviceError, match="the scheduler gave"):
        select_device("cuda")


def lose(index: int) -> list[Fault]:
    return [Fault("nvmlDeviceGetHandleByIndex", code=15, selector=(index,))]


@pytest.fixture
def one_lost(inside_nvml, monkeypatch) -> None:
    """The second of four GPUs is lost."""
    monkeypatch.setattr(select, "check_torch", lambda device: None)
    inside_nvml(machine(), faults=lose(1))


@pytest.mark.parametrize("visible", ["1", "1,2"])
def test_a_visible_gpu_that_is_lost_is_not_reported_as_misspelled(
    one_lost, monkeypatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(NoDeviceError, match=r"^GPU 1 is lost"):
        select_device("auto")


def test_index_of_a_lost_gpu_is_not_reassigned(one_lost, monkeypatch) -> None:
    assert select_device("cuda:0")[0].index == 0
    for place in ("cuda:1", "cuda:2"):
        with pytest.raises(NoDeviceError, match=r"^GPU 1 is lost .* UUID"):
            select_device(place)
    assert select_device(UUIDS[2])[0].index == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")  # these positions are unambiguous
    assert select_device("cuda:1")[0].index == 2


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0", UUIDS[2]])
def test_a_lost_gpu_is_reported_whichever_device_is_chosen(one_lost, name: str) -> None:
    device, said = select_device(name)
    assert device.index != 1
    assert said is not None
    assert said.startswith("GPU 1 is lost")


def test_fastest_first_device_order_is_not_guessed(four, monkeypatch) -> None:
    mixed = ("NVIDIA H200", "Tesla T4", "NVIDIA H200", "Tesla T4")
    four("1", names=mixed)
    with pytest.raises(MisuseError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        select_device("cuda")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert select_device("cuda")[0].index == 1


@pytest.mark.parametrize(
    ("name", "index"),
    [("cuda", 0), ("CUDA:3", 3), (UUIDS[1], 1), ("gpu-2222", 1), (UUIDS[3].lower(), 3)],
)
def test_select_device_accepts_every_kind_of_device_name(four, name: str, index: int) -> None:
    four()
    assert select_device(name)[0].index == index


def test_gpu_key_selects_the_only_gpu_of_its_kind(four) -> None:
    four(names=("NVIDIA H200", "Tesla T4", "Tesla T4", "Tesla T4"))
    assert select_device("nvidia-h200-sxm-141gb")[0].index == 0
    assert select_device("H200")[0].index == 0


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:" + "9" * 5000,
        "1",
        "-1",
        "GPU-3333",
        "GPU-9",
        "nvidia-h200-sxm-141gb",
        "T4",
        "\x1b[31m",
    ],
)
def test_a_name_that_fits_no_single_device_is_misuse(four, name: str) -> None:
    four()
    with pytest.raises(MisuseError) as refused:
        select_device(name)
    assert "\x1b" not in str(refused.value)


def test_a_lost_gpu_is_reported_and_the_next_one_used(inside_nvml, monkeypatch) -> None:
    monkeypatch.setattr(select, "check_torch", lambda device: None)
    inside_nvml(machine(), faults=[Fault("nvmlDeviceGetUUID", code=15, device="0")])
    device, said = select_device("auto")
    assert device.index == 1
    assert said is not None
    assert said.startswith("GPU 0 is lost")


def test_the_fake_driver_does_not_outlive_its_test(inside_nvml) -> None:
    """Once loaded under the driver's own SONAME, a library would answer every later test of the process."""
    import ctypes
    from pathlib import Path

    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    inside_nvml("h200")
    with pytest.raises(OSError, match="shared object file"):
        ctypes.CDLL("libnvidia-ml.so.1")


@pytest.mark.parametrize(
    ("visible", "first", "count", "chosen"),
    [
        (None, "cuda", 1, []),
        (None, "cuda", 3, [1, 2]),
        (None, "cuda:2", 4, [0, 1, 3]),
        ("3,1", "cuda", 2, [1]),
    ],
)
def test_peers_of_a_multi_gpu_job_are_gpus_of_the_same_model(four, visible, first, count, chosen) -> None:
    four(visible)
    assert [d.index for d in select_peers(select_device(first)[0], count)] == chosen


def test_too_few_gpus_of_a_model_are_refused_with_their_number(four) -> None:
    four(names=("NVIDIA H200", "NVIDIA H200", "NVIDIA L4", "NVIDIA H200"))
    assert [d.index for d in select_peers(select_device("cuda")[0], 3)] == [1, 3]
    with pytest.raises(NoDeviceError, match=r"--gpus 5: usable here: 4 \(NVIDIA H200 and others\)"):
        select_peers(select_device("cuda")[0], 5)


def test_too_few_gpus_of_a_model_are_completed_by_others(four) -> None:
    four(names=("NVIDIA H200", "NVIDIA L4", "NVIDIA H200", "NVIDIA H200"))
    assert [d.index for d in select_peers(select_device("cuda")[0], 4)] == [2, 3, 1]


def test_cpu_peers_are_limited_by_its_thread_count(monkeypatch) -> None:
    monkeypatch.setattr("gpubench.probe.select.usable_threads", lambda: 3)
    cpu = select_device("cpu")[0]
    assert select_peers(cpu, 3) == (cpu, cpu)
    with pytest.raises(NoDeviceError, match=r"--gpus 4 .* 4 processes, .* 3"):
        select_peers(cpu, 4)


BY_TORCH = DeviceProfile(backend="cuda", name="NVIDIA H200")
UNASKED = Problem(what="pynvml cannot be imported", fix="install it", exit_code=3, torch_may_know=True)
NO_GPU = Problem(what="the driver lists no GPU", fix="pass it through", exit_code=0)


@pytest.mark.parametrize(
    ("machine", "found"),
    [
        (("cuda", False, "13.0", UNASKED), True),
        (("cuda:0", False, "13.0", UNASKED), True),
        (("auto", True, "13.0", UNASKED), True),
        (("auto", False, "13.0", UNASKED), False),
        (("cuda:1", True, "13.0", UNASKED), False),
        (("cuda", True, None, UNASKED), False),
        (("cuda", True, "13.0", NO_GPU), False),
    ],
)
def test_torch_is_queried_if_nvml_is_missing_and_a_gpu_may_exist(monkeypatch, machine, found):
    asked, (wanted, nodes, cuda, problem) = [], machine
    build = TorchBuild(version="2.13.0", cuda=cuda, hip=None)
    report = BackendReport(problems=(problem,))
    monkeypatch.setattr(nvidia.NvidiaBackend, "devices", lambda self: report)
    monkeypatch.setattr(select, "seen_by_torch", lambda: asked.append(wanted) or BY_TORCH)
    monkeypatch.setattr(select, "nvidia_nodes", lambda: (["/dev/nvidia0"] if nodes else [], []))
    monkeypatch.setattr(select, "torch_build", lambda: build)
    if found:
        assert select_device(wanted) == (BY_TORCH, f"{problem.what}: NVIDIA H200 is timed without telemetry")
    else:
        with pytest.raises(NoDeviceError):
            select_device(wanted)
        assert asked == []
