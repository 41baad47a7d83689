"""Several GPUs in one data-parallel job: one process each, all in step with the first.

The first process is the one that the parent talks to: it alone decides and times. Before the clock of a
block starts it announces the block; the others do what is announced and nothing else. torch averages the
gradients (DistributedDataParallel, over NCCL; over gloo on a CPU), and its store carries the announcements.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import threading
import time
from datetime import timedelta

import msgspec
import torch
from torch import Tensor, distributed
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined] # its stubs lack them
from torch.multiprocessing.spawn import ProcessContext, spawn
from torch.nn.parallel import DistributedDataParallel

from gpubench.children import die_with_parent
from gpubench.measure.clock import Clock
from gpubench.measure.execution import Advance
from gpubench.measure.hardware import Hardware, check_device, open_hardware
from gpubench.measure.messages import MeasureCase, Setup
from gpubench.measure.precision import switches_for
from gpubench.measure.privacy import scrub
from gpubench.measure.step import Work, built, move
from gpubench.models import Status, TaskKind
from gpubench.units import Seconds
from gpubench.workload import says_no_memory

HOST = "127.0.0.1"
LAUNCH_LIMIT = timedelta(minutes=5)
"""For the others to import torch and make their contexts, and for any one exchange afterwards."""
PATIENCE = timedelta(days=1)
"""How long a process waits for the next announcement; its parent's end ends it sooner."""
LOOK_EVERY_S: Seconds = 0.5
SAY_IT_S: Seconds = 3.0
"""When a process is lost, the first has this long to report its case before it ends too."""
_FAULT = "fault"


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="steps"):
    """One block: ``count`` steps from index ``first`` on, opened and closed by a wait for all."""

    first: int
    count: int


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[MeasureCase | Steps] = msgspec.json.Decoder(MeasureCase | Steps)


class Team:
    """The other processes of a job, as the first one sees them."""

    def __init__(self, setup: Setup, hardware: Hardware) -> None:
        """Start a process for each peer of the setup, and wait until all have joined.

        Raises:
            RuntimeError: As torch raises it when one of them cannot be reached.
        """
        self.size = 1 + len(setup.peers)
        self._hardware = hardware
        self._announced = 0
        self._store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        arguments = (self._store.port, _encoder.encode(setup), os.getpid())
        context = spawn(_follow, args=arguments, nprocs=self.size - 1, join=False)
        assert isinstance(context, ProcessContext)  # None only where spawn itself waits
        threading.Thread(target=self._watch, args=(context,), name="team", daemon=True).start()
        _join(0, self.size, self._store, hardware)

    def announce(self, what: MeasureCase | Steps) -> None:
        """Tell the others what comes next."""
        self._store.set(str(self._announced), _encoder.encode(what).decode())
        self._announced += 1

    def announce_steps(self, first: int, count: int) -> None:
        """Tell the others of a block of steps; the clock's own waits open and close it."""
        self.announce(Steps(first=first, count=count))

    def once(self, advance: Advance) -> Advance:
        """Return the function that does one step as a block of its own."""

        def block(index: int) -> Tensor:
            self.announce_steps(index, 1)
            self.wait()
            result = advance(index)
            self.wait()
            return result

        return block

    def clock(self) -> Clock:
        """Return the clock that waits for the device and then for the others."""
        return Clock(synchronise=self.wait)

    def wait(self) -> None:
        """Wait for the own device, then for all processes."""
        _wait(self._hardware)

    def fault(self) -> tuple[Status, str] | None:
        """Return what another process died of; None if none has."""
        if not self._store.check([_FAULT]):
            return None
        text = self._store.get(_FAULT).decode("utf-8", "replace")
        return (Status.OUT_OF_MEMORY if says_no_memory(text) else Status.FAILED), text

    def _watch(self, context: ProcessContext) -> None:
        """End this process when another is lost: NCCL would wait for it."""
        try:
            while not context.join(timeout=LOOK_EVERY_S):
                pass
        except Exception:  # noqa: BLE001 - torch reports the loss in several kinds; the store says why
            time.sleep(SAY_IT_S)
            fault = self.fault()
            sys.stderr.write(f"{fault[1] if fault else 'another process of the job was lost'}\n")
            sys.stderr.flush()
            os._exit(1)


def share(work: Work) -> Work:
    """Return the work as one process's share of the job: its gradients are averaged with all others'.

    Each process has its own batches, and the first one's parameters. Inference exchanges nothing.
    """
    if work.case.task is not TaskKind.TRAIN:
        return work
    device_ids = None if work.device.type == "cpu" else [work.device]
    return dataclasses.replace(work, model=DistributedDataParallel(work.model, device_ids=device_ids))


def _join(rank: int, size: int, store: Store, hardware: Hardware) -> None:
    """Enter the process group: gloo for waiting, and for gradients too where there is no NCCL."""
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if hardware.is_cuda else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=size,
        timeout=LAUNCH_LIMIT,
    )


def _wait(hardware: Hardware) -> None:
    hardware.clock().synchronise()
    distributed.all_reduce(torch.zeros(1))


def _follow(place: int, port: int, setup: bytes, parent_pid: int) -> None:
    """Be one of the other processes, ``place`` counted from 0; never returns of itself."""
    die_with_parent(parent_pid)
    store = TCPStore(HOST, port, is_master=False, timeout=PATIENCE)
    try:
        _serve(place + 1, store, msgspec.json.decode(setup, type=Setup))
    except BaseException as error:  # a model that exits is a loss too, with whatever status
        fault = scrub(f"GPU {place + 1} of the job: {type(error).__name__}: {error}")
        store.set(_FAULT, fault)
        raise RuntimeError(fault) from error


def _serve(rank: int, store: TCPStore, setup: Setup) -> None:
    profile = setup.peers[rank - 1]
    hardware = open_hardware(profile, rank)
    check_device(profile, rank)
    _join(rank, 1 + len(setup.peers), store, hardware)
    work: Work | None = None
    for number in itertools.count():
        match _decoder.decode(store.get(str(number))):
            case MeasureCase() as order:
                work = None  # before the next one is built: both would not fit
                hardware.release()
                work = _built(order, setup.seed + rank, hardware)
            case Steps() as block:
                assert work is not None  # a case comes before its steps
                _do(work, block, hardware)


def _built(order: MeasureCase, seed: int, hardware: Hardware) -> Work:
    """The same task from a seed of its own, so that each process has other samples."""
    task = built(order.reference, order.case, seed)
    torch.manual_seed(seed)
    return share(move(task, order.case, hardware.device))


def _do(work: Work, block: Steps, hardware: Hardware) -> None:
    with switches_for(work.case.precision):
        _wait(hardware)
        for index in range(block.first, block.first + block.count):
            work.step(index)
        _wait(hardware)
