"""One writer per run: real processes that lock, die and block each other."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from contextlib import chdir, contextmanager

import pytest

from gpubench.errors import ExitCode, StorageError
from gpubench.record import store

RUN = "20261120t000000z-abcd1234"
SETUP = """
import errno, fcntl, os, sys
from pathlib import Path
from gpubench.record import store

def refuse(*_):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

folder, kernel, run = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if kernel == "without":
    fcntl.flock = refuse
"""
HOLDS = SETUP + "with store.hold(folder, run):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
COUNTS = (
    SETUP
    + """
store.LOOK_EVERY_S, count = 0.001, folder / "count"
for _ in range(50):
    with store.hold(folder, run, patience_s=60):
        before = int(count.read_text() or 0)
        count.write_text("")  # a process that enters now would start at 0
        count.write_text(str(before + 1))
"""
)


@pytest.fixture(params=["with", "without"])
def kernel(request, monkeypatch) -> str:
    """Whether the file system supports locks, here and in the processes that are started."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if request.param == "without":
        monkeypatch.setattr(fcntl, "flock", refuse)
    return request.param


def start(folder, program: str, kernel: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program, folder, kernel, RUN], **pipes)


@contextmanager
def holder(folder, kernel: str):
    """Another process that holds the lock until its stdin ends."""
    with start(folder, HOLDS, kernel) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def take(folder) -> None:
    with store.hold(folder, RUN, patience_s=0):
        assert store.lock_path(folder, RUN).exists()


def test_a_second_process_is_refused_in_one_line_while_the_first_holds_the_run(tmp_path, kernel):
    with holder(tmp_path, kernel) as process:
        with pytest.raises(store.RunLockedError, match=f"run {RUN} .* another process") as caught:
            take(tmp_path)
        assert "\n" not in str(caught.value)
        assert str(store.lock_path(tmp_path, RUN)) in str(caught.value)
        assert caught.value.exit_code == ExitCode.STORAGE == 5
        process.communicate("end\n")
        take(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_lock_holder_blocks_no_other_process(tmp_path):
    with holder(tmp_path, "with") as process:
        process.kill()
        process.wait()
        assert store.lock_path(tmp_path, RUN).exists()
        take(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kernel", ["without"], indirect=True)
def test_without_locks_the_file_of_a_killed_holder_is_deleted_by_hand(tmp_path, kernel):
    with holder(tmp_path, kernel) as process:
        process.kill()
        process.wait()
        with pytest.raises(store.RunLockedError, match=f"delete {store.lock_path(tmp_path, RUN)}"):
            take(tmp_path)
        store.lock_path(tmp_path, RUN).unlink()
        take(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_one_process_at_a_time_holds_the_lock(tmp_path, kernel):
    """The file is removed with each release, while others have it open."""
    (tmp_path / "count").write_text("")
    processes = [start(tmp_path, COUNTS, kernel) for _ in range(4)]
    ends = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, ends
    assert (tmp_path / "count").read_text() == "200"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_a_short_lock_is_awaited(tmp_path, kernel):
    with holder(tmp_path, kernel) as process:
        threading.Timer(0.3, process.stdin.close).start()
        with store.hold(tmp_path, RUN, patience_s=20):
            assert process.stdin.closed, "the lock was taken before the other process released it"


def test_another_thread_of_this_process_is_another_writer(tmp_path, kernel):
    with store.hold(tmp_path, RUN), pytest.raises(store.RunLockedError):
        take(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"pid": 1, "host": "node7"}'], ids=["empty", "of an older one"])
def test_leftover_lock_file_contents_block_no_process(tmp_path, content):
    store.lock_path(tmp_path, RUN).write_bytes(content)
    take(tmp_path)
    assert list(tmp_path.iterdir()) == []


def unix_socket(path) -> None:
    with socket.socket(socket.AF_UNIX) as made, chdir(path.parent):  # addresses must be short
        made.bind(path.name)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (unix_socket, "a socket"),
        (os.mkdir, "a folder"),
        (lambda path: path.symlink_to(path.parent / "target"), "a link"),
        (lambda path: path.symlink_to("nowhere"), "a link"),
    ],
    ids=["pipe", "socket", "folder", "link", "broken link"],
)
def test_an_invalid_lock_file_is_named_and_neither_written_nor_awaited(tmp_path, make, kind):
    target, path = tmp_path / "target", store.lock_path(tmp_path, RUN)
    target.write_text("mine")
    make(path)
    before = path.lstat()
    with pytest.raises(StorageError, match=f"cannot lock run {RUN}: {path} is {kind}.*: remove it"):
        take(tmp_path)
    assert os.path.samestat(path.lstat(), before)
    assert target.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EMFILE])
def test_the_reason_why_a_lock_cannot_be_created_is_reported(tmp_path, monkeypatch, number):
    def fail(*arguments, **more):
        raise OSError(number, os.strerror(number), str(store.lock_path(tmp_path, RUN)))

    monkeypatch.setattr(store.os, "open", fail)
    with pytest.raises(StorageError, match=os.strerror(number)):
        take(tmp_path)


def test_a_disk_error_while_locking_does_not_count_as_missing_locks(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched, pytest.raises(StorageError, match=os.strerror(errno.EIO)):
        patched.setattr(fcntl, "flock", fail)
        take(tmp_path)
    take(tmp_path)  # the file left behind blocks nobody
