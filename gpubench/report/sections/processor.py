"""The GPU against the CPU on the same work, and, for a small network, that no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpubench.models import Case, TaskKind
from gpubench.report.data import ReportData, Result, same
from gpubench.report.ratios import Ratio, ratio
from gpubench.report.section import Block, Column, Paragraph, Section, Table
from gpubench.report.words import listed, stacked, throughput
from gpubench.units import count, format_duration, plain

JOB_SAMPLES = 1_000_000
"""A job to hold both against: about 17 passes over the 60,000 images of the classic digit set."""

SMALL_JOB_S = 900.0
"""A CPU that does the job within this time makes a GPU unnecessary for it [s]."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """The fastest of the CPU and the fastest of the GPU on one workload and task; ``equal`` is the batch."""

    cpu: Result
    gpu: Result | None
    factor: Ratio | None
    equal: bool


def contests(data: ReportData) -> tuple[Contest, ...]:
    """Set CPU and GPU side by side, workload by workload; at equal batch where both measured one."""
    cpus = [result for result in data.everything if result.run.device.backend == "cpu"]
    first = next((result for result in data.everything if result.run.device.backend != "cpu"), None)
    gpus = [] if first is None else [r for r in data.everything if same(r.run.device, first.run.device)]
    found = []
    for key in sorted({_key(result.case) for result in cpus}):
        mine = [result for result in cpus if _key(result.case) == key]
        theirs = [result for result in gpus if _key(result.case) == key]
        shared = {r.case.batch_size for r in mine} & {r.case.batch_size for r in theirs}
        cpu = _fastest(mine, shared)
        gpu = _fastest(theirs, {cpu.case.batch_size} if shared else set()) if theirs else None
        found.append(
            Contest(cpu=cpu, gpu=gpu, factor=None if gpu is None else ratio(gpu, cpu), equal=bool(shared))
        )
    return tuple(found)


def _key(case: Case) -> tuple[str, int, str]:
    return (case.workload, case.workload_version, case.task.value)


def _fastest(results: Iterable[Result], batches: set[int]) -> Result:
    able = [r for r in results if not batches or r.case.batch_size in batches]
    return max(able, key=lambda r: r.measurement.samples_per_s or 0.0)


def _render(data: ReportData) -> Block | None:
    found = contests(data)
    if not found:
        return None
    return Block(
        title="Is a GPU needed at all",
        parts=(
            *(Paragraph(text=text) for text in _sentences(found)),
            Table(
                caption="CPU and GPU on the same workload, each at its fastest",
                columns=(
                    Column(title="Workload"),
                    Column(title="CPU", numeric=True),
                    Column(title="GPU", numeric=True),
                    Column(title="GPU over CPU", numeric=True),
                    Column(title="A million samples", numeric=True),
                ),
                rows=tuple(_cells(contest) for contest in found),
            ),
        ),
    )


def _sentences(found: tuple[Contest, ...]) -> list[str]:
    texts = []
    easy = [c for c in found if _job_s(c.cpu) <= SMALL_JOB_S and c.cpu.case.task is TaskKind.TRAIN]
    if easy:
        slowest = max(_job_s(c.cpu) for c in easy)
        texts.append(
            f"For {listed(c.cpu.case.workload for c in easy)} no GPU is needed: this CPU trains on a million "
            f"samples in {format_duration(slowest)} or less."
        )
    compared = [c for c in found if c.factor is not None]
    if compared:
        texts.append(_headline(compared))
        texts += _mend(compared)
    elif not easy:
        texts.append(
            f"None of these workloads trains on a million samples within {format_duration(SMALL_JOB_S)} on "
            "this CPU: here a GPU pays."
        )
    return texts


def _headline(compared: list[Contest]) -> str:
    """The largest factor: at an equal batch where there is one, else with both batches named."""
    equal = [c for c in compared if c.equal] or compared
    best = max((c.factor for c in equal if c.factor), key=lambda r: (not r.doubts, r.value))
    batches = f"both at {best.of.batch_words}"
    if not equal[0].equal:
        batches = f"at {best.of.batch_words} against {best.to.batch_words}"
    flags = f"; flagged {', '.join(best.doubts)}" if best.doubts else ""
    return (
        f"The GPU is up to {best.words} as fast as the CPU{_threads(best.to, ' with ')} on "
        f"{plain(best.of.case.workload, 40)}, {batches}, each at its fastest precision and execution{flags}."
    )


def _mend(compared: list[Contest]) -> list[str]:
    """How to get an equal batch where there is none: the GPU runs any batch that the CPU does."""
    found = [c for c in compared if not c.equal]
    if not found:
        return []
    by_batch: dict[int, list[str]] = {}
    for contest in found:
        by_batch.setdefault(contest.cpu.case.batch_size, []).append(plain(contest.cpu.case.workload, 40))
    commands = (
        f"`gpubench run {' '.join(dict.fromkeys(names))} --batch-size {batch}`"
        for batch, names in sorted(by_batch.items())
    )
    why = "Where batches differ the factor is of two different jobs."
    return [f"{why} For an equal batch, on the GPU: {', '.join(commands)}."]


def _threads(result: Result, before: str) -> str:
    threads = result.measurement.cpu_threads or result.run.environment.cpu_threads
    on_cpu = result.run.device.backend == "cpu"
    return f"{before}{count(threads, 'thread')}" if on_cpu and threads else ""


def _job_s(result: Result) -> float:
    return JOB_SAMPLES / (result.measurement.samples_per_s or 1e-9)


def _cells(contest: Contest) -> tuple[str, ...]:
    gpu = contest.gpu
    task = "" if contest.cpu.case.task is TaskKind.TRAIN else ", inference"
    times = f"{format_duration(_job_s(contest.cpu))} on the CPU"
    return (
        f"{plain(contest.cpu.case.workload, 40)}{task}",
        _result(contest.cpu),
        "—" if gpu is None else _result(gpu),
        "—"
        if contest.factor is None
        else stacked(contest.factor.words) + ("" if contest.equal else "\nbatches differ"),
        times if gpu is None else f"{times}\n{format_duration(_job_s(gpu))} on the GPU",
    )


def _case(result: Result) -> str:
    case = result.case
    return f"{case.precision.value} {case.execution.value} {result.batch_words}{_threads(result, ', ')}"


def _result(result: Result) -> str:
    m = result.measurement
    figure = throughput(m.samples_per_s, m.samples_per_s_low, m.samples_per_s_high, m.case.sample_unit)
    return f"{stacked(figure)}\n{_case(result)}"


SECTION = Section(key="processor", render=_render)
