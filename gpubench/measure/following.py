"""A machine beside the first of a job: it starts its processes and does what the first one says."""

from __future__ import annotations

import os
import time

from gpubench.children import ChildEndedError, ChildLateError
from gpubench.errors import EveryCaseFailedError, InterruptedRunError, MisuseError, NoDeviceError
from gpubench.measure import events, messages
from gpubench.measure.child import JOB_MODULE, Child, Control, environment_of
from gpubench.measure.events import OnEvent
from gpubench.measure.meeting import BEGUN, Meeting
from gpubench.measure.plan import Plan
from gpubench.models import DeviceProfile, Status
from gpubench.units import Seconds, format_duration

COME_LIMIT_S: Seconds = 300.0
"""For the command on the first machine to be given after this one."""
KNOCK_EVERY_S: Seconds = 1.0
LOOK_EVERY_S: Seconds = 1.0


def follow_jobs(
    plan: Plan, device: DeviceProfile, meeting: Meeting, on_event: OnEvent, control: Control
) -> None:
    """Take part in every job of the first machine's run, until it no longer listens.

    Raises:
        NoDeviceError: If the first machine cannot be reached within ``COME_LIMIT_S``.
        EveryCaseFailedError: If the last job ended otherwise than the first machine meant it to.
        InterruptedRunError: If this one was stopped.
    """
    where = f"{meeting.host}:{meeting.port}"
    on_event(events.Remark(text=f"waiting for the first machine of the job at {where}"))
    until_s = time.monotonic() + COME_LIMIT_S
    while not meeting.answers():
        if control.stopping.is_set():
            raise InterruptedRunError("stopped before the job began")
        if time.monotonic() > until_s:
            raise NoDeviceError(
                f"nobody answered at {where} for {format_duration(COME_LIMIT_S)}: give the same command on "
                "the machine that has this address, and see that no firewall is between"
            )
        time.sleep(KNOCK_EVERY_S)
    over: messages.JobOver | None = None
    while meeting.answers() and not control.stopping.is_set():
        over = _take_part(plan, device, meeting, control) or over
        time.sleep(KNOCK_EVERY_S)
    if control.stopping.is_set():
        raise InterruptedRunError("stopped; the first machine keeps what is finished")
    if over is not None and over.status is not Status.OK:
        raise EveryCaseFailedError(f"the last job failed: {over.reason}")


def _take_part(
    plan: Plan, device: DeviceProfile, meeting: Meeting, control: Control
) -> messages.JobOver | None:
    """Start the processes of one job and wait for its end; None where there was none to take part in.

    Raises:
        MisuseError: If this machine is no part of that job.
    """
    variables = environment_of(device, os.environ, peers=plan.peers)
    begun = False
    try:
        child = control.child = Child(
            variables | meeting.variables(variables), JOB_MODULE, arguments=meeting.arguments()
        )
    except ChildEndedError as error:
        return messages.JobOver(status=Status.FAILED, reason=f"the launching process {error}")
    try:
        child.send(messages.Setup(device=device, budget=plan.budget, seed=plan.seed, peers=plan.peers))
        while not control.stopping.is_set():
            try:
                report = child.receive(time.monotonic() + LOOK_EVERY_S)
            except ChildLateError:
                if begun or meeting.answers():
                    continue
                return None  # the run ended before another job began
            except ChildEndedError as error:
                lost = messages.JobOver(status=Status.FAILED, reason=f"the launching process {error}")
                return lost if begun else None
            match report:
                case messages.Phase(name=name):
                    begun = begun or name == BEGUN
                case messages.JobOver(status=Status.UNSUPPORTED, reason=reason):
                    raise MisuseError(reason)
                case messages.JobOver():
                    return report if begun else None
    finally:
        control.child = None
        child.end()
    return None
