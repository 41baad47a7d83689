"""The processes of one job on one machine: torch's elastic launch starts them, a thread watches over them.

Between machines stands torch's store, on the first of them. Each gives a sign of life there once a second,
and who fails says so there. A thread of its own judges, so that no call that hangs keeps the end from being
said.
"""

from __future__ import annotations

import os
import select
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection

import msgspec
import torch
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # its stubs lack them
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gpubench import __version__
from gpubench.foreign_code import says_no_memory
from gpubench.measure import rank
from gpubench.measure.meeting import BEGUN, Meeting
from gpubench.measure.messages import JobOver, Phase, Setup
from gpubench.measure.privacy import scrub
from gpubench.models import Status
from gpubench.parent import ParentChannel
from gpubench.precisions import TF32_VARIABLES
from gpubench.units import Seconds, format_duration

BACKEND = "gpubench"
JOIN_LIMIT_S: Seconds = 300.0
"""For the machines to come together, whose commands people type one after the other."""
PULSE_S: Seconds = 1.0
LOOK_EVERY_S: Seconds = 0.25
FAREWELL_S: Seconds = 1.5
"""The store ends with the first machine: so long it waits for the others to have read why."""


class JoinError(Exception):
    """This machine is no part of the job that it came to."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is over, as machines tell each other."""

    status: Status
    reason: str


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same on every machine, in the words of its user.

    ``variables`` are the first one's, which each machine takes: they are read when the math libraries load.
    """

    nnodes: int
    gpus: int
    gpubench: str
    torch: str
    variables: dict[str, str] = {}


_told = msgspec.json.Decoder(Told)
_terms = msgspec.json.Decoder(Terms)
_last_words = msgspec.json.Decoder(rank.LastWords)


def run_ranks(line: ParentChannel) -> None:
    """Start a process for each GPU of this machine, and end with the first of them that ends."""
    setup = line.first_line()
    local_size = 1 + len(msgspec.json.decode(setup, type=Setup).peers)
    meeting = Meeting.of(line.arguments)
    watch = Watch(line, meeting)
    door = Door(meeting, local_size, watch)
    rendezvous_handler_registry.register(BACKEND, door.open)
    config = LaunchConfig(
        min_nodes=meeting.machines,
        max_nodes=meeting.machines,
        nproc_per_node=local_size,
        run_id="job",
        rdzv_backend=BACKEND,
        rdzv_endpoint=f"{meeting.host}:{meeting.port}",
        max_restarts=0,  # a case whose process is lost has failed: the parent decides what comes next
        monitor_interval=0.1,
        logs_specs=NoFiles(),
    )
    try:
        pipes = Connection(line.read_fd, writable=False), Connection(line.write_fd, readable=False)
        elastic_launch(config, rank.work)(setup, *pipes, os.getpid())
    except ChildFailedError as error:
        watch.end(*_cause(error, door.store))
    except JoinError as error:
        watch.end(Status.UNSUPPORTED, str(error))
    except Exception as error:  # noqa: BLE001 - torch reports a meeting that fails in several kinds
        watch.end(Status.FAILED, scrub(f"the job could not be started: {error}"))
    watch.end(Status.FAILED, "every process of the job has ended before its time")


def _cause(error: ChildFailedError, store: TCPStore | None) -> tuple[Status, str, str | None]:
    """Say which process was lost first, and of what."""
    number, failure = error.get_first_failure()
    key = rank.last_words_at(number)
    if store is not None and store.check([key]):
        said = _last_words.decode(store.get(key))
        status = Status.OUT_OF_MEMORY if says_no_memory(said.reason) else Status.FAILED
        return status, said.reason, said.traceback
    how = f"ended with status {failure.exitcode}"
    if failure.exitcode < 0:
        how = f"was ended by signal {-failure.exitcode} ({failure.signal_name()})"
    return Status.FAILED, f"rank {number} of the job {how}", None


class NoFiles(LogsSpecs):
    """What the processes print goes where it always does, and what they die of is said in the store.

    torch would keep both in files, which stay behind where all are killed at once.
    """

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return a place in no folder for each process."""
        nowhere = dict.fromkeys(envs, "")
        return LogsDest(stdouts=nowhere, stderrs=nowhere, tee_stdouts={}, tee_stderrs={}, error_files=nowhere)

    @property
    def root_log_dir(self) -> str:
        """Return the name of no folder."""
        return ""


class Door(RendezvousHandler):
    """How torch's launcher comes into the job: who listens is the first machine, the others are counted."""

    def __init__(self, meeting: Meeting, local_size: int, watch: Watch) -> None:
        self.store: TCPStore | None = None
        self._meeting = meeting
        self._watch = watch
        self._terms = Terms(
            nnodes=meeting.machines,
            gpus=local_size,
            gpubench=__version__,
            torch=str(torch.__version__).partition("+")[0],
            variables={name: os.environ[name] for name in TF32_VARIABLES if name in os.environ},
        )

    def open(self, parameters: RendezvousParameters) -> Door:
        """Return itself: the parameters say nothing that it does not know."""
        del parameters
        return self

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all machines have come.

        Raises:
            JoinError: If this one belongs to another job than the first.
        """
        meeting = self._meeting
        if meeting.machines > 1:
            self._watch.phase("meeting")
        limit = timedelta(seconds=JOIN_LIMIT_S)
        if meeting.listener is not None:
            store = TCPStore(
                meeting.host,
                meeting.port,
                is_master=True,
                wait_for_workers=False,
                timeout=limit,
                master_listen_fd=meeting.listener.detach(),
                use_libuv=False,  # torch 2.4 hands a socket that is open to its older server alone
            )
            place = 0
        else:
            store = TCPStore(meeting.host, meeting.port, is_master=False, timeout=limit)
            place = self._come(store)
        self.store = store
        if meeting.machines > 1:
            self._watch.listen_to(place)
            self._wait_for_all(store, place)
            self._watch.phase(BEGUN)
        return RendezvousInfo(
            PrefixStore("launch", store),
            place,
            meeting.machines,
            RendezvousStoreInfo(meeting.host, meeting.port),
        )

    def _come(self, store: TCPStore) -> int:
        """Return this machine's place, after the first has said what it measures."""
        theirs = _terms.decode(store.get("terms"))
        for name in ("nnodes", "gpus", "gpubench", "torch"):
            here, there = getattr(self._terms, name), getattr(theirs, name)
            if here != there:
                what = f"--{name} {here}" if isinstance(here, int) else f"{name} {here}"
                text = f"a machine of the job has {what}, the first has {there}: make them alike"
                store.set("fault", msgspec.json.encode(Told(status=Status.FAILED, reason=text)).decode())
                raise JoinError(text)
        os.environ.update(theirs.variables)
        place = int(store.add("machines", 1))
        if place >= theirs.nnodes:
            raise JoinError(f"all {theirs.nnodes} machines of the job have come already")
        return place

    def _wait_for_all(self, store: TCPStore, place: int) -> None:
        if place > 0:
            store.get("all")
            return
        store.set("terms", msgspec.json.encode(self._terms).decode())
        while (come := 1 + int(store.add("machines", 0))) < self._meeting.machines:
            self._watch.come = come
            time.sleep(LOOK_EVERY_S)
        store.set("all", "")

    def get_backend(self) -> str:
        """Return its name."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Say that the processes use this store too: no further port is opened for them."""
        return True

    def is_closed(self) -> bool:
        """Return False: a job has one meeting."""
        return False

    def set_closed(self) -> None:
        """Do nothing."""

    def num_nodes_waiting(self) -> int:
        """Return 0: nobody joins later."""
        return 0

    def get_run_id(self) -> str:
        """Return the same for every job, since each has a store of its own."""
        return "job"

    def shutdown(self) -> bool:
        """Do nothing: the store ends with this process."""
        return True


class Watch:
    """Ends this process, and with it the ranks, when parent, machine or job are over; says why, once."""

    def __init__(self, line: ParentChannel, meeting: Meeting) -> None:
        """Watch the parent from now on."""
        self.come = 1
        self._line = line
        self._meeting = meeting
        self._pulse: Pulse | None = None
        self._joined_by_s = time.monotonic() + JOIN_LIMIT_S
        self._ending = threading.Lock()
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def phase(self, name: str) -> None:
        """Tell the parent what is waited for."""
        self._line.send(Phase(name=name))

    def listen_to(self, place: int) -> None:
        """Begin to exchange signs of life with the other machines, as the one with this place."""
        self._pulse = Pulse(self._meeting, place)

    def end(self, status: Status, reason: str, traceback: str | None = None) -> None:
        """Tell the other machines and the parent, and be gone; who calls second only waits for it."""
        self._ending.acquire()
        if self._pulse is not None:
            self._pulse.say_farewell(Told(status=status, reason=reason))
        self._line.send(JobOver(status=status, reason=reason, traceback=traceback))
        self._be_gone()

    def _look(self) -> None:
        parent = select.poll()
        parent.register(self._line.read_fd, 0)  # its hanging up is always reported
        while not parent.poll(LOOK_EVERY_S * 1000):
            if told := self._judged():
                self.end(told.status, told.reason)
        self._ending.acquire()
        if self._pulse is not None:
            over = Told(status=Status.OK, reason="the run has gone on or is over")
            who = f"machine {self._pulse.place + 1} of the job"
            stopped = Told(status=Status.FAILED, reason=f"{who} was stopped")
            self._pulse.say_farewell(stopped if self._pulse.place else over)
        self._be_gone()

    def _judged(self) -> Told | None:
        """Return why the job is over; None while it goes on."""
        if self._pulse is not None and (told := self._pulse.told or self._pulse.silence()):
            return told
        wanted = self._meeting.machines
        all_here = self._pulse is not None and self._pulse.all_here
        if wanted > 1 and not all_here and time.monotonic() > self._joined_by_s:
            within = f"within {format_duration(JOIN_LIMIT_S)}"
            if self._pulse is None or self._pulse.place == 0:
                reason = f"{self.come} of {wanted} machines came to the job {within}"
            else:
                reason = f"the job did not begin {within}"
            return Told(status=Status.FAILED, reason=reason)
        return None

    def _be_gone(self) -> None:
        os._exit(0)  # the ranks are bound to this process, and end with it


class Pulse:
    """The signs of life between machines, on a connection of its own.

    Attributes:
        place: Of this machine, from 0.
        told: Why the job is over, once a machine has said so.
        all_here: Whether every machine has come.
    """

    def __init__(self, meeting: Meeting, place: int) -> None:
        self.place = place
        self.told: Told | None = None
        self.all_here = False
        self._meeting = meeting
        self._farewell: Told | None = None
        self._gone = threading.Event()
        self._beat_s = time.monotonic()
        self._seen: dict[int, tuple[bytes, Seconds]] = {}
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def say_farewell(self, told: Told) -> None:
        """Tell the other machines, unless one of them was first, and wait a moment until they know."""
        self._farewell = told
        self._gone.wait(FAREWELL_S)

    def silence(self) -> Told | None:
        """Return which machine has been silent for too long; None where none has."""
        limit_s, now = self._meeting.silence_s, time.monotonic()
        lost = [place for place, (_, at_s) in self._seen.items() if now - at_s > limit_s]
        if now - self._beat_s > limit_s:
            lost.append(0 if self.place else -1)
        if not lost:
            return None
        who = "the network of the first machine" if lost[0] < 0 else f"machine {lost[0] + 1} of the job"
        reason = f"{who} gave no sign of life for {format_duration(limit_s)}"
        return Told(status=Status.FAILED, reason=reason)

    def _run(self) -> None:
        try:
            store = TCPStore(self._meeting.host, self._meeting.port, is_master=False)
            beats = 0
            while self._farewell is None and self.told is None:
                beats += 1
                self._exchange(store, beats)
                self._beat_s = time.monotonic()
                while time.monotonic() < self._beat_s + PULSE_S and self._farewell is None:
                    time.sleep(LOOK_EVERY_S / 2)
            self._leave(store)
        except RuntimeError:  # as torch says that the store is gone, and with it the first machine
            lost = Told(status=Status.FAILED, reason="the first machine of the job was lost")
            self.told = self.told or lost
            self._gone.set()

    def _exchange(self, store: TCPStore, beats: int) -> None:
        store.set(f"alive/{self.place}", str(beats))
        self.all_here = store.check(["all"])
        if store.check(["fault"]):
            self.told = _told.decode(store.get("fault"))
        for place in range(1, self._meeting.machines) if self.place == 0 else ():
            key = f"alive/{place}"
            beat = store.get(key) if store.check([key]) else b""
            if place not in self._seen or self._seen[place][0] != beat:
                self._seen[place] = (beat, time.monotonic())
            if not beat:
                del self._seen[place]  # it has not come yet

    def _leave(self, store: TCPStore) -> None:
        """Say why, and on the first machine, where the store is, wait for the others to have read it."""
        if self._farewell is not None:
            said = msgspec.json.encode(self._farewell).decode()
            store.compare_set("fault", "", said)
        store.add("left", 1)
        until_s = time.monotonic() + FAREWELL_S
        while self.place == 0 and time.monotonic() < until_s:
            if store.add("left", 0) >= self._meeting.machines:
                break
            time.sleep(LOOK_EVERY_S / 5)
        self._gone.set()
