"""The parent's handle on a child process that measures, its environment, and how a run is stopped."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from gpubench.children import ChildProcess
from gpubench.measure import messages
from gpubench.measure.capability import variables_of
from gpubench.measure.privacy import scrub
from gpubench.models import DeviceProfile, Framework
from gpubench.precisions import TF32_VARIABLES
from gpubench.probe.identity import child_environment
from gpubench.probe.system import memory_limit_bytes
from gpubench.units import Seconds, format_bytes

MODULE = "gpubench.measure.worker"
JOINED = "joined"
"""Tells a child that it is the first of the processes that a user's torchrun has started."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""By which torch and its libraries choose their number of threads when they load."""

_decoder: msgspec.json.Decoder[messages.Report] = msgspec.json.Decoder(messages.Report)


class Child(ChildProcess[messages.Report]):
    """A measuring process; what is said of it may be stored, so it names nothing of this machine."""

    def __init__(
        self,
        environment: Mapping[str, str],
        module: str = MODULE,
        *,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(("-m", module), _decoder, arguments=arguments, environment=environment)

    def last_words(self, limit: int = 300) -> str:
        """Return the last line that the child wrote, paths shortened."""
        return scrub(super().last_words(limit), limit)

    def memory_words(self) -> str:
        """The memory limit of this container."""
        limit = memory_limit_bytes()
        return "" if limit is None else f" (this container may use {format_bytes(limit)})"


def environment_of(
    device: DeviceProfile,
    inherited: Mapping[str, str],
    *,
    peers: Sequence[DeviceProfile] = (),
    framework: Framework = Framework.TORCH,
    threads: int = 0,
) -> dict[str, str]:
    """Return the environment of a child: it sees its GPUs alone, and no inherited variable decides on TF32.

    A GPU is named by UUID; where that is all zeros, by its place in PCI order. ``threads`` of a CPU compute;
    0 leaves their number to the framework.
    """
    variables = {name: value for name, value in inherited.items() if name not in TF32_VARIABLES}
    variables["PYTHONUNBUFFERED"] = "1"
    if threads:
        variables |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    return variables | child_environment(device, *peers) | variables_of(framework, device)


STOPPING_S = 2.0
"""After SIGTERM a round may end within this time; a third second is for storing and saying what there is."""


@contextmanager
def answering(answer: Callable[[int], None], *signals: signal.Signals) -> Iterator[None]:
    """Answer signals, told by their numbers, where this is the thread that may listen to them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda n, _: answer(n)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Control:
    """How a run is stopped from outside: once politely, twice at once. Safe to call from a signal handler."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.aborted = threading.Event()
        self.stop_by_s: Seconds = float("inf")
        self.child: Child | None = None

    def stop(self, within_s: Seconds = float("inf")) -> None:
        """Finish the round at hand, then end; with ``within_s``, end by then whatever happens."""
        if self.stopping.is_set():
            self.abort()
            return
        self.stop_by_s = time.monotonic() + within_s
        self.stopping.set()
        if self.child is not None:
            self.child.end_by_s = self.stop_by_s
            self.child.send(messages.Stop())

    def abort(self) -> None:
        """End now: kill the child and what it started."""
        self.aborted.set()
        self.stopping.set()
        if self.child is not None:
            self.child.kill()
