"""One check of the CUDA path on one card: what each part read. What it means is judged elsewhere, any day."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from gpubench.findings import Finding
from gpubench.models.case import Case
from gpubench.models.measurement import Cause, Status, Switches, TelemetrySample
from gpubench.models.record import Record
from gpubench.models.run import DeviceProfile, Environment
from gpubench.precisions import Precision

CHECK_VERSION = 3
"""Version of a check of the CUDA path and its file. Since 2 its cases are those of a run of version 2. Since
3 strict fp32 is proven among the other precisions, and nothing is announced. What earlier files hold of a
quick run, of a job on several GPUs and of the largest batch is passed over: each run judges them itself."""

Identity = Literal["UUID", "PCI bus id", "name and SM count only"]
"""How CUDA's device was matched to the driver's; the last cannot distinguish two cards of one model."""


class PartState(StrEnum):
    """How far a part of a check came.

    ``CUT_OFF`` gave no answer in its time: it hangs, or the machine is slow. A part that is ``LEFT_OUT`` was
    not begun, or is not for this machine.
    """

    NOT_REACHED = "not reached"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CUT_OFF = "cut off"
    LEFT_OUT = "left out"
    INTERRUPTED = "interrupted"


class PartLog(Record, frozen=True, kw_only=True):
    """What became of one part.

    Attributes:
        took_s: Wall time [s]; None if it did not end.
        reason: Why it failed or was left out.
        traceback: Of what failed, libraries' own frames only.
    """

    name: str
    state: PartState = PartState.NOT_REACHED
    took_s: float | None = None
    reason: str | None = None
    traceback: tuple[str, ...] = ()


class Blocks(Record, frozen=True, kw_only=True):
    """Seconds per step of two kinds of blocks, run in the order first, second, second, first, and so on."""

    first_s: tuple[float, ...] = ()
    second_s: tuple[float, ...] = ()


class PrecisionProof(Record, frozen=True, kw_only=True):
    """The switches of a precision as read back, and errors of three operators against float64.

    A value that was not finite is None.

    Attributes:
        control_errors: Of fp32 on a device that has TF32: what the same operators err under it.
    """

    precision: Precision
    switches: Switches
    errors: dict[str, float | None]
    control_errors: dict[str, float | None] = {}


class ClockProof(Record, frozen=True, kw_only=True):
    """Is the time that the harness reads the time that the device worked?

    Attributes:
        by_hand: Rounds of the harness, and the same loop written by hand.
        events: Rounds of the harness, and device events around the same steps.
        issue_s: Time to issue single steps from a drained device, without waiting [s].
    """

    case: Case
    by_hand: Blocks
    events: Blocks
    issue_s: tuple[float, ...]


class GraphProof(Record, frozen=True, kw_only=True):
    """Replays of the harness, and replays of a graph captured by hand."""

    case: Case
    by_hand: Blocks


class LoadProof(Record, frozen=True, kw_only=True):
    """A card under load: its power, its energy counter, and what reading them costs.

    Attributes:
        samples: Times count from the start of the judged region, below 0 before it.
        region_s: Length of the judged region [s].
        energy_edges_j: The counter at both ends of that region; None if there is none [J].
        sampled: Rounds while telemetry is read, and rounds without it.
    """

    case: Case
    telemetry_source: str
    samples: tuple[TelemetrySample, ...]
    region_s: float
    energy_edges_j: tuple[float | None, float | None]
    sampled: Blocks


class CaseRow(Record, frozen=True, kw_only=True):
    """A few steps of one case: how they ended, how right they were, what memory they took.

    Attributes:
        cause: None if no rule depends on it.
        expected_bytes: Peak memory by the memory model [B].
        took_s: Wall time from the order to its end [s].
    """

    case: Case
    status: Status
    reason: str | None = None
    cause: Cause | None = None
    traceback: tuple[str, ...] = ()
    reference_error: float | None = None
    graph_error: float | None = None
    precision_errors: dict[str, float | None] = {}
    peak_memory_bytes: int | None = None
    expected_bytes: float | None = None
    fused: bool | None = None
    cold_s: dict[str, float | None] = {}
    took_s: float | None = None
    findings: tuple[Finding, ...] = ()


class FaultProof(Record, frozen=True, kw_only=True):
    """Faults put in on purpose, and the case after each.

    Attributes:
        waiting: A model that waits for the device, captured in a graph.
        after_waiting: A sound case, in the process that is used next.
        cap_bytes: Memory that the process may take from then on [B].
        too_large: A batch that cannot fit under the cap.
        after_too_large: A sound case under the cap, in the process that is used next.
    """

    waiting: CaseRow | None = None
    after_waiting: CaseRow | None = None
    cap_bytes: int | None = None
    too_large: CaseRow | None = None
    after_too_large: CaseRow | None = None


class CudaCheck(Record, frozen=True, kw_only=True):
    """One file: one card, one torch.

    Attributes:
        full: Whether nothing was left out for want of time.
        limit_s: Longest time of the whole check [s]; None for no limit.
        identity: By what CUDA's device and NVML's were found to be one; None if that was not reached.
        nvml: Every call of the driver library that gpubench makes, with its answer, without identifiers.
        left_out: Cases that were not tried, by label, and why.
        findings: What is unusual about the device.
    """

    schema_version: int = CHECK_VERSION
    kind: str = "cuda-check"
    started_at: str
    finished_at: str | None = None
    full: bool = False
    limit_s: float | None = None
    device: DeviceProfile
    environment: Environment
    identity: Identity | None = None
    nvml: tuple[dict[str, Any], ...] = ()
    parts: tuple[PartLog, ...] = ()
    precisions: tuple[PrecisionProof, ...] = ()
    clock: ClockProof | None = None
    graph: GraphProof | None = None
    load: LoadProof | None = None
    cases: tuple[CaseRow, ...] = ()
    left_out: dict[str, str] = {}
    faults: FaultProof = FaultProof()
    findings: tuple[Finding, ...] = ()
