"""The evidence for a ranking: measurements and predictions, and their batch sizes.

It includes devices known only from the user's runs: this CPU, a Mac, a card that is not in the table.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any, NamedTuple

import msgspec

from gpubench.findings import is_unfounded
from gpubench.groups import grouped
from gpubench.interval import Interval
from gpubench.models import (
    Case,
    Estimate,
    Execution,
    GpuSpec,
    Measurement,
    ParallelMode,
    Run,
    Status,
    WorkloadProfile,
)
from gpubench.names import normalize
from gpubench.options import asked_recipe
from gpubench.precisions import AMP
from gpubench.predict.estimate import estimate, estimate_at_largest_batch
from gpubench.predict.question import FITTED_VENDOR, Question, Refusal, peaks_of, question_of
from gpubench.profile import profile_of, profiles_of
from gpubench.recommend.candidates import usual_job
from gpubench.recommend.economics import generation_times
from gpubench.recommend.factors import NOTHING_ASKED, HostNeed, need_of
from gpubench.recommend.request import RankRequest
from gpubench.recommend.speeds import (
    INDEPENDENT,
    Answers,
    Scaler,
    Scaling,
    Sharing,
    efficiency_of,
    measured_efficiency,
    sharing_of,
)
from gpubench.specs import load_specs
from gpubench.spread import ANOTHER_CARD
from gpubench.units import count, format_duration

MOST_SHARING = 16
"""Maximum number of GPUs in one job: as many as the largest machine of most clouds has."""
LATENCY_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # a latency limit chooses one of these
MS_PER_S = 1000.0


class Runs(NamedTuple):
    """The user's runs, and those shipped with the package."""

    own: tuple[Run, ...]
    reference: tuple[Run, ...]

    @property
    def every(self) -> tuple[Run, ...]:
        """All runs, the user's last."""
        return (*self.reference, *self.own)


Refuser = Callable[[str, GpuSpec, int, Estimate], str | None]
"""Maps (workload, GPU, GPU count, estimate for one GPU) to why a job does not fit; None if it does."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence: an answer for each workload and GPU, and the scaling to several GPUs.

    Attributes:
        why_no_room: Says why a job that several GPUs share does not fit in their memory; each GPU's share may
            need more than the job on a single GPU. None if not checked.
        scaler: Returns the scaling of one job over several GPUs.
        independent: Returns the scaling of a separate job on each GPU; None if no run measured it.
        photographs: The workloads that train on decoded photographs, which the host must prepare.
        usual_job: The workload's well-known job in words and in samples; None for several workloads.
        host: What the job requires of the host.
    """

    answers: Mapping[str, Answers]
    scaler: Scaler
    independent: Scaler | None = None
    why_no_room: Refuser | None = None
    photographs: frozenset[str] = frozenset()
    usual_job: tuple[str, float] | None = None
    host: HostNeed = NOTHING_ASKED


def gather(request: RankRequest, gpu_keys: Sequence[str], runs: Runs) -> Evidence:
    """Return the evidence: the speed by workload and GPU is measured by the user, shipped, or predicted.

    The answers include devices that the user measured and that are in no table (this CPU, a Mac).
    """
    specs = [spec for key in gpu_keys if (spec := load_specs().get(key)) is not None]
    profiles = profiles_of(request.workload_names, asked_recipe(request), precisions=[request.precision])
    questions = {name: _question(request, profile) for name, profile in profiles.items()}
    scaler, why_no_room = _sharers(request, questions, specs, runs)
    one = next(iter(profiles.values()))
    usual = usual_job(one, one.task_for(request.task)) if len(profiles) == 1 else None
    images = 0.0 if request.samples is not None else request.epoch_samples or 0.0
    return Evidence(
        answers={name: _all_answers(request, question, specs, runs) for name, question in questions.items()},
        scaler=scaler,
        independent=_side_by_side(runs),
        why_no_room=why_no_room,
        photographs=frozenset(name for name, profile in profiles.items() if profile.takes_photographs),
        usual_job=usual,
        host=need_of(profiles.values(), request.task, images),
    )


def _sharers(
    request: RankRequest, questions: Mapping[str, Question], specs: Sequence[GpuSpec], runs: Runs
) -> tuple[Scaler, Refuser]:
    # Return two functions: one for the scaling of one job over several GPUs, one for why it does not fit.
    peaks = cache(lambda name: peaks_of(questions[name], runs.own))

    @cache
    def with_recipe_from(name: str, fewest: int) -> tuple[Question, Answers]:
        # Answer for one GPU with the recipe of jobs on at least this many GPUs.
        how: dict[str, Any] = {"gpu_count": fewest, "precisions": [request.precision]}
        question = _question(request, profile_of(name, asked_recipe(request), **how))
        return question, _answers(request, question, specs, runs)

    def one_of(
        name: str, spec: GpuSpec, gpu_count: int, alone: Estimate
    ) -> tuple[Question, Estimate | Refusal]:
        # Return the estimate for one GPU with the recipe of a job on this many GPUs.
        rule = questions[name].profile.checkpointing_from
        fewest = max((n for n, _ in rule if n <= gpu_count), default=1)
        if fewest == 1:
            return questions[name], alone
        question, answers = with_recipe_from(name, fewest)
        return question, answers[spec.key]

    known: dict[tuple[str, str, int], Sharing] = {}

    def sharing(name: str, spec: GpuSpec, gpu_count: int, alone: Estimate) -> Sharing:
        asked = name, spec.key, gpu_count  # asked twice: for memory, and for scaling
        if asked not in known:
            one = one_of(name, spec, gpu_count, alone)
            known[asked] = sharing_of(*one, spec, gpu_count, measured=runs.every, peaks=peaks(name))
        return known[asked]

    def scaler(name: str, spec: GpuSpec, gpu_count: int, alone: Estimate) -> Scaling:
        question, one = one_of(name, spec, gpu_count, alone)
        shared = sharing(name, spec, gpu_count, alone)
        assert isinstance(one, Estimate)  # a job that does not fit is not scaled
        found = efficiency_of(question, one, spec, gpu_count, mode=shared.mode, measured=runs.every)
        by_recipe = one.samples_per_s / alone.samples_per_s  # 1 unless the recipe differs
        return replace(found, by_recipe=by_recipe, mode=shared.mode, fits=(shared.fit,))

    return scaler, lambda *asked: sharing(*asked).reason


def _side_by_side(runs: Runs) -> Scaler | None:
    # Return a function for the efficiency of separate jobs on several GPUs; None if no run measured it.
    mode = ParallelMode.INDEPENDENT
    at_once = [r for r in runs.every if any(m.case.parallel_mode is mode for m in r.measurements)]

    def independent(_name: str, spec: GpuSpec, gpu_count: int, alone: Estimate) -> Scaling:
        found = measured_efficiency(at_once, alone.case, spec.key, gpu_count, mode)
        return replace(found or INDEPENDENT, mode=mode)

    return independent if at_once else None


def _all_answers(request: RankRequest, question: Question, specs: Sequence[GpuSpec], runs: Runs) -> Answers:
    """Answer for the GPUs of the table, then for other devices that the user measured.

    If a card cannot be predicted (Kepler), or only with a wide interval (AMD), the user's own measurement of
    it at this batch size is the answer.
    """
    answers, limit_ms = dict(_answers(request, question, specs, runs)), request.max_latency_ms
    final = {  # answers that the user's own runs do not replace
        key
        for key, answer in answers.items()
        if isinstance(answer, Estimate)
        and (answer.basis != "predicted" or load_specs()[key].vendor == FITTED_VENDOR)
    }
    own = runs.own
    if request.batch_size == "max":  # then cards are compared at their largest batch, measured ones too
        own = tuple(
            run
            if device_key(run) == CPU_KEY
            else msgspec.structs.replace(
                run, measurements=tuple(row for row in run.measurements if row.at_largest_batch)
            )
            for run in own
        )
    for key, found in measured_by_the_user(question, own, final).items():
        as_asked = request.batch_size == "max" or found.case.batch_size == question.batch
        if key not in load_specs() or (key in answers and as_asked):
            answers[key] = found if limit_ms is None else _in_time(found, limit_ms / MS_PER_S)
    return answers


def mean_power_w(runs: Runs) -> dict[str, float]:
    """Return each GPU's mean power under load by key: the median over all measurements of that GPU [W]."""
    seen = grouped(
        (key, power_w / measurement.case.gpu_count)
        for run in runs.every
        if (key := device_key(run))
        for measurement in run.measurements
        if measurement.status is Status.OK and (power_w := measurement.mean_power_w) is not None
    )
    return {key: median(values) for key, values in seen.items()}


def _question(request: RankRequest, profile: WorkloadProfile) -> Question:
    return question_of(
        profile,
        request.precision,
        asked=asked_recipe(request),
        execution=Execution(request.execution),
        task=profile.task_for(request.task),
        batch_size=None if request.batch_size == "max" else request.batch_size,
    )


def _answers(request: RankRequest, question: Question, specs: Sequence[GpuSpec], runs: Runs) -> Answers:
    if request.max_latency_ms is not None:
        return _within_latency(request.max_latency_ms / MS_PER_S, request, question, specs, runs)
    answer = estimate_at_largest_batch if request.batch_size == "max" else estimate
    most = MOST_SHARING if request.one_job_over_all_gpus else 1
    named = bool(request.gpus)  # a card that may not have the memory is ranked only if it is named
    return answer(
        question, list(specs), own=runs.own, reference=runs.reference, most_sharing=most, may_fit=named
    )


def _within_latency(
    limit_s: float, request: RankRequest, question: Question, specs: Sequence[GpuSpec], runs: Runs
) -> Answers:
    # Answer for each GPU at the batch with the highest throughput that certainly meets the latency limit.
    batches = (question.batch,) if isinstance(request.batch_size, int) else LATENCY_BATCHES
    best: dict[str, Estimate | Refusal] = {}
    for batch_size in batches:
        asked = msgspec.structs.replace(question, batch_size=batch_size)
        answers = estimate(
            asked, list(specs), own=runs.own, reference=runs.reference, may_fit=bool(request.gpus)
        )
        for key, answer in answers.items():
            if isinstance(answer, Estimate):
                answer = _in_time(answer, limit_s)  # noqa: PLW2901 - too slow is a refusal
            known = best.setdefault(key, answer)
            if isinstance(answer, Refusal):
                continue
            if isinstance(known, Refusal) or answer.samples_per_s > known.samples_per_s:
                best[key] = answer
    return best


def _in_time(answer: Estimate, limit_s: float) -> Estimate | Refusal:
    # Return the answer if it certainly meets the latency limit, otherwise a refusal with the reason.
    batch_size, slow_s = answer.case.batch_size, slow_latency_s(answer)
    if slow_s is not None and slow_s <= limit_s:
        return answer
    what = "a token at batch" if answer.case.new_tokens else "a batch of"
    why = f"{what} {batch_size} may take {format_duration(slow_s)}, above {limit_s * MS_PER_S:g} ms"
    if slow_s is None:
        why = f"the time per token at batch {batch_size} is not known: it was not measured"
    return Refusal(gpu_key=answer.gpu_key, reason=why)


def slow_latency_s(answer: Estimate) -> float | None:
    """Return the pessimistic time of one step [s]; for generation, of one token after the first.

    None if the time of a token is unknown.
    """
    if answer.case.new_tokens:
        times = generation_times(answer)
        return None if times is None else times.per_token_s.high or times.per_token_s.value
    return answer.case.batch_size / (answer.low or answer.samples_per_s)


CPU_KEY = "cpu"


def device_key(run: Run) -> str | None:
    """Return the key of a run's device: ``cpu`` for a processor, a key made of the name of an unlisted GPU.

    None for an unlisted GPU that is partitioned (MIG) or has no name, and for the processor of an added run,
    which is not the user's own.
    """
    if run.device.is_cpu:
        return None if run.added_from else CPU_KEY
    named = "" if run.device.mig_enabled else normalize(run.device.name or "")
    return run.device.gpu_key or named.replace(" ", "-") or None


def measured_by_the_user(
    question: Question, runs: Iterable[Run], known: Collection[str]
) -> dict[str, Estimate]:
    """Return the user's measurements on devices without another answer, by key.

    The requested case is used if it was measured, else the closest case: preferably one that differs only in
    execution mode (a CPU has no graphs), then one with another batch size, and, if AMP is requested, then one
    at another precision. The estimate names its case, so the reader sees the difference.

    Args:
        question: Workload, precision, execution, task and batch.
        runs: This user's runs, oldest first; among equally close cases the newest is used.
        known: Keys that already have an answer.
    """
    best: dict[str, tuple[int, Measurement, Run]] = {}
    for run in runs:
        key = device_key(run)
        if key is None or key in known:
            continue
        for measurement in run.measurements:
            distance = _distance(question, measurement.case)
            usable = measurement.status is Status.OK and measurement.samples_per_s is not None
            usable = usable and not is_unfounded(measurement.findings)
            if usable and distance is not None and (key not in best or distance <= best[key][0]):
                best[key] = (distance, measurement, run)
    return {key: _estimate(key, measurement, run) for key, (_, measurement, run) in best.items()}


def _distance(question: Question, case: Case) -> int | None:
    # Return the rank of a case by its distance from the question; None if it measures different work.
    same_work = (case.workload, case.workload_version, case.task, case.gpu_count, case.framework) == (
        question.profile.name,
        question.profile.version,
        question.task,
        1,
        question.framework,
    )
    if not same_work or case.recipe != question.profile.recipe.at(case.precision):
        return None
    # With the 4 below, each difference outweighs all lesser ones together.
    distance = 2 * (case.batch_size != question.batch) + (case.execution != question.execution)
    if question.precision == AMP:
        return distance if case.precision.is_amp else distance + 4
    return distance if case.precision == question.precision else None


def _estimate(key: str, measurement: Measurement, run: Run) -> Estimate:
    # Return a measurement as an answer, including the number of threads for a CPU.
    assert measurement.samples_per_s is not None  # usable rows have a figure
    threads = measurement.cpu_threads or run.environment.cpu_threads
    on = f" with {count(threads, 'thread')}" if key == CPU_KEY and threads else ""
    rate = measurement.interval  # of this card only; offers of a listed GPU have other cards of its model
    rate = rate.times(ANOTHER_CARD) if key in load_specs() else rate
    return Estimate(
        case=measurement.case,
        gpu_key=key,
        samples_per_s=measurement.samples_per_s,
        low=rate.low,
        high=rate.high,
        basis="measured",
        method=f"measured in an added run ({run.origin}){on}" if run.origin else f"measured here{on}",
        origin=run.origin,
        evidence=(run.run_id,),
        peak_memory_bytes=measurement.peak_memory_bytes,
        fits_memory=True,
        host_cpu=run.environment.cpu if measurement.is_host_bound else None,
        first_token_s=measurement.first_token_s,
        per_token_s=Interval(measurement.per_token_s),
        findings=measurement.findings,
        batch_choice=measurement.batch_choice,
    )
