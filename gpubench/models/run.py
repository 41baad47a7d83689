"""One run: what was measured, on what, and under which settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpubench.findings import Finding
from gpubench.models.case import Case
from gpubench.models.device import DeviceProfile
from gpubench.models.measurement import BatchChoice, Measurement, MicroResult, Status
from gpubench.models.quality import TimeToQuality
from gpubench.models.record import PROTOCOL, SCHEMA_VERSION, Record, headed, html_table, shown, views
from gpubench.units import count

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Environment(Record, frozen=True, kw_only=True):
    """The software and host that a run ran on.

    Attributes:
        packages: Versions of the frameworks beside torch, and of what they compute with.
    """

    gpubench: str
    python: str
    os: str
    cpu: str | None = None
    cpu_count: int | None = None
    cpu_threads: int | None = None
    ram_bytes: int | None = None
    git_commit: str | None = None
    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    container: str | None = None
    cpu_governor: str | None = None
    cudnn_benchmark: bool | None = None
    variables: dict[str, str] = {}
    packages: dict[str, str] = {}


class Settings(Record, frozen=True, kw_only=True):
    """What a run was told, beside its cases, budget name and seed.

    Attributes:
        time_limit_s: For the whole run; None for no limit [s].
        gpus: GPUs of one data-parallel job.
        batch_choice: Whether the batches are those of the workloads or the largest that fit.
        micro: Whether micro-benchmarks were run too (``also``), alone (``only``) or not at all (``none``).
        budget: Every number of the budget, by name.
    """

    time_limit_s: float | None = None
    allow_shared: bool = False
    allow_throttled: bool = False
    gpus: int = 1
    batch_choice: BatchChoice | None = None
    micro: str = "none"
    budget: dict[str, float | str | bool] = {}


class StartState(Record, frozen=True, kw_only=True):
    """The device just before the run, while nothing of the run was on it.

    Attributes:
        idle_power_w: What it drew, where nothing else was using it [W].
        pcie_generation, pcie_width: Of the link at that moment; an idle link may run below its most.
    """

    temperature_c: float | None = None
    idle_power_w: float | None = None
    persistence_mode: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


class Run(Record, frozen=True, kw_only=True):
    """One file: one device, one environment, and every case measured in one go.

    ``planned`` and ``launch_count`` say what the run set out to measure, so that it can be resumed.

    Attributes:
        finished_at: When it ended by itself or was stopped; None while it goes on, and of one killed.
        interrupted: Whether it was stopped before all of that was measured.
        quality: Trainings to a stated quality, where the run was asked for them; it has no cases then.
    """

    schema_version: int = SCHEMA_VERSION
    protocol: str = PROTOCOL
    run_id: str
    started_at: str
    finished_at: str | None = None
    interrupted: bool = False
    budget: str
    seed: int
    planned: tuple[Case, ...] = ()
    launch_count: int | None = None
    settings: Settings | None = None
    device: DeviceProfile
    start: StartState | None = None
    environment: Environment
    micro: tuple[MicroResult, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    quality: tuple[TimeToQuality, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return device, day and the first cases with their throughput; ``measurements`` has them all."""
        device = shown(self.device.name or self.device.gpu_key or self.device.backend, 80)
        head = (
            f"<Run {shown(self.run_id, 80)} on {device}, {shown(self.started_at)}: "
            f"{count(len(self.measurements), 'measurement')}"
        )
        lines = [f"  {shown(each.label, 100)}: {_rate(each)}" for each in self.measurements[:_CASES_IN_REPR]]
        return headed(head, lines, len(self.measurements))

    def _repr_html_(self) -> str:
        """Return the first cases with their throughput as a table for notebooks."""
        title = f"Run {self.run_id} on {self.device.name or self.device.gpu_key or self.device.backend}"
        rows = [(each.label, _rate(each)) for each in self.measurements[:_CASES_IN_TABLE]]
        return html_table(title, ("case", "throughput (95 %)"), rows, len(self.measurements))

    def plot(self) -> Figure:
        """Return the throughput of every case with its interval, as a plotly figure."""
        return views().run_figure(self)


def newest_first(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Order runs by their start, the newest first."""
    return tuple(sorted(runs, key=lambda run: (run.started_at, run.run_id), reverse=True))


_CASES_IN_REPR = 8
_CASES_IN_TABLE = 20


def _rate(each: Measurement) -> str:
    """The throughput with its interval; of a case without one, how it ended."""
    if each.status is not Status.OK:
        return str(each.status)
    return each.interval.rate(each.case.sample_unit)
