"""A run under a user's torchrun, which starts this same command in every process of one or more machines.

The first process measures and stores; the others work for it. A command is one launch: another is added with
``--resume``, by another torchrun. The processes that torchrun starts anew go on with what is stored.
"""

from __future__ import annotations

import itertools
import os
import signal
from datetime import UTC, datetime

import msgspec
import psutil

from gpubench.children import die_with_parent
from gpubench.errors import MisuseError
from gpubench.measure.child import environment_of
from gpubench.measure.environment import environment
from gpubench.measure.place import Place
from gpubench.measure.plan import Plan
from gpubench.measure.request import RunRequest
from gpubench.models import Run
from gpubench.precisions import TF32_VARIABLES
from gpubench.probe.backend import storable
from gpubench.probe.select import select_device, select_peers
from gpubench.units import utc_stamp

_runs = itertools.count()


def run_id() -> str:
    """Return the id of this process's next run: the same again after torchrun has started it anew."""
    agent = psutil.Process(os.getppid())
    began = datetime.fromtimestamp(agent.create_time(), UTC)
    return f"{began:%Y%m%dt%H%M%Sz}-{next(_runs) << 24 | agent.pid:08x}"


def spread(request: RunRequest, place: Place) -> RunRequest:
    """Return the request with the machines that torchrun tells, and the GPUs of each unless it names them."""
    gpus = place.local_size if request.gpus == 1 else request.gpus
    return msgspec.structs.replace(request, gpus=gpus, nnodes=place.machines)


def check_spread(request: RunRequest, place: Place | None) -> None:
    """Refuse other processes than are asked for, be it by a run to go on with.

    Raises:
        MisuseError: If they are others; it names the torchrun that starts them.
    """
    here = (request.gpus, 1) if place is None else (place.local_size, place.machines)
    if (request.gpus, request.nnodes) != here:
        raise MisuseError(
            f"the run is of {request.nnodes} x {request.gpus} processes: start it with torchrun --nnodes "
            f"{request.nnodes} --nproc-per-node {request.gpus} ... -m gpubench run"
        )


def one_launch(made: Plan) -> Plan:
    """Return a plan with one launch more than every case of it has."""
    cases = [case for case, _ in made.done]
    launches = 1 + min((cases.count(planned.case) for planned in made.cases), default=0)
    return msgspec.structs.replace(made, budget=msgspec.structs.replace(made.budget, launches=launches))


def follow(request: RunRequest, place: Place) -> Run:
    """Work for the first process until its run is over; the run that is returned has no rows.

    Raises:
        MisuseError: If the first process has another gpubench or torch.
        NoDeviceError: If this machine has too few devices.
    """
    die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends its round, and lets the others go
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's own would wait for an exchange that hangs
    device, _ = select_device(request.device)
    peers = select_peers(device, place.local_size)
    variables = environment_of(device, os.environ, peers=peers)
    for name in TF32_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(variables)
    from gpubench.measure import team  # which imports torch, with these variables

    team.follow(place, (device, *peers))
    return Run(
        run_id=run_id(),
        started_at=utc_stamp(),
        budget=request.budget or "default",
        seed=request.seed,
        device=storable(device),
        environment=environment(device),
    )
