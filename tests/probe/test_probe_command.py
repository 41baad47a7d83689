"""`gpubench probe` as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from command import gpubench
from nvml.script import Fault, change, load_dump

from gpubench.cli.app import app
from gpubench.probe.probe import UNMEASURED


def test_probe_json_has_its_documented_shape(fake_nvml) -> None:
    done = gpubench(fake_nvml("h200"), "probe", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert {"devices", "host", "problems"} <= set(document)
    assert [d["backend"] for d in document["devices"]] == ["cuda", "cpu"]
    assert document["devices"][0]["sm_count"] == 132
    assert len(document["states"]) == len(document["devices"])
    sheet = document["specifications"]["nvidia-h200-sxm-141gb"]
    assert sheet["sm_count"] == document["devices"][0]["sm_count"]


def test_the_datasheet_is_next_to_the_reading(fake_nvml) -> None:
    done = gpubench(fake_nvml("h200"), "probe")
    assert done.returncode == 0
    lines = dict(
        re.split(r" {2,}", line.strip(), maxsplit=1)
        for line in done.stdout.splitlines()
        if "  " in line.strip()
    )
    assert lines["Multiprocessors"].split() == ["132", "132"]
    assert lines["Memory bandwidth"].split() == ["4.81", "TB/s", "4.80", "TB/s"]
    assert lines["UUID"].endswith(" 00000000:00:06.0")
    assert "nothing that" in lines["limited by"]
    narrow = gpubench(fake_nvml("h200") | {"COLUMNS": "80"}, "probe").stdout
    assert max(len(line) for line in narrow.splitlines()) <= 80


def test_the_active_limits_of_a_gpu_are_listed(fake_nvml) -> None:
    calls = load_dump("h200")
    for function, value in (
        ("nvmlDeviceGetEnforcedPowerLimit", 350_000),
        ("nvmlDeviceGetCurrPcieLinkWidth", 8),
        ("nvmlDeviceGetCurrPcieLinkGeneration", 1),
        ("nvmlDeviceGetMaxPcieLinkGeneration", 4),
        ("nvmlDeviceGetCurrentClocksEventReasons", 0x4 | 0x40),
        ("nvmlDeviceGetComputeMode", 3),
        ("nvmlDeviceGetComputeRunningProcesses", [{"pid": 1, "usedGpuMemory": 1}]),
    ):
        calls = change(calls, function, value)
    said = gpubench(fake_nvml(calls), "probe").stdout
    for words in (
        "power limit 350 W of 700 W (50 %)",
        "PCIe link x8 of x16",
        "PCIe generation 1 of 4 while busy",
        "the slot supports PCIe generation 4, the card generation 5",
        "clock held down by sw_power_cap",
        "clock held down by hw_thermal_slowdown",
        "compute mode exclusive_process",
        "1 other process; end processes that are not needed",
    ):
        assert words in said


def test_the_common_table_of_equal_gpus_omits_the_limits_of_one_of_them(fake_nvml) -> None:
    capped = change(load_dump("h200"), "nvmlDeviceGetEnforcedPowerLimit", 350_000)
    said = gpubench(fake_nvml([capped, "h200"]), "probe").stdout
    assert "GPU 0, 1  2 x NVIDIA H200" in said
    assert "Current power limit" not in said
    assert "Different from the default" not in said
    assert said.count("power limit 350 W of 700 W (50 %)") == 1
    assert "Current power limit" in gpubench(fake_nvml([capped, capped]), "probe").stdout


def test_an_idle_link_at_generation_1_is_no_fault(fake_nvml) -> None:
    calls = change(load_dump("h200"), "nvmlDeviceGetCurrPcieLinkGeneration", 1)
    assert "nothing that" in gpubench(fake_nvml(calls), "probe").stdout


def test_a_hostile_name_cannot_write_to_the_terminal(fake_nvml) -> None:
    done = gpubench(
        fake_nvml(change(load_dump("h200"), "nvmlDeviceGetName", "[red]A\x1b]0;x\x07[/x]")), "probe"
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "[red]A]0;x[/x]" in done.stdout


def test_gpubench_without_arguments_shows_the_device_and_the_next_step(fake_nvml) -> None:
    done = gpubench(fake_nvml("h200"))
    assert done.returncode == 0
    first = done.stdout.splitlines()[0].removeprefix("GPU 0  ").split(", ")
    assert first == ["NVIDIA H200", "132 SMs", "140 GiB memory at 4.81 TB/s"]
    assert "Next: gpubench" in done.stdout


def test_gpubench_without_arguments_names_the_problem_of_the_gpu(fake_nvml) -> None:
    done = gpubench(fake_nvml("h200", faults=[Fault("nvmlInit", code=18)]))
    assert "Problem: " in done.stdout
    assert "Sensible" not in done.stdout


def test_dump_is_written_and_replays(fake_nvml, tmp_path: Path) -> None:
    file = tmp_path / "dump.json"
    done = gpubench(fake_nvml("h200"), "probe", "--dump", str(file), "--json")
    assert (done.returncode, "driver calls" in done.stderr) == (0, True)
    again = gpubench(fake_nvml(file), "probe", "--json")
    assert json.loads(again.stdout)["devices"] == json.loads(done.stdout)["devices"]


def test_a_dump_that_cannot_be_written_or_read_is_one_line(fake_nvml, tmp_path: Path) -> None:
    done = gpubench(fake_nvml("h200"), "probe", "--dump", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (5, 1)
    done = gpubench(dict(fake_nvml("h200"), LD_LIBRARY_PATH=""), "probe", "--dump", str(tmp_path / "x"))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "NVIDIA driver" in done.stderr


def test_probe_starts_without_heavy_imports(fake_nvml) -> None:
    code = (
        "import sys, resource; sys.argv = ['gpubench', 'probe', '--json']\n"
        "from gpubench.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = [m for m in ('torch', 'pandas', 'plotly', 'scipy', 'rich', 'numpy') if m in sys.modules]\n"
        "use = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(heavy, use.ru_utime + use.ru_stime < 0.6, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=fake_nvml("h200"), capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[] True"


# --- processors without timings -----------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["XPU", "MPS", "Jetson", "TPU", "Neural Compute Stick"])
def test_unmeasured_hardware_is_listed_with_its_facts_and_reason(asked: str) -> None:
    (row,) = (each for each in UNMEASURED if asked in each.name)
    assert all((row.known, row.reason, row.source))
    done = CliRunner().invoke(app, ["list", "--gpus", "--json"])
    assert msgspec.json.decode(done.stdout)["unmeasured"] == msgspec.to_builtins(list(UNMEASURED))
    told = CliRunner().invoke(app, ["list", "--gpus"], env={"COLUMNS": "200"}).stdout
    assert row.name.split()[0] in told


def test_two_lists_together_are_refused() -> None:
    done = CliRunner().invoke(app, ["list", "--mlperf", "--gpus"])
    assert done.exit_code != 0
    assert "are different lists" in f"{done.output}{done.exception}"
