"""One process of a job, as torch's launcher starts it, until the first one needs it no more."""

from __future__ import annotations

import contextlib
import os
import time
from multiprocessing.connection import Connection

import msgspec

from gpubench.children import ParentChannel, die_with_parent
from gpubench.measure.messages import Setup
from gpubench.measure.place import Place, is_echo
from gpubench.measure.privacy import scrub
from gpubench.units import Seconds

ECHO_S: Seconds = 1.0
"""Whose neighbour is lost loses the connection: that is said so much later than the loss itself."""


class RankError(RuntimeError):
    """What a process of a job died of, with its rank."""


def work(setup: bytes, commands: Connection, reports: Connection, launcher_pid: int) -> None:
    """Be one process of the job, the first or one of the others; never returns of itself.

    Raises:
        RankError: Whatever it died of, a model that exits included; torch's launcher hands it on.
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
    except BaseException as error:  # a model that exits is a loss too, with whatever status
        if is_echo(error):
            time.sleep(ECHO_S)
        raise RankError(scrub(f"rank {place.rank} of the job: {type(error).__name__}: {error}")) from error
