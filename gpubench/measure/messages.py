"""Messages between the parent and a measuring child: one JSON line each, never pickle.

The events that the parent sends to a run's observer (a terminal, a notebook, a test) are also here. Two of
them, ``Phase`` and ``RoundDone``, are messages of the child, passed on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from gpubench.measure.budget import Budget
from gpubench.measure.privacy import scrub
from gpubench.models import (
    Case,
    Cause,
    ClockProof,
    DeviceProfile,
    Finding,
    Framework,
    GraphProof,
    Identity,
    Launch,
    LoadProof,
    Measurement,
    MicroResult,
    PrecisionProof,
    Round,
    Status,
)
from gpubench.models.run import SeedRun
from gpubench.units import Seconds, Watts

# --- the place of a process in its job, from the variables of torchrun ------------------------------------


MODULE = "gpubench.measure.worker"
"""The module that a measuring process runs."""
UNDER_TORCHRUN = "under-torchrun"
"""The argument that makes a child rank 0 of a user's torchrun job."""
STORE_VARIABLE = "GPUBENCH_JOB_STORE"
"""The variable that names the file through which a machine's processes find each other without a port."""


@dataclass(frozen=True)
class Place:
    """The place of a process in its job.

    Attributes:
        rank, size: Its rank among all processes of the job, and their number.
        local_rank, local_size: The same for the processes of this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def machines(self) -> int:
        """The number of machines in the job, which all have the same number of processes."""
        return self.size // self.local_size

    @classmethod
    def here(cls) -> Place:
        """Read the place of this process."""
        return cls(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            local_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        )


def place_under_torchrun() -> Place | None:
    """Return this process's place if a user's torchrun has started it with others; else None."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    place = Place.here()
    return place if place.size > 1 else None


ProofName = Literal["precision", "clock", "graph", "load"]

# --- parent to child -------------------------------------------------------------------------------------


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message: the device, the budget, and the seed of every task.

    ``peers`` are the other GPUs of this machine in a multi-GPU job. ``framework`` runs the steps.
    ``memory_share`` is the share of the device's memory that this process may use, 0 to 1; None means all.
    """

    device: DeviceProfile
    budget: Budget
    seed: int
    peers: tuple[DeviceProfile, ...] = ()
    memory_share: float | None = None
    framework: Framework = Framework.TORCH


class MeasureCase(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Measure one case within ``time_s``; None means as long as the budget allows.

    ``reference`` is the workload's name, or the file or module of a user's own model.
    """

    reference: str
    case: Case
    launch: int
    time_s: Seconds | None = None


class MeasureMicro(msgspec.Struct, frozen=True, kw_only=True, tag="micro"):
    """Run the micro-benchmarks within ``time_s``; the processes of a job measure only their communication."""

    time_s: Seconds | None = None


class TryBatch(msgspec.Struct, frozen=True, kw_only=True, tag="try"):
    """Run a few steps of a case to see whether its batch fits."""

    reference: str
    case: Case


class Prove(msgspec.Struct, frozen=True, kw_only=True, tag="prove"):
    """Compare a part of gpubench's measurement with an independent implementation.

    Attributes:
        what: The proof; ``precision`` uses only the precision of the case.
        fours: How often the four blocks A, B, B, A run, to compare two ways A and B of running the steps.
        block_s: Shortest length of a block [s].
        load_s, settle_s: Length of the load, and of the part at its start that is ignored [s].
    """

    what: ProofName
    reference: str
    case: Case
    fours: int = 6
    block_s: Seconds = 0.3
    load_s: Seconds = 12.0
    settle_s: Seconds = 2.0


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Finish the current round, and return the results so far."""


class TrainToQuality(msgspec.Struct, frozen=True, kw_only=True, tag="to_quality"):
    """Train a workload from one seed until it reaches its goal."""

    case: Case
    seed: int


Command = Setup | MeasureCase | MeasureMicro | TryBatch | TrainToQuality | Prove | Stop

# --- child to parent -------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The libraries are loaded and the device responds.

    Only a process with torch has a torch version. ``identity`` says how a GPU was identified as the probed
    one, ``memory_bytes`` is the memory that torch sees, and ``cold_s`` is the startup time by part [s].
    """

    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    cpu_threads: int | None = None
    cudnn_benchmark: bool | None = None
    nccl: str | None = None
    identity: Identity | None = None
    memory_bytes: int | None = None
    cold_s: dict[str, float] = {}
    findings: tuple[Finding, ...] = ()
    packages: dict[str, str] = {}


class Phase(msgspec.Struct, frozen=True, kw_only=True, tag="phase"):
    """A new phase of the current case: build, check, first steps, capture, warm-up, timed ...

    The parent sets a deadline for each phase.
    """

    name: str


class RoundDone(msgspec.Struct, frozen=True, kw_only=True, tag="round"):
    """One round, reported immediately, so a later crash loses nothing.

    Attributes:
        outside_s: Time that the process spent outside rounds, on its own clock; only differences are
            meaningful [s].
        half_width: Relative half-width of the 95 % interval so far; None if unknown, as in the warm-up.
        power_w, temperature_c: Power and temperature of the device at the end of the round; None if unknown.
    """

    timed: bool
    round: Round
    outside_s: Seconds = 0.0
    half_width: float | None = None
    power_w: Watts | None = None
    temperature_c: float | None = None


class CaseDone(msgspec.Struct, frozen=True, kw_only=True, tag="case"):
    """The end of a case: its status, and the results so far.

    ``lost`` means that the driver has given up on the device, so nothing more can be measured on it.
    ``spent`` means that this process must not measure another case. The parent writes ``traceback`` to a log
    and sets ``kept`` to the log's path; a run file contains neither.
    """

    status: Status
    reason: str | None = None
    cause: Cause | None = None
    launch: Launch
    lost: bool = False
    spent: bool = False
    traceback: str | None = None
    kept: str | None = None


class MicroDone(msgspec.Struct, frozen=True, kw_only=True, tag="micro"):
    """One micro-benchmark, or a finding on the device; ``last`` closes the series."""

    result: MicroResult | None = None
    finding: Finding | None = None
    last: bool = False


class Proven(msgspec.Struct, frozen=True, kw_only=True, tag="proven"):
    """The result of a proof, in the field named after it, or how the proof failed.

    ``spent`` and ``traceback`` are as in ``CaseDone``.
    """

    precision: PrecisionProof | None = None
    clock: ClockProof | None = None
    graph: GraphProof | None = None
    load: LoadProof | None = None
    status: Status = Status.OK
    reason: str | None = None
    spent: bool = False
    traceback: str | None = None


class JobOver(msgspec.Struct, frozen=True, kw_only=True, tag="job_over"):
    """The processes of a job ended on their own: the reason, and the case's status.

    ``traceback`` is as in ``CaseDone``.
    """

    status: Status
    reason: str
    traceback: str | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The child cannot use this device at all."""

    reason: str
    exit_code: int


class QualityDone(msgspec.Struct, frozen=True, kw_only=True, tag="to_quality"):
    """One training to a quality target, or the reason why it has no result."""

    run: SeedRun | None = None
    reason: str | None = None


Ending = CaseDone | QualityDone | Proven
"""The last report on a case, a training or a proof: its result, or why there is none."""


def scrubbed(done: Ending) -> Ending:
    """Return the ending with this machine's names removed from its reason."""
    return done if done.reason is None else msgspec.structs.replace(done, reason=scrub(done.reason))


Report = Ready | Phase | RoundDone | MicroDone | Ending | JobOver | Refused

# --- parent to the observer of a run ----------------------------------------------------------------------


class RunPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of work, sent before the first case.

    ``most_s`` is the longest time for warm-ups and rounds if steps are short [s]. ``left`` is the number of
    launches that a resumed run still has to measure; None for a new run. ``trainings`` is the number of
    trainings to a quality target, each from several seeds; their time is not known in advance.
    """

    cases: int
    launches: int
    most_s: Seconds
    budget: str
    device: str
    left: int | None = None
    trainings: int = 0


class CaseBegan(msgspec.Struct, frozen=True, kw_only=True):
    """One case of one launch begins: ``number`` of ``total``.

    ``most_s`` is as in ``RunPlanned``, including cases that were added since; 0 if unknown [s].
    """

    case: Case
    launch: int
    number: int
    total: int
    most_s: Seconds = 0.0


class CaseEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one case in one launch; the measurement contains all its launches so far.

    ``kept`` is where a failed case's traceback and output are; only the user sees it.
    """

    measurement: Measurement
    launch: int
    kept: str | None = None


class MicroEnded(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-benchmark is over."""

    result: MicroResult


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """One line for the user to read."""

    text: str


Event = RunPlanned | CaseBegan | Phase | RoundDone | CaseEnded | MicroEnded | Remark

OnEvent = Callable[[Event], None]
