"""Raw results of a check of the CUDA path on one card. ``cuda_check.judge`` may judge them much later."""

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
"""Schema version. Since 2, cases have the format of run version 2. Since 3, strict fp32 is proven with the
other precisions, and parts are not announced in advance. In earlier files, results of quick runs, jobs on
several GPUs and the largest batch are ignored, because each run checks them itself."""

Identity = Literal["UUID", "PCI bus id", "name and SM count only"]
"""How CUDA's device was matched to the driver's; the last way cannot distinguish two cards of one model."""


class PartState(StrEnum):
    """How a part of a check ended.

    A ``CUT_OFF`` part gave no result in time: it hung, or the machine is slow. A ``LEFT_OUT`` part was not
    started, or does not apply to this machine.
    """

    NOT_REACHED = "not reached"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CUT_OFF = "cut off"
    LEFT_OUT = "left out"
    INTERRUPTED = "interrupted"


class PartLog(Record, frozen=True, kw_only=True):
    """The outcome of one part.

    Attributes:
        took_s: Wall time until it finished, failed or was cut off [s]; None if it was not recorded.
        reason: Why it failed, or why it was left out.
        traceback: Traceback of a failure, with library frames only.
    """

    name: str
    state: PartState = PartState.NOT_REACHED
    took_s: float | None = None
    reason: str | None = None
    traceback: tuple[str, ...] = ()


class Blocks(Record, frozen=True, kw_only=True):
    """Seconds per step of two kinds of blocks, run in ABBA order: first, second, second, first, and so on."""

    first_s: tuple[float, ...] = ()
    second_s: tuple[float, ...] = ()


class PrecisionProof(Record, frozen=True, kw_only=True):
    """The switches of a precision as read back, and the errors of three operators against float64.

    An error that was not finite is None.

    Attributes:
        control_errors: For fp32 on a device with TF32: errors of the same operators with TF32 on.
    """

    precision: Precision
    switches: Switches
    errors: dict[str, float | None]
    control_errors: dict[str, float | None] = {}


class ClockProof(Record, frozen=True, kw_only=True):
    """Step times from the harness's clock, compared with a hand-written loop and with device events.

    Attributes:
        by_hand: Rounds of the harness, and of a hand-written version of the same loop.
        events: Rounds of the harness, and device events around the same steps.
        issue_s: Host times to issue one step to an idle device, without synchronizing [s].
    """

    case: Case
    by_hand: Blocks
    events: Blocks
    issue_s: tuple[float, ...]


class GraphProof(Record, frozen=True, kw_only=True):
    """Times of the harness's replays, and of replays of a hand-captured graph."""

    case: Case
    by_hand: Blocks


class LoadProof(Record, frozen=True, kw_only=True):
    """A card under load: its power, its energy counter, and the overhead of telemetry.

    Attributes:
        samples: Times are relative to the end of the settling period, and negative before it.
        region_s: Time under load after the settling period [s].
        energy_edges_j: The energy counter at both ends of that time; None if the card has no counter [J].
        sampled: Rounds with telemetry, and rounds without it.
    """

    case: Case
    telemetry_source: str
    samples: tuple[TelemetrySample, ...]
    region_s: float
    energy_edges_j: tuple[float | None, float | None]
    sampled: Blocks


class CaseRow(Record, frozen=True, kw_only=True):
    """A few steps of one case: how they ended, their numerical errors, and their memory.

    Attributes:
        cause: Why the case ended, if a rule depends on that; otherwise None.
        expected_bytes: Peak memory predicted by the memory model [B].
        took_s: Wall time from the request to the end [s].
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
    """Results of two deliberate faults, and of the case run after each.

    Attributes:
        waiting: A capture of a model that synchronizes with the device.
        after_waiting: A valid case in the next process.
        cap_bytes: Memory cap of the process in ``after_waiting`` and the later cases [B].
        too_large: A batch that cannot fit under the cap.
        after_too_large: A valid case under the cap, in the next process.
    """

    waiting: CaseRow | None = None
    after_waiting: CaseRow | None = None
    cap_bytes: int | None = None
    too_large: CaseRow | None = None
    after_too_large: CaseRow | None = None


class CudaCheck(Record, frozen=True, kw_only=True):
    """The content of one file: the check of one card with one version of torch.

    Attributes:
        full: Whether the check ran without a time limit.
        limit_s: Time limit of the entire check [s]; None for no limit.
        identity: How CUDA's device was matched to NVML's; None if the check did not get that far.
        nvml: Every driver library call that gpubench makes, with its answer, without identifiers.
        left_out: Cases that were not tried, by label, with the reason.
        findings: Unusual conditions of the device.
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
