"""One process of a job, as torch's launcher starts it, until the first one needs it no more."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection

import msgspec

from gpubench.folders import traceback_of
from gpubench.measure.meeting import Place, is_echo
from gpubench.measure.messages import Setup
from gpubench.measure.privacy import scrub
from gpubench.parent import ParentChannel, die_with_parent
from gpubench.units import Seconds

SAY_LAST_S: Seconds = 5.0
ECHO_S: Seconds = 1.0
"""Whose neighbor is lost loses the connection: that is said so much later than the loss itself."""


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """What a process of a job died of, with its rank; ``traceback`` as in ``messages.CaseDone``."""

    reason: str
    traceback: str


def work(setup: bytes, commands: Connection, reports: Connection, launcher_pid: int) -> None:
    """Be one process of the job, the first or one of the others; never returns.

    What it dies of it says in the store, a model that exits included, and leaves no file of it.
    """
    die_with_parent(launcher_pid)
    place = Place.here()
    try:
        if place.rank == 0:
            from gpubench.measure.worker import serve_parent

            line = ParentChannel((os.dup(commands.fileno()), os.dup(reports.fileno())))
        with contextlib.closing(commands), contextlib.closing(reports):
            pass  # the pipes are the first one's alone
        if place.rank == 0:
            serve_parent(line, msgspec.json.decode(setup, type=Setup), place)
        else:
            from gpubench.measure.team import follow

            follow(msgspec.json.decode(setup, type=Setup), place)
    except BaseException as error:  # noqa: BLE001 - a model that exits is a loss too, with whatever status
        if is_echo(error):
            time.sleep(ECHO_S)
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it whom it would tell
            _say_last(place, error)
        traceback.print_exception(error)
        sys.stderr.flush()
    os._exit(1)


def last_words_at(rank: int) -> str:
    """Return where in the store a process leaves its last words."""
    return f"last words/{rank}"


def _say_last(place: Place, error: BaseException) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs lack it

    reason = scrub(f"rank {place.rank} of the job: {type(error).__name__}: {error}")
    trace = traceback_of(error)
    words = msgspec.json.encode(LastWords(reason=reason, traceback=trace)).decode()
    store = TCPStore(place.host, place.port, is_master=False, timeout=timedelta(seconds=SAY_LAST_S))
    store.set(last_words_at(place.rank), words)
