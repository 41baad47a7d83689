"""Runs several GPUs in one job: one process each, all in step with the first.

The processes train one model, with a whole copy (DDP) or a part (FSDP2) in each, or they work independently.
torchrun starts them. The parent talks only to the first process, which alone decides and times. The first
process announces each block of steps before it starts its clock, and the others carry out the announcement.
Announcements go through torch's store, waits through gloo, and the exchanges within a step through NCCL (gloo
on a CPU).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed, nn
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined] # its stubs lack them
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from gpubench import __version__
from gpubench.children import die_with_parent, exit_words
from gpubench.errors import InterruptedRunError, MisuseError
from gpubench.foreign_code import one_line
from gpubench.measure import guards
from gpubench.measure.capability import NotHereError, no_blocks
from gpubench.measure.guards import Advance
from gpubench.measure.launch import LostError
from gpubench.measure.loop import Clock
from gpubench.measure.messages import STORE_VARIABLE, MeasureCase, Place, Setup
from gpubench.measure.step import Hardware, Work, built, check_device, move, open_hardware, switches_for
from gpubench.models import Case, DeviceProfile, ParallelMode, TaskKind
from gpubench.profile.blocks import repeated_blocks
from gpubench.units import Bytes, Seconds, listing, plain
from gpubench.workload import Task, forward


def place_model(model: nn.Module, case: Case, device: torch.device) -> nn.Module:
    """Put a model on the device: all of it or, in a sharded case, this process's part of each block.

    A sharded model is moved from the host block by block, so no device ever holds all of it.

    Raises:
        NotHereError: If a model to be sharded has no blocks, or this torch cannot shard.
    """
    if case.parallel_mode is not ParallelMode.FSDP:
        return model.to(device)
    blocks = repeated_blocks(model)
    if not blocks:
        raise NotHereError(no_blocks(case.workload))
    fully_shard = _fully_shard(device)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for part in (*blocks, model):
        for tensor in (*part.parameters(), *part.buffers()):
            if tensor.device.type == "meta" or hasattr(tensor, "to_local"):
                continue  # already sharded as part of a block
            with torch.no_grad():
                tensor.data = tensor.data.to(device)
                distributed.broadcast(tensor.data, 0)  # the first process's values
        fully_shard(part, mesh=mesh)
    return model


def share(work: Work) -> Work:
    """Return the work with a model that averages its gradients over all processes, if the case needs that.

    Each process has its own batches and starts from the first process's parameters. Inference and independent
    jobs exchange nothing, and a sharded model averages its own gradients.
    """
    if work.case.task is not TaskKind.TRAIN or work.case.parallel_mode is not ParallelMode.DDP:
        return work
    device_ids = None if Hardware(device=work.device).is_cpu else [work.device]
    model = DistributedDataParallel(
        work.model, device_ids=device_ids, find_unused_parameters=_leaves_some_unused(work)
    )
    return dataclasses.replace(work, model=model)


def _leaves_some_unused(work: Work) -> bool:
    # Whether a step leaves a parameter, such as an unused head, without a gradient in at least one process.
    # DistributedDataParallel then fails at its second step unless it looks for unused parameters.
    trained = [p for p in work.model.parameters() if p.requires_grad]
    is_missing = False
    for inputs, targets in work.batches:
        with work.autocast():
            loss = work.loss(forward(work.model, inputs), targets)
        loss.backward()
        is_missing |= any(p.grad is None for p in trained)
        for parameter in trained:
            parameter.grad = None
    found = torch.tensor([float(is_missing)], device=work.device)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
    return bool(found)


def _fully_shard(device: torch.device) -> Callable[..., Any]:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        if device.type != "cuda":
            raise NotHereError(
                f"torch {torch.__version__} shards a model only on CUDA devices: use --jobs ddp, "
                "or a newer torch"
            ) from None
        try:
            # the module of torch 2.4 and 2.5
            from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]
        except ImportError:
            raise NotHereError(f"torch {torch.__version__} has no fully_shard: fsdp needs 2.4") from None
    return fully_shard


# Time for the other processes to create their contexts, and for any single exchange afterward.
EXCHANGE_LIMIT = timedelta(minutes=5)
# Longest wait of a process for the next announcement; the process ends sooner if its torchrun ends.
PATIENCE = timedelta(days=1)
# When a process is lost, torchrun ends the job within this time, and reports the cause.
END_OF_JOB_S: Seconds = 5.0
# When a process is lost, the one watching it reports the cause within this time; then torchrun ends rank 0.
REPORT_OF_LOSS_S: Seconds = 1.5
JOB, LOST, CUT_OFF = "job", "lost", "cut off"
"""Keys in the store: the latest job, why it lost a process, and whether another process noticed the loss."""
POLL_EVERY_S: Seconds = 0.1
WATCH_EVERY_S: Seconds = 0.25
# Longest wait for each process to learn that all work is over; a lost process never does [s].
FAREWELL_S: Seconds = 3.0
VERSIONS = f"gpubench {__version__} and torch {str(torch.__version__).partition('+')[0]}"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """The first process's call to join a job; without a ``setup``, the message that all work is over.

    ``key`` is unique to this job, because torchrun's store keeps the entries of earlier jobs.
    """

    setup: Setup | None
    key: str = msgspec.field(default_factory=lambda: os.urandom(8).hex())
    versions: str = VERSIONS


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="steps"):
    """One block: ``count`` steps from index ``first`` on, between two waits for all processes."""

    first: int
    count: int


class ReferencePass(msgspec.Struct, frozen=True, kw_only=True, tag="reference"):
    """The forward pass that compares a sharded model's first loss with the CPU's."""


class AllReduce(msgspec.Struct, frozen=True, kw_only=True, tag="all_reduce"):
    """One block: ``count`` sums of ``size`` bytes over all processes, between two waits for all of them."""

    size: Bytes
    count: int


class Over(msgspec.Struct, frozen=True, kw_only=True, tag="over"):
    """The end of the job, at which the other processes leave it."""


Announcement = MeasureCase | Over | Steps | ReferencePass | AllReduce

_decoder: msgspec.json.Decoder[Announcement] = msgspec.json.Decoder(Announcement)


class Team:
    """The other processes of a job, as seen from the first.

    Attributes:
        size, local_size: Number of processes in total, and on this machine.
        kinds: Device names in rank order.
    """

    def __init__(self, setup: Setup, hardware: Hardware, place: Place) -> None:
        """Wait until all processes have joined.

        Raises:
            RuntimeError: From torch, if one of them cannot be reached.
        """
        self.size, self.local_size = place.size, place.local_size
        self._hardware = hardware
        self._announced = 0
        call = Call(setup=setup)
        call_others(open_store(), call, place.size)
        self._store = _join(call, place, hardware, setup.device)
        kinds = (self._store.get(f"device/{rank}") for rank in range(self.size))
        self.kinds = tuple(plain(kind.decode(), 60) for kind in kinds)

    @property
    def unequal(self) -> str | None:
        """The names and numbers of the devices if they differ (the slowest sets the pace); else None."""
        kinds = {kind: self.kinds.count(kind) for kind in self.kinds}
        return listing(f"{count} × {kind}" for kind, count in kinds.items()) if len(kinds) > 1 else None

    def announce(self, what: Announcement) -> None:
        """Send the next command to the other processes."""
        self._store.set(str(self._announced), msgspec.json.encode(what).decode())
        self._announced += 1

    def announce_steps(self, first: int, count: int) -> None:
        """Announce a block of steps to the other processes; it begins and ends with the clock's waits."""
        self.announce(Steps(first=first, count=count))

    def once(self, advance: Advance) -> Advance:
        """Return the function that runs one step as its own block."""

        def block(index: int) -> Tensor:
            self.announce_steps(index, 1)
            self.wait()
            result = advance(index)
            self.wait()
            return result

        return block

    def clock(self) -> Clock:
        """Return the clock that waits for the device and then for the other processes."""
        return Clock(synchronize=self.wait)

    def wait(self) -> None:
        """Wait for this process's device, then for all processes."""
        _wait(self._hardware)

    def cause_of(self, error: BaseException) -> BaseException:
        """Return the report on a lost process if its loss caused the error; else the error itself."""
        if not _follows_from_loss(error):
            return error
        if STORE_VARIABLE in os.environ:
            time.sleep(END_OF_JOB_S)  # gpubench's torchrun reports to the parent, then ends this process
        until_s = time.monotonic() + REPORT_OF_LOSS_S
        while not self._store.check([LOST]):
            if time.monotonic() > until_s:
                return LostError("rank 0 of the job lost its connection to another rank, cause unknown")
            time.sleep(POLL_EVERY_S)
        return LostError(plain(self._store.get(LOST).decode(), 500))


def _follows_from_loss(error: BaseException) -> bool:
    # Whether an exchange failed because another process is gone.
    of_torch = getattr(distributed, "DistError", ())  # a RuntimeError in newer versions
    of_gloo = isinstance(error, RuntimeError) and re.search("gloo|Connection closed", f"{error}")
    return bool(of_gloo) or isinstance(error, of_torch)


@functools.cache
def open_store(*, is_master: bool = False) -> Store:
    """Return the store of the job: a file if gpubench has started torchrun, else at torchrun's address."""
    if path := os.environ.get(STORE_VARIABLE):
        store: Store = FileStore(path)
    else:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=is_master, wait_for_workers=False)
    store.set_timeout(PATIENCE)
    return store


def call_others(store: Store, call: Call, size: int) -> None:
    """Send the call to every other process, in the order of their ranks."""
    store.set(JOB, call.key)
    for rank in range(1, size):
        store.delete_key(f"here/{rank}")  # left by a process that ended, or that answered another call
        token = store.get(f"here/{rank}").decode()
        store.set(f"call/{token}", msgspec.json.encode(call).decode())


def answer_call(store: Store, rank: int) -> Call:
    """Announce this process until the first process calls it, and return the call.

    Raises:
        MisuseError: If the first process has another version of gpubench or torch.
    """
    token = os.urandom(8).hex()
    while not store.check([f"call/{token}"]):
        store.set(f"here/{rank}", token)
        time.sleep(POLL_EVERY_S)
    call = msgspec.json.decode(store.get(f"call/{token}"), type=Call)
    if call.versions != VERSIONS:
        raise MisuseError(
            f"rank {rank} has {VERSIONS}, but rank 0 has {call.versions}: install the same versions"
        )
    return call


@contextlib.contextmanager
def keeping_others(place: Place) -> Iterator[None]:
    """Keep open the store at which the other processes of a user's torchrun wait; release them at the end.

    Raises:
        InterruptedRunError: If a process no longer answers; torchrun ends the rest, or restarts all of them.
    """
    store = open_store(is_master=os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "True")
    yield
    store.set_timeout(timedelta(seconds=FAREWELL_S))
    try:
        call_others(store, Call(setup=None), place.size)
    except RuntimeError:
        raise InterruptedRunError("a process of the job was lost; finished cases are stored") from None


@record
def follow(place: Place, devices: Sequence[DeviceProfile] = ()) -> None:
    """Run as a process other than the first: take part in its jobs until it says that all work is over.

    Args:
        place: The place of this process.
        devices: Devices of this machine; empty if the first process is on this machine and sends them.
    """
    # gpubench's own torchrun, unlike a user's, reports to the parent how a process ended.
    is_own_torchrun = STORE_VARIABLE in os.environ
    while (call := answer_call(open_store(), place.rank)).setup is not None:
        known = devices or (call.setup.device, *call.setup.peers)
        take_part = functools.partial(_take_part, call, call.setup, place, known)
        if is_own_torchrun or torch.cuda.is_initialized():
            take_part()
        else:
            _watch(take_part, PrefixStore(call.key, open_store()), call, place)


def _watch(take_part: Callable[[], None], store: Store, call: Call, place: Place) -> None:
    # Take part in a job in a child process, and report to the first process if the child is killed.
    # This process then ends as the child did, so torchrun reacts as configured. A child that is still running
    # when the next job has begun is hung, so it is killed.
    child = get_context("fork").Process(target=_begin, args=(take_part, os.getpid()))
    child.start()
    while child.exitcode is None:
        child.join(WATCH_EVERY_S)
        if child.is_alive() and open_store().get(JOB).decode() != call.key:
            child.kill()
            child.join()
            if store.check([CUT_OFF]):  # another process was lost, so this one fails too
                raise SystemExit(1)
            return
    if child.exitcode < 0:
        store.set(LOST, f"rank {place.rank} of the job {exit_words(child.exitcode)}")
        os.kill(os.getpid(), -child.exitcode)
    if child.exitcode:
        raise SystemExit(child.exitcode)


def _begin(take_part: Callable[[], None], parent_pid: int) -> None:
    # Run in the child of ``_watch``.
    die_with_parent(parent_pid)
    open_store.cache_clear()  # the cached connection is the parent's
    record(take_part)()


def _take_part(call: Call, setup: Setup, place: Place, devices: Sequence[DeviceProfile]) -> None:
    # Carry out what the first process announces until the end of the job, or report why that failed.
    store = PrefixStore(call.key, open_store())
    try:
        _do_announced(call, setup, place, devices)
        distributed.destroy_process_group()
    except (Exception, SystemExit) as error:
        if _follows_from_loss(error):
            store.set(CUT_OFF, "")
            time.sleep(END_OF_JOB_S)  # torchrun must learn the cause first
            raise
        store.set(LOST, f"rank {place.rank} of the job: {one_line(error)}")
        if not isinstance(error, SystemExit):
            raise
        # torchrun would count SystemExit as success
        raise RuntimeError(f"the model ended its process: SystemExit: {error}") from error


def _do_announced(call: Call, setup: Setup, place: Place, devices: Sequence[DeviceProfile]) -> None:
    profile = devices[place.local_rank]
    hardware = open_hardware(profile, place.local_rank)
    check_device(profile, place.local_rank)
    store = _join(call, place, hardware, profile)
    work: Work | None = None
    task: Task | None = None
    for number in itertools.count():
        match _decoder.decode(store.get(str(number))):
            case MeasureCase() as order:
                work = task = None  # before the next ones are built, because memory may not suffice for both
                hardware.release()
                try:
                    task, work = _built(order, setup.seed + place.rank, hardware)
                except NotHereError:
                    continue  # the first process fails in the same way, and reports it
            case ReferencePass():
                assert work is not None  # a case always comes before commands on it
                assert task is not None
                with switches_for(work.case.precision):  # the expected loss and the result do not matter here
                    guards.reference_errors(work, task, guards.Expected(0.0, is_whole=True))
            case Steps() as block:
                assert work is not None
                _run_block(work, block, hardware)
            case AllReduce() as block:
                _sum_up(block, hardware)
            case Over():
                return


def _join(call: Call, place: Place, hardware: Hardware, profile: DeviceProfile) -> Store:
    # Join the process group: gloo for waiting, and for gradients too if there is no NCCL.
    if hardware.is_cpu:
        # Processes that each use all cores would wait for one another.
        torch.set_num_threads(_own_threads(place.local_size))
    store = PrefixStore(call.key, open_store())
    store.set(f"device/{place.rank}", profile.name or profile.backend)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if hardware.is_cuda else "gloo",
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.size,
        timeout=EXCHANGE_LIMIT,
    )
    return store


@functools.cache
def _own_threads(processes: int) -> int:
    return max(1, torch.get_num_threads() // processes)


def _wait(hardware: Hardware) -> None:
    hardware.clock().synchronize()
    distributed.all_reduce(torch.zeros(1))


def _sum_up(block: AllReduce, hardware: Hardware) -> None:
    tensor = torch.zeros(block.size // 4, device=hardware.device)
    _wait(hardware)
    for _ in range(block.count):
        distributed.all_reduce(tensor)
    _wait(hardware)


def _built(order: MeasureCase, seed: int, hardware: Hardware) -> tuple[Task, Work]:
    # Build the same task with a seed per process, so each process has different samples.
    task = built(order.reference, order.case, seed)
    torch.manual_seed(seed)
    with switches_for(order.case.precision):
        return task, share(move(task, order.case, hardware.device, place_model))


def _run_block(work: Work, block: Steps, hardware: Hardware) -> None:
    with switches_for(work.case.precision):
        _wait(hardware)
        for index in range(block.first, block.first + block.count):
            work.step(index)
        _wait(hardware)
