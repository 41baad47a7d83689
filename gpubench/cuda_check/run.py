"""One check from plan to file: part by part, each within its time, the file replaced after every reading."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpubench.cuda_check.bench import Bench, Phases, ProcessLostError
from gpubench.cuda_check.parts import STEPS, PartFailedError, PartLeftOutError, Work
from gpubench.cuda_check.plan import AMOUNTS, COLD_START_S, Amounts, CheckPlan, make_plan
from gpubench.cuda_check.store import nameless, write_check
from gpubench.errors import InterruptedRunError, MisuseError, NoDeviceError, StorageError
from gpubench.folders import traceback_of
from gpubench.measure.child import MODULE, answering
from gpubench.measure.environment import environment
from gpubench.measure.estimate import PROCESS_START_S
from gpubench.measure.privacy import scrub, scrub_traceback
from gpubench.models import CudaCheck, DeviceProfile, PartLog, PartState
from gpubench.units import Seconds, utc_stamp

OPENING = frozenset({"device", "precision"})
"""Parts in which a device that cannot be used ends the check: nothing else could be done on it."""
LEAST_SHARE = 0.5
"""A part begins where at least this share of its expected time is left, its trials apart; what it does not
reach is named."""
STARTING = ("start", "import", "context")
"""Phases of the start of a process, before it does anything that a part asked for."""
BEFORE_TRIALS = frozenset({"precision", "clock", "graph", "load", "faults"})
"""Parts that may take the time of later trials: what they prove, the trials rest on."""

OnPart = Callable[[PartLog, int, int], None]
"""Told of each part as it begins and as it ends: its log, its number from 1, how many there are."""


def say_nothing(log: PartLog, number: int, total: int) -> None:
    """Watch no part."""
    del log, number, total


def check_cuda(
    device: DeviceProfile,
    path: Path,
    peers: tuple[DeviceProfile, ...] = (),
    *,
    full: bool = False,
    amounts: Amounts = AMOUNTS,
    on_part: OnPart = say_nothing,
    module: str = MODULE,
) -> CudaCheck:
    """Check the CUDA path of a device, and leave the readings in a file whatever happens.

    Args:
        device: An NVIDIA GPU.
        path: The file; replaced if it is there.
        peers: GPUs of the same kind beside it.
        full: Without a limit of time, and with nothing left out.
        amounts: How much of everything.
        on_part: Told of each part.
        module: What the measuring processes run.

    Returns:
        What was read; ``judge`` says what it means.

    Raises:
        MisuseError: If the device is no NVIDIA GPU.
        NoDeviceError: If something else computes on it, or torch cannot open it; the file says so.
        StorageError: If the file cannot be written.
        InterruptedRunError: If Ctrl-C or SIGTERM came; the file holds what was read before.
    """
    if not device.is_nvidia:
        raise MisuseError(f"check --cuda is for NVIDIA GPUs; this device is {device.backend}")
    made = make_plan(device, peers, full=full, amounts=amounts)
    bench = Bench(device, amounts.budget, module)
    check, save = _new_check(device, made), partial(write_check, path)
    work = Work(device=device, plan=made, bench=bench, check=check, save=save)
    work.save(work.check)
    try:
        with answering(_interrupt, signal.SIGTERM):
            _do_all(work, time.monotonic(), on_part)
    except KeyboardInterrupt:
        work.bench.close()  # here: a process that is ended for a signal is given no time
        for part in work.check.parts:
            if part.state is PartState.RUNNING:
                work.log(part.name, state=PartState.INTERRUPTED)
        raise InterruptedRunError(f"interrupted; what was read is in {path}") from None
    finally:
        work.bench.close()
    work.add(finished_at=utc_stamp())
    return work.check


def _new_check(device: DeviceProfile, made: CheckPlan) -> CudaCheck:
    return CudaCheck(
        started_at=utc_stamp(),
        full=made.full,
        limit_s=made.limit_s,
        device=nameless(device),
        environment=environment(device),
        parts=tuple(_new_log(name, made) for name in made.parts()),
        left_out=made.left_out,
        left_out_parts=made.left_out_parts,
    )


def _new_log(name: str, made: CheckPlan) -> PartLog:
    if name in made.given_up_s:
        reason = "this card is too slow for it within the limit: --full does it"
        expected_s = round(made.given_up_s[name], 3)
        return PartLog(name=name, expected_s=expected_s, state=PartState.LEFT_OUT, reason=reason)
    return PartLog(name=name, expected_s=round(made.expected_s[name], 3))


def _do_all(work: Work, began_s: Seconds, on_part: OnPart) -> None:
    names = [part.name for part in work.check.parts]
    for number, name in enumerate(names):
        log = work.part(name)
        until_s = _until_s(work.plan, names[number:], began_s)
        if log.state is PartState.LEFT_OUT:
            pass  # by the plan
        elif work.bench.lost is not None:
            work.log(name, state=PartState.LEFT_OUT, reason=scrub(work.bench.lost))
        elif until_s - time.monotonic() < LEAST_SHARE * work.plan.least_s(name):
            work.log(name, state=PartState.LEFT_OUT, reason="no time left: --full does it")
        else:
            work.until_s = until_s
            work.log(name, state=PartState.RUNNING)
            on_part(work.part(name), number + 1, len(names))
            _do(work, name)
            if name == "precision":
                _plan_anew(work)
        on_part(work.part(name), number + 1, len(names))


def _plan_anew(work: Work) -> None:
    """Plan what is left for a machine whose processes start late: each later one is expected to as well.

    Only the start counts: a part that took longer for another reason says nothing of later processes.
    """
    phases_s, made = work.part("precision").phases_s, work.plan
    late_start_s = sum(phases_s.get(phase, 0.0) for phase in STARTING) - PROCESS_START_S
    if made.limit_s is None or late_start_s <= COLD_START_S:
        return
    peers = made.scaling.peers if made.scaling is not None else ()
    work.plan = make_plan(work.device, peers, amounts=made.amounts, late_start_s=late_start_s)
    work.add(
        parts=tuple(
            _new_log(log.name, work.plan) if log.state is PartState.NOT_REACHED else log
            for log in work.check.parts
        ),
        left_out=work.plan.left_out,
        left_out_parts=work.plan.left_out_parts,
    )


def _until_s(plan: CheckPlan, names: list[str], began_s: Seconds) -> Seconds:
    """When the first of these parts must be over: what the later ones are expected to take is theirs."""
    if plan.limit_s is None:
        return math.inf
    later = [name for name in names[1:] if name in plan.expected_s]
    due_s = plan.least_s if names[0] in BEFORE_TRIALS else plan.expected_s.__getitem__
    return began_s + plan.limit_s - sum(map(due_s, later))


def _do(work: Work, name: str) -> None:
    """Do one part; whatever it dies of costs this part alone."""
    began_s = time.monotonic()
    work.bench.phases = Phases()
    state, reason, trace = PartState.DONE, None, ""
    try:
        STEPS[name](work)
    except (StorageError, KeyboardInterrupt):
        raise
    except NoDeviceError as error:
        state, reason = PartState.FAILED, str(error)
        if name in OPENING:
            work.log(name, state=state, reason=scrub(reason))
            raise
    except PartLeftOutError as error:
        state, reason = PartState.LEFT_OUT, str(error)
    except PartFailedError as error:
        state, reason, trace = PartState.FAILED, str(error), error.traceback or ""
    except ProcessLostError as error:
        state, reason = PartState.FAILED, str(error)
        if error.late:
            enough = work.until_s - began_s >= work.part(name).expected_s
            state = PartState.CUT_OFF if enough else PartState.LEFT_OUT
    except Exception as error:  # noqa: BLE001 - a fault of gpubench itself belongs into the file, too
        state, reason = PartState.FAILED, f"{type(error).__name__}: {error}"
        trace = traceback_of(error)
    work.log(
        name,
        state=state,
        reason=None if reason is None else scrub(reason),
        traceback=scrub_traceback(trace),
        took_s=round(time.monotonic() - began_s, 3),
        phases_s={phase: round(seconds, 3) for phase, seconds in work.bench.phases.took_s.items()},
    )


def _interrupt(number: int) -> None:
    """Let SIGTERM end the check as Ctrl-C does."""
    del number
    raise KeyboardInterrupt
