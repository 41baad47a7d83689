"""Several devices on the same case, and a CPU against a GPU: whether a GPU is needed at all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpubench.blocks.parts import Paragraph, Part, number, table, text
from gpubench.effects import Effect, Result, effect, ratio
from gpubench.interval import stacked
from gpubench.models import Case, TaskKind
from gpubench.sections.data import ReportData, at_named_batches, newest, place, same
from gpubench.sections.words import case_words, explained, kinds_words, rate_of, title_of, workload_name
from gpubench.units import UNKNOWN, count, format_duration, format_number, plain


def devices(data: ReportData) -> list[Part]:
    """The same case, and nothing else, on each of several devices, the fastest first."""
    found: dict[Case, list[Result]] = {}
    for device in data.devices:
        for result in newest((run for run in data.runs if same(run.device, device)), usable=True):
            found.setdefault(result.case, []).append(result)
    shared = {case: results for case, results in found.items() if len(results) > 1}
    rows = [
        (result, results[0])
        for results in shared.values()
        for result in sorted(results, key=place, reverse=True)
    ]
    return explained(
        "Each case that more than one device has measured; the factor is against the first device of this "
        "page.",
        "The same case on each device",
        rows,
        text("Case", lambda row: case_words(row[0].case)),
        text("Device", lambda row: plain(row[0].run.device.name or "unnamed device", 40)),
        number(
            "Samples/s, 95 % interval",
            lambda row: stacked(row[0].measurement.interval.words(row[0].measurement.digits)),
        ),
        number(
            "Against the first",
            lambda row: (
                UNKNOWN
                if row[0] is row[1]
                else stacked(ratio(row[0].measurement, row[1].measurement).by(format_number, "×"))
            ),
        ),
        text("Findings", lambda row: kinds_words(row[0].doubts)),
    )


# A job to compare both on: about 17 passes over the 60,000 images of the classic digit set.
_JOB_SAMPLES = 1_000_000

# If the expected time of a CPU exceeds the limit by this factor, it is too slow, whatever its interval.
_FAR_OFF = 10.0

SMALL_JOB_S = 900.0
"""If a CPU does the job within this time, no GPU is needed [s]."""


@dataclass(frozen=True, kw_only=True)
class CpuGpuPair:
    """The fastest CPU row and the fastest GPU row for one workload and task; ``equal`` is the common batch.

    ``cpus`` has all valid rows of the CPU; the fastest decides whether a GPU is needed.
    """

    cpus: tuple[Result, ...]
    cpu: Result
    gpu: Result | None
    factor: Effect | None
    equal: bool


def cpu_gpu_pairs(data: ReportData) -> tuple[CpuGpuPair, ...]:
    """Pair CPU and GPU, workload by workload, at equal batch if both measured one."""
    of_kind = [[r for r in data.everything if r.run.device.is_cpu is is_cpu] for is_cpu in (True, False)]
    # of each kind the page's device, else the one with the newest run
    cpus, gpus = ([r for r in kind if same(r.run.device, kind[0].run.device)] for kind in of_kind)
    found = []
    for key in sorted({_key(result.case) for result in cpus}):
        mine, theirs = (
            at_named_batches(result for result in results if _key(result.case) == key)
            for results in (cpus, gpus)
        )
        shared = {r.case.batch_size for r in mine} & {r.case.batch_size for r in theirs}
        cpu = max((r for r in mine if not shared or r.case.batch_size in shared), key=place)
        able = [r for r in theirs if not shared or r.case.batch_size == cpu.case.batch_size]
        gpu = max(able, key=place, default=None)
        factor = None if gpu is None else effect(gpu, cpu)
        founded = tuple(r for r in mine if r.leads)
        found.append(CpuGpuPair(cpus=founded, cpu=cpu, gpu=gpu, factor=factor, equal=bool(shared)))
    return tuple(found)


def _key(case: Case) -> tuple[str, int, str]:
    return (case.workload, case.workload_version, case.task.value)


def processor(data: ReportData) -> list[Part]:
    """The GPU compared with the CPU on the same work, and whether a small network needs a GPU at all."""
    found = cpu_gpu_pairs(data)
    if not found:
        return []
    trained = [pair.cpus for pair in found if pair.cpus and pair.cpu.case.task is TaskKind.TRAIN]
    untold = "No training was soundly measured on this CPU, so whether a GPU is needed for one is not known."
    return [
        *(Paragraph(text=said) for said in [*map(_need, trained)] or [untold]),
        table(
            "CPU and GPU on the same workload, each at its fastest",
            found,
            text("Workload", lambda pair: title_of(pair.cpu)),
            number("CPU", lambda pair: _fastest(pair.cpu)),
            number("GPU", lambda pair: UNKNOWN if pair.gpu is None else _fastest(pair.gpu)),
            number("GPU over CPU", _factor),
        ),
    ]


def _need(cpus: Sequence[Result]) -> str:
    """Whether a GPU is needed, judged by the interval of this CPU's fastest row.

    "Not needed" and "too slow" require both ends of the interval. If the expected time is over ``_FAR_OFF``
    times the limit, a GPU is needed whatever the interval.
    """
    lows = [result.measurement.samples_per_s_low for result in cpus]
    highs = [result.measurement.samples_per_s_high for result in cpus]
    surely_s = min((_JOB_SAMPLES / low for low in lows if low), default=math.inf)
    likely_s = min(map(_job_s, cpus))
    least_s = min((_JOB_SAMPLES / high if high else 0.0) for high in highs)
    flags = sorted({flag for result in cpus for flag in result.doubts})
    flagged = f" (flagged {', '.join(flags)})" if flags else ""
    limit, of = f"{SMALL_JOB_S / 60:.0f} min", f"For {workload_name(cpus[0].case)}{flagged}"
    if surely_s <= SMALL_JOB_S:
        trains = f"this CPU trains on a million samples in {format_duration(surely_s)} or less"
        return f"{of} no GPU is needed: {trains}."
    if likely_s > _FAR_OFF * SMALL_JOB_S:
        takes = f"a million samples take this CPU {format_duration(likely_s)} or more"
        return f"{of} a GPU is needed: {takes}, over {_FAR_OFF:.0f} times {limit}."
    if least_s > SMALL_JOB_S:
        takes = f"it takes {format_duration(least_s)} or more"
        return f"{of} this CPU is too slow to train on a million samples within {limit}: {takes}."
    return (
        f"{of} it is undecided whether this CPU trains on a million samples within {limit}: the interval of "
        "its throughput holds that pace, or is not known."
    )


def _job_s(result: Result) -> float:
    return _JOB_SAMPLES / (result.measurement.samples_per_s or 1e-9)


def _factor(pair: CpuGpuPair) -> str:
    if pair.factor is None or not pair.equal:
        return UNKNOWN if pair.gpu is None else f"{UNKNOWN}\nbatches differ"
    return f"{UNKNOWN}\nflagged" if pair.factor.doubts else stacked(pair.factor.words)


def _fastest(result: Result) -> str:
    flags = "".join(f"\nflagged {flag}" for flag in result.doubts)
    at = f", {count(result.threads, 'thread')}" if result.threads else ""
    job = f"a million samples in {format_duration(_job_s(result))}"
    return f"{rate_of(result.measurement)}\n{result.how}{at}\n{job}{flags}"
