"""Findings (warnings as data, with the value seen and its limit), and their texts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from gpubench.units import format_percent


class FindingKind(StrEnum):
    """Every kind of finding on a measurement, a run or a ranked offer."""

    HOST_BOUND = "HOST_BOUND"
    HOST_BUSY = "HOST_BUSY"
    ON_BATTERY = "ON_BATTERY"
    MEMORY_SPILLED = "MEMORY_SPILLED"
    NOISY = "NOISY"
    NOT_STEADY = "NOT_STEADY"
    NOT_CONVERGED = "NOT_CONVERGED"
    LAUNCHES_DIFFER = "LAUNCHES_DIFFER"
    THROTTLED = "THROTTLED"
    THROTTLED_ALLOWED = "THROTTLED_ALLOWED"
    POWER_LIMITED = "POWER_LIMITED"
    POWER_CAPPED = "POWER_CAPPED"
    SHARED_GPU = "SHARED_GPU"
    TF32_IN_FORCE = "TF32_IN_FORCE"
    SWITCHES_CHANGED = "SWITCHES_CHANGED"
    PRECISION_UNPROVEN = "PRECISION_UNPROVEN"
    NO_ENERGY_COUNTER = "NO_ENERGY_COUNTER"
    NO_TELEMETRY = "NO_TELEMETRY"
    IMPLAUSIBLE = "IMPLAUSIBLE"
    ABOVE_PEAK = "ABOVE_PEAK"
    PRODUCT_IMPLAUSIBLE = "PRODUCT_IMPLAUSIBLE"
    NO_PEAK = "NO_PEAK"
    LOSS_NOT_FALLING = "LOSS_NOT_FALLING"
    LOSS_NOT_FINITE = "LOSS_NOT_FINITE"
    UUID_ALL_ZEROS = "UUID_ALL_ZEROS"
    LOSS_DIFFERS = "LOSS_DIFFERS"
    MEMORY_ERRORS = "MEMORY_ERRORS"
    PARAMETERS_FROZEN = "PARAMETERS_FROZEN"
    STEPS_SKIPPED = "STEPS_SKIPPED"
    ONE_BATCH = "ONE_BATCH"
    DRIFTING = "DRIFTING"
    CLOCK_GAP = "CLOCK_GAP"
    CLOCK_DISAGREES = "CLOCK_DISAGREES"
    CLOCK_SET_BACK = "CLOCK_SET_BACK"
    CLOCK_EVENTS = "CLOCK_EVENTS"
    ENERGY_IMPLAUSIBLE = "ENERGY_IMPLAUSIBLE"
    TELEMETRY_HUNG = "TELEMETRY_HUNG"
    LAUNCHES_MISSING = "LAUNCHES_MISSING"
    STALE_PRICE = "STALE_PRICE"
    OUT_OF_DOMAIN = "OUT_OF_DOMAIN"
    EAGER_MEMORY = "EAGER_MEMORY"
    FEED_BOUND = "FEED_BOUND"
    SCALING = "SCALING"
    TEMPERATURE_NOT_JUDGED = "TEMPERATURE_NOT_JUDGED"
    ONE_PROCESS = "ONE_PROCESS"
    SHORT_LOOK = "SHORT_LOOK"
    NOT_HEAT_SOAKED = "NOT_HEAT_SOAKED"
    UNEQUAL_GPUS = "UNEQUAL_GPUS"
    UNUSED_PARAMETERS = "UNUSED_PARAMETERS"
    MEMORY_REFUSED = "MEMORY_REFUSED"
    NO_REFERENCE = "NO_REFERENCE"
    CONTIGUOUS = "CONTIGUOUS"
    NEEDS_TORCH_BUILD = "NEEDS_TORCH_BUILD"


# Informational kinds, which do not make a throughput doubtful.
INFORMATIVE = frozenset(
    {
        FindingKind.POWER_LIMITED,
        FindingKind.CLOCK_EVENTS,
        FindingKind.CLOCK_SET_BACK,
        FindingKind.NO_ENERGY_COUNTER,
        FindingKind.NO_TELEMETRY,
        FindingKind.ABOVE_PEAK,
        FindingKind.PRODUCT_IMPLAUSIBLE,
        FindingKind.LAUNCHES_DIFFER,
        FindingKind.NO_PEAK,
        FindingKind.UUID_ALL_ZEROS,
        FindingKind.ONE_BATCH,
        FindingKind.TEMPERATURE_NOT_JUDGED,
        FindingKind.ONE_PROCESS,
        FindingKind.SHORT_LOOK,
        FindingKind.NOT_HEAT_SOAKED,
        FindingKind.UNUSED_PARAMETERS,
        FindingKind.MEMORY_REFUSED,
        FindingKind.NO_REFERENCE,
        FindingKind.CONTIGUOUS,
        FindingKind.NEEDS_TORCH_BUILD,
    }
)
# All other kinds: a figure with one of them is marked and kept out of headlines, but may be ranked.
DOUBTFUL = frozenset(FindingKind) - INFORMATIVE
# Doubtful kinds that also keep a figure out of rankings and predictions.
UNFOUNDED = frozenset({FindingKind.HOST_BUSY, FindingKind.PRECISION_UNPROVEN})


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: its kind, the value seen, and the limit it was compared with (None if there is none)."""

    kind: FindingKind
    value: float | str | None = None
    limit: float | str | None = None


# Kinds with value and limit as shares, which are shown in percent.
SHARES = frozenset(
    {
        FindingKind.NOISY,
        FindingKind.NOT_CONVERGED,
        FindingKind.LAUNCHES_DIFFER,
        FindingKind.THROTTLED,
        FindingKind.THROTTLED_ALLOWED,
        FindingKind.POWER_LIMITED,
        FindingKind.POWER_CAPPED,
        FindingKind.SHARED_GPU,
        FindingKind.IMPLAUSIBLE,
        FindingKind.ABOVE_PEAK,
        FindingKind.PRODUCT_IMPLAUSIBLE,
        FindingKind.STEPS_SKIPPED,
        FindingKind.DRIFTING,
        FindingKind.CLOCK_DISAGREES,
        FindingKind.HOST_BUSY,
        FindingKind.NOT_HEAT_SOAKED,
    }
)

# Advice for every budget except --publish: the others spend only a few seconds on each case.
_MORE_TIME = "pass --publish without --time-limit, or close other programs"

_TEXTS: dict[FindingKind, tuple[str, str]] = {
    FindingKind.HOST_BOUND: (
        "host-bound: launch overhead on the CPU, not the device, limits the speed",
        "raise the batch or use --execution graph; a faster GPU will not help",
    ),
    FindingKind.HOST_BUSY: (
        "other programs or virtual machines used the CPU while rounds were timed",
        "stop them and measure again: this row neither leads a ranking nor anchors a prediction",
    ),
    FindingKind.ON_BATTERY: (
        "the laptop ran on battery, which slows its processor and GPU",
        "plug it in and measure again",
    ),
    FindingKind.MEMORY_SPILLED: (
        "torch held more memory than the card has: the driver used host memory, which is slow",
        "lower the batch, or disable this (Windows: NVIDIA Control Panel, CUDA - Sysmem Fallback Policy)",
    ),
    FindingKind.NOISY: ("rounds or launches vary widely", "close other programs and measure again"),
    FindingKind.NOT_STEADY: ("warm-up ended before the times were steady", _MORE_TIME),
    FindingKind.NOT_CONVERGED: (
        "the interval is wider than the target",
        f"{_MORE_TIME}; a host-bound row keeps a wide interval",
    ),
    FindingKind.LAUNCHES_DIFFER: (
        "launches differ: the interval from their means is wider than the target",
        "speeds differ between processes here: --publish measures more processes",
    ),
    FindingKind.THROTTLED: (
        "heat or hardware held the clock down",
        "check cooling and power; measure again",
    ),
    FindingKind.THROTTLED_ALLOWED: (
        "heat or hardware held the clock down, and the row is ranked on request",
        "it describes this card in this state, not its model",
    ),
    FindingKind.POWER_LIMITED: ("the power limit set the clock", "usual on large cards: for information"),
    FindingKind.POWER_CAPPED: (
        "the power limit is below the card's default",
        "restore the default power limit, or compare only with cards that have the same limit",
    ),
    FindingKind.SHARED_GPU: (
        "something else is using this GPU",
        "stop the other processes and measure again",
    ),
    FindingKind.TF32_IN_FORCE: (
        "TF32 was in force although fp32 was requested",
        "unset the variable that forces it",
    ),
    FindingKind.SWITCHES_CHANGED: (
        "the TF32 switches of torch did not keep the values that the precision needs",
        "leave them out of the model: --precision sets them",
    ),
    FindingKind.PRECISION_UNPROVEN: (
        "the precision is unproven: a matrix product in another precision would pass the check too",
        "measure again with this version; this row neither leads a ranking nor anchors a prediction",
    ),
    FindingKind.NO_ENERGY_COUNTER: (
        "the device has no energy counter",
        "without power readings, energy is unknown",
    ),
    FindingKind.NO_TELEMETRY: ("no telemetry on this device", "clock, power and temperature stay unknown"),
    FindingKind.IMPLAUSIBLE: ("more FLOP/s than the device can do", "do not use this row; please report it"),
    FindingKind.ABOVE_PEAK: (
        "more counted FLOP/s than the arithmetic peak, or than the best matrix product of the same run",
        "for information: Winograd convolutions do up to 2.25 times fewer multiplications than are counted",
    ),
    FindingKind.PRODUCT_IMPLAUSIBLE: (
        "faster than the best matrix product of the same run: something slowed that product down",
        "no row is judged by it; close other programs and measure again",
    ),
    FindingKind.NO_PEAK: (
        "the peak of this device is unknown, so no row was checked against it",
        "for information: an impossible rate would go unnoticed",
    ),
    FindingKind.LOSS_NOT_FALLING: (
        "the loss did not fall",
        "do not use this row: the model was not training",
    ),
    FindingKind.LOSS_NOT_FINITE: (
        "the loss became infinite or NaN",
        "lower the learning rate, or use amp-bf16 or fp32",
    ),
    FindingKind.MEMORY_ERRORS: (
        "uncorrectable memory errors appeared while this was measured",
        "reset the GPU with nvidia-smi -r, and have the card checked if they come back",
    ),
    FindingKind.LOSS_DIFFERS: (
        "the loss differs from the reference loss of the same work",
        "do not use this row; please report it with the versions of torch and driver",
    ),
    FindingKind.PARAMETERS_FROZEN: (
        "no parameter changed while training",
        "do not use this row: the optimizer did no work",
    ),
    FindingKind.STEPS_SKIPPED: (
        "the gradient scaler skipped steps",
        "lower the learning rate, or use amp-bf16",
    ),
    FindingKind.ONE_BATCH: (
        "every step trained on the same batch",
        "let build() draw from the seed that gpubench sets; gpubench then builds four different batches",
    ),
    FindingKind.DRIFTING: (
        "the step time was still drifting",
        _MORE_TIME,
    ),
    FindingKind.CLOCK_GAP: (
        "a round took far longer than the others",
        "the machine was probably suspended or swapped out; measure again",
    ),
    FindingKind.CLOCK_SET_BACK: (
        "the computer's clock was set back during the run, so the run's dates contradict each other",
        "steps are timed by another clock, which only goes forward",
    ),
    FindingKind.CLOCK_DISAGREES: (
        "the timed rounds add up to less time than the parent process's clock shows",
        "do not use this row: something changes the clock of the model's process, as freezegun does",
    ),
    FindingKind.CLOCK_EVENTS: (
        "something other than heat or the power limit set the GPU clock",
        "for information",
    ),
    FindingKind.ENERGY_IMPLAUSIBLE: (
        "the energy counter went backward, did not move or exceeded the power limit",
        "energy stays unknown",
    ),
    FindingKind.TELEMETRY_HUNG: (
        "the driver did not answer telemetry in time",
        "clock, power and temperature are missing from then on",
    ),
    FindingKind.LAUNCHES_MISSING: (
        "fewer launches than planned",
        "continue with gpubench run --resume RUN, where RUN is the id of the run",
    ),
    FindingKind.UUID_ALL_ZEROS: (
        "the driver reports an all-zero UUID",
        "the device was matched by its PCI bus id instead",
    ),
    FindingKind.STALE_PRICE: (
        "the price is old",
        "run gpubench offers refresh if it covers that provider, else see the provider's page",
    ),
    FindingKind.OUT_OF_DOMAIN: (
        "unlike every GPU that predictions are fitted to",
        "treat the figure as a guess",
    ),
    FindingKind.EAGER_MEMORY: (
        "the step fits this card when run eagerly, but may not fit in a CUDA graph",
        "a smaller batch fits either way; eager steps are slower where the host sets the pace",
    ),
    FindingKind.FEED_BOUND: (
        "input-bound: the vCPUs decode images more slowly than the GPUs use them (assumed rates)",
        "measure a host with gpubench feed; take one with more vCPUs, or prepare the images beforehand",
    ),
    FindingKind.SCALING: (
        "N GPUs are more than N times as fast as one",
        "do not use this row; please report it",
    ),
    FindingKind.TEMPERATURE_NOT_JUDGED: (
        "a short warm-up does not wait for the temperature to settle",
        "a card that heats slowly may be slower in a long run; --publish waits for it",
    ),
    FindingKind.ONE_PROCESS: (
        "only one process was timed: how much processes differ is assumed (GPU: 0.3 %) or unknown (CPU)",
        "leave out --quick; on a CPU pass --publish",
    ),
    FindingKind.SHORT_LOOK: (
        "too brief to see stalls, clocks that change every few seconds, or slow heating",
        "--publish measures for half a minute in each of eight processes",
    ),
    FindingKind.NOT_HEAT_SOAKED: (
        "not heat-soaked: the card was still warming up between launches, and a long run may be slower",
        "the low end of the interval allows for this; --publish waits until clock and temperature are steady",
    ),
    FindingKind.UNEQUAL_GPUS: (
        "the GPUs of the job are different models, and the slowest limits the speed",
        "choose GPUs of one model with CUDA_VISIBLE_DEVICES",
    ),
    FindingKind.UNUSED_PARAMETERS: (
        "a step leaves parameters without a gradient, so DDP ran with find_unused_parameters=True",
        "for information: the search takes time in each step; freeze the parameters that are not trained",
    ),
    FindingKind.MEMORY_REFUSED: (
        "the device refused to allocate memory",
        "a smaller size was measured if one fits; free memory or update the driver",
    ),
    FindingKind.NO_REFERENCE: (
        "the first step was not compared with a CPU",
        "for information: all other checks were made",
    ),
    FindingKind.CONTIGUOUS: (
        "the images are contiguous: a step of this model fails in channels_last, the faster layout",
        "replace view in its code with flatten or reshape, which take both layouts",
    ),
    FindingKind.NEEDS_TORCH_BUILD: (
        "the torch that pip installs has no kernels for this GPU",
        "install the named build with the command from the selector at pytorch.org",
    ),
}


def describe(finding: Finding, where: str | None = None) -> str:
    """Return one line: the value seen, where (None for the entire run), the limit, and the next action.

    >>> describe(Finding(kind=FindingKind.NOISY, value=0.081, limit=0.05))
    'rounds or launches vary widely (8.1 %, limit 5.0 %); close other programs and measure again [NOISY]'
    """
    what, action = _TEXTS[finding.kind]
    parts = [show(finding.kind, finding.value)] if finding.value is not None else []
    if parts and finding.limit is not None:
        parts.append(f"limit {show(finding.kind, finding.limit)}")
    seen = ": ".join(part for part in (where, ", ".join(parts)) if part)
    return f"{what}{f' ({seen})' if seen else ''}; {action} [{finding.kind}]"


def remark(finding: Finding) -> str:
    """Return a row's text for a finding: its kind, with details if a buyer has to act on it.

    >>> remark(Finding(kind=FindingKind.NEEDS_TORCH_BUILD, value="torch 2.14 cu126"))
    'NEEDS_TORCH_BUILD (torch 2.14 cu126)'
    """
    words = {
        FindingKind.FEED_BOUND: " (input-bound)",
        FindingKind.NEEDS_TORCH_BUILD: f" ({finding.value})",
    }
    return f"{finding.kind.value}{words.get(finding.kind, '')}"


def is_unfounded(findings: Iterable[Finding]) -> bool:
    """Return whether a figure with these findings neither leads a ranking nor anchors a prediction."""
    return any(each.kind in UNFOUNDED for each in findings)


def doubts(*findings: Iterable[Finding]) -> tuple[FindingKind, ...]:
    """Return the distinct doubtful kinds among findings, sorted by name.

    >>> doubts([Finding(kind=FindingKind.ONE_BATCH)], [Finding(kind=FindingKind.NOISY)])
    (<FindingKind.NOISY: 'NOISY'>,)
    """
    return tuple(sorted({each.kind for group in findings for each in group if each.kind in DOUBTFUL}))


def show(kind: FindingKind, value: float | str) -> str:
    """Format a value or a limit of a finding.

    >>> show(FindingKind.NOISY, 0.0235), show(FindingKind.LAUNCHES_MISSING, 2), show(FindingKind.NOISY, "all")
    ('2.4 %', '2', 'all')
    """
    if isinstance(value, str):
        return value
    return format_percent(value) if kind in SHARES else f"{value:.3g}"
