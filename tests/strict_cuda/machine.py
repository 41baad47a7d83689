"""Time, streams, events and errors of the fake device, on a clock that moves only when something happens."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from strict_cuda.memory import Memory

LAUNCH_QUEUE = 1024
"""Kernels that may wait in a queue before the host waits for the oldest: about a thousand on real cards."""

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
NOT_READY = "CUDA error: device not ready"

Cost = Callable[[str], float]
"""Run time of a kernel on the device, by the name of its operator [s]."""


class RaceError(AssertionError):
    """A kernel read what a kernel of another stream wrote, with no wait in between: wrong on a real GPU."""


@dataclass
class Fault:
    """An error that the device gives when an operator is reached.

    Attributes:
        operator: Part of the operator's name; "synchronize" and "empty_cache" are operators here too.
        error: Made anew each time.
        after: Calls of that operator that go well first.
        times: How often the error is given.
        sticky: Whether every later call fails alike, as after an illegal access (CUDA: the context is lost).
        capturing: Given only inside a capture.
    """

    operator: str
    error: Callable[[], BaseException]
    after: int = 0
    times: int = 1
    sticky: bool = False
    capturing: bool = False


@dataclass(eq=False)
class Stream:
    """A queue of work. ``seen`` holds, for each stream, the latest of its kernels that this one waits for."""

    machine: Machine
    number: int
    done_ns: int = 0
    issued: int = 0
    seen: dict[int, int] = field(default_factory=dict)

    def wait_stream(self, other: Stream) -> None:
        """Let later work of this stream wait for all the work that ``other`` has now."""
        self.machine.call("wait_stream")
        self.done_ns = max(self.done_ns, other.done_ns)
        for number, kernel in (other.seen | {other.number: other.issued}).items():
            self.seen[number] = max(self.seen.get(number, 0), kernel)

    def wait_event(self, event: Event) -> None:
        """Let later work of this stream wait for an event."""
        assert event.stream is not None
        self.wait_stream(event.stream)

    def synchronize(self) -> None:
        """Let the host wait for this stream."""
        self.machine.drain(self)


@dataclass(eq=False)
class Event:
    """A mark in a stream's work. Times may be read once both marks have passed, as CUDA has it."""

    machine: Machine
    enable_timing: bool = False
    at_ns: int | None = None
    stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work that the stream has now.

        Source: cudaEventRecord; the mark passes when what was issued before it is done.
        """
        machine = self.machine
        machine.call("event_record")
        self.stream = stream or machine.stream
        machine.now_ns += machine.event_issue_ns
        self.at_ns = max(machine.now_ns, self.stream.done_ns)

    def query(self) -> bool:
        """Whether the mark has passed."""
        return self.at_ns is not None and self.at_ns <= self.machine.now_ns

    def synchronize(self) -> None:
        """Let the host wait for the mark."""
        self.machine.call("event_synchronize", synchronises=True)
        self.machine.now_ns = max(self.machine.now_ns, self.at_ns or 0)

    def elapsed_time(self, other: Event) -> float:
        """Return the time between two marks [ms].

        Source: cudaEventElapsedTime gives cudaErrorNotReady before either mark has passed, and
        cudaErrorInvalidHandle for events made without timing.
        """
        if not (self.enable_timing and other.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at_ns is None or other.at_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and other.query()):
            raise RuntimeError(NOT_READY)
        return (other.at_ns - self.at_ns) * 1e-6


@dataclass
class Machine:
    """One fake GPU and the host in front of it.

    Attributes:
        issue_s: Host time of one launch [s].
        cost: Device time of one kernel.
        compiles_recurrent: Whether torch.compile compiles what stands beside a recurrent layer.
        tf32: Whether products of float32 are rounded as tensor cores do: never, as the switches of torch say
            ("as switched"), or "always", as a variable of the driver's libraries can have it.
        old_allocator: Whether an invalidated capture stays underway for the allocator, as in torch up to 2.11.
    """

    issue_s: float = 5e-6
    cost: Cost = field(default=lambda name: 3e-6)
    event_issue_ns: int = 1_000
    replay_issue_s: float = 10e-6
    transfer_bytes_per_s: float = 25e9
    compile_s: float = 5.0
    compiles_recurrent: bool = False
    tf32: str = "never"
    old_allocator: bool = True
    memory: Memory = field(default_factory=Memory)
    faults: list[Fault] = field(default_factory=list)
    now_ns: int = 1_000_000_000
    capture: object | None = None
    kernels: int = 0
    profile: list[tuple[str, int]] | None = None
    log: list[str] = field(default_factory=list)
    lost: Callable[[], BaseException] | None = None

    def __post_init__(self) -> None:
        """Make the default stream."""
        self._numbers = itertools.count()
        self.default = self.new_stream()
        self.stream = self.default
        self.streams = [self.default]
        self._queue: deque[int] = deque()

    def new_stream(self) -> Stream:
        """Make a stream that waits for nothing: torch's are made non-blocking (c10/cuda/CUDAStream.cpp)."""
        made = Stream(self, next(self._numbers))
        if hasattr(self, "streams"):
            self.streams.append(made)
        return made

    # --- what happens at every call ---------------------------------------------------------------------

    def call(self, name: str, *, synchronises: bool = False) -> None:
        """One call of the CUDA runtime: errors that stick, errors that a test asked for, rules of a capture.

        Source: cudaStreamCaptureModeGlobal, torch's default (torch/cuda/graphs.py): a call that waits, or
        frees memory, is not permitted while any stream captures, and makes the capture invalid.
        """
        if self.lost is not None:
            raise self.lost()
        for fault in self.faults:
            if fault.operator not in name or (fault.capturing and self.capture is None):
                continue
            if fault.after > 0:
                fault.after -= 1
            elif fault.times > 0:
                fault.times -= 1
                if fault.sticky:
                    self.lost = fault.error
                if self.capture is not None:
                    self.capture.invalid = True
                raise fault.error()
        if self.capture is None:
            return
        if self.capture.invalid:
            raise RuntimeError(INVALIDATED)
        if synchronises:
            self.capture.invalid = True
            raise RuntimeError(NOT_PERMITTED)

    def launch(self, name: str) -> None:
        """Issue one kernel to the current stream; a full queue lets the host wait."""
        self.call(name)
        self.kernels += 1
        self.now_ns += round(self.issue_s * 1e9)
        if self.capture is not None:
            return
        self.run(name)

    def run(self, name: str) -> None:
        """Put a kernel that was issued into the current stream's queue."""
        stream = self.stream
        run_ns = round(self.cost(name) * 1e9)
        stream.done_ns = max(self.now_ns, stream.done_ns) + run_ns
        stream.issued += 1
        self._queue.append(stream.done_ns)
        if len(self._queue) > LAUNCH_QUEUE:
            self.now_ns = max(self.now_ns, self._queue.popleft())
        if self.profile is not None:
            self.profile.append((name, run_ns))

    def drain(self, stream: Stream | None = None, name: str = "synchronize") -> None:
        """Let the host wait for one stream, or for all of them."""
        self.call(name, synchronises=True)
        waited = self.streams if stream is None else [stream]
        self.now_ns = max([self.now_ns, *(s.done_ns for s in waited)])
        done = {s.number: s.issued for s in waited}
        for each in self.streams:
            for number, kernel in done.items():
                each.seen[number] = max(each.seen.get(number, 0), kernel)
        self._queue.clear()

    def spend(self, seconds: float) -> None:
        """Let the host be busy with something else."""
        self.now_ns += round(seconds * 1e9)

    def sees(self, written: tuple[int, int]) -> bool:
        """Whether the current stream waits for a kernel, by stream and place."""
        number, kernel = written
        return number == self.stream.number or self.stream.seen.get(number, 0) >= kernel
