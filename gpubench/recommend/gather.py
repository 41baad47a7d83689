"""The evidence behind a ranking: what was measured, what is predicted, at which batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import NamedTuple

import msgspec

from gpubench.models import (
    Case,
    Checkpointing,
    Estimate,
    Execution,
    GpuSpec,
    MemoryFit,
    ParallelMode,
    Run,
    Status,
    Verdict,
    WorkloadProfile,
)
from gpubench.predict import memory
from gpubench.predict.anchors import Reading, peaks_of
from gpubench.predict.estimate import estimate, estimate_at_largest_batch
from gpubench.predict.question import FITTED_VENDOR, Question, Refusal, question_of
from gpubench.predict.scaling import scaling
from gpubench.profile import profile_of, profiles_of
from gpubench.profile.allowance import card_of
from gpubench.recommend import own_devices
from gpubench.recommend.job import UsualJob, usual_job
from gpubench.recommend.request import RankRequest
from gpubench.recommend.scaling import (
    INDEPENDENT,
    Efficiency,
    Scaler,
    measured_efficiency,
    measured_together,
)
from gpubench.recommend.speeds import Answers
from gpubench.recommend.tokens import generation_times
from gpubench.shared_options import asked_recipe
from gpubench.specs import load_specs

MOST_SHARING = 16
"""GPUs over which a job is shared out at most: those of the largest machine that most clouds have."""
LATENCY_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MS_PER_S = 1000.0


class Runs(NamedTuple):
    """What was measured: by this user, and what the package ships."""

    own: tuple[Run, ...]
    reference: tuple[Run, ...]


Refuser = Callable[[str, GpuSpec, int, Estimate], str | None]
"""(workload, GPU, how many, estimate of one) to why they have no room for one job; None where they do."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known: an answer for each workload and GPU, and how several GPUs work at once.

    Attributes:
        without_room: Whether each of several GPUs holds its share of one job, which takes more there than on
            one alone; None where nobody looked.
        scaler: How well they share one job.
        independent: How well a job on each goes on beside the others; None where no run tells.
        photographs: The workloads that train on decoded photographs, which a host must prepare.
        usual_job: The job by which the workload is known, where it is one.
    """

    answers: Mapping[str, Answers]
    scaler: Scaler
    independent: Scaler | None = None
    without_room: Refuser | None = None
    photographs: frozenset[str] = frozenset()
    usual_job: UsualJob | None = None


def gather(request: RankRequest, gpu_keys: Sequence[str], runs: Runs) -> Evidence:
    """Return by workload and GPU how fast it runs: measured by the user, shipped, or predicted.

    Devices that the user measured and no table knows (this CPU, a Mac) are among the answers too.
    """
    specs = [spec for key in gpu_keys if (spec := load_specs().get(key)) is not None]
    recipe = asked_recipe(request)
    profiles = profiles_of(request.workload_names, recipe)
    questions = {name: _question(request, profile) for name, profile in profiles.items()}

    measured = (*runs.reference, *runs.own)

    @cache
    def seen(name: str) -> _Seen:
        return _Seen(measured, peaks_of(questions[name], runs.own))

    @cache
    def from_so_many(name: str, fewest: int) -> tuple[Question, Answers]:
        question = _question(request, profile_of(name, recipe, gpu_count=fewest))
        return question, _answers(request, question, specs, runs)

    def one_of(name: str, spec: GpuSpec, gpu_count: int, alone: Estimate) -> _OneOf:
        """Ask again where a job of so many GPUs has another recipe than one alone."""
        fewest = max((n for n, _ in profiles[name].checkpointing_from if n <= gpu_count), default=1)
        question, answers = (
            (questions[name], {spec.key: alone}) if fewest == 1 else from_so_many(name, fewest)
        )
        return _OneOf(question, answers[spec.key])

    known: dict[tuple[str, str, int], _Together] = {}

    def together(name: str, spec: GpuSpec, gpu_count: int, alone: Estimate) -> _Together:
        asked = name, spec.key, gpu_count  # twice: for room, and for how well they scale
        if asked not in known:
            known[asked] = _together(one_of(name, spec, gpu_count, alone), spec, gpu_count, seen(name))
        return known[asked]

    def scaler(name: str, spec: GpuSpec, gpu_count: int, alone: Estimate) -> Efficiency:
        shared = together(name, spec, gpu_count, alone)
        question, one = one_of(name, spec, gpu_count, alone)
        assert isinstance(one, Estimate)  # else there is no room, and nothing to scale
        found = measured_efficiency(
            measured, one.case, spec.key, gpu_count, shared.mode
        ) or measured_together(measured, one, gpu_count, shared.mode)
        found = found or _modeled(question, spec, gpu_count, one, sharded=shared.mode is ParallelMode.FSDP)
        by_recipe = one.samples_per_s / alone.samples_per_s  # 1 but for another recipe
        return replace(found, by_recipe=by_recipe, mode=shared.mode, fit=shared.fit)

    mode = ParallelMode.INDEPENDENT
    at_once = [r for r in measured if any(m.case.parallel_mode is mode for m in r.measurements)]

    def independent(name: str, spec: GpuSpec, gpu_count: int, alone: Estimate) -> Efficiency:
        del name
        found = measured_efficiency(at_once, alone.case, spec.key, gpu_count, mode)
        return replace(found or Efficiency(1.0, 1.0, 1.0, INDEPENDENT.basis), mode=mode)

    return Evidence(
        answers={name: _all_answers(request, question, specs, runs) for name, question in questions.items()},
        scaler=scaler,
        independent=independent if at_once else None,
        without_room=lambda *asked: together(*asked).reason,
        photographs=frozenset(name for name, profile in profiles.items() if profile.takes_photographs),
        usual_job=_usual_job(request, profiles),
    )


class _Together(NamedTuple):
    """How several GPUs share one job: memory of each where it is known, or why they have no room."""

    mode: ParallelMode
    fit: MemoryFit | None = None
    reason: str | None = None


class _Seen(NamedTuple):
    """What was measured, and the peaks of memory among it."""

    measured: Sequence[Run]
    peaks: Sequence[Reading]


class _OneOf(NamedTuple):
    """The question by the recipe of a job of several GPUs, and what one of them does by it."""

    question: Question
    answer: Estimate | Refusal


def _together(one: _OneOf, spec: GpuSpec, gpu_count: int, seen: _Seen) -> _Together:
    """Say how so many GPUs share one job: each with all weights where that fits, else each with a share."""
    alone = one.answer
    if isinstance(alone, Refusal):
        return _Together(ParallelMode.FSDP, reason=alone.reason)
    question = msgspec.structs.replace(one.question, batch_size=alone.case.batch_size)
    whole = None
    if alone.fewest_gpus == 1:
        whole = _whole_on_each(question, spec, gpu_count, alone, seen)
        if whole.reason is None:
            return whole
    fit = memory.sharded_fit_of(question, alone.case, spec, seen.peaks, gpu_count)
    if fit is not None and measured_together(seen.measured, alone, gpu_count, ParallelMode.FSDP):
        fit = fit.after_a_run(alone.case.batch_size)
    if whole is not None and (fit is None or not fit.fits):
        return whole
    if fit is None or fit.fits:
        return _Together(ParallelMode.FSDP, fit)
    case = question.profile.shared_by(alone.case, gpu_count, ParallelMode.FSDP)
    return _Together(ParallelMode.FSDP, reason=_short_of(case, fit))


def _whole_on_each(
    question: Question, spec: GpuSpec, gpu_count: int, alone: Estimate, seen: _Seen
) -> _Together:
    """One job of which each GPU holds all weights, and the gradients of all in buckets."""
    mode = ParallelMode.DDP
    case = msgspec.structs.replace(alone.case, gpu_count=gpu_count, parallel_mode=mode)
    card = card_of(spec)
    if card is None:
        return _Together(mode)
    need = memory.need_of(question, case, spec, seen.peaks)
    if card.verdict_of(need.device) is Verdict.FITS:
        # as nearly every one does: how large a batch could be is asked of the rest
        there = MemoryFit(verdict=Verdict.FITS, need=need, card=card, largest_batch=case.batch_size)
        return _Together(mode, there)
    fit = memory.fit_of(question, case, spec, seen.peaks)
    assert fit is not None  # the card's memory is known
    if measured_efficiency(seen.measured, alone.case, spec.key, gpu_count):
        return _Together(mode, fit.after_a_run(case.batch_size))
    if alone.batch_choice == "largest" and 2 * fit.largest_batch >= case.batch_size:
        # a job over several takes a somewhat smaller batch, at nearly the same rate
        smaller = msgspec.structs.replace(case, batch_size=fit.largest_batch)
        return _Together(mode, memory.fit_of(question, smaller, spec, seen.peaks))
    return _Together(mode, reason=_short_of(case, fit))


def _modeled(
    question: Question, spec: GpuSpec, gpu_count: int, alone: Estimate, *, sharded: bool
) -> Efficiency:
    """How well so many GPUs share one job at the batch that one of them takes."""
    question = msgspec.structs.replace(question, batch_size=alone.case.batch_size)
    model = scaling(question, spec, gpu_count, alone.samples_per_s, sharded=sharded)
    return Efficiency(model.efficiency, model.low, model.high, model.basis)


def _short_of(case: Case, fit: MemoryFit) -> str:
    """Why a job has no room on each of its GPUs."""
    again = "" if case.checkpointing is Checkpointing.NONE else f" with {case.checkpointing} checkpointing"
    return (
        f"{case.workload} at batch {case.batch_size:,}{again} on each of {case.gpu_count} GPUs: {fit.text()}"
    )


def _usual_job(request: RankRequest, profiles: Mapping[str, WorkloadProfile]) -> UsualJob | None:
    if len(profiles) != 1:
        return None
    (profile,) = profiles.values()
    return usual_job(profile, profile.task_for(request.task))


def _all_answers(request: RankRequest, question: Question, specs: Sequence[GpuSpec], runs: Runs) -> Answers:
    """Answer for the GPUs of the table, then for whatever else the user measured.

    A card that cannot be predicted (Kepler), or only widely (AMD), counts as measured where its own run has
    this batch, at whatever kind of AMP.
    """
    answers = dict(_answers(request, question, specs, runs))
    known = {
        key
        for key, answer in answers.items()
        if isinstance(answer, Estimate)
        and (answer.basis != "predicted" or load_specs()[key].vendor == FITTED_VENDOR)
    }
    for key, found in own_devices.measured(question, _fit_for(request, runs.own), known).items():
        as_asked = request.batch_size == "max" or found.case.batch_size == question.batch
        if key not in load_specs() or (key in answers and as_asked):
            answers[key] = found
    return answers


def mean_power_w(runs: Runs) -> dict[str, float]:
    """Return the mean power of one GPU in training, by key, where a run measured it [W]."""
    seen: dict[str, list[float]] = {}
    for run in (*runs.reference, *runs.own):
        key = own_devices.device_key(run)
        for measurement in run.measurements:
            power = measurement.mean_power_w
            if key and measurement.status is Status.OK and power is not None:
                seen.setdefault(key, []).append(power / measurement.case.gpu_count)
    return {key: median(values) for key, values in seen.items()}


def _question(request: RankRequest, profile: WorkloadProfile) -> Question:
    """The question about one workload."""
    return question_of(
        profile,
        request.precision,
        execution=Execution(request.execution),
        task=profile.task_for(request.task),
        batch_size=None if request.batch_size == "max" else request.batch_size,
    )


def _answers(request: RankRequest, question: Question, specs: Sequence[GpuSpec], runs: Runs) -> Answers:
    if request.max_latency_ms is not None:
        return _within_latency(request.max_latency_ms / MS_PER_S, request, question, specs, runs)
    answer = estimate_at_largest_batch if request.batch_size == "max" else estimate
    most = MOST_SHARING if request.one_job_over_all_gpus else 1
    return answer(question, list(specs), own=runs.own, reference=runs.reference, most_sharing=most)


def _at_batch(
    batch_size: int, question: Question, specs: Iterable[GpuSpec], runs: Runs
) -> dict[str, Estimate | Refusal]:
    question = msgspec.structs.replace(question, batch_size=batch_size)
    return estimate(question, list(specs), own=runs.own, reference=runs.reference)


def _fit_for(request: RankRequest, runs: Sequence[Run]) -> Sequence[Run]:
    """Leave out rows at a fixed batch where the largest is asked for; a CPU has no other.

    A card that is not predicted must not stand at its main batch among cards at their largest.
    """
    if request.batch_size != "max":
        return runs
    return [
        run
        if own_devices.device_key(run) == own_devices.CPU_KEY
        else msgspec.structs.replace(
            run, measurements=tuple(m for m in run.measurements if m.at_largest_batch)
        )
        for run in runs
    ]


def _within_latency(
    limit_s: float, request: RankRequest, question: Question, specs: Sequence[GpuSpec], runs: Runs
) -> Answers:
    """Answer for each GPU at the batch with most throughput whose step, if slow, still meets the limit."""
    batches = (question.batch,) if isinstance(request.batch_size, int) else LATENCY_BATCHES
    best: dict[str, Estimate | Refusal] = {}
    for batch_size in batches:
        for key, answer in _at_batch(batch_size, question, specs, runs).items():
            known = best.get(key)
            if isinstance(answer, Estimate) and slow_latency_s(answer) > limit_s:
                what = "a token of each of" if answer.case.new_tokens else "a batch of"
                reason = (
                    f"{what} {batch_size} may take {slow_latency_s(answer) * MS_PER_S:.3g} ms, "
                    f"above {limit_s * MS_PER_S:g} ms"
                )
                answer = Refusal(gpu_key=key, reason=reason)  # noqa: PLW2901 - too slow is a refusal
            if known is None or _is_faster(answer, known):
                best[key] = answer
    return best


def slow_latency_s(answer: Estimate) -> float:
    """Return the time of one step at the slow end of the interval [s]; of a generation, of one token."""
    times = generation_times(answer)
    if times is not None and times.per_token_s.high is not None:
        return times.per_token_s.high
    return answer.case.batch_size / (answer.low or answer.samples_per_s)


def _is_faster(answer: Estimate | Refusal, known: Estimate | Refusal) -> bool:
    if not isinstance(answer, Estimate) or answer.fits_memory is False:
        return False
    return isinstance(known, Refusal) or answer.samples_per_s > known.samples_per_s
