"""CPU and GPU side by side on the same workload: how many times faster, and where no GPU is needed."""

from __future__ import annotations

from gpubench.models import Measurement, TaskKind
from gpubench.recommend.beside import SMALL_JOB_SAMPLES, Beside, beside_cpu
from gpubench.report.data import ReportData
from gpubench.report.section import Block, Column, Paragraph, Section, Table
from gpubench.report.words import estimate, listed, stacked, throughput
from gpubench.units import UNKNOWN, format_duration, plain

_COLUMNS = (
    Column(title="Workload"),
    Column(title="CPU", numeric=True),
    Column(title="GPU", numeric=True),
    Column(title="Times faster", numeric=True),
    Column(title=f"{SMALL_JOB_SAMPLES:,} samples on the CPU", numeric=True),
)


def _render(data: ReportData) -> Block | None:
    pairs = beside_cpu(data.runs)
    if not pairs:
        return None
    table = Table(
        caption="The fastest measurement of each workload on a CPU and on a GPU",
        columns=_COLUMNS,
        rows=tuple(_row(pair) for pair in pairs),
    )
    return Block(
        title="Beside a CPU",
        parts=(Paragraph(text=_sentence(pairs)), table),
    )


def _sentence(pairs: tuple[Beside, ...]) -> str:
    spared = [p.workload for p in pairs if not p.gpu_needed and p.task is TaskKind.TRAIN]
    threads = sorted({p.cpu.cpu_threads for p in pairs if p.cpu.cpu_threads})
    how = f" on {listed(map(str, threads))} threads" if threads else ""
    text = (
        f"Each side stands with its fastest case{how}; batch and precision are stated and may differ. "
        "A CPU's figure never enters the prediction of a GPU."
    )
    if not spared:
        return text
    return (
        f"For {listed(dict.fromkeys(spared))} no GPU is needed: the CPU trains on {SMALL_JOB_SAMPLES:,} "
        f"samples within a minute. {text}"
    )


def _row(pair: Beside) -> tuple[str, ...]:
    task = "" if pair.task is TaskKind.TRAIN else ", inference"
    threads = f", {pair.cpu.cpu_threads} threads" if pair.cpu.cpu_threads else ""
    return (
        f"{plain(pair.workload, 40)}{task}",
        _figure(pair.cpu, f"{plain(pair.cpu_name, 40)}{threads}"),
        UNKNOWN if pair.gpu is None else _figure(pair.gpu, plain(pair.gpu_name or "", 40)),
        _times(pair),
        format_duration(pair.small_job_s),
    )


def _figure(found: Measurement, device: str) -> str:
    """Throughput, and on a second line where and how."""
    case = found.case
    speed = throughput(
        found.samples_per_s, found.samples_per_s_low, found.samples_per_s_high, case.sample_unit
    )
    return f"{speed}\n{device}, {case.precision}, {case.execution}, batch {case.batch_size}"


def _times(pair: Beside) -> str:
    up = pair.speed_up
    return UNKNOWN if up is None else stacked(estimate(up.value, up.low, up.high))


SECTION = Section(key="beside", render=_render)
