"""Terminals and pipes of all kinds: no encoding makes a command fail, nor does a reader that closes early."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvml.script import change, load_dump

from gpubench.errors import ExitCode

COMMAND = [sys.executable, "-m", "gpubench", "probe"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_output_works_in_every_encoding(fake_nvml, encoding: str) -> None:
    environment = dict(fake_nvml("gb10"), PYTHONIOENCODING=encoding)
    done = subprocess.run(COMMAND, env=environment, capture_output=True, check=True)
    text = done.stdout.decode(encoding)
    assert "NVIDIA GB10" in text
    assert ("—" in text) == (encoding in {"utf-8", "cp1252"})


def test_ascii_stream_shows_intervals_and_rules_in_ascii() -> None:
    command = [*COMMAND[:-1], "predict", "show", "resnet50", "--gpu", "L4", "--gpu", "A10"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )
    assert b"\n----" in done.stdout
    assert b"?" not in done.stdout


def test_json_is_utf_8_in_any_encoding(fake_nvml) -> None:
    calls = change(load_dump("h200"), "nvmlDeviceGetName", "NVIDIA Ünïcode — 😀")
    environment = dict(fake_nvml(calls), PYTHONIOENCODING="ascii")
    done = subprocess.run([*COMMAND, "--json"], env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout.decode())["devices"][0]["name"] == "NVIDIA Ünïcode — 😀"


def test_a_reader_that_leaves_early_causes_no_traceback(fake_nvml) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        COMMAND, env=fake_nvml("four"), stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


BROKEN = """
import sys
from gpubench.cli import app
from gpubench.cli.verbs import probe

def broken(*args, **kwargs):
    raise RuntimeError("the flux \\x1b[31mcapacitor")

probe.overview = broken
sys.argv = ["gpubench"]
app.main()
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
def test_output_to_a_full_disk_is_one_line(fake_nvml) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            COMMAND, env=fake_nvml("four"), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == ExitCode.STORAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpubench: ")
    assert line.endswith(os.strerror(errno.ENOSPC))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
@pytest.mark.parametrize(
    ("arguments", "code"), [(("offers", "list"), ExitCode.STORAGE), (("nonsense",), ExitCode.MISUSE)]
)
def test_a_log_on_a_full_disk_changes_no_exit_code(arguments, code) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "gpubench", *arguments]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, check=False).returncode == code


def test_a_command_ends_if_nobody_reads_stdout_and_stderr() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gpubench", "offers", "list"]
    done = subprocess.run(command, stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == ExitCode.NO


def test_an_unexpected_error_is_one_line_with_a_log(tmp_path) -> None:
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.INTERNAL == 70
    assert "\x1b" not in done.stderr
    (line,) = done.stderr.splitlines()
    (log,) = tmp_path.glob("gpubench-*.log")
    assert str(log) in line
    assert "Traceback" in log.read_text(encoding="utf-8")


WITHOUT = """
import resource, sys
from gpubench.__main__ import main
limit, value = sys.argv.pop(), int(sys.argv.pop())
resource.setrlimit(getattr(resource, limit), (value, value))
"""


@pytest.mark.parametrize(
    ("program", "limit", "value"),
    [(BROKEN, "RLIMIT_FSIZE", 0), ("main()", "RLIMIT_NOFILE", 3)],
    ids=["no space", "no descriptor to load a module"],
)
def test_an_unexpected_error_is_one_line_even_if_no_log_can_be_written(
    tmp_path, program, limit, value
) -> None:
    """A system limit imitates a full disk, or a lack of descriptors."""
    loaded = BROKEN[: BROKEN.index("def")] if program is BROKEN else ""
    done = subprocess.run(
        [sys.executable, "-c", f"{loaded}{WITHOUT}{program}", str(value), limit],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.INTERNAL, done.stderr
    (line,) = done.stderr.splitlines()
    assert "no log could" in line
    assert "\x1b" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of another kind")
def test_a_closed_stdout_is_reported_before_any_work(tmp_path):
    program = f'"{sys.executable}" -m gpubench list --gpus >&-'
    done = subprocess.run(["sh", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.STORAGE
    assert done.stderr == "gpubench: standard output is closed: open it, or redirect it to /dev/null\n"
