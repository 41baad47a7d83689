"""One writer a run: real processes that hold, die, come back, and stand in each other's way."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import chdir, contextmanager, suppress
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from gpubench.errors import StorageError
from gpubench.record import lock

RUN = "20261120t000000z-abcd1234"
HOLDS = (
    "import sys, time\nfrom pathlib import Path\nfrom gpubench.record import lock\n"
    f"with lock.hold(Path(sys.argv[1]), {RUN!r}):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
)


@contextmanager
def holder(folder, program: str = HOLDS):
    """Another process that holds the lock until its stdin ends."""
    command = [sys.executable, "-c", program, folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def file_of(folder):
    return lock.lock_path(folder, RUN)


def write(folder, **changes) -> None:
    """Leave the lock file of some other holder behind."""
    mine = lock._this_process()
    file_of(folder).write_bytes(msgspec.json.encode(msgspec.structs.replace(mine, **changes)))


def test_a_second_process_is_told_who_holds_the_run_and_since_when(tmp_path):
    with holder(tmp_path) as process:
        said = json.loads(file_of(tmp_path).read_text())
        assert (said["pid"], said["host"]) == (process.pid, platform.node())
        with pytest.raises(lock.RunLockedError) as caught, lock.hold(tmp_path, RUN, patience_s=0.2):
            pass
        assert f"process {process.pid} on" in str(caught.value)
        assert said["since"] in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 5
        with pytest.raises(lock.RunLockedError, match=f"process {process.pid} on this host"):
            lock.refuse_if_held(tmp_path, RUN)
        process.communicate("end\n", timeout=20)
        lock.refuse_if_held(tmp_path, RUN)
        with lock.hold(tmp_path, RUN, patience_s=0):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_leaves_its_file_and_blocks_nobody(tmp_path):
    with holder(tmp_path) as process:
        kill(process)
        assert file_of(tmp_path).exists()
        lock.refuse_if_held(tmp_path, RUN)
        with lock.hold(tmp_path, RUN, patience_s=0):
            assert json.loads(file_of(tmp_path).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_who_holds_it_for_a_moment_is_waited_for(tmp_path):
    with holder(tmp_path) as process:
        threading.Timer(0.3, process.stdin.close).start()
        with lock.hold(tmp_path, RUN, patience_s=20):
            assert json.loads(file_of(tmp_path).read_text())["pid"] == os.getpid()


def test_another_thread_of_this_process_is_another_writer(tmp_path):
    with (
        lock.hold(tmp_path, RUN),
        pytest.raises(lock.RunLockedError, match=f"process {os.getpid()}"),
        lock.hold(tmp_path, RUN, patience_s=0),
    ):
        pass


def test_a_lock_of_another_host_is_respected_and_named(tmp_path):
    """Its locks may not reach this kernel: then the file is all there is."""
    write(tmp_path, host="node7", boot_id="another", pid=1)
    for attempt in (lambda: lock.refuse_if_held(tmp_path, RUN), lambda: lock.hold(tmp_path, RUN).__enter__()):
        with pytest.raises(lock.RunLockedError, match=r"process 1 on .* node7"):
            attempt()
    assert file_of(tmp_path).exists()


def test_a_dead_holder_in_another_container_on_this_kernel_blocks_nobody(tmp_path):
    """The host name of a container is its own; this kernel has given the lock, so nobody holds it."""
    if lock._boot_id() is None:
        pytest.skip("this system does not tell one boot from another")
    write(tmp_path, host="0123456789ab")
    before = file_of(tmp_path).read_bytes()
    with lock.hold(tmp_path, RUN, patience_s=0):
        assert file_of(tmp_path).read_bytes() != before


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"pid": -1}', b"[" * 5000, b'{"pid": 1e400}'])
def test_a_file_that_says_nothing_blocks_nobody(tmp_path, content):
    file_of(tmp_path).write_bytes(content)
    lock.refuse_if_held(tmp_path, RUN)
    with lock.hold(tmp_path, RUN, patience_s=0):
        assert file_of(tmp_path).read_bytes() != content


def test_a_file_that_cannot_be_read_does_not_refuse_early(tmp_path, monkeypatch):
    """Taking the lock is what decides."""
    lock.lock_path(tmp_path, RUN).write_text("{}")

    def fails(*_arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(lock, "os", SimpleNamespace(**vars(os) | {"read": fails}))
    lock.refuse_if_held(tmp_path, RUN)
    with pytest.raises(StorageError, match="cannot lock"), lock.hold(tmp_path, RUN):
        pass


def unix_socket(path) -> None:
    with socket.socket(socket.AF_UNIX) as made, chdir(path.parent):  # its address is short
        made.bind(path.name)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (unix_socket, "a socket"),
        (os.mkdir, "a folder"),
        (lambda path: path.symlink_to("x"), "a link"),
    ],
    ids=["pipe", "socket", "folder", "link"],
)
def test_what_is_no_lock_file_is_named_at_once_and_waited_for_by_nobody(tmp_path, make, kind):
    make(file_of(tmp_path))
    for attempt in (lambda: lock.refuse_if_held(tmp_path, RUN), lambda: lock.hold(tmp_path, RUN).__enter__()):
        with pytest.raises(StorageError, match=f"cannot lock run {RUN}: .* is {kind}"):
            attempt()
    assert file_of(tmp_path).lstat()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EMFILE])
def test_what_keeps_it_from_being_made_is_told(tmp_path, monkeypatch, number):
    def fail(*arguments, **more):
        raise OSError(number, os.strerror(number), str(file_of(tmp_path)))

    monkeypatch.setattr(lock.os, "open", fail)
    with pytest.raises(StorageError, match=os.strerror(number)), lock.hold(tmp_path, RUN):
        pass


def test_a_link_in_its_place_is_not_written_through(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    file_of(tmp_path).symlink_to(target)
    with pytest.raises(StorageError, match="cannot lock run"), lock.hold(tmp_path, RUN):
        pass
    assert target.read_text() == "mine"


def test_a_forked_process_that_outlives_the_holder_is_named_as_such(tmp_path):
    forks = HOLDS.replace("    print(", "    import os\n    if os.fork() == 0: time.sleep(60)\n    print(")
    with holder(tmp_path, forks) as process:
        kill(process)
        words = f"process {process.pid}, .* left behind"
        with pytest.raises(lock.RunLockedError, match=words), lock.hold(tmp_path, RUN, patience_s=0):
            pass


# --- a file system that keeps no locks -------------------------------------------------------------------


@pytest.fixture
def no_locks(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_file_decides_and_that_is_said(tmp_path):
    with lock.hold(tmp_path, RUN, patience_s=0) as held:
        assert "file locks" in held.remark
        with pytest.raises(lock.RunLockedError), lock.hold(tmp_path, RUN, patience_s=0):
            pass
    with holder(tmp_path) as process:
        with pytest.raises(lock.RunLockedError), lock.hold(tmp_path, RUN, patience_s=0):
            pass
        kill(process)
        with lock.hold(tmp_path, RUN, patience_s=0):
            pass


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_pid_that_was_given_out_again_holds_nothing(tmp_path):
    """The PID of the test's own parent, which began at another time than the file says."""
    other = psutil.Process(os.getppid())
    write(tmp_path, pid=other.pid, process_started_s=other.create_time())
    with pytest.raises(lock.RunLockedError), lock.hold(tmp_path, RUN, patience_s=0):
        pass
    write(tmp_path, pid=other.pid, process_started_s=other.create_time() - 3600)
    with lock.hold(tmp_path, RUN, patience_s=0):
        pass


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_zombie_holds_nothing(tmp_path):
    with holder(tmp_path) as process:
        process.kill()
        deadline = time.monotonic() + 20
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.01)
        with lock.hold(tmp_path, RUN, patience_s=0) as held:
            assert held.path == lock.lock_path(tmp_path, RUN)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_lock_of_another_container_is_respected(tmp_path):
    write(tmp_path, host="0123456789ab")
    with (
        pytest.raises(lock.RunLockedError, match="host 0123456789ab"),
        lock.hold(tmp_path, RUN, patience_s=0),
    ):
        pass


def test_a_network_file_system_is_said(tmp_path, monkeypatch):
    there = SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4")
    with lock.hold(tmp_path, "run-1") as held:
        assert held.remark is None
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: [there])
    with lock.hold(tmp_path, "run-1") as held:
        assert "network file system (nfs4)" in held.remark
