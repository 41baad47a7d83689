"""A child's end of the pipes between it and the process that started it.

Parent and child send each other JSON lines over two pipes of their own, because a model under test may print;
whatever comes through them is hostile until decoded.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gpubench.units import MIB, format_bytes

MOST_MESSAGE_BYTES = 16 * MIB
"""The longest is a launch with its telemetry, some hundreds of kilobytes."""
CHUNK_BYTES = 64 * 1024

MARK = "GPUBENCH_CHILD"
"""The variable by which a child, and what it starts, is known."""

_Command = TypeVar("_Command")


class Lines:
    """Cuts what comes through a pipe into lines of bounded size."""

    def __init__(self) -> None:
        self._begun = bytearray()

    @property
    def has_begun(self) -> bool:
        """Whether a line has come in part."""
        return bool(self._begun)

    def add(self, chunk: bytes) -> list[bytes]:
        """Return the lines that are whole with this chunk.

        Raises:
            ValueError: If one is longer than ``MOST_MESSAGE_BYTES``.
        """
        *ends, rest = chunk.split(b"\n")
        whole = []
        for end in ends:
            self._begun += end
            whole.append(bytes(self._begun))
            self._begun.clear()
        self._begun += rest
        if max(len(self._begun), *map(len, whole), 0) > MOST_MESSAGE_BYTES:
            raise ValueError(f"sent a message of more than {format_bytes(MOST_MESSAGE_BYTES)}")
        return whole


class ParentChannel:
    """The way to the parent and back, in a process that a ``ChildProcess`` stands for.

    Attributes:
        arguments: What the child is told from the start.
        stop: Set once the parent has sent a message of the kind that says so.
        farewell: What is left to do when the parent is gone or done.
    """

    def __init__(self, descriptors: tuple[int, int] | None = None) -> None:
        """Be bound to the parent, and take the pipes, which no process started from here inherits.

        Args:
            descriptors: To read from and to write to, in a process that speaks for the one that the parent
                has started, and is bound to that one already; None in the child itself.
        """
        if descriptors is None:
            *own, parent_pid = map(int, sys.argv[1:4])
            self.read_fd, self.write_fd = own
            self.arguments = sys.argv[4:]
            die_with_parent(parent_pid)
        else:
            self.read_fd, self.write_fd = descriptors
            self.arguments = []
        self.stop = threading.Event()
        self.farewell: Callable[[], None] = lambda: None
        for descriptor in (self.read_fd, self.write_fd):
            os.set_inheritable(descriptor, False)
        self._pipes = {fd: _identity(fd) for fd in (self.read_fd, self.write_fd)}
        self._folder = Path.cwd()

    def send(self, message: msgspec.Struct) -> None:
        """Write one message as one line."""
        self._require_ours(self.write_fd)
        write_message(self.write_fd, message)

    def first_line(self) -> bytes:
        """Wait for the first line, and leave what follows it in the pipe for another process to read.

        Raises:
            EOFError: If the parent has closed the pipe before.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = os.read(self.read_fd, 1)
            if not byte:
                raise EOFError
            line += byte
        return bytes(line)

    def return_home(self) -> None:
        """Go back to the folder that this process was started in; a model may have left it."""
        with contextlib.suppress(OSError):  # it is gone: what is looked for in it will say so
            os.chdir(self._folder)

    def _require_ours(self, descriptor: int) -> None:
        """End this process where a model has closed the pipe: its number may by now be another file's."""
        if _identity(descriptor) != self._pipes[descriptor]:
            with contextlib.suppress(OSError):
                os.write(2, b"the model has closed descriptors that are not its own\n")
            os._exit(1)

    def listen(
        self, decoder: msgspec.json.Decoder[_Command], stop: type[msgspec.Struct]
    ) -> queue.SimpleQueue[_Command]:
        """Read commands in a thread, so that ``stop`` is heard during a round; return where they arrive.

        When the parent's end of the pipe closes, for whatever reason, this process is gone at once.
        """
        commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()

        def read() -> None:
            lines = Lines()
            while chunk := os.read(self.read_fd, CHUNK_BYTES):
                self._require_ours(self.read_fd)
                for line in lines.add(chunk):
                    command = decoder.decode(line)
                    if isinstance(command, stop):
                        self.stop.set()
                    else:
                        commands.put(command)
            try:
                self.farewell()
            finally:
                os._exit(0)  # nothing else of ours is worth a moment more

        threading.Thread(target=read, name="parent", daemon=True).start()
        return commands


def scratch_folder(mark: str | None = None) -> Path:
    """Return the path of a folder that a child may make for itself, and that is removed with it.

    Args:
        mark: Of the child; None in the child itself.
    """
    return Path(os.environ.get("TMPDIR", "/tmp"), f"gpubench-{mark or os.environ[MARK]}")  # noqa: S108 - nobody guesses it


def die_with_parent(parent_pid: int) -> None:
    """Have Linux end this process with its parent, should the guard have been killed too.

    The kernel sends the signal when the thread that started this process ends: who starts a child waits for
    it in the same thread. A parent that was gone before the kernel was asked is noticed here.

    Args:
        parent_pid: As the parent gave it.
    """
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Tell one open pipe from every other file; None where nothing is open under the number."""
    try:
        facts = os.fstat(descriptor)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def write_message(descriptor: int, message: msgspec.Struct) -> None:
    """Write one message as one line."""
    line = memoryview(msgspec.json.encode(message) + b"\n")
    while line:
        line = line[os.write(descriptor, line) :]
