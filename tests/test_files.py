"""File access: what a writer does to files that are not regular, and no access elsewhere.

The readers are in tests/test_hostile_files.py.
"""

from __future__ import annotations

import ast
import json
import os
import select
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from gpubench.errors import MisuseError, StorageError
from gpubench.files import create_file, read_bytes, require_writable, table_json, write_file
from gpubench.offers.snapshot import Snapshot, write_json

PACKAGE = Path(__file__).resolve().parents[1] / "gpubench"

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="pipes and devices need POSIX"),
]

# --- reading ------------------------------------------------------------------------------------------------


def refused(path: Path, most_bytes: int) -> str:
    with pytest.raises(MisuseError) as caught:
        read_bytes(path, most_bytes)
    message = str(caught.value)
    assert message.splitlines() == [message]
    assert len(message) < 2000
    return message


@pytest.mark.parametrize("given", [".", "/"])
def test_unnamed_path_is_reported_as_given(given):
    assert f"cannot read {given}: " in refused(Path(given), 1000)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"12")
    real = os.fstat

    def smaller(descriptor):
        facts = list(real(descriptor))
        facts[stat.ST_SIZE] -= 1
        return os.stat_result(facts)

    monkeypatch.setattr(os, "fstat", smaller)
    assert "changed while" in refused(path, 10)


# --- writing ------------------------------------------------------------------------------------------------


def _report(path: Path) -> None:
    from gpubench.report.page import report

    report(path, path.parent / "none", format="json")


def _calibrate(path: Path) -> None:
    from gpubench.predict.calibration import load_calibration

    write_file(path, table_json(load_calibration(), order="sorted"))


WRITERS = {
    "page": ("report.json", _report),
    "price snapshot": ("20261120T000000Z.json", lambda p: write_json(p, Snapshot(retrieved_at="2026-11-20"))),
    "calibration": ("calibration.json", _calibrate),
}


@pytest.mark.parametrize(("name", "write"), WRITERS.values(), ids=WRITERS)
def test_a_planted_link_is_replaced_and_its_target_stays(tmp_path, name, write):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    write(tmp_path / name)
    assert precious.read_text() == "mine"
    assert not (tmp_path / name).is_symlink()
    assert (tmp_path / name).stat().st_size > 10
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_temporary_file_names_are_unpredictable(tmp_path):
    """Otherwise a person who may write into the folder could plant a link that the next write follows."""
    seen = set()
    real = os.open

    def note(path, *rest, **named):
        seen.add(Path(path).name)
        return real(path, *rest, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", note)
        for _ in range(2):
            write_file(tmp_path / "a.json", b"1")
    assert len(seen - {tmp_path.name}) == 2
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a.json")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        create_file(tmp_path / "link")


def test_a_pipe_is_written_in_place_and_one_without_a_reader_is_refused(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(StorageError, match="No such device"):
        write_file(path, b"lost")
    data, got = b"x" * 300_000, bytearray()
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opened before the writer, as write_file requires

    def read() -> None:
        while len(got) < len(data):
            select.select([reader], [], [])
            with suppress(BlockingIOError):
                got.extend(os.read(reader, len(data)))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    write_file(path, data)
    thread.join(20)
    os.close(reader)
    assert got == data
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_writing_to_a_device_file_leaves_it_a_device(tmp_path):
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes device nodes")
    write_file(path, b"gone")
    assert stat.S_ISCHR(path.lstat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["null"]


def test_write_to_a_full_disk_raises_a_storage_error():
    with pytest.raises(StorageError, match="No space left"):
        write_file(Path("/dev/full"), b"x" * 100_000)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_written_wherever_it_leads(tmp_path, name):
    """With output redirected to a file, earlier content of that file stays, and nothing in /dev is replaced."""
    code = f"from pathlib import Path; from gpubench.files import write_file; write_file(Path({name!r}), b'page')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"page"
    log = tmp_path / "log"
    log.write_text("before ")
    before = Path(name).lstat()
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert log.read_text() == "before page"
    assert stat.S_IFMT(Path(name).lstat().st_mode) == stat.S_IFMT(before.st_mode)


def test_the_report_can_be_written_to_a_pipe(tmp_path):
    command = [sys.executable, "-m", "gpubench", "report", "--format", "json", "-o", "/dev/stdout"]
    done = subprocess.run([*command, "--results", str(tmp_path)], capture_output=True, check=True)
    document, _ = json.JSONDecoder().raw_decode(done.stdout.decode())
    assert document


def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path):
    old, new, script = tmp_path / "old", tmp_path / "new", tmp_path / "deep" / "er" / "script"
    old.write_text("1")
    old.chmod(0o666)
    before = os.umask(0o027)
    try:
        write_file(old, b"2")
        write_file(new, b"2")
        write_file(script, b"2", mode=0o777)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new, script)] == [0o666, 0o640, 0o750]


def test_partial_file_of_a_killed_writer_is_removed_by_the_next_write(tmp_path):
    left, fresh, other = (
        tmp_path / name for name in (f".gpubench-{'0' * 16}.tmp", f".gpubench-{'1' * 16}.tmp", ".mine.tmp")
    )
    for path in (left, fresh, other):
        path.write_text("half")
    for path in (left, other):
        os.utime(path, (0, 0))  # long ago
    write_file(tmp_path / "page.html", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [fresh.name, other.name, "page.html"]


def test_a_failed_write_leaves_only_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text("old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_file(path, b"new", hint="try elsewhere")
    with pytest.raises(StorageError, match="No space left"):
        require_writable(tmp_path, hint="try elsewhere")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "old")]


# --- no access elsewhere ------------------------------------------------------------------------------------

BESIDE = {
    "measure/worker.py": {"open"},  # /dev/null, instead of the pipe to the parent
    # where the log of an internal error goes, through the gate; the null device in place of a closed pipe
    "cli/last_words.py": {"gettempdir", "open"},
    "cli/output.py": {"open"},  # /dev/null, instead of a standard output that is gone
    "files.py": {"open", "fdopen"},  # the gate
    "probe/host.py": {"read_text"},  # /proc and /sys
    "recommend/trial.py": {"read_text"},  # the metadata of an installed distribution
    "record/store.py": {"open"},  # the open descriptor is the lock
}
_METHODS = frozenset(
    {
        "open",
        "fdopen",
        "read_text",
        "read_bytes",
        "write_text",
        "write_bytes",
        "touch",
        "symlink_to",
        "hardlink_to",
    }
)
_MODULES = {
    "tempfile": None,
    "shutil": frozenset(
        {"copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "rmtree", "make_archive"}
    ),
    "io": frozenset({"open", "open_code", "FileIO"}),
    "os": frozenset(
        {"open", "fdopen", "mkfifo", "mknod", "link", "symlink", "rename", "replace", "truncate"}
    ),
    "numpy": frozenset({"load", "save", "savez", "savetxt", "loadtxt", "genfromtxt", "fromfile"}),
    "pandas": frozenset({"read_csv", "read_json", "read_pickle", "read_parquet"}),
}
_SHORT = {"np": "numpy", "pd": "pandas"}


def _opens(source: str) -> set[str]:
    """Return the calls of a module that open, create or move a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                found.add("open")
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                module := _SHORT.get(name, name)
            ) in _MODULES:
                wanted = _MODULES[module]
                if wanted is None or attribute in wanted:
                    found.add(attribute)
            case ast.Attribute(attr=attribute) if attribute in _METHODS:
                found.add(attribute)
            case ast.ImportFrom(module=str(module), names=names) if module in _MODULES:
                wanted = _MODULES[module]
                found |= {n.name for n in names if wanted is None or n.name in wanted}
    return found


@pytest.mark.parametrize(
    "source",
    [
        "open('a')",
        "path.open('rb')",
        "import os\nos.open('a', 0)",
        "import io\nio.open('a')",
        "path.read_text()",
        "from tempfile import TemporaryFile",
        "import tempfile\ntempfile.mkstemp()",
        "import numpy as np\nnp.load('a')",
        "list(map(Path.read_bytes, paths))",
    ],
)
def test_file_open_detector_finds_every_kind_of_call(source):
    assert _opens(source)


def test_only_the_files_module_opens_files():
    found = {
        path.relative_to(PACKAGE).as_posix(): opened
        for path in PACKAGE.rglob("*.py")
        if (opened := _opens(path.read_text(encoding="utf-8")))
    }
    assert found == BESIDE
