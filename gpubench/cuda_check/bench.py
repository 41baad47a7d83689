"""The measuring processes of a check, one at a time: what each is told, by when it answers, how it ended."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeVar

from gpubench.children import ChildEndedError, ChildLateError
from gpubench.errors import NoDeviceError
from gpubench.measure import messages, preflight
from gpubench.measure.budget import Budget
from gpubench.measure.child import STARTED, Child, Progress, environment_of, how_it_ended, next_report
from gpubench.measure.launcher import PHASE_LIMITS_S
from gpubench.measure.place import MODULE
from gpubench.measure.privacy import scrub
from gpubench.models import DeviceProfile
from gpubench.units import Seconds

SEED = 0
_Report = TypeVar("_Report")
_Answer = TypeVar("_Answer", bound=messages.CaseDone | messages.Proven)
_ANSWERED: tuple[type[messages.RoundDone | messages.CaseDone | messages.Proven], ...] = (
    messages.RoundDone,
    messages.CaseDone,
    messages.Proven,
)


class ProcessLostError(Exception):
    """A measuring process ended, fell silent or ran out of time before its answer; the message says which.

    ``late`` says that its time was over: it may have been at work.
    """

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class Phases:
    """Wall time of each phase of a part [s], and the one at hand; None while no process is at work."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = defaultdict(float)
        self.now: str | None = None
        self._since_s = time.monotonic()

    def enter(self, phase: str | None) -> None:
        """Note what the phase that ends took, and begin the next."""
        now_s = time.monotonic()
        if self.now is not None:
            self.took_s[self.now] += now_s - self._since_s
        self.now, self._since_s = phase, now_s


@dataclass
class Bench:
    """Asks the process of a case, and starts a new one where another, a spent one or none is there.

    Attributes:
        lost: Why nothing more can be measured on the device; None while it can.
        ready: What the latest process said of its libraries.
        phases: Those of the part at hand.
        starts: Processes started so far.
    """

    device: DeviceProfile
    budget: Budget
    module: str = MODULE
    lost: str | None = None
    ready: messages.Ready | None = None
    phases: Phases = field(default_factory=Phases)
    starts: int = 0
    _child: Child | None = None
    _memory_share: float | None = None

    def ask(
        self,
        order: messages.TryBatch | messages.MeasureCase | messages.Prove,
        kind: type[_Answer],
        until_s: Seconds,
        memory_share: float | None = None,
    ) -> _Answer:
        """Let a process try, measure or prove, and return its answer, which is of one kind.

        Raises:
            ProcessLostError: If it gave no answer; the process is gone then.
        """
        if self.lost is not None:
            raise ProcessLostError(self.lost)
        try:
            child = self._of(memory_share, until_s)
            self.phases.enter("build")
            child.send(order)
            while isinstance(answer := self._next(child, _ANSWERED, until_s), messages.RoundDone):
                pass
        except (ChildLateError, ChildEndedError) as error:
            raise self._without_answer(error, until_s) from error
        self.phases.enter(None)
        if answer.spent:
            self.close()
        if not isinstance(answer, kind):
            raise ProcessLostError(f"the measuring process sent {type(answer).__name__} out of step")
        if isinstance(answer, messages.CaseDone) and answer.lost:
            self.lost = answer.reason
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            self.phases.enter("end")
            self.lost = child.end() or self.lost
            self.phases.enter(None)

    def _of(self, memory_share: float | None, until_s: Seconds) -> Child:
        """Return a process that may take this share of the memory.

        Raises:
            NoDeviceError: If torch cannot work on the device at all.
        """
        if self._child is not None and self._memory_share == memory_share:
            return self._child
        self.close()
        self._memory_share, self.starts = memory_share, self.starts + 1
        child = self._child = Child(environment_of(self.device, os.environ), self.module)
        self.phases.enter("start")
        child.send(
            messages.Setup(device=self.device, budget=self.budget, seed=SEED, memory_share=memory_share)
        )
        report = self._next(child, STARTED, until_s)
        if isinstance(report, messages.Refused):
            self.close()
            self.lost = preflight.why_refused(NoDeviceError(report.reason), self.device)
            raise NoDeviceError(self.lost)
        self.ready = report
        return child

    def _next(self, child: Child, kinds: tuple[type[_Report], ...], until_s: Seconds) -> _Report:
        def by_s(phase: str) -> Seconds:
            silence_s = PHASE_LIMITS_S.get(phase, max(PHASE_LIMITS_S.values()))
            return min(until_s, time.monotonic() + silence_s)

        seen = Progress(phase=self.phases.now or "start")
        return next_report(child, kinds, by_s, lambda phase: self.phases.enter(phase.name), seen)

    def _without_answer(self, error: ChildLateError | ChildEndedError, until_s: Seconds) -> ProcessLostError:
        phase, late = self.phases.now or "start", time.monotonic() >= until_s
        self.close()
        fault = preflight.fault_of(self.device)
        if fault is not None:
            self.lost = preflight.describe_fault(fault)
            return ProcessLostError(self.lost)
        if late and isinstance(error, ChildLateError):
            return ProcessLostError(f"cut off during {phase}: its time was over", late=True)
        return ProcessLostError(scrub(how_it_ended(error, phase)))
