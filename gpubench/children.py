"""Child processes with a deadline, which end when their parent process ends for any reason.

Parent and child exchange JSON lines over two separate pipes, because a model under test may print; everything
received is untrusted until decoded. Short system commands are run here too.

A killed parent runs no ``finally`` and no handler. Each child therefore has a guard: a process that waits for
the end of a pipe and then kills the child's process group. The parent closes the pipe when it ends the child;
the kernel closes it when the parent is gone. The guard runs none of the child's code, so a hanging child does
not stop it.

A daemon deliberately leaves that group. Each child therefore has a mark in its environment, which descendants
inherit. On Linux the guard ends and reports every process with the mark. It cannot find a daemon that clears
its environment.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Generic, NoReturn, TypeVar

import msgspec

from gpubench.files import NOT_JSON
from gpubench.folders import package_path
from gpubench.units import MIB, Seconds, format_bytes, format_duration, plain

# --- the child's end -----------------------------------------------------------------------------------

# Message size limit; the longest message is a launch with telemetry, a few hundred kilobytes.
MOST_MESSAGE_BYTES = 16 * MIB
CHUNK_BYTES = 64 * 1024

# The variable that identifies a child and everything it starts.
MARK = "GPUBENCH_CHILD"

_Command = TypeVar("_Command")


class Lines:
    """Splits the input from a pipe into lines of bounded size."""

    def __init__(self) -> None:
        self._begun = bytearray()

    @property
    def has_begun(self) -> bool:
        """Whether part of a line has arrived."""
        return bool(self._begun)

    def add(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes.

        Raises:
            ValueError: If a line is longer than ``MOST_MESSAGE_BYTES``.
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
    """The channel to the parent, in the process of a ``ChildProcess``.

    Attributes:
        arguments: The arguments of the child.
        stop: Set once the parent has sent a stop message.
        farewell: Called when the parent has closed the pipe.
    """

    def __init__(self, descriptors: tuple[int, int] | None = None) -> None:
        """Bind this process to the parent, and keep its own children from inheriting the pipes.

        Args:
            descriptors: The pipes to read and write, for a process that answers in the child's place and is
                already bound to the child; None in the child itself.
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
        """Wait for the first line, and leave the rest in the pipe for another process.

        Raises:
            EOFError: If the parent closed the pipe first.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = os.read(self.read_fd, 1)
            if not byte:
                raise EOFError
            line += byte
        return bytes(line)

    def finish(self) -> NoReturn:
        """End this process without the cleanup of its libraries, which takes torch 0.5 s of CPU time.

        Functions that a model registered for the exit are called, because they may remove its files.
        """
        atexit._run_exitfuncs()  # noqa: SLF001 - Python offers no other way
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a model may have closed or replaced it
                stream.flush()
        os._exit(0)

    def return_home(self) -> None:
        """Return to the folder in which this process started; a model may have changed it."""
        with contextlib.suppress(OSError):  # the folder is gone, which any later access reports
            os.chdir(self._folder)

    def _require_ours(self, descriptor: int) -> None:
        # End this process if a model has closed the pipe, since its descriptor may now be another file.
        if _identity(descriptor) != self._pipes[descriptor]:
            with contextlib.suppress(OSError):
                os.write(2, b"the model has closed descriptors that it did not open\n")
            os._exit(1)

    def listen(
        self, decoder: msgspec.json.Decoder[_Command], stop: type[msgspec.Struct]
    ) -> queue.SimpleQueue[_Command]:
        """Read commands in a thread, so ``stop`` works during a round; return the queue of commands.

        When the parent's end of the pipe closes, for any reason, this process ends immediately.
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
                os._exit(0)  # no cleanup is needed

        threading.Thread(target=read, name="parent", daemon=True).start()
        return commands


def scratch_folder(mark: str | None = None) -> Path:
    """Return the path of a child's scratch folder, which is removed when the child ends.

    Args:
        mark: Mark of the child; None in the child itself.
    """
    return Path(os.environ.get("TMPDIR", "/tmp"), f"gpubench-{mark or os.environ[MARK]}")  # noqa: S108 - the mark is random


def die_with_parent(parent_pid: int) -> None:
    """Make Linux end this process with its parent, in case the guard is killed too.

    The kernel sends the signal when the thread that started this process ends, so a child must be started and
    awaited in the same thread. If the parent is already gone, this process ends immediately.

    Args:
        parent_pid: The process id, as sent by the parent.
    """
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _identity(descriptor: int) -> tuple[int, int] | None:
    # Return an id of the file that is open under a descriptor; None if the descriptor is closed.
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


# --- the parent's end ----------------------------------------------------------------------------------

# Time from SIGTERM to SIGKILL, and from SIGKILL to giving up on a process that the kernel cannot end.
TERMINATE_AFTER_S = 10.0
# Time from closing a child's pipe to SIGTERM; for a single-answer child, from its answer to SIGKILL.
CLOSE_AFTER_S = 2.0
# Maximum bytes of a child's output to keep, in case a model prints endlessly.
TAIL_BYTES = 64 * 1024
# A process that prints more than this is killed, because printing would affect its timing.
MOST_PRINTED_BYTES = 64 * MIB
# The same limit for a single-answer child, where warnings and progress bars print thousands of bytes.
MOST_ANSWER_PRINTED_BYTES = 8 * MIB
# Polling interval for a silent child, because its deadline may move, or it may end with its pipe open.
POLL_EVERY_S = 0.5
# A working child uses more of a processor, even on a machine with fifty times as much to do as it can.
BUSY_SHARE = 0.01

# poll(2) needs no descriptor, unlike epoll.
_Selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)

# The guard takes only 10 ms of CPU time and 9 MB, because it loads neither site-packages nor gpubench.
_GUARD = """
import os, signal, sys, time
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)  # sent to the whole group, they must not end the guard early
while os.read(0, 1):
    pass
group, mark = int(sys.argv[1]), sys.argv[2].encode()
try:
    os.killpg(group, signal.SIGKILL)
except OSError:  # the group has already ended
    pass

def left():  # processes with the mark that have left the group
    for pid in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        try:
            with open(f"/proc/{pid}/environ", "rb") as variables:
                if mark in variables.read().split(b"\\0") and os.getpgid(int(pid)) != group:
                    yield int(pid)
        except (OSError, ValueError):  # another user's process, or not a process
            pass

for _ in range(3):  # a daemon may have started another before it was killed
    if not list(left()):
        break
    time.sleep(0.5)  # the kernel is ending those bound to their parent
    for pid in left():
        try:
            with open(f"/proc/{pid}/comm") as name:
                label = f"{name.read().strip()} (process {pid})"
            os.kill(pid, signal.SIGKILL)
            print(label, flush=True)
        except OSError:  # the process is gone, or nobody reads this output
            pass
if os.path.isdir(sys.argv[3]):
    import shutil  # it takes a quarter of the guard's time, and few children leave their folder
    shutil.rmtree(sys.argv[3], ignore_errors=True)
"""

_Report = TypeVar("_Report")
_Answer = TypeVar("_Answer")


class ChildEndedError(Exception):
    """The child ended or sent an invalid report; the message completes a sentence about "the process"."""


class Limit(StrEnum):
    """What ends a late child: the wall clock, its CPU time, or time in which it did nothing."""

    WALL = "wall"
    CPU = "cpu"
    IDLE = "idle"


class ChildLateError(Exception):
    """No report arrived before a limit."""

    def __init__(self, limit: Limit = Limit.WALL) -> None:
        super().__init__(limit)
        self.limit = limit


def exit_words(status: int) -> str:
    """Describe the exit status of a process; a negative one is a signal.

    >>> exit_words(3), exit_words(-9)
    ('exited with status 3', 'was killed by signal 9 (SIGKILL)')
    """
    if status >= 0:
        return f"exited with status {status}"
    names = {number.value: f" ({number.name})" for number in signal.Signals}  # a few signals have no name
    return f"was killed by signal {-status}{names.get(-status, '')}"


def text_of(command: Sequence[str], *, time_limit_s: Seconds = 5.0) -> str | None:
    """Return the output of a short command; None if it is missing, fails, times out or prints nothing."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=time_limit_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def commit_of_checkout() -> str | None:
    """Return the commit of a source checkout of gpubench; None for an installed one."""
    root = package_path("").parent
    return text_of(["git", "-C", str(root), "rev-parse", "HEAD"]) if (root / ".git").exists() else None


class ChildProcess(Generic[_Report]):
    """A child in its own process group, so Ctrl-C reaches only the parent.

    Attributes:
        end_by_s: Deadline for the child, on ``time.monotonic``; a signal handler may set it at any time.
        was_awaited: Whether the last ``receive`` had to wait.
        flooded: Whether the child was killed because it printed too much.
        swept: Processes that the child left running, which ``end`` killed.
    """

    def __init__(
        self,
        program: Sequence[str],
        decoder: msgspec.json.Decoder[_Report],
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        most_printed_bytes: int = MOST_PRINTED_BYTES,
    ) -> None:
        """Start the child, then its guard.

        Args:
            program: What Python runs: ``("-m", MODULE)``. It opens a ``ParentChannel``.
            decoder: Decodes the child's reports.
            arguments: The child's arguments.
            environment: All environment variables of the child; None to copy this process's.
            most_printed_bytes: Output limit; a child that prints more is killed.

        Raises:
            ChildEndedError: If no process, pipe or thread is available.
        """
        self._mark = os.urandom(8).hex()
        self.swept: tuple[str, ...] = ()
        self.was_awaited = True
        self._decoder = decoder
        self._lines = Lines()
        self._received: list[bytes] = []
        self._most_printed_bytes = most_printed_bytes
        self._tail = bytearray()
        self.flooded = False
        self.end_by_s: Seconds = math.inf
        try:
            self._begin(program, arguments, os.environ if environment is None else environment)
        except (OSError, RuntimeError) as error:
            why = plain(getattr(error, "strerror", None) or str(error))
            raise ChildEndedError(f"could not be started: {why}") from error

    def _begin(
        self,
        program: Sequence[str],
        arguments: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        # Start the child with its guard and thread; if one fails, undo the others.
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as child_ends:
            to_child, self._write_fd = os.pipe()
            child_ends.callback(os.close, to_child)
            undo.callback(os.close, self._write_fd)
            self._read_fd, from_child = os.pipe()
            child_ends.callback(os.close, from_child)
            undo.callback(os.close, self._read_fd)
            # -P: a random.py in the current folder must not be run instead of the library
            command = [sys.executable, "-P", *program, str(to_child), str(from_child), str(os.getpid())]
            self._process = undo.enter_context(
                subprocess.Popen(
                    [*command, *arguments],
                    pass_fds=(to_child, from_child),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**environment, MARK: self._mark},
                    start_new_session=True,
                )
            )
            guard = (sys.executable, "-I", "-S", "-c", _GUARD)
            undo.callback(self.kill)  # called before the process's context is left, which waits for its end
            self._guard = undo.enter_context(
                subprocess.Popen(
                    [*guard, str(self.pid), f"{MARK}={self._mark}", scratch_folder(self._mark)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            )
            # The thread owns the pipe: an interrupt here must not close it before the thread reads it.
            output, self._process.stdout = self._process.stdout, None
            assert output is not None  # requested above
            self._drain = threading.Thread(
                target=self._keep_output, args=(output,), name="child output", daemon=True
            )
            self._drain.start()
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Process id, which is also the process group id."""
        return self._process.pid

    def send(self, command: msgspec.Struct) -> None:
        """Send one command; a dead child is detected when waiting for its answer."""
        with contextlib.suppress(BrokenPipeError):
            write_message(self._write_fd, command)

    def receive(self, until_s: Seconds) -> _Report:
        """Return the next report.

        Args:
            until_s: Deadline on ``time.monotonic``; an earlier ``end_by_s`` takes precedence.

        Raises:
            ChildLateError: If the deadline passed.
            ChildEndedError: If the child is gone, or was killed because of what it sent.
        """
        with _Selector() as selector:
            selector.register(self._read_fd, selectors.EVENT_READ)
            self.was_awaited = not (self._received or selector.select(0))
            while not self._received:
                left_s = min(until_s, self.end_by_s) - time.monotonic()
                # checked before the pipe, which may still have messages
                gone = self._process.poll() is not None
                if selector.select(0 if gone else min(max(0.0, left_s), POLL_EVERY_S)):
                    self._take(os.read(self._read_fd, CHUNK_BYTES))
                elif gone:  # a process that the child started keeps the pipe open
                    raise ChildEndedError(self.how_it_ended())
                elif left_s <= 0:
                    raise ChildLateError
        try:
            return self._decoder.decode(self._received.pop(0))
        except NOT_JSON as error:
            self.kill()
            raise ChildEndedError(f"sent something that is not a report: {plain(str(error))}") from error

    def has_more(self) -> bool:
        """Return whether the child has sent anything more, without waiting; the check may consume a byte."""
        with _Selector() as selector:
            selector.register(self._read_fd, selectors.EVENT_READ)
            return bool(
                self._received or self._lines.has_begun or (selector.select(0) and os.read(self._read_fd, 1))
            )

    def end(self, *, at_once: bool = False) -> str | None:
        """End the child: close its pipe; if it stays, send SIGTERM, then SIGKILL.

        Processes that the child left running are killed too, and listed in ``swept``.

        Args:
            at_once: Whether to start with SIGKILL, as is also done after ``end_by_s``, Ctrl-C or SIGTERM.

        Returns:
            A message if the child cannot be killed, else None.
        """
        at_once |= isinstance(sys.exception(), KeyboardInterrupt) or time.monotonic() >= self.end_by_s
        with contextlib.suppress(OSError):
            os.close(self._write_fd)
        steps = (
            (None, CLOSE_AFTER_S),
            (signal.SIGTERM, TERMINATE_AFTER_S),
            (signal.SIGKILL, TERMINATE_AFTER_S),
        )
        for number, patience_s in steps[-1:] if at_once else steps:
            if number is not None:
                self._signal_group(number)
            left_s = patience_s if number is signal.SIGKILL else self.end_by_s - time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, min(patience_s, left_s)))
                break
        else:
            return f"process {self.pid} cannot be killed, so its device is not used again"
        with contextlib.suppress(subprocess.TimeoutExpired):  # processes started by the child
            killed, _ = self._guard.communicate(timeout=TERMINATE_AFTER_S)
            self.swept = tuple(plain(line, 120) for line in killed.decode("utf-8", "replace").splitlines())
        self._drain.join(1.0)
        with contextlib.suppress(OSError):
            os.close(self._read_fd)
        return None

    def kill(self) -> None:
        """Kill the entire process group immediately."""
        self._signal_group(signal.SIGKILL)

    def how_it_ended(self, within_s: Seconds = TERMINATE_AFTER_S) -> str:
        """Describe how the process ended: its signal or status, and the last line of its output."""
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return "closed its pipe but is still running"
        self._drain.join(1.0)
        if self.flooded:
            most = format_bytes(self._most_printed_bytes)
            return f"was killed because it printed more than {most}: make the model print less"
        words = self.last_words()
        tail = f"; it last wrote: {words}" if words else ""
        if status == -signal.SIGKILL:
            return (
                f"was killed by signal 9 (SIGKILL): probably host memory ran out{self.memory_words()}{tail}"
            )
        return f"{exit_words(status)}{tail}"

    def last_words(self, limit: int = 300) -> str:
        """Return the last line of the child's output: the error, if it is a traceback."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        return plain(lines[-1], limit) if lines else ""

    def memory_words(self) -> str:
        """Return figures of host memory in parentheses; subclasses that may exhaust it override this."""
        return ""

    def cpu_s(self) -> Seconds:
        """Return the CPU time of the child and its children, as far as the system reports it."""
        import psutil

        taken_s = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    taken_s += sum(each.cpu_times()[:4])  # including children that have ended
        return taken_s

    def output(self) -> str:
        """Return the end of the child's output so far."""
        return bytes(self._tail).decode("utf-8", "replace")

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            raise ChildEndedError(self.how_it_ended())
        try:
            self._received += self._lines.add(chunk)
        except ValueError as error:
            self.kill()
            raise ChildEndedError(str(error)) from error

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _keep_output(self, output: IO[bytes]) -> None:
        printed_bytes = 0
        with output:
            while chunk := os.read(output.fileno(), CHUNK_BYTES):
                self._tail += chunk
                del self._tail[:-TAIL_BYTES]
                printed_bytes += len(chunk)
                if printed_bytes > self._most_printed_bytes and not self.flooded:
                    self.flooded = True
                    self.kill()


@dataclass(frozen=True)
class ChildResult(Generic[_Answer]):
    """The result of a single-answer child.

    Attributes:
        answer: None if the child gave none or printed too much.
        how: How the child ended without an answer, as the end of a sentence about its process.
        output: The end of the child's output.
        swept: Processes that the child left running, which were killed.
        limit: The limit that it reached and was killed for; None if it reached none.
    """

    answer: _Answer | None
    how: str
    output: str
    swept: tuple[str, ...] = ()
    limit: Limit | None = None


def run_child(
    program: Sequence[str],
    arguments: Sequence[str],
    answer_type: type[_Answer],
    *,
    time_limit_s: Seconds = math.inf,
    cpu_limit_s: Seconds = math.inf,
    idle_limit_s: Seconds = math.inf,
    environment: Mapping[str, str] | None = None,
) -> ChildResult[_Answer]:
    """Start a child for one answer, wait up to its limits, and end it with all processes that it started.

    Args:
        program: What Python runs: ``("-m", MODULE)``. It sends its answer through a ``ParentChannel``.
        arguments: The child's arguments.
        answer_type: The type of the answer.
        time_limit_s: Wall time limit, including sleep and waiting.
        cpu_limit_s: CPU time limit of the child and its children. It applies only after as many seconds of
            wall time, because a child on many processors uses CPU time faster than wall time passes.
        idle_limit_s: Limit on the time in which the child and its children use less than ``BUSY_SHARE`` of a
            processor. A busy machine slows a working child, but this does not end it.
        environment: All environment variables of the child; None to copy this process's.
    """
    try:
        child = ChildProcess(
            program,
            msgspec.json.Decoder(answer_type),
            arguments=arguments,
            environment=environment,
            most_printed_bytes=MOST_ANSWER_PRINTED_BYTES,
        )
    except ChildEndedError as error:
        return ChildResult(None, str(error), "")
    until_s = time.monotonic() + time_limit_s
    answer: _Answer | None = None
    limit: Limit | None = None
    try:
        answer = _receive(child, until_s, cpu_limit_s, idle_limit_s)
        how = child.how_it_ended(min(CLOSE_AFTER_S, until_s - time.monotonic()))
        if child.has_more():  # other code in the child wrote a line too, so the answer is ambiguous
            answer, how = None, "sent more than one answer"
    except ChildLateError as late:
        limit = late.limit
        how = {
            Limit.WALL: f"gave no answer within {format_duration(time_limit_s)}",
            Limit.CPU: f"gave no answer within {format_duration(cpu_limit_s)} of CPU time",
            Limit.IDLE: f"used almost no CPU time for {format_duration(idle_limit_s)}",
        }[limit] + " and was killed"
    except ChildEndedError as error:
        how = str(error)
    finally:
        child.end(at_once=True)
    return ChildResult(None if child.flooded else answer, how, child.output(), child.swept, limit)


def _receive(
    child: ChildProcess[_Answer], until_s: Seconds, cpu_limit_s: Seconds, idle_limit_s: Seconds
) -> _Answer:
    """Return the child's answer. Its CPU time is first looked at when it could have reached a limit.

    Raises:
        ChildLateError, ChildEndedError: As in ``ChildProcess.receive``, or if it has reached another limit.
    """
    began_s = busy_s = time.monotonic()
    taken_s = 0.0  # CPU time at ``busy_s``, the last time at which the child was seen to work
    check_s = began_s + min(cpu_limit_s, idle_limit_s)
    while True:
        try:
            return child.receive(min(check_s, until_s))
        except ChildLateError:
            now_s, used_s = time.monotonic(), child.cpu_s()
            if now_s >= until_s:
                raise
            if used_s >= cpu_limit_s and now_s >= began_s + cpu_limit_s:
                raise ChildLateError(Limit.CPU) from None
            if used_s - taken_s >= BUSY_SHARE * (now_s - busy_s):
                busy_s, taken_s = now_s, used_s
            elif now_s >= busy_s + idle_limit_s:
                raise ChildLateError(Limit.IDLE) from None
            check_s = now_s + POLL_EVERY_S
