"""Throughput of one workload on many GPUs: measured if possible, else predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import msgspec

from gpubench.errors import MisuseError
from gpubench.folders import data_json, data_table
from gpubench.interval import UNKNOWN_INTERVAL, Interval
from gpubench.models import (
    Case,
    Estimate,
    Execution,
    Finding,
    FindingKind,
    GpuSpec,
    MemoryFit,
    Precision,
    Run,
    TaskKind,
    Trainable,
    Verdict,
)
from gpubench.models.record import Record
from gpubench.options import asked_recipe, takes_options_of
from gpubench.predict import memory
from gpubench.predict.answers import Predictions
from gpubench.predict.calibration import load_calibration
from gpubench.predict.model import Prediction, predict_all
from gpubench.predict.question import (
    NO_SPEED,
    Question,
    Reading,
    Refusal,
    case_for,
    check,
    domain_gap,
    measured_here,
    memory_case_for,
    peaks_of,
    question_of,
    readings_of,
    task_of,
)
from gpubench.predict.request import PredictRequest
from gpubench.predict.roofline import HOST_SHARE_LIMIT, TOKEN_FACTOR, VALIDATED_ENGINE, token_time
from gpubench.specs import load_specs, usual_spec
from gpubench.units import Watts, format_number, per_second, plain


@takes_options_of(PredictRequest)
def predict(request: PredictRequest) -> Predictions:
    """Predict the throughput of a workload on the named GPUs, using the user's own results.

    Returns:
        For each GPU key, an estimate, or a refusal with its reason.

    Raises:
        MisuseError: If a name is unknown, or the precision or the batch is impossible.
    """
    from gpubench.record.store import own_runs

    return predict_from(request, own_runs(request.results))


def predict_from(request: PredictRequest, own: Sequence[Run]) -> Predictions:
    """Answer as ``predict`` does, from these runs and the shipped ones.

    Raises:
        MisuseError: As for ``predict``.
    """
    from gpubench.profile.cache import profile_as_asked, profile_of
    from gpubench.record.store import reference_runs

    workload, batch = request.workload, request.batch_size
    asked = asked_recipe(request)
    if isinstance(workload, str):
        profile = profile_of(workload, asked, precisions=[request.precision])
    else:
        profile = profile_as_asked(workload, asked)
    question = question_of(
        profile,
        request.precision,
        asked=asked,
        execution=Execution(request.execution),
        task=task_of(profile, request.task, named="task" in request.asked),
        batch_size=None if batch == "max" else batch,
    )
    named = [usual_spec(name) for name in request.gpus]
    answer = estimate_at_largest_batch if batch == "max" else estimate
    specs = named or list(load_specs().values())
    found = answer(question, specs, own=own, reference=reference_runs(), may_fit=bool(named))
    if request.power_limit is not None:
        found = {key: _limited(each, request.power_limit, bool(named)) for key, each in found.items()}
    answers = Predictions(found)
    answers.by_energy = request.sort == "energy"
    return answers


def _widened(answer: Estimate) -> Estimate:
    """Return a prediction with its interval widened to include the published figure, if there is one."""
    reading = reading_of(answer.case.workload, answer.gpu_key, answer.case.precision)
    if reading is None or answer.case.task is not TaskKind.TRAIN:
        return answer
    words = reading.words(answer.case.sample_unit)
    wider = including(answer.interval, reading, answer.case.batch_size)
    if wider != answer.interval:
        words = f"{words}; the interval was widened to include it"
    return msgspec.structs.replace(answer, low=wider.low, high=wider.high, published=words)


def _limited(answer: Estimate | Refusal, limit_w: Watts, is_named: bool) -> Estimate | Refusal:
    """Return an answer with a power limit's effects on time and energy, or why the GPU cannot have the limit.

    Raises:
        MisuseError: If the limit is invalid for a named GPU.
    """
    if isinstance(answer, Refusal):
        return answer
    spec, power = load_specs()[answer.gpu_key], answer.power_w
    is_measured = power.value is not None and not power.bounded
    try:
        time, energy = capped(spec, limit_w, power.value if is_measured else None)
    except MisuseError as error:
        if is_named:
            raise
        return Refusal(gpu_key=answer.gpu_key, reason=str(error))
    return msgspec.structs.replace(answer, power_limit_w=limit_w, capped_time=time, capped_energy=energy)


def estimate(
    question: Question,
    specs: Sequence[GpuSpec],
    *,
    own: Sequence[Run] = (),
    reference: Sequence[Run] = (),
    most_sharing: int = 1,
    may_fit: bool = False,
) -> dict[str, Estimate | Refusal]:
    """Answer the question for each GPU: by the user's measurement, else a shipped one, else a prediction.

    Args:
        question: Workload, precision, execution, task and batch. If the default batch does not fit, a smaller
            one may be used.
        specs: The GPUs to answer for.
        own: This user's runs. Runs on a CPU are ignored.
        reference: Runs that the package ships.
        most_sharing: Largest number of GPUs over which to shard (FSDP) a case that does not fit on one.
        may_fit: Whether to answer, instead of refusing, if it is uncertain that the case fits.

    Returns:
        For each GPU key, in the order of ``specs``, an estimate, or a refusal with its reason.

    Raises:
        MisuseError: If the question itself is impossible.
    """
    check(question)
    answers = _estimates(question, specs, own, reference, most_sharing=most_sharing, may_fit=may_fit)
    if question.execution is not Execution.COMPILE or question.task is not TaskKind.TRAIN:
        return answers
    graph = msgspec.structs.replace(question, execution=Execution.GRAPH)
    graphs = _estimates(graph, specs, own, reference, most_sharing=most_sharing, may_fit=may_fit)
    return {key: _within_graph_range(answer, graphs[key]) for key, answer in answers.items()}


def _estimates(
    question: Question,
    specs: Sequence[GpuSpec],
    own: Sequence[Run],
    reference: Sequence[Run],
    *,
    most_sharing: int,
    may_fit: bool,
) -> dict[str, Estimate | Refusal]:
    # Answers a checked question as ``estimate`` does, except that compiled steps are not limited.
    readings, peaks = readings_of(question, own, reference), peaks_of(question, own)
    answers: dict[str, Estimate | Refusal] = {}
    to_predict: list[_ToPredict] = []
    for spec in specs:
        case = case_for(question, spec)
        if isinstance(case, Refusal):
            answers[spec.key] = _with_memory(question, case, spec, peaks)
            continue
        fit = memory.fit_of(question, case, spec, peaks)
        reading = measured_here(readings, case, spec.key)
        if reading is not None:
            answers[spec.key] = _measured(reading, fit)
            continue
        if fit is not None and _takes_largest_batch(question, fit, may_fit=may_fit):
            case = msgspec.structs.replace(case, batch_size=fit.largest_batch)
            fit = memory.fit_of(question, case, spec, peaks)
        on_one = _ToPredict(spec, case, fit)
        found = _on_fewest_gpus(question, on_one, peaks, most_sharing, may_fit=may_fit)
        if isinstance(found, Refusal):
            answers[spec.key] = found
        else:
            to_predict.append(found)
    cases = [(each.spec, each.case) for each in to_predict]
    # Only the prompt of a generation is predicted here, so a measured generation cannot be an anchor.
    starts = () if question.profile.decode is not None else readings
    predictions = predict_all(question, cases, starts, load_calibration())
    for each, prediction in zip(to_predict, predictions, strict=True):
        answers[each.spec.key] = _widened(_predicted(question, each, prediction, peaks))
    return {spec.key: answers[spec.key] for spec in specs}


MOST_GAIN = 2.5
"""Assumed limit on the speedup of a compiled training step over its CUDA graph. On an H200, compiled VGG16
ran 1.35 times as fast (batch 128, in a loop outside gpubench, November 2026). In 40 published readings of 20
cards, compiled GPT-2 is 1.1 to 2.05 times as fast as the prediction for its graph."""


def _within_graph_range(answer: Estimate | Refusal, graph: Estimate | Refusal) -> Estimate | Refusal:
    """Keep the speed of a compiled step between that of its CUDA graph and ``MOST_GAIN`` times that.

    This applies only if the graph's speed is measured or anchored and the compiled step's is not, since the
    two could then contradict each other. A speed outside the range is moved to its nearest end, and the
    interval then includes the whole range, up to the peak of the GPU.
    """
    if isinstance(answer, Refusal) or isinstance(graph, Refusal):
        return answer
    is_graph_anchored = graph.basis != "predicted" or graph.anchored
    is_anchored = answer.basis != "predicted" or answer.anchored
    if is_anchored or not is_graph_anchored or graph.case.batch_size != answer.case.batch_size:
        return answer
    least, predicted = graph.samples_per_s, answer.samples_per_s
    nearest = min(max(predicted, least), MOST_GAIN * least)
    if nearest == predicted or answer.low is None or answer.high is None:
        return answer
    lowered = min(nearest / predicted, 1.0)
    high = max(lowered * answer.high, MOST_GAIN * least)
    return msgspec.structs.replace(
        answer,
        samples_per_s=nearest,
        low=min(lowered * answer.low, graph.low or least),
        high=high if answer.most_samples_per_s is None else min(high, answer.most_samples_per_s),
        method=f"{answer.method}; kept between its CUDA graph's speed and {MOST_GAIN:g} times that (assumed)",
    )


def _with_memory(question: Question, refusal: Refusal, spec: GpuSpec, peaks: Sequence[Reading]) -> Refusal:
    case = memory_case_for(question, spec)
    fit = None if isinstance(case, Refusal) else memory.fit_of(question, case, spec, peaks)
    if fit is None:
        return refusal
    return Refusal(gpu_key=spec.key, reason=f"{refusal.reason}: {NO_SPEED}: {fit.text()}")


@dataclass(frozen=True)
class _ToPredict:
    """An unmeasured case on a GPU, with its fit in memory on the fewest GPUs that can hold it."""

    spec: GpuSpec
    case: Case
    fit: MemoryFit | None
    fewest_gpus: int = 1


def _takes_largest_batch(question: Question, fit: MemoryFit, *, may_fit: bool) -> bool:
    """Whether to use the largest batch that fits, because the default one does not.

    A language model whose weights are all trained is sharded instead. A batch below half the default one is
    never used.
    """
    is_refused = not (fit.fits or (may_fit and fit.verdict is Verdict.MAY_FIT))
    may_shrink = question.batch_size is None and question.task is TaskKind.TRAIN
    profile = question.profile
    is_sharded = bool(profile.tokens_per_sample) and profile.recipe.trainable is Trainable.FULL
    return may_shrink and is_refused and not is_sharded and 2 * fit.largest_batch >= question.batch


def _on_fewest_gpus(
    question: Question, on_one: _ToPredict, peaks: Sequence[Reading], most_sharing: int, *, may_fit: bool
) -> _ToPredict | Refusal:
    """Return the case on the fewest GPUs that can hold it, up to ``most_sharing``, or why there is none."""
    spec, case, fit = on_one.spec, on_one.case, on_one.fit
    if reason := domain_gap(spec, case.precision, case.execution):
        return Refusal(gpu_key=spec.key, reason=reason)
    if fit is None or fit.fits or (may_fit and fit.verdict is Verdict.MAY_FIT):
        return on_one
    reason = f"{case.workload} at batch {case.batch_size:,}: {fit.text()}"
    sharing = memory.fewest_sharing(question, case, spec, peaks, most_sharing) if most_sharing > 1 else None
    if sharing is not None:
        fewest_gpus, shared = sharing
        if shared.fits:
            return replace(on_one, fit=shared, fewest_gpus=fewest_gpus)
        largest = f"largest batch {shared.largest_batch:,} each"
        if not shared.largest_batch:
            largest = (
                "a batch of 1 may fit on each" if shared.one_may_fit else "not even a batch of 1 fits on each"
            )
        reason = f"{reason}; over {fewest_gpus} GPUs with FSDP: {largest}"
    return Refusal(gpu_key=spec.key, reason=reason)


def estimate_at_largest_batch(
    question: Question,
    specs: Sequence[GpuSpec],
    *,
    own: Sequence[Run] = (),
    reference: Sequence[Run] = (),
    most_sharing: int = 1,
    may_fit: bool = False,
) -> dict[str, Estimate | Refusal]:
    """Answer for each GPU at its own largest batch, found by a run on that GPU or by the memory model.

    The arguments and answers are those of ``estimate``; the batch of the question is ignored.
    """
    readings, peaks = readings_of(question, own, reference), peaks_of(question, own)
    answers: dict[str, Estimate | Refusal] = {}
    specs_by_batch: dict[int, list[GpuSpec]] = {}
    finders: dict[str, str] = {}  # by GPU key, the run that found the largest batch
    for spec in specs:
        case = case_for(question, spec)
        if isinstance(case, Refusal):
            answers[spec.key] = case
            continue
        searched = (
            r
            for r in readings
            if (r.at_largest_batch and r.spec.key == spec.key)
            and msgspec.structs.replace(r.case, batch_size=case.batch_size) == case
        )
        if (found := next(searched, None)) is not None:
            largest, finders[spec.key] = found.case.batch_size, found.run_id
        elif spec.memory_bytes is not None:
            largest = memory.largest_batch(question, case, spec, peaks)
        else:
            answers[spec.key] = Refusal(
                gpu_key=spec.key, reason="its memory is not known, so neither is its largest batch"
            )
            continue
        # If not even one sample fits, ``estimate`` refuses the batch of 1.
        specs_by_batch.setdefault(max(1, largest), []).append(spec)
    for batch, group in specs_by_batch.items():
        at_batch = msgspec.structs.replace(question, batch_size=batch)
        found_there = estimate(
            at_batch, group, own=own, reference=reference, most_sharing=most_sharing, may_fit=may_fit
        )
        answers |= {
            key: msgspec.structs.replace(answer, batch_choice="largest", batch_found_by=finders.get(key))
            if isinstance(answer, Estimate)
            else answer
            for key, answer in found_there.items()
        }
    return {spec.key: answers[spec.key] for spec in specs}


def _measured(reading: Reading, fit: MemoryFit | None) -> Estimate:
    after_run, where, method = None, "here", "measured on this GPU"
    if reading.basis == "reference":
        where, method = "in a reference run", "reference shipped with gpubench"
    elif reading.origin is not None:
        where, method = "in an added run", f"measured in an added run ({reading.origin})"
    if fit is not None and reading.peak_memory_bytes is not None:
        after_run = fit.after_a_run(reading.case.batch_size, where)
    return Estimate(
        case=reading.case,
        gpu_key=reading.spec.key,
        samples_per_s=reading.samples_per_s,
        low=reading.low,
        high=reading.high,
        basis=reading.basis,
        method=method,
        origin=reading.origin,
        evidence=(reading.run_id,),
        peak_memory_bytes=reading.peak_memory_bytes,
        memory_text=None if after_run is None else after_run.text(),
        fits_memory=True,
        host_cpu=reading.host_cpu,
        batch_choice="fixed",
        first_token_s=reading.first_token_s,
        per_token_s=Interval(reading.per_token_s),
        power_w=power_of(reading.spec, reading.power_w),
        findings=reading.findings,
        device_bytes=UNKNOWN_INTERVAL if after_run is None else after_run.need.device_bytes,
    )


def _generated(token_s: float, case: Case, prompt: Prediction) -> Prediction:
    """Add the time of the tokens after the first to the prediction for the prompts."""
    prompt_s, rest = case.batch_size / prompt.samples_per_s, case.new_tokens - 1
    whole_s = prompt_s + rest * token_s
    slow_s = prompt_s * math.exp(prompt.half_width) + rest * (token_s * TOKEN_FACTOR)
    least_s = case.batch_size / prompt.most_samples_per_s + rest * (token_s / TOKEN_FACTOR)
    return replace(
        prompt,
        samples_per_s=case.batch_size / whole_s,
        half_width=math.log(slow_s / whole_s),
        most_samples_per_s=case.batch_size / least_s,
        method=f"{prompt.method}; the time of later tokens is fitted to {VALIDATED_ENGINE} and not validated "
        "for torch",
    )


def _predicted(
    question: Question, unmeasured: _ToPredict, prediction: Prediction, peaks: Sequence[Reading]
) -> Estimate:
    spec, case, fit = unmeasured.spec, unmeasured.case, unmeasured.fit
    need = memory.need_of(question, case, spec, peaks) if fit is None else fit.need
    per_token_s, decode = UNKNOWN_INTERVAL, question.profile.decode
    if decode is not None:
        token_s = token_time(decode, case.prompt_tokens + case.new_tokens / 2, case.batch_size, spec)
        assert token_s is not None  # ``domain_gap`` has refused cards of unknown bandwidth
        prediction = _generated(token_s, case, prediction)
        per_token_s = Interval(token_s, token_s / TOKEN_FACTOR, token_s * TOKEN_FACTOR)
    host_share = prediction.host_share
    is_host_bound = host_share > HOST_SHARE_LIMIT  # a faster GPU would not help
    is_known = load_calibration().of(case.task).ratio.knows(spec)
    findings = (
        (is_host_bound, Finding(kind=FindingKind.HOST_BOUND, value=host_share, limit=HOST_SHARE_LIMIT)),
        (not is_known, Finding(kind=FindingKind.OUT_OF_DOMAIN, value=spec.architecture)),
        (fit is not None and fit.in_eager_steps, Finding(kind=FindingKind.EAGER_MEMORY)),
    )
    rate, most = prediction.samples_per_s, prediction.most_samples_per_s
    factor = math.exp(prediction.half_width)
    return Estimate(
        case=case,
        gpu_key=spec.key,
        samples_per_s=rate,
        low=None if is_host_bound else rate / factor,
        high=None if is_host_bound else min(rate * factor, most),
        most_samples_per_s=most,
        basis="predicted",
        method=prediction.method,
        evidence=prediction.evidence,
        anchored=bool(prediction.evidence),
        peak_memory_bytes=need.allocated_bytes,
        memory_text=None if fit is None else fit.text(),
        fits_memory=None if fit is None or not fit.fits else True,
        largest_batch=None if fit is None else fit.largest_batch,
        fewest_gpus=unmeasured.fewest_gpus,
        compute_share=prediction.compute_share,
        bandwidth_share=prediction.bandwidth_share,
        host_share=host_share,
        batch_choice="fixed" if case.batch_size == question.batch else "largest",
        per_token_s=per_token_s,
        power_w=power_of(spec),
        findings=tuple(finding for is_so, finding in findings if is_so),
        device_bytes=need.device_bytes,
    )


# --- published training rates of standard workloads on one card, to compare with predictions ----------------

READINGS_FILE = "card_readings.csv"


class CardReading(msgspec.Struct, frozen=True, kw_only=True):
    """One published training rate.

    Attributes:
        math: ``fp32``, ``tf32``, or ``amp`` for both kinds of AMP.
        software: The software and, if stated, where its training data came from.
    """

    workload: str
    gpu_key: str
    math: str
    batch_size: int
    samples_per_s: float
    software: str
    source: str

    def words(self, sample_unit: str) -> str:
        """Return the rate and its description in words."""
        rate = f"{format_number(self.samples_per_s)} {per_second(sample_unit)}"
        return f"{rate} published at batch {self.batch_size:,} ({plain(self.software, 80)})"


@cache
def _readings() -> dict[tuple[str, str, str], CardReading]:
    return {(row.workload, row.gpu_key, row.math): row for row in data_table(READINGS_FILE, CardReading)}


def reading_of(workload: str, gpu_key: str, precision: Precision) -> CardReading | None:
    """Return the published rate of a workload on a card at a precision; None if there is none."""
    math = "amp" if precision.is_amp else str(precision)
    return _readings().get((workload, gpu_key, math))


# If the batch sizes differ by more than this factor, that alone may explain a different rate.
_FAR = 4


def including(predicted: Interval, reading: CardReading, batch_size: int) -> Interval:
    """Return an interval widened to include a published rate; an interval without ends is unchanged.

    Throughput rises with the batch size. A faster rate at a far larger batch therefore does not widen the
    interval, nor does a slower rate at a far smaller batch.

    Args:
        predicted: The prediction at ``batch_size``.
        reading: The published rate, at its own batch.
        batch_size: Samples per step of the prediction.
    """
    if predicted.low is None or predicted.high is None:
        return predicted
    rate, batch_ratio = reading.samples_per_s, reading.batch_size / batch_size
    return Interval(
        predicted.value,
        low=predicted.low if batch_ratio < 1 / _FAR else min(predicted.low, rate),
        high=predicted.high if batch_ratio > _FAR else max(predicted.high, rate),
    )


# --- the time that a power limit costs, and the energy that it saves ----------------------------------------

# A card under a limit lowers its clock. How far depends on the ratio of the limit to the power that the job
# draws without one: a job that would use half of the limit hardly slows down. Two smooth ramps (softplus),
# one for time and one for mean power, are fitted to readings of four cards.

POWER_FILE = "power_law.json"
DEEP_SHARE = 0.6
"""Limits below this share of board power are far from most measurements and get wider intervals."""
LEAST_SHARE = 1 / 3
"""The lowest measured limit, as a share of board power."""

Ends = Annotated[tuple[float, float], "log"]
"""Log distances from the law's value to the lower and upper ends of an interval."""


class PowerErrors(Record, frozen=True, kw_only=True):
    """The errors of the law on cards left out of the fit: 5th and 95th percentiles of the worst card.

    Attributes:
        time, energy: Errors of the two factors.
    """

    time: Ends
    energy: Ends


class PowerLaw(Record, frozen=True, kw_only=True):
    """The fit, with its date and source.

    Attributes:
        time: Knee, exponent and sharpness of the ramp in time. The knee is a limit relative to the uncapped
            power.
        power: Knee and sharpness of the ramp in mean power.
        share: Ratio of a training job's uncapped mean power to board power, then its 5th and 95th percentiles
            over jobs and cards.
        errors: For an uncapped power that was measured (``read``) and one that is assumed (``assumed``); for
            limits below ``DEEP_SHARE``, the keys are ``read deep`` and ``assumed deep``.
        readings, cards: Numbers of readings and of cards behind the fit.
    """

    time: tuple[float, float, float]
    power: tuple[float, float]
    share: tuple[float, float, float]
    errors: dict[str, PowerErrors]
    readings: int
    cards: int
    source: str
    fitted: str


@cache
def load_power_law() -> PowerLaw:
    """Read the shipped fit."""
    return data_json(POWER_FILE, PowerLaw)


def log_factors(law: PowerLaw, limit_over_power: float) -> tuple[float, float]:
    """Return the logs of time and of mean power under a limit, both relative to no limit.

    Args:
        law: The fit.
        limit_over_power: Ratio of the limit to the uncapped mean power of the job.
    """
    log_ratio = math.log(limit_over_power)
    knee, exponent, sharpness = law.time
    power_knee, power_sharpness = law.power
    slower = exponent * _ramp(math.log(knee) - log_ratio, sharpness)
    return slower, -_ramp(math.log(power_knee) - log_ratio, power_sharpness)


def _ramp(below_knee: float, sharpness: float) -> float:
    # Softplus of the log distance below the knee: about 0 far above the knee, that distance far below it
    return math.log1p(math.exp(sharpness * below_knee)) / sharpness


def power_of(spec: GpuSpec, measured_w: Watts | None = None) -> Interval:
    """Return the mean power of a training job without a power limit [W].

    Args:
        spec: The card.
        measured_w: Power measured for this job on this model of card; None means the usual share of
            board power.
    """
    if measured_w is not None or spec.tdp_w is None:
        return Interval(measured_w)
    return Interval(*(share * spec.tdp_w for share in load_power_law().share))


def capped(spec: GpuSpec, limit_w: Watts, measured_w: Watts | None = None) -> tuple[Interval, Interval]:
    """Return the time and energy of a job under a power limit, as factors on those without one.

    Args:
        spec: The card.
        limit_w: The limit [W].
        measured_w: Measured mean power of the job without a limit [W]; None means the usual share of
            board power.

    Raises:
        MisuseError: If the board power of the card is unknown, or the limit is not lower than it, or is below
            ``LEAST_SHARE`` of it.
    """
    law, board_w = load_power_law(), spec.tdp_w
    if board_w is None:
        raise MisuseError(f"--power-limit: the board power of {spec.short_name} is not known")
    least_w = LEAST_SHARE * board_w
    if not least_w <= limit_w < board_w:
        raise MisuseError(
            f"--power-limit {limit_w:g}: {spec.short_name} has a limit of {board_w:g} W by default, and the "
            f"lowest measured limit is {math.ceil(least_w):g} W: give one between the two"
        )
    usual_w = law.share[0] * board_w if measured_w is None else measured_w
    slower, less_power = log_factors(law, limit_w / usual_w)
    kind = "assumed" if measured_w is None else "read"
    errors = law.errors[kind if limit_w >= DEEP_SHARE * board_w else f"{kind} deep"]
    time = _around(slower, errors.time)
    # No job is faster under a limit than without one
    bounded = Interval(time.value, max(1.0, time.low or 1.0), time.high)
    return bounded, _around(slower + less_power, errors.energy)


def _around(log_factor: float, ends: Ends) -> Interval:
    return Interval(*(math.exp(log_factor + distance) for distance in (0.0, *ends)))
