"""One check: part by part, each within its time, the file replaced after every reading."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpubench.cuda_check.bench import Bench, Phases, ProcessLostError
from gpubench.cuda_check.parts import AMOUNTS, STEPS, Amounts, PartFailedError, PartLeftOutError, Work
from gpubench.cuda_check.store import nameless, write_check
from gpubench.errors import InterruptedRunError, MisuseError, NoDeviceError, StorageError
from gpubench.folders import traceback_of
from gpubench.measure.child import answering
from gpubench.measure.environment import environment
from gpubench.measure.place import MODULE
from gpubench.measure.privacy import scrub, scrub_traceback
from gpubench.models import CudaCheck, DeviceProfile, PartLog, PartState
from gpubench.units import Seconds, utc_stamp

LIMIT_S: Seconds = 300.0
"""Of the whole check, unless all of it is asked for."""
PART_SHARE = 0.6
"""Of the time that is left, what a part may take, so that one that hangs leaves some to those after it."""
LEAST_PART_S: Seconds = 10.0
"""A part with less time than this is not begun: a process alone takes five seconds to start."""
OPENING = frozenset({"device", "precision"})
"""Parts in which a device that cannot be used ends the check: nothing else could be done on it."""

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
    names = [name for name in STEPS if name != "scaling" or peers]
    check = CudaCheck(
        started_at=utc_stamp(),
        full=full,
        limit_s=None if full else LIMIT_S,
        device=nameless(device),
        environment=environment(device),
        parts=tuple(PartLog(name=name) for name in names),
    )
    bench, save = Bench(device, amounts.budget, module), partial(write_check, path)
    work = Work(device=device, peers=peers, amounts=amounts, bench=bench, check=check, save=save)
    work.save(work.check)
    try:
        with answering(_interrupt, signal.SIGTERM):
            _do_all(work, time.monotonic() + (check.limit_s or math.inf), on_part)
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


def _do_all(work: Work, end_s: Seconds, on_part: OnPart) -> None:
    """Do one part after the other; the last one has all the time that is left."""
    names = [part.name for part in work.check.parts]
    for number, name in enumerate(names):
        left_s = end_s - time.monotonic()
        share = 1.0 if name == names[-1] else PART_SHARE
        work.until_s = time.monotonic() + share * left_s
        if work.bench.lost is not None:
            work.log(name, state=PartState.LEFT_OUT, reason=scrub(work.bench.lost))
        elif left_s < LEAST_PART_S:
            work.log(name, state=PartState.LEFT_OUT, reason="no time left: --full does it")
        else:
            work.log(name, state=PartState.RUNNING)
            on_part(work.part(name), number + 1, len(names))
            _do(work, name)
        on_part(work.part(name), number + 1, len(names))


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
        state, reason = PartState.CUT_OFF if error.late else PartState.FAILED, str(error)
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
