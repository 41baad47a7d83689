"""What a run has taken of each case so far: its launches, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpubench.measure import messages
from gpubench.measure.peaks import peak_flops_per_s
from gpubench.measure.plan import Plan, Unit
from gpubench.models import Case, DeviceProfile, Launch, Measurement, Precision, Status
from gpubench.models.measurement import UNFINISHED


@dataclass
class Record:
    """What is known of each case so far; ``begun`` counts the launches that the run has begun."""

    plan: Plan
    device: DeviceProfile
    launches: dict[Case, list[Launch]] = field(default_factory=dict)
    ended: dict[Case, tuple[Status, str | None]] = field(default_factory=dict)
    gemm: dict[Precision, float] = field(default_factory=dict)
    threads: int | None = None
    begun: int = 0

    def measurement(self, unit: Unit) -> Measurement:
        """The measurement of a case with every launch so far, not yet judged beside others."""
        case = unit.planned.case
        status, reason = self.ended.get(case, (Status.OK, None))
        return Measurement(
            case=case,
            status=status,
            reason=reason,
            batch_choice=unit.planned.batch_choice,
            launches=tuple(self.launches.get(case, ())),
            flops_per_sample=unit.planned.flops_per_sample,
            hardware_flops_per_sample=unit.planned.hardware_flops_per_sample,
            tokens_per_sample=unit.planned.tokens_per_sample,
            parameter_count=unit.planned.parameter_count,
            peak_flops_per_s=peak_flops_per_s(self.device, case.precision),
            gemm_flops_per_s=self.gemm.get(case.precision),
            cpu_threads=case.threads or self.threads,
            convolves=unit.planned.convolves,
            target=self.plan.budget.target,
        )

    def take(self, unit: Unit, done: messages.CaseDone) -> None:
        """Add one launch. A case that failed gets no further one.

        One out of time, or whose process died, keeps its earlier launches, and its figure rests on them.
        """
        case = unit.planned.case
        earlier = self.launches.setdefault(case, [])
        cut_short = bool(earlier) and (done.status in UNFINISHED or done.launch.stopped)
        if done.status is Status.OK or not earlier:
            earlier.append(done.launch)
        if done.status is not Status.OK and not cut_short:
            self.ended[case] = (done.status, done.reason)
