"""Time, streams, events and errors of the fake device, on a clock that moves only when something happens."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from strict_cuda.memory import Memory

LAUNCH_QUEUE = 1024
"""Kernels that may wait in a queue before the host waits for the oldest.

Source: none that NVIDIA documents; users observe about a thousand. This rule is the fake's own: its tests need a
queue that fills up, not one of exactly this length.
"""
STREAMS_PER_POOL = 32
"""Source: c10/cuda/CUDAStream.cpp, kStreamsPerPool; the streams of a pool are given out in turn."""

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
"""Source: cudaGetErrorString of cudaErrorStreamCaptureUnsupported (CUDA runtime, driver_types.h)."""
INVALIDATED = "CUDA error: operation failed due to a previous error during capture"
"""Source: cudaGetErrorString of cudaErrorStreamCaptureInvalidated (CUDA runtime, driver_types.h)."""
UNJOINED = "CUDA error: capturing stream has unjoined work"
"""Source: cudaGetErrorString of cudaErrorStreamCaptureUnjoined (CUDA runtime, driver_types.h)."""
ISOLATION = "CUDA error: dependency created on uncaptured work in another stream"
"""Source: cudaGetErrorString of cudaErrorStreamCaptureIsolation (CUDA runtime, driver_types.h)."""
CAPTURED_EVENT = "CUDA error: operation not permitted on an event last recorded in a capturing stream"
"""Source: cudaGetErrorString of cudaErrorCapturedEvent (CUDA runtime, driver_types.h)."""
NOT_READY = "CUDA error: device not ready"
"""Source: cudaGetErrorString of cudaErrorNotReady (CUDA runtime, driver_types.h)."""

Cost = Callable[[str], float]
"""Run time of a kernel on the device, by the name of its operator [s]."""
Seen = dict[int, int]
"""Maps the number of a stream to the latest of its kernels that something waits for or contains."""


class RaceError(AssertionError):
    """A kernel read the result of a kernel in another stream without a wait, which is wrong on a real GPU.

    Source: CUDA C++ Programming Guide, section "Streams": work of different streams may run in any order.
    """


@dataclass
class Fault:
    """An error that the device raises when an operator is reached.

    Source: driver_types.h of the CUDA runtime, where cudaErrorIllegalAddress, cudaErrorLaunchFailure and
    cudaErrorAssert leave the process in a state in which "any further CUDA work will return the same error".

    Attributes:
        operator: Part of the operator's name; "synchronize" and "empty_cache" are operators here too.
        error: Makes the error, anew each time.
        after: Number of successful calls of that operator before it.
        times: Number of times that the error is raised.
        sticky: Whether every later call fails with it too.
        capturing: Whether it is raised only inside a capture.
    """

    operator: str
    error: Callable[[], BaseException]
    after: int = 0
    times: int = 1
    sticky: bool = False
    capturing: bool = False


class Capture(Protocol):
    """What the device must know about an active capture."""

    invalid: bool

    def holds(self, stream: Stream) -> bool:
        """Whether a stream's work is captured."""

    def join(self, stream: Stream) -> None:
        """Capture a stream's work from now on."""


@dataclass(eq=False)
class Stream:
    """A queue of work. ``seen`` maps each stream to the latest of its kernels that this one waits for."""

    machine: Machine
    number: int
    done_ns: int = 0
    issued: int = 0
    seen: Seen = field(default_factory=dict)

    def holds(self) -> Seen:
        """Return the kernels that are done when the current work of this stream is done."""
        return self.seen | {self.number: self.issued}

    def see(self, kernels: Seen) -> None:
        """Let later work of this stream wait for kernels of others."""
        for number, kernel in kernels.items():
            self.seen[number] = max(self.seen.get(number, 0), kernel)

    def is_capturing(self) -> bool:
        """Source: torch/csrc/Stream.cpp, THPStream_is_capturing."""
        return self.machine.capture_of(self) is not None

    def record_event(self, event: Event | None = None) -> Event:
        """Source: torch/cuda/streams.py, Stream.record_event."""
        event = event or Event(self.machine)
        event.record(self)
        return event

    def wait_stream(self, other: Stream) -> None:
        """Let later work of this stream wait for all the work that ``other`` has now.

        Source: torch/cuda/streams.py, Stream.wait_stream: it waits for an event that the other stream records.
        """
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        """Let later work of this stream wait for the work before an event when it was recorded.

        Source: c10/cuda/CUDAEvent.h, CUDAEvent::block, does nothing for an unrecorded event. CUDA C++
        Programming Guide, "Cross-stream Dependencies and Events" and "Prohibited and Unhandled Operations":
        an event of a capture pulls the waiting stream into it, which is impossible for the legacy default
        stream; a captured stream may not wait for an event of uncaptured work.
        """
        machine = self.machine
        machine.call("wait_event", stream=self)
        if event.stream is None:
            return
        capture = machine.capture
        if event.capture is not None:
            if event.capture is not capture:
                raise RuntimeError(CAPTURED_EVENT)
            if self is machine.default:
                raise machine.refused(NOT_PERMITTED)
            capture.join(self)
        elif capture is not None and capture.holds(self):
            raise machine.refused(ISOLATION)
        else:
            self.done_ns = max(self.done_ns, event.at_ns or 0)
        self.see(event.holds)

    def synchronize(self) -> None:
        """Let the host wait for this stream.

        Source: c10/cuda/CUDAStream.h, CUDAStream::synchronize.
        """
        self.machine.drain(self)


@dataclass(eq=False)
class Event:
    """A mark in a stream's work. As in CUDA, times can be read once both marks have passed.

    Source: c10/cuda/CUDAEvent.h (up to torch 2.10 or so aten/src/ATen/cuda/CUDAEvent.h), class CUDAEvent.

    Attributes:
        holds: The work of the stream at the mark, and the work for which it had waited.
        capture: The capture that contains the mark, which then never passes.
    """

    machine: Machine
    enable_timing: bool = False
    at_ns: int | None = None
    stream: Stream | None = None
    holds: Seen = field(default_factory=dict)
    capture: Capture | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of the work that the stream has now.

        Source: cudaEventRecord (CUDA runtime API, "Event Management"): the mark passes when earlier work is
        done; in a capturing stream it represents nodes of the graph.
        """
        machine = self.machine
        self.stream = stream or machine.stream
        machine.call("event_record", stream=self.stream)
        machine.now_ns += machine.event_issue_ns
        self.holds = self.stream.holds()
        self.capture = machine.capture_of(self.stream)
        self.at_ns = None if self.capture is not None else max(machine.now_ns, self.stream.done_ns)

    def query(self) -> bool:
        """Whether the mark has passed; True for an event that was never recorded.

        Source: c10/cuda/CUDAEvent.h, CUDAEvent::query. c10/cuda/CUDACachingAllocator.cpp,
        DeviceCachingAllocator::malloc, states that no event may be queried during a capture in global
        mode.
        """
        if self.stream is None:
            return True
        self._asked("event_query")
        return self._passed()

    def synchronize(self) -> None:
        """Let the host wait for the mark.

        Source: c10/cuda/CUDAEvent.h, CUDAEvent::synchronize, which does nothing for an event never recorded.
        """
        if self.stream is None:
            return
        self._asked("event_synchronize")
        self.machine.now_ns = max(self.machine.now_ns, self.at_ns or 0)
        self.machine.finished(self.holds)

    def elapsed_time(self, other: Event) -> float:
        """Return the time between two marks [ms].

        Source: c10/cuda/CUDAEvent.h, CUDAEvent::elapsed_time; cudaEventElapsedTime gives cudaErrorNotReady before
        either mark has passed (newer torch checks first, with its own message).
        """
        if not (self.enable_timing and other.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.stream is None or other.stream is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        for event in (self, other):
            event._asked("event_elapsed_time")
            if not event._passed():
                raise RuntimeError(NOT_READY)
        return (other.at_ns - self.at_ns) * 1e-6

    def _asked(self, name: str) -> None:
        """Source: CUDA C++ Programming Guide, "Prohibited and Unhandled Operations": a captured event cannot
        be queried.
        """
        self.machine.call(name, synchronizes=True)
        if self.capture is not None:
            raise RuntimeError(CAPTURED_EVENT)

    def _passed(self) -> bool:
        return self.at_ns is not None and self.at_ns <= self.machine.now_ns


@dataclass
class Machine:
    """One fake GPU and the host in front of it.

    Attributes:
        issue_s: Host time of one launch [s].
        profiled_issue_s: Host time that the profiler adds to a launch [s], because it records each (CUPTI's
            callbacks).
        cost: Device time of one kernel.
        compiles_recurrent: Whether torch.compile compiles the other layers next to a recurrent one.
        tf32: When float32 products are rounded as in tensor cores: "never"; "as switched", by torch's switches;
            "always", as a variable of the driver's libraries can force it; or "in recurrent layers", whatever
            their switch is, and in nothing else.
        old_allocator: Whether an invalidated capture stays active for the allocator, as in torch up to 2.11.
        capture: The one active capture; torch would allow several.
    """

    issue_s: float = 5e-6
    cost: Cost = field(default=lambda name: 3e-6)
    event_issue_ns: int = 1_000
    replay_issue_s: float = 10e-6
    profiled_issue_s: float = 5e-6
    transfer_bytes_per_s: float = 25e9
    compile_s: float = 5.0
    compiles_recurrent: bool = False
    tf32: str = "never"
    old_allocator: bool = True
    memory: Memory = field(default_factory=Memory)
    faults: list[Fault] = field(default_factory=list)
    now_ns: int = 1_000_000_000
    capture: Capture | None = None
    kernels: int = 0
    profile: list[tuple[str, int]] | None = None
    log: list[str] = field(default_factory=list)
    lost: Callable[[], BaseException] | None = None

    def __post_init__(self) -> None:
        """Make the default stream."""
        self._asked = itertools.count()
        self.default = self.stream = Stream(self, 0)
        self.streams = [self.default]
        self._queue: deque[int] = deque()
        self.done: Seen = {}
        self.memory.malloc = self.malloc

    def new_stream(self) -> Stream:
        """Return a stream that waits for nothing, not even for the default stream: a new one for each of the
        first 32 requests.

        Source: c10/cuda/CUDAStream.cpp, getStreamFromPool and kDefaultFlags = cudaStreamNonBlocking.
        """
        place = next(self._asked) % STREAMS_PER_POOL + 1
        if place == len(self.streams):
            self.streams.append(Stream(self, place))
        return self.streams[place]

    # --- captures -----------------------------------------------------------------------------------------

    def capture_of(self, stream: Stream) -> Capture | None:
        """Return the capture that records a stream's work; None if the work runs.

        Source: c10/cuda/CUDAGraphsC10Utils.h, captureIdMayInitCtx: each stream is checked for a capture."""
        return self.capture if self.capture is not None and self.capture.holds(stream) else None

    def refused(self, words: str) -> RuntimeError:
        """Make the capture invalid and return the error to raise.

        Source: CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture", part "Invalidation".
        """
        assert self.capture is not None
        self.capture.invalid = True
        return RuntimeError(words)

    def malloc(self) -> None:
        """Take memory from the driver, which during a capture is permitted only to a capturing stream.

        Source: c10/cuda/CUDACachingAllocator.cpp, cudaMallocMaybeCapturing, relaxes the mode if the current stream
        captures; cudaThreadExchangeStreamCaptureMode (CUDA runtime API) names cudaMalloc as unsafe.
        """
        if self.capture is not None and not self.capture.holds(self.stream):
            raise self.refused(NOT_PERMITTED)

    # --- every call ---------------------------------------------------------------------

    def call(self, name: str, *, synchronizes: bool = False, stream: Stream | None = None) -> None:
        """Make one call of the CUDA runtime: raise sticky and requested errors, and enforce a capture's rules.

        ``stream`` is the stream of the call, by default the current one.

        Source: cudaStreamCaptureModeGlobal, torch's default (torch/cuda/graphs.py, class graph): this thread may not
        make a call that waits while any stream captures, whatever stream it waits for; the call invalidates the
        capture (CUDA runtime API, cudaThreadExchangeStreamCaptureMode). Work issued to another stream during that
        time runs: torch's streams are non-blocking, and only the capture of a blocking one makes the legacy default
        stream unusable (CUDA C++ Programming Guide, "Prohibited and Unhandled Operations").
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
        if self.capture.invalid and self.capture.holds(stream or self.stream):
            raise RuntimeError(INVALIDATED)
        if synchronizes:
            raise self.refused(NOT_PERMITTED)

    def launch(self, name: str) -> None:
        """Issue one kernel to the current stream; with a full queue the host waits.

        Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution": a launch returns before the kernel
        has run; in a capturing stream it becomes a node of the graph and does not run (cudaStreamBeginCapture).
        """
        self.call(name)
        self.kernels += 1
        self.now_ns += round(self.issue_s * 1e9)
        if self.profile is not None:
            self.now_ns += round(self.profiled_issue_s * 1e9)
        if self.capture_of(self.stream) is not None:
            self.stream.issued += 1
        else:
            self.run(name)

    def run(self, name: str) -> None:
        """Put an issued kernel into the current stream's queue.

        Source: CUDA C++ Programming Guide, "Streams": the work of one stream runs in the order of its issue.
        """
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
        """Let the host wait for one stream, or for all; work issued later runs after that.

        Source: cudaDeviceSynchronize and cudaStreamSynchronize (CUDA runtime API), which torch/cuda/__init__.py,
        synchronize, and c10/cuda/CUDAStream.h, CUDAStream::synchronize, call.
        """
        self.call(name, synchronizes=True)
        waited = self.streams if stream is None else [stream]
        self.now_ns = max([self.now_ns, *(s.done_ns for s in waited)])
        self.finished({s.number: s.issued for s in waited} if stream is None else stream.holds())
        self._queue = deque(end for end in self._queue if end > self.now_ns)

    def finished(self, kernels: Seen) -> None:
        """Record the work that the host has seen finish; work issued from now on comes after it.

        Source: CUDA C++ Programming Guide, "Concurrent Execution between Host and Device".
        """
        for number, kernel in kernels.items():
            self.done[number] = max(self.done.get(number, 0), kernel)

    def spend(self, seconds: float) -> None:
        """Keep the host busy with something else."""
        self.now_ns += round(seconds * 1e9)

    def sees(self, written: tuple[int, int]) -> bool:
        """Whether the current stream waits for a kernel, by stream and place.

        Source: CUDA C++ Programming Guide, "Streams": only an event, a wait of the host or the stream's own
        order puts one kernel after another.
        """
        number, kernel = written
        seen = max(self.stream.seen.get(number, 0), self.done.get(number, 0))
        return number == self.stream.number or seen >= kernel
