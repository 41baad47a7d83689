"""What a check of the CUDA path does, in which order, and what it takes; nothing is measured here.

Times are those of an H200, from the shipped readings (of a workload that was not read there, by its FLOPs and
operators), scaled by memory bandwidth to other cards; a slower card has no slower host. They decide which
parts and cases there are within the limit; a part that takes longer is cut off, the later ones keep theirs,
but what proves the harness may take the time of trials. Where processes start late, all is planned anew.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpubench.cuda_check.cases import (
    CASE_S,
    COPY_S_PER_PARAMETER,
    Trial,
    batch_of,
    building_s,
    case_of,
    chosen_trials,
    compiled_trials,
    part_of,
    searching_s,
    slowness,
    step_takes_s,
    steps_take_s,
    wanted_trials,
)
from gpubench.measure import capability
from gpubench.measure.budget import QUICK, Budget
from gpubench.measure.estimate import PROCESS_START_S, aim_s, estimate_s
from gpubench.measure.loop import steps_for
from gpubench.measure.plan import Plan, plan
from gpubench.measure.request import RunRequest
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Precision,
)
from gpubench.profile import load_profiles
from gpubench.profile.memory import planned_peak_bytes
from gpubench.units import GIB, Bytes, Seconds
from gpubench.workload import BATCH_COUNT

LIMIT_S: Seconds = 300.0
"""Of the whole check, unless all of it is asked for."""
UNKNOWN_MEMORY_BYTES: Bytes = 4 * GIB
"""Of a card whose driver does not tell it."""
SPARE_S: Seconds = 5.0
"""Of that limit, what the plan leaves free for whatever takes longer than its arithmetic."""
PARTS = (
    "device",
    "precision",
    "clock",
    "graph",
    "load",
    "cases",
    "compile",
    "faults",
    "fp32",
    "scaling",
    "quick",
)
"""In their order: what shares a process follows each other, strict fp32 has one of its own."""
LEAST_FIRST = ("quick", "scaling", "compile", "load", "fp32", "faults", "graph", "clock")
"""What is given up, in this order, on a card so slow that not all parts fit: last what others rest on."""
LOOK_S: Seconds = 0.5
"""Asking the driver for everything, and looking at the device twice."""
STARTS = {"precision": 1, "faults": 4, "fp32": 1, "quick": 1, "scaling": 2}
"""Processes that a part starts one after the other: each fault ends its own."""
COLD_START_S: Seconds = 2.7
"""The first process reads its libraries from disk: on two H100s it took 6.1 and 7.6 s to start, others 5.2
to 5.6 and 4.5 to 5.4. Where it takes longer than with this, the machine is slow, and they are too."""
FIRST_PROOF_S: Seconds = 4.9
"""The first proof of a precision in a process loads cuBLAS and cuDNN: 4.1 s on an H200 and 4.8 on an H100."""
STRICT_PROOF_S: Seconds = 0.5
"""That of strict fp32, in whose process the first case loads what the others share: 0.5 s on both cards."""
MOST_FIRST_CASE_S: Seconds = 6.4
"""The first case of a process, as estimate.FIRST_CASE_S, on the slower host: 5.4 to 6.9 s on the H100's,
where the H200's took 4.1 to 4.8."""
FIRST_STEPS_S: Seconds = 1.7
"""Loading cuDNN in the first step of a process, and its trials for a small network: 1.2 to 1.7 s, mostly."""
PROOF_MEMORY_SHARE = 0.3
"""What the case of a proof may take by the memory model: a graph captured by hand takes as much again."""
MOST_PROOF_STEP_S: Seconds = 0.5
"""A step of that case takes no longer, lest the blocks of the comparisons take minutes on a slow card."""
CAPPED_STEPS = 16
"""What the case at the largest batch under the cap runs at least, warm-up and rounds."""


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything: a test does less.

    Attributes:
        fours: Runs of four blocks in each comparison.
        block_s: Least length of a block [s].
        load_s, settle_s: Length of the load, and how much of its start is not judged [s].
        cap_bytes: What a process may take while the largest batch is searched [B].
        resolution: Relative distance at which that search stops.
        budget: Of the trials.
        quick: Of the quick run.
        workloads: The cases' workloads; empty means all that are trained.
    """

    fours: int = 3
    block_s: Seconds = 0.3
    load_s: Seconds = 12.0
    settle_s: Seconds = 2.0
    cap_bytes: Bytes = GIB
    resolution: float = 1 / 4
    budget: Budget = msgspec.structs.replace(QUICK, curve_steps=2)
    quick: Budget = QUICK
    workloads: tuple[str, ...] = ()


AMOUNTS = Amounts()
NO_TIME = "no time within the limit: --full tries it"


class CheckPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is done.

    Attributes:
        limit_s: Of the whole check; None for no limit [s].
        proof: The case of the proofs of clock, graph and load.
        capped: The case of the search under a cap.
        trials: Cases to be tried, those of strict fp32 among them, in their order.
        compiled: Cases to be tried under torch.compile.
        left_out: Cases for which there is no time, or that cannot be tried here, by label, and why.
        left_out_parts: The part of each of them, by label.
        quick: The quick run, then ever smaller shares of it: the first that there is time for is made.
        scaling: A job of one GPU and one of all; None where there is one GPU.
        expected_s: Time of each part; of the quick run, that of its least share [s].
        given_up_s: The same of the parts that there is no time for on this card [s].
        late_start_s: How much later than on an H200 each process starts [s].
    """

    full: bool
    limit_s: Seconds | None
    amounts: Amounts
    proof: Case
    capped: Case
    trials: tuple[Trial, ...]
    compiled: tuple[Trial, ...]
    left_out: dict[str, str]
    left_out_parts: dict[str, str]
    quick: tuple[Plan, ...]
    scaling: Plan | None
    expected_s: dict[str, Seconds]
    given_up_s: dict[str, Seconds]
    late_start_s: Seconds = 0.0

    def least_s(self, name: str) -> Seconds:
        """Return the time of a part without its trials [s]: of those, what does not fit is left out."""
        trials_s = sum(t.expected_s for t in self.trials if part_of(t.case) == name)
        return self.expected_s[name] - trials_s

    def parts(self) -> tuple[str, ...]:
        """Return the parts that there are here, in their order, those without time among them."""
        return tuple(name for name in PARTS if name in self.expected_s | self.given_up_s)


def make_plan(
    device: DeviceProfile,
    peers: tuple[DeviceProfile, ...] = (),
    *,
    full: bool = False,
    amounts: Amounts = AMOUNTS,
    late_start_s: Seconds = 0.0,
) -> CheckPlan:
    """Plan the check of a device.

    What there is less time for where processes start late are the trials, then the parts of ``LEAST_FIRST``.

    Args:
        device: Where.
        peers: GPUs of the same kind beside it.
        full: Whether everything is done, without a limit.
        amounts: How much of everything.
        late_start_s: How much later than on an H200 each process starts [s].
    """
    slower, amp = slowness(device), capability.best_amp(device)
    proof = _proof_case(device, amp)
    quick = _quick(device, amp, amounts.quick, full=full)
    scaling = _scaling(device, peers, amp, amounts.quick)
    compiled = compiled_trials(amp, slower)
    capped = case_of(load_profiles()["cnn"], amp, Execution.EAGER)
    parts_s = _expected(device, proof, capped, {"quick": quick[-1], "scaling": scaling}, amounts)
    parts_s["compile"] = sum(t.expected_s for t in compiled)
    expected_s = {name: part_s + STARTS.get(name, 0) * late_start_s for name, part_s in parts_s.items()}
    given_up_s = {} if full else {name: expected_s.pop(name) for name in _given_up(expected_s)}
    room_s = None if full else LIMIT_S - SPARE_S - sum(expected_s.values())
    every, missing = wanted_trials(device, amounts.workloads, slower, full=full)
    trials = chosen_trials([t for t in every if part_of(t.case) in expected_s], proof, room_s)
    for trial in trials:
        expected_s[part_of(trial.case)] += trial.expected_s
    kept = {trial.case for trial in trials}
    late = dict.fromkeys((t.case for t in every if t.case not in kept), NO_TIME)
    left_out = missing | late
    return CheckPlan(
        full=full,
        limit_s=None if full else LIMIT_S,
        amounts=amounts,
        proof=proof,
        capped=capped,
        trials=trials,
        compiled=compiled,
        left_out={case.label: why for case, why in left_out.items()},
        left_out_parts={case.label: part_of(case) for case in left_out},
        quick=quick,
        scaling=scaling,
        expected_s=expected_s,
        given_up_s=given_up_s,
        late_start_s=late_start_s,
    )


def _given_up(expected_s: Mapping[str, Seconds]) -> tuple[str, ...]:
    """Name the parts that there is no time for, the least telling ones."""
    names: list[str] = []
    over_s = sum(expected_s.values()) - (LIMIT_S - SPARE_S)
    for name in LEAST_FIRST:
        if over_s > 0 and name in expected_s:
            names.append(name)
            over_s -= expected_s[name]
    return tuple(names)


def run_s(made: Plan, device: DeviceProfile) -> Seconds:
    """Return what a run, or a share of one, is expected to take [s]."""
    return aim_s(made) or estimate_s(made, device)[0]


def quick_within(made: CheckPlan, device: DeviceProfile, left_s: Seconds) -> Plan:
    """Return the largest share of the quick run that there is time for; the least where there is for none."""
    room_s = left_s - made.late_start_s
    return next((share for share in made.quick if run_s(share, device) <= room_s), made.quick[-1])


def _proof_case(device: DeviceProfile, amp: Precision) -> Case:
    """The case of the proofs: one whose pace the GPU sets, as large as the card has room and time for."""
    room = PROOF_MEMORY_SHARE * (device.memory_bytes or UNKNOWN_MEMORY_BYTES)
    vgg16, cnn = (load_profiles()[name] for name in ("vgg16", "cnn"))
    wanted = (
        case_of(vgg16, amp, Execution.EAGER),
        case_of(vgg16, amp, Execution.EAGER, vgg16.batches[0]),
        case_of(cnn, amp, Execution.EAGER, cnn.batches[-1]),
    )
    for case in wanted:
        needed = planned_peak_bytes(load_profiles()[case.workload], case)
        if needed <= room and step_takes_s(case, slowness(device)) <= MOST_PROOF_STEP_S:
            return case
    return case_of(cnn, amp, Execution.EAGER)


def _expected(
    device: DeviceProfile,
    proof: Case,
    capped: Case,
    runs: Mapping[str, Plan | None],
    amounts: Amounts,
) -> dict[str, Seconds]:
    """Time of each part but that of compiled cases; the runs are the quick one and that on several GPUs."""
    slower = slowness(device)
    profile = load_profiles()[proof.workload]
    build_s = building_s(profile) + searching_s(profile)
    copy_s = COPY_S_PER_PARAMETER * profile.parameters
    step_s = step_takes_s(proof, slower)
    block_s = step_s * steps_for(amounts.block_s, step_s, BATCH_COUNT)
    start_s = copy_s + 1.25 + block_s  # its warm-up; on two cards 1.6 to 1.8 s, and 2.1 by this
    comparison_s = 4 * amounts.fours * block_s
    largest = msgspec.structs.replace(capped, batch_size=batch_of(capped, amounts.cap_bytes))
    search_s = 4 * (CASE_S + 1.0 + steps_take_s(largest, slower))
    measured_s = max(amounts.quick.case_s or 0.0, CAPPED_STEPS * step_takes_s(largest, slower))
    return {
        "device": LOOK_S,
        "precision": PROCESS_START_S + COLD_START_S + FIRST_PROOF_S + 2 * CASE_S,
        "clock": MOST_FIRST_CASE_S + build_s + start_s + 2 * comparison_s,
        "graph": start_s + 10 * step_s + comparison_s,
        "load": start_s + amounts.load_s + block_s + comparison_s,  # its two stretches end with a whole block
        "cases": 0.0,
        "faults": STARTS["faults"] * (PROCESS_START_S + MOST_FIRST_CASE_S + FIRST_STEPS_S)
        + search_s
        + measured_s,
        "fp32": PROCESS_START_S + STRICT_PROOF_S + MOST_FIRST_CASE_S,
        **{name: run_s(made, device) for name, made in runs.items() if made is not None},
    }


def _quick(device: DeviceProfile, amp: Precision, budget: Budget, *, full: bool) -> tuple[Plan, ...]:
    """A quick run as `gpubench run --quick` makes it; where time may be short, then ever less of it."""
    whole = RunRequest(budget="quick")
    shares = () if full else (whole.precisions, (amp, Precision.FP32), (amp,))
    less = (msgspec.structs.replace(whole, precisions=share, micro="none") for share in shares)
    plans = (plan(request, device, load_profiles()) for request in (whole, *less))
    return tuple(msgspec.structs.replace(made, budget=budget) for made in plans)


def _scaling(
    device: DeviceProfile,
    peers: tuple[DeviceProfile, ...],
    amp: Precision,
    budget: Budget,
) -> Plan | None:
    """One job on one GPU and on all: eager, because that is what several GPUs are measured in."""
    if not peers:
        return None
    request = RunRequest(
        workloads=("resnet50",),
        precisions=(amp,),
        executions=("eager",),
        gpus=1 + len(peers),
        budget="quick",
        micro="none",
    )
    return msgspec.structs.replace(plan(request, device, load_profiles(), peers), budget=budget)
