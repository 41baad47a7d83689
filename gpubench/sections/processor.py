"""The GPU against the CPU on the same work, and, for a small network, that no GPU is needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpubench.blocks.block import Block
from gpubench.blocks.parts import Paragraph, Part, number, table, text
from gpubench.effects import Effect, Result, effect
from gpubench.interval import stacked
from gpubench.labels import gpu_name
from gpubench.models import Case, TaskKind
from gpubench.sections.data import ReportData, at_named_batches, place, same
from gpubench.sections.section import Section
from gpubench.sections.words import basis_words, rate_of, workload_name
from gpubench.units import UNKNOWN, count, format_duration, listing

JOB_SAMPLES = 1_000_000
"""A job to hold both against: about 17 passes over the 60,000 images of the classic digit set."""

FAR_OFF = 10.0
"""A CPU whose likely time is longer than the limit by this factor is too slow, whatever its interval."""

SMALL_JOB_S = 900.0
"""A CPU that does the job within this time makes a GPU unnecessary for it [s]."""


@dataclass(frozen=True, kw_only=True)
class CpuGpuPair:
    """The fastest of the CPU and the fastest of the GPU on one workload and task; ``equal`` is the batch.

    ``cpus`` is everything founded that the CPU did: whether a GPU is needed asks for the fastest of all.
    """

    cpus: tuple[Result, ...]
    cpu: Result
    gpu: Result | None
    factor: Effect | None
    equal: bool


def cpu_gpu_pairs(data: ReportData) -> tuple[CpuGpuPair, ...]:
    """Set CPU and GPU side by side, workload by workload; at equal batch where both measured one."""
    of_kind = [[r for r in data.everything if r.run.device.is_cpu is is_cpu] for is_cpu in (True, False)]
    # of each the page's own device, else the one with the newest run
    cpus, gpus = ([r for r in kind if same(r.run.device, kind[0].run.device)] for kind in of_kind)
    found = []
    for key in sorted({_key(result.case) for result in cpus}):
        mine, theirs = (
            at_named_batches(result for result in results if _key(result.case) == key)
            for results in (cpus, gpus)
        )
        shared = {r.case.batch_size for r in mine} & {r.case.batch_size for r in theirs}
        cpu = _fastest(mine, shared)
        gpu = _fastest(theirs, {cpu.case.batch_size} if shared else set()) if theirs else None
        factor = None if gpu is None else effect(gpu, cpu)
        found.append(
            CpuGpuPair(
                cpus=tuple(r for r in mine if r.leads), cpu=cpu, gpu=gpu, factor=factor, equal=bool(shared)
            )
        )
    return tuple(found)


def _key(case: Case) -> tuple[str, int, str]:
    return (case.workload, case.workload_version, case.task.value)


def _fastest(results: Iterable[Result], batches: set[int]) -> Result:
    able = [r for r in results if not batches or r.case.batch_size in batches]
    return max(able, key=place)


def _render(data: ReportData) -> Block | None:
    found = cpu_gpu_pairs(data)
    if not found:
        return None
    compared = [pair for pair in found if pair.gpu is not None]
    texts = _needs([pair for pair in found if pair.cpus and pair.cpu.case.task is TaskKind.TRAIN])
    if compared:
        texts += [*_headline(compared), *_fix(compared)]
    return Block(
        title="Is a GPU needed at all",
        parts=(
            *(Paragraph(text=said) for said in texts),
            table(
                "CPU and GPU on the same workload, each at its fastest",
                found,
                text("Workload", _workload),
                number("CPU", lambda pair: _result(pair.cpu)),
                number("GPU", lambda pair: UNKNOWN if pair.gpu is None else _result(pair.gpu)),
                number("GPU over CPU", _factor),
                number(
                    "A million samples",
                    lambda pair: "\n".join(
                        f"{format_duration(_job_s(result))} on the {name}"
                        for name, result in (("CPU", pair.cpu), ("GPU", pair.gpu))
                        if result is not None
                    ),
                ),
            ),
            *([] if any(pair.gpu for pair in found) else _expected(data, found)),
        ),
    )


def _expected(data: ReportData, found: Sequence[CpuGpuPair]) -> list[Part]:
    """Where no GPU was measured: each workload on the best offer of the ranking, by its own estimate."""
    if data.ranking is None or not data.ranking.rows:
        return []
    best = data.ranking.rows[0]
    estimates = {_key(e.case): e for e in best.estimates}
    known = [(c, estimates[_key(c.cpu.case)]) for c in found if _key(c.cpu.case) in estimates]
    expected = table(
        f"The CPU measured here, and what one {gpu_name(best.offer.gpu_key)} would do",
        known,
        text("Workload", lambda row: _workload(row[0])),
        number("CPU, a million samples", lambda row: format_duration(_job_s(row[0].cpu))),
        number("GPU, a million samples", lambda row: format_duration(JOB_SAMPLES / row[1].samples_per_s)),
        number("GPU throughput, samples/s", lambda row: stacked(row[1].interval.words())),
        text("Basis", lambda row: basis_words(row[1])),
    )
    return [expected] if known else []


def _needs(trained: Sequence[CpuGpuPair]) -> list[str]:
    """Whether a GPU is needed, workload by workload, by the interval of the fastest way of this CPU.

    Not needed, or too slow, is said only where both ends of the interval say it. Where the likely time is
    over ``FAR_OFF`` times the limit a GPU is needed, whatever the interval, known or not.
    """
    if not trained:
        return [
            "No training was soundly measured on this CPU, so whether a GPU is needed for one is not known."
        ]
    limit = f"{SMALL_JOB_S / 60:.0f} min"
    easy = [c for c in trained if _surely_within_s(c.cpus) <= SMALL_JOB_S]
    far = [c for c in trained if _job_s(_fastest(c.cpus, set())) > FAR_OFF * SMALL_JOB_S]
    hard = [c for c in trained if _at_least_s(c.cpus) > SMALL_JOB_S and c not in far]
    untold = [
        c for c in trained if _at_least_s(c.cpus) <= SMALL_JOB_S < _surely_within_s(c.cpus) and c not in far
    ]
    surely_s = max((_surely_within_s(c.cpus) for c in easy), default=None)
    likely_s = min((_job_s(_fastest(c.cpus, set())) for c in far), default=None)
    least_s = min((_at_least_s(c.cpus) for c in hard), default=None)
    said = {
        "no GPU is needed: this CPU trains on a million samples in "
        f"{format_duration(surely_s)} or less.": easy,
        f"a GPU is needed: a million samples take this CPU {format_duration(likely_s)} or "
        f"more, over {FAR_OFF:.0f} times {limit}.": far,
        f"this CPU is too slow to train on a million samples within {limit}: it takes "
        f"{format_duration(least_s)} or more.": hard,
        "it is undecided whether this CPU trains on a million samples within "
        f"{limit}: the interval of its throughput holds that pace, or is not known.": untold,
    }
    return [f"For {_names(of)} {words}" for words, of in said.items() if of]


def _names(found: Iterable[CpuGpuPair]) -> str:
    """Workloads, with the findings that cast doubt on what the CPU did."""
    texts = []
    for pair in found:
        flags = sorted({flag for result in pair.cpus for flag in result.doubts})
        name = workload_name(pair.cpu.case)
        texts.append(f"{name} (flagged {', '.join(flags)})" if flags else name)
    return listing(texts)


def _surely_within_s(results: Iterable[Result]) -> float:
    """Time for the job at the low end of the surest case [s]; infinite where no low end is known."""
    lows = [r.measurement.samples_per_s_low for r in results]
    return min((JOB_SAMPLES / low for low in lows if low), default=math.inf)


def _at_least_s(results: Iterable[Result]) -> float:
    """Time for the job at the high end of the fastest case [s]; 0 where a high end is not known."""
    highs = [r.measurement.samples_per_s_high for r in results]
    return min((JOB_SAMPLES / high if high else 0.0) for high in highs)


def _headline(compared: Sequence[CpuGpuPair]) -> list[str]:
    """The largest factor at an equal batch that nothing casts doubt on; nothing where there is none."""
    factors = [pair.factor for pair in compared if pair.equal and pair.factor and not pair.factor.doubts]
    if not factors:
        return []
    best = max(factors, key=lambda factor: factor.value)
    said = (
        f"The GPU is up to {best.words} as fast as the CPU{_threads(best.to, ' with ')} on "
        f"{workload_name(best.of.case)}, both at {best.of.batch_words}, each at its fastest precision and "
        "execution."
    )
    return [said]


def _factor(pair: CpuGpuPair) -> str:
    """The factor, or why the two are not compared."""
    if pair.factor is None or not pair.equal:
        return UNKNOWN if pair.gpu is None or pair.equal else f"{UNKNOWN}\nbatches differ"
    return f"{UNKNOWN}\nflagged" if pair.factor.doubts else stacked(pair.factor.words)


def _fix(compared: Sequence[CpuGpuPair]) -> list[str]:
    """How to get an equal batch where there is none: the GPU runs any batch that the CPU does."""
    by_batch: dict[int, list[str]] = {}
    for pair in compared:
        if not pair.equal:
            by_batch.setdefault(pair.cpu.case.batch_size, []).append(workload_name(pair.cpu.case))
    if not by_batch:
        return []
    commands = (
        f"`gpubench run {' '.join(dict.fromkeys(names))} --batch-size {batch}`"
        for batch, names in sorted(by_batch.items())
    )
    why = "Where batches differ the two did different jobs, and are not compared."
    return [f"{why} For an equal batch, on the GPU: {', '.join(commands)}."]


def _threads(result: Result, before: str) -> str:
    return f"{before}{count(result.threads, 'thread')}" if result.threads else ""


def _job_s(result: Result) -> float:
    return JOB_SAMPLES / (result.measurement.samples_per_s or 1e-9)


def _workload(pair: CpuGpuPair) -> str:
    task = "" if pair.cpu.case.task is TaskKind.TRAIN else ", inference"
    return f"{workload_name(pair.cpu.case)}{task}"


def _result(result: Result) -> str:
    flags = "".join(f"\nflagged {flag}" for flag in result.doubts)
    return f"{rate_of(result.measurement)}\n{result.how}{_threads(result, ', ')}{flags}"


SECTION = Section(key="processor", render=_render, place=70, heading="throughput")
