"""The parent's handle on one child process: its pipes, its deadlines, and its end, however it comes."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gpubench.children import GuardedProcess
from gpubench.measure import messages
from gpubench.measure.privacy import scrub
from gpubench.models import DeviceProfile
from gpubench.precisions import TF32_VARIABLES
from gpubench.probe.identity import child_environment
from gpubench.units import Seconds, format_bytes

TERMINATE_AFTER_S = 10.0
"""From SIGTERM to SIGKILL, and from SIGKILL to giving up on a process that the kernel will not end."""
LOG_BYTES = 64 * 1024
"""What is kept of the output of a child; a model that prints without end fills nothing."""
MOST_PRINTED_BYTES = 64 * 1024 * 1024
"""A process that prints more than this times its printing; it is ended."""
LOOK_UP_EVERY_S = 0.5
"""A wait for a silent child is broken up, because its end may be moved forward meanwhile."""
MODULE = "gpubench.measure.worker"

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[messages.Report] = msgspec.json.Decoder(messages.Report)


class ChildEndedError(Exception):
    """The child closed its pipe without an answer; the message says how it ended."""


class ChildLateError(Exception):
    """No report came before the deadline."""


class Child:
    """A measuring process, and the pipes to it."""

    def __init__(self, environment: Mapping[str, str], module: str = MODULE) -> None:
        to_child, self._write_fd = os.pipe()
        self._read_fd, from_child = os.pipe()
        self._guarded = GuardedProcess(
            # -P: a random.py in the current folder is no part of this, and would be run for the library
            [sys.executable, "-P", "-m", module, str(to_child), str(from_child), str(os.getpid())],
            environment=environment,
            pass_fds=(to_child, from_child),
        )
        self._process = self._guarded.process
        os.close(to_child)
        os.close(from_child)
        self._buffer = b""
        self._log: deque[bytes] = deque()
        self._flooded = False
        self._drain = threading.Thread(target=self._keep_output, name="child output", daemon=True)
        self._drain.start()
        self.end_by_s: Seconds = math.inf

    @property
    def pid(self) -> int:
        """Process id, which is also that of its group."""
        return self._process.pid

    def send(self, command: messages.Command) -> None:
        """Send one command; a child that is gone is noticed when its answer is awaited."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_fd, _encoder.encode(command) + b"\n")

    def receive(self, until_s: Seconds) -> messages.Report:
        """Return the next report.

        Args:
            until_s: Moment on ``time.monotonic`` at which to stop waiting. ``end_by_s``, which a signal
                handler may set at any time, comes first.

        Raises:
            ChildLateError: If that moment came first.
            ChildEndedError: If the child is gone.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._read_fd, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left_s = min(until_s, self.end_by_s) - time.monotonic()
                if not selector.select(min(max(0.0, left_s), LOOK_UP_EVERY_S)):
                    if left_s <= 0:
                        raise ChildLateError
                    continue
                chunk = os.read(self._read_fd, 1 << 16)
                if not chunk:
                    raise ChildEndedError(self.how_it_ended())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return _decoder.decode(line)
        except msgspec.MsgspecError as error:
            self.kill()
            raise ChildEndedError(f"sent what is no report: {error}") from error

    def end(self) -> str | None:
        """Let the child go: close the pipe, then terminate, then kill. Says so if it cannot be ended."""
        with contextlib.suppress(OSError):
            os.close(self._write_fd)
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._guarded.signal_group(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERMINATE_AFTER_S if number else 2.0)
                break
        else:
            return f"process {self.pid} cannot be ended; its device is left alone"
        self._guarded.signal_group(signal.SIGKILL)  # whatever it started itself
        self._guarded.dismiss_guard()
        self._drain.join(1.0)
        with contextlib.suppress(OSError):
            os.close(self._read_fd)
        return None

    def kill(self) -> None:
        """End the whole group at once."""
        self._guarded.signal_group(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the whole group to end."""
        self._guarded.signal_group(signal.SIGTERM)

    def how_it_ended(self) -> str:
        """Say how the process ended: its signal or status, and the last words it wrote."""
        try:
            status = self._process.wait(TERMINATE_AFTER_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe and runs on"
        self._drain.join(1.0)
        if self._flooded:
            most = format_bytes(MOST_PRINTED_BYTES)
            return f"was ended because it printed more than {most}: silence the model"
        words = self.last_words()
        tail = f"; it last wrote: {words}" if words else ""
        if status == -signal.SIGKILL:
            return f"was killed by signal 9 (SIGKILL): probably host memory ran out{_memory_limit()}{tail}"
        if status < 0:
            return f"was ended by signal {-status} ({signal.Signals(-status).name}){tail}"
        return f"ended with status {status}{tail}"

    def last_words(self, limit: int = 300) -> str:
        """Return the last line that the child wrote (of a traceback the error), paths shortened."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        return scrub(lines[-1], limit) if lines else ""

    def output(self) -> str:
        """Return the end of what the child has written so far."""
        return b"".join(self._log).decode("utf-8", "replace")

    def _keep_output(self) -> None:
        size = printed = 0
        output = self._process.stdout
        if output is None:
            return
        while chunk := os.read(output.fileno(), 1 << 14):
            self._log.append(chunk)
            size += len(chunk)
            printed += len(chunk)
            while size > LOG_BYTES:
                size -= len(self._log.popleft())
            if printed > MOST_PRINTED_BYTES and not self._flooded:
                self._flooded = True
                self.kill()
        output.close()


def environment_of(
    device: DeviceProfile,
    inherited: Mapping[str, str],
    *,
    strict: bool,
    peers: Sequence[DeviceProfile] = (),
) -> dict[str, str]:
    """Return the environment of a child: it sees its GPUs alone, and TF32 is off or on as its cases need.

    ``NVIDIA_TF32_OVERRIDE`` is read when the maths libraries load, hence a process of its own for strict
    fp32. No inherited variable decides on TF32. A GPU is named by UUID; where that is all zeros, by its place
    in PCI order.
    """
    variables = {name: value for name, value in inherited.items() if name not in TF32_VARIABLES}
    variables["PYTHONUNBUFFERED"] = "1"
    if strict:
        variables["NVIDIA_TF32_OVERRIDE"] = "0"
    return variables | child_environment(device, *peers)


def _memory_limit() -> str:
    """The memory limit of this container, to go with a guess at the out-of-memory killer."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number and no limit
            limit = int(Path(path).read_text(encoding="ascii"))
            if limit < 1 << 50:
                return f" (this container may use {format_bytes(limit)})"
    return ""
