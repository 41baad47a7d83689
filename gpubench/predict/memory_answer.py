"""The answers of `gpubench memory` and the report: a step's memory need, the cards it fits on, and fixes."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.folders import data_json
from gpubench.interval import Interval
from gpubench.labels import gpu_name
from gpubench.models import (
    MEMORY_VERSION,
    CardClass,
    CardMemory,
    Case,
    Checkpointing,
    Execution,
    GpuSpec,
    MemoryFit,
    MemoryNeed,
    ParallelMode,
    Precision,
    Run,
    StepMemory,
    TaskKind,
    Trainable,
    WeightType,
    WorkloadProfile,
)
from gpubench.models.record import Record, headed, html_table, shown, views
from gpubench.names import counted
from gpubench.options import LARGEST_NUMBER, asked_recipe, shown_value, takes_options_of
from gpubench.precisions import in_memory
from gpubench.predict import memory as of_question
from gpubench.predict.question import (
    NO_SPEED,
    Question,
    Reading,
    Refusal,
    case_at,
    check,
    first_reasons,
    memory_case_for,
    peaks_of,
    question_of,
    task_of,
    why_impossible,
    why_no_speed,
)
from gpubench.predict.request import MemoryRequest
from gpubench.profile.allowance import card_of, class_of
from gpubench.profile.memory import checkpointed, chunked, device_of, judge_fit, largest_of, with_adapters
from gpubench.specs import load_specs, usual_spec
from gpubench.torch_builds import runs_on_todays_torch
from gpubench.units import count, format_bytes, listing

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

MACHINE_SIZES = (2, 4, 8)
"""Numbers of GPUs in suggested machines."""
MOST_NAMES = 3
"""Maximum number of cards of one size to name; the others are counted."""


class Fix(Record, frozen=True, kw_only=True):
    """One change that reduces the memory a step needs, and the need after it.

    Attributes:
        what: The change in words.
    """

    what: str
    fit: MemoryFit


class CardAnswer(Record, frozen=True, kw_only=True):
    """Whether the step fits on cards of one size and class, and what would make it fit.

    Attributes:
        gpu_keys: Every requested card of this size and class.
    """

    gpu_keys: tuple[str, ...]
    precision: Precision
    fit: MemoryFit
    fixes: tuple[Fix, ...] = ()

    def names(self, most: int | None = MOST_NAMES) -> str:
        """Return the names of the cards, at most this many: "RTX 4090, L4, A2 and 7 more"."""
        return listing(map(gpu_name, self.gpu_keys), most)


MOST_WITH_FIXES = 8
"""Largest number of card sizes for which the short document states what would make the step fit."""


class MemoryAnswer(Record, frozen=True, kw_only=True):
    """The memory that one step needs and, card by card, whether it fits.

    Attributes:
        gpu_key: The card for which the need is stated, preferably one on which the step fits.
        refused: GPUs without an answer, and why.
        speed_untold: GPUs with an answer for memory but not for speed, and why.
        accumulate: Micro-batches that the batch of the case is split into.
    """

    case: Case
    gpu_key: str
    need: MemoryNeed
    cards: tuple[CardAnswer, ...]
    refused: tuple[Refusal, ...] = ()
    speed_untold: tuple[Refusal, ...] = ()
    accumulate: int = 1

    @property
    def label(self) -> str:
        """The case in words, and how its batch is split."""
        cut = "" if self.accumulate == 1 else f" in {self.accumulate:,} micro-batches"
        return f"{self.case.label_with('on {} GPUs')}{cut}"

    def __repr__(self) -> str:
        """Return the need, and by card size whether it fits; ``cards`` has all details and fixes."""
        answers = [f"  {names}: {fit}" for names, fit in self._answers()]
        return headed(f"<MemoryAnswer: {self._head()}", answers, len(answers))

    def _repr_html_(self) -> str:
        return html_table(self._head(), ("GPUs", "answer"), self._answers())

    def _head(self) -> str:
        return f"{shown(self.label, 100)} needs {self.need.device.by(format_bytes)}"

    def _answers(self) -> list[tuple[str, str]]:
        # The answer for each size of card, then the reason for each card that has no answer.
        refused = ((gpu_name(each.gpu_key), f"no answer: {each.reason}") for each in self.refused)
        found = ((card.names(), card.fit.text()) for card in self.cards)
        return [(names, shown(words, 160)) for names, words in (*found, *refused)]

    def fits_on(self) -> str:
        """Return the number of GPUs on which the step fits: "fits on 60 of 86 GPUs"."""
        keys = [(len(card.gpu_keys), card.fit.fits) for card in self.cards]
        return f"fits on {sum(n for n, fits in keys if fits):,} of {count(sum(n for n, _ in keys), 'GPU')}"

    def flat(self) -> dict[str, Any]:
        """Return the document of ``gpubench memory --json``."""
        case = self.case
        return {
            "schema_version": MEMORY_VERSION,
            "workload": case.workload,
            "task": case.task,
            "precision": case.precision,
            "execution": case.execution,
            "batch_size": case.batch_size,
            "accumulate": self.accumulate,
            **case.recipe.fields,
            "gpu_count": case.gpu_count,
            "parallel_mode": case.parallel_mode,
            "gpu_key": self.gpu_key,
            **self.need.flat(),
            "cards": [
                {
                    "gpu_keys": card.gpu_keys,
                    "precision": card.precision,
                    **card.fit.flat(),
                    "fixes": [{"what": fix.what, **fix.fit.flat()} for fix in card.fixes],
                }
                for card in self.cards
            ],
            "refused": [msgspec.to_builtins(refusal) for refusal in self.refused],
            "speed_untold": [msgspec.to_builtins(each) for each in self.speed_untold],
        }

    def brief(self, *, with_cards: bool) -> dict[str, Any]:
        """Return the document of ``gpubench memory --json --brief``: the need, and the answers if asked.

        ``with_cards`` adds the answer for each size of card. The document has only the recipe fields that are
        set: for example, an image network has no tokens.
        """
        whole = self.flat()
        recipe = {name: value for name, value in self.case.recipe.fields.items() if value}
        head = ("schema_version", "workload", "task", "precision", "execution", "batch_size", "gpu_count")
        need = ("parallel_mode", "device_bytes", "device_bytes_low", "device_bytes_high", "basis")
        cards = [
            {name: card[name] for name in ("gpu_keys", "memory_bytes", "verdict", "largest_batch")}
            for card in whole["cards"]
        ]
        if len(cards) <= MOST_WITH_FIXES:
            for short, card in zip(cards, whole["cards"], strict=True):
                short["fits_with"] = next((fix["what"] for fix in card["fixes"] if fix["fits"]), None)
        return {
            **{name: whole[name] for name in head},
            **recipe,
            **{name: whole[name] for name in need},
            "fits_on": self.fits_on(),
            **({"cards": cards} if with_cards else {}),
            "refused": len(self.refused),
            "reasons": first_reasons(self.refused),
        }


class MemoryAnswers(tuple[MemoryAnswer, ...]):
    """One answer per workload, in the order of the request."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the need of each answer; for a single answer, also where it fits."""
        if len(self) == 1:
            return f"<MemoryAnswers: {repr(self[0]).removeprefix('<MemoryAnswer: ')}"
        lines = [f"  {label}: {need}, {where}" for label, need, where in self._rows()]
        return headed(f"<MemoryAnswers: {self._head()}", lines, len(lines))

    def _repr_html_(self) -> str:
        if len(self) == 1:
            return self[0]._repr_html_()
        return html_table(self._head(), ("case", "in use on the device", "where"), self._rows())

    def to_frame(self) -> DataFrame:
        """Return one row per case, columns as in ``memory --json``."""
        import pandas as pd

        return pd.DataFrame([each.flat() for each in self])

    def plot(self) -> Figure:
        """Return a plotly figure of each case's memory in use on the device."""
        return views().memory_figure(self)

    def _head(self) -> str:
        return count(len(self), "workload")

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(shown(each.label, 100), each.need.device.by(format_bytes), each.fits_on()) for each in self]


def answer_memory(
    question: Question,
    specs: Sequence[GpuSpec],
    *,
    own: Sequence[Run] = (),
    fixes: bool = True,
    changes: Mapping[str, Any] = MappingProxyType({}),
    accumulate: int = 1,
) -> MemoryAnswer:
    """Return the memory that a step needs, and whether it fits on each card.

    Args:
        question: Workload, precision, task and batch; ``amp`` is the best mixed precision of each card.
        specs: The cards, at least one.
        own: This user's runs: a peak measured in the same case replaces the model.
        fixes: Whether to find out what would make the step fit where it does not.
        changes: Changes to the question's case, by field, such as checkpointing or the number of GPUs.
        accumulate: Micro-batches that the batch is split into; their gradients are summed.

    Raises:
        MisuseError: If the question itself is impossible.
    """
    _check(question, accumulate)
    readings = peaks_of(question, own)
    refused: list[Refusal] = []
    without_speed: list[Refusal] = []
    groups: dict[tuple[CardMemory, bool, str], list[tuple[GpuSpec, Case]]] = {}
    measured_on = {reading.spec.key for reading in readings}
    for spec in specs:
        case, card = memory_case_for(question, spec), card_of(spec)
        if isinstance(case, Refusal):
            refused.append(case)
        elif card is None:
            refused.append(Refusal(gpu_key=spec.key, reason="its memory is not known"))
        else:
            asked_for = msgspec.structs.replace(case, **changes)
            # A measured card is answered alone: its peaks do not apply to other cards
            own_group = spec.key if spec.key in measured_on else ""
            groups.setdefault((card, case.precision.is_amp, own_group), []).append((spec, asked_for))
            if reason := why_no_speed(spec, case.precision):
                without_speed.append(Refusal(gpu_key=spec.key, reason=f"{reason}: {NO_SPEED}"))
    every = [pair for pairs in groups.values() for pair in pairs]
    if not every:  # no card can run the step
        case = case_at(question, in_memory(question.precision))
        every = [(specs[0], msgspec.structs.replace(case, **changes))]
    cards = [_answer(question, pairs, readings, fixes, accumulate) for pairs in groups.values()]
    spec, case = _representative(every, {key for card in cards if card.fit.fits for key in card.gpu_keys})
    return MemoryAnswer(
        case=case,
        gpu_key=spec.key,
        need=of_question.need_of(question, case, spec, readings, accumulate),
        cards=tuple(sorted(cards, key=lambda card: (card.fit.card.usable_bytes, card.gpu_keys))),
        refused=tuple(refused),
        speed_untold=tuple(without_speed),
        accumulate=accumulate,
    )


def _representative(pairs: Iterable[tuple[GpuSpec, Case]], fitting: Collection[str]) -> tuple[GpuSpec, Case]:
    # The card for which the need is stated: preferably one that the step fits on; among equals, one that runs
    # today's torch; then one with GDDR memory.
    return min(
        pairs,
        key=lambda pair: (
            pair[0].key not in fitting,
            runs_on_todays_torch(pair[0].compute_capability) is False,
            class_of(pair[0]) is not CardClass.GDDR,
        ),
    )


def _check(question: Question, accumulate: int) -> None:
    check(question)
    if question.batch > LARGEST_NUMBER:
        raise MisuseError(f"batch size {shown_value(question.batch)} is more than any step can have")
    if accumulate > 1 and question.task is not TaskKind.TRAIN:
        raise MisuseError(f"accumulate {accumulate:,}: an inference step has no gradients to sum")
    if accumulate > question.batch:
        raise MisuseError(
            f"accumulate {accumulate:,}: a batch of {question.batch:,} has fewer samples than that"
        )


def _answer(
    question: Question,
    pairs: Iterable[tuple[GpuSpec, Case]],
    readings: Sequence[Reading],
    fixes: bool,
    accumulate: int,
) -> CardAnswer:
    specs, cases = zip(*pairs, strict=True)
    fit = of_question.fit_of(question, cases[0], specs[0], readings, accumulate)
    assert fit is not None
    return CardAnswer(
        gpu_keys=tuple(spec.key for spec in specs),
        precision=cases[0].precision,
        fit=fit,
        fixes=tuple(_fixes(question, cases[0], fit, readings, accumulate)) if fixes else (),
    )


def _fixes(
    question: Question, case: Case, fit: MemoryFit, readings: Sequence[Reading], accumulate: int
) -> Iterable[Fix]:
    """Yield changes to a step that does not fit, or fits only in eager steps, each with the need after it."""
    profile, train = question.profile, case.task is TaskKind.TRAIN
    scale = of_question.scale_of(question, case, readings)

    def fix(what: str, accumulate: int = accumulate, **changes: Any) -> Fix:
        changed = msgspec.structs.replace(case, **changes)
        peak = of_question.measured_peak(changed, None, readings, accumulate)
        return Fix(
            what=what,
            fit=judge_fit(profile, changed, fit.card, measured=peak, scale=scale, accumulate=accumulate),
        )

    if case.execution is Execution.GRAPH and (fit.in_eager_steps or not fit.fits):
        eager = fix("eager steps (--execution eager)", execution=Execution.EAGER)
        if (eager.fit.need.device.high or 0) < (fit.graph_high_bytes or fit.need.device.high or 0):
            yield eager
    if fit.fits:
        return
    for what, changes in _memory_savings(profile, case):
        yield fix(what, **changes)
    if train and accumulate < case.batch_size:
        parts = _fewest_micro_batches(profile, case, fit.card, scale)
        what = f"gradients accumulated over {parts:,} micro-batches of {-(-case.batch_size // parts):,}"
        yield fix(what, accumulate=parts)
    if fit.largest_batch:
        yield fix(f"batch {fit.largest_batch:,}", batch_size=fit.largest_batch)
    if train:
        for adapted in with_adapters(profile, case):
            what = f"{_TRAINABLE_WORDS[adapted.trainable]}, batch {case.batch_size:,}"
            yield fix(
                what,
                trainable=adapted.trainable,
                weight_type=adapted.weight_type,
                precision=adapted.precision,
            )
        yield from _on_several(question, case, fit, readings, accumulate)


def _memory_savings(profile: WorkloadProfile, case: Case) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the changes with which the same work takes less memory, in words and as fields of the case."""
    if not case.precision.is_amp and case.weight_type is WeightType.FLOAT32:
        what = "automatic mixed precision (amp-fp16, or amp-bf16 from Ampere on)"
        yield what, {"precision": Precision.AMP_FP16}
    if case.task is not TaskKind.TRAIN:
        return
    for other in checkpointed(profile, case):
        yield _CHECKPOINTING_WORDS[other.checkpointing], {"checkpointing": other.checkpointing}
    if (in_chunks := chunked(profile, case)) is not None:
        chunks = in_chunks.loss_chunks
        yield (
            f"the loss in {chunks} chunks of tokens (--recipe loss-chunks={chunks})",
            {"loss_chunks": chunks},
        )


def _fewest_micro_batches(profile: WorkloadProfile, case: Case, card: CardMemory, scale: float) -> int:
    # The fewest micro-batches with which the step fits; if no number is enough, one for each sample.
    cuts = range(2, case.batch_size)
    return cuts.start + bisect.bisect_left(
        cuts, True, key=lambda parts: judge_fit(profile, case, card, scale=scale, accumulate=parts).fits
    )


_CHECKPOINTING_WORDS = {
    Checkpointing.SELECTIVE: "selective activation checkpointing",
    Checkpointing.FULL: "activation checkpointing of every block",
}
_TRAINABLE_WORDS = {
    Trainable.LORA: "adapters on a frozen bfloat16 base (LoRA)",
    Trainable.QLORA: "adapters on a frozen 4-bit base (QLoRA)",
}


def _on_several(
    question: Question, case: Case, fit: MemoryFit, readings: Sequence[Reading], accumulate: int
) -> Iterable[Fix]:
    """Yield the fewest GPUs on which the batch fits if split: with all weights on each, and with FSDP."""
    modes = [(ParallelMode.DDP, "")]
    if question.profile.blocks is not None:  # FSDP shards a model by block
        modes.append((ParallelMode.FSDP, " with FSDP"))
    for mode, words in modes:
        for gpu_count in (n for n in MACHINE_SIZES if n <= case.batch_size or mode is ParallelMode.FSDP):
            batch = -(-case.batch_size // gpu_count)  # rounded up
            split = question.profile.shared_by(
                msgspec.structs.replace(case, batch_size=batch), gpu_count, mode
            )
            as_asked = msgspec.structs.replace(split, checkpointing=case.checkpointing)
            # Two if jobs of that size use another checkpointing by default
            ways = dict.fromkeys((split, as_asked))
            micro_batches = min(accumulate, batch)
            judged = (
                judge_fit(
                    question.profile,
                    way,
                    fit.card,
                    **of_question.known_of(question, way, None, readings, micro_batches),
                )
                for way in ways
            )
            found = next((pair for pair in zip(ways, judged, strict=True) if pair[1].fits), None)
            if found is not None:
                way, shared = found
                how = f", {_CHECKPOINTING_WORDS[way.checkpointing]}" if len(ways) > 1 else ""
                yield Fix(what=f"{gpu_count} GPUs{words}, batch {batch:,} on each{how}", fit=shared)
                break


@takes_options_of(MemoryRequest)
def memory(request: MemoryRequest) -> MemoryAnswers:
    """Return the memory that a step needs, on which GPUs it fits, and what would make it fit.

    The user's results count: a peak measured in the same case replaces the model.

    Returns:
        One answer per workload.

    Raises:
        MisuseError: If a name is unknown, or the precision or the batch is impossible.
    """
    return answers_of(request)


def answers_of(request: MemoryRequest, *, with_fixes: bool = True) -> MemoryAnswers:
    """Answer as ``memory`` does; without ``with_fixes``, leave out what would make the step fit."""
    from gpubench.record.store import own_runs

    request = _with_count(request)
    asked = asked_recipe(request)
    specs = [usual_spec(name) for name in request.gpus] or [
        each for each in load_specs().values() if each.is_nvidia and each.memory_bytes and not each.variants
    ]
    questions, own = _questions(request, asked, with_fixes), own_runs(request.results)
    return MemoryAnswers(
        answer_memory(
            question,
            specs,
            own=own,
            fixes=with_fixes,
            changes={
                "gpu_count": request.count,
                "parallel_mode": ParallelMode(request.jobs or question.profile.parallel_mode),
                **_requested_checkpointing(question.profile, asked),
            },
            accumulate=request.accumulate,
        )
        for question in questions
    )


def _requested_checkpointing(profile: WorkloadProfile, asked: Mapping[str, Any]) -> dict[str, Any]:
    # It applies to every model. If the model has such a setting, the profile is at that checkpointing
    # already.
    is_missing = "checkpointing" in asked and "checkpointing" not in profile.settings
    return {"checkpointing": Checkpointing(asked["checkpointing"])} if is_missing else {}


def _with_count(request: MemoryRequest) -> MemoryRequest:
    """Return the request with the number of GPUs taken from their names, as in "2x RTX 3090".

    Raises:
        MisuseError: If two numbers differ, or one is 0.
    """
    stated, names = zip(*map(counted, request.gpus), strict=True) if request.gpus else ((), ())
    counts = {*stated, request.count if "count" in request.asked else None} - {None}
    if len(counts) > 1 or 0 in counts:
        raise MisuseError(
            f"--gpu and --count state {listing(map(str, sorted(counts)))} GPUs: give one number, at least 1"
        )
    return msgspec.structs.replace(request, gpus=tuple(names), count=min(counts, default=request.count))


def _questions(request: MemoryRequest, asked: Mapping[str, Any], with_fixes: bool) -> list[Question]:
    """Return a question for each named workload; if none is named, for each standard one with the task.

    Standard workloads that cannot run at the precision are left out, unless none can.
    """
    from gpubench.profile.cache import load_profiles, profile_as_asked, profiles_of

    task = TaskKind(request.task)
    if not request.workloads:
        profiles = [p for p in load_profiles().values() if task in p.tasks and p.is_classic]
    else:
        how: dict[str, Any] = {"gpu_count": request.count, "optional": ("checkpointing",)}
        by_name = profiles_of(
            [each for each in request.workloads if isinstance(each, str)],
            asked,
            **how,
            precisions=[request.precision],
            for_memory=True,
            with_ways=with_fixes,
            memory_of=[task],
        )
        profiles = [
            by_name[each] if isinstance(each, str) else profile_as_asked(each, asked, **how)
            for each in request.workloads
        ]
    questions = [
        question_of(
            profile,
            request.precision,
            asked=asked,
            execution=Execution(request.execution),
            task=task_of(profile, request.task, named="task" in request.asked),
            batch_size=request.batch_size,
        )
        for profile in profiles
    ]
    return [each for each in questions if request.workloads or why_impossible(each) is None] or questions


# --- the longest context that fits on a card, for decoders of 1 to 70 billion parameters --------------------

# For each decoder and way of using it (training or decoding), the package ships traces of a step on one
# sequence (data/capacity.json, written by ``python -m tools.make capacity``). A trace gives the memory as a
# linear function of the sequence length. A context fits if the upper end of its memory's interval fits.

CAPACITY_FILE = "capacity.json"
UNIT_TOKENS = 1024
MOST_UNITS = 1024
"""Longest context to try, in units of ``UNIT_TOKENS``; no decoder in the file has a longer one."""

MOST_CONTEXT = UNIT_TOKENS * MOST_UNITS
EXPLANATION = (
    "Longest context that fits, judged by the upper end of the 95 % interval, in steps of 1,024 tokens; K is "
    "1,024. "
    "Training: one sequence, AdamW, all in bfloat16, all blocks recomputed, the loss in 8 chunks; adapters "
    "of rank 16 on attention, QLoRA with an NF4 base. Decoding: one sequence, its prompt in a single pass; "
    "an engine that splits the prompt reaches longer contexts."
)


class DecoderTrace(Record, frozen=True, kw_only=True):
    """The memory of one decoder, trained or used in one way.

    Attributes:
        way: Full training, LoRA, QLoRA, or decoding at a number of bits.
        step: The memory of the step; a sample is 1,024 tokens of one sequence.
    """

    model: str
    parameters: int
    way: str
    step: StepMemory


class Room(Record, frozen=True, kw_only=True):
    """The capacity of a card for one decoder and way of using it.

    Attributes:
        trace: The decoder, and the way of using it.
        context_tokens: The longest sequence that fits, in steps of 1,024; 0 if none does.
        device: Memory in use at 1,024 tokens [B].
    """

    trace: DecoderTrace
    context_tokens: int
    device: Interval


class Capacity(Record, frozen=True, kw_only=True):
    """The capacity of one card, for each decoder and way of using it.

    Attributes:
        speed_untold: Why no speed is predicted for these models; None if it is predicted.
    """

    gpu_key: str
    card: CardMemory
    rooms: tuple[Room, ...]
    speed_untold: str | None = None

    def flat(self) -> dict[str, Any]:
        """Return the document of ``gpubench memory --gpu X --json``."""
        return {
            "gpu_key": self.gpu_key,
            "memory_bytes": round(self.card.listed_bytes),
            "usable_bytes": round(self.card.usable_bytes),
            "speed_untold": self.speed_untold,
            "models": [
                {
                    "model": room.trace.model,
                    "parameters": room.trace.parameters,
                    "way": room.trace.way,
                    "largest_context_tokens": room.context_tokens,
                    "device_bytes": round(room.device.value or 0),
                    "device_bytes_low": round(room.device.low or 0),
                    "device_bytes_high": round(room.device.high or 0),
                }
                for room in self.rooms
            ],
        }


@cache
def load_traces() -> tuple[DecoderTrace, ...]:
    """Read the shipped traces, sorted by number of parameters."""
    return data_json(CAPACITY_FILE, tuple[DecoderTrace, ...])


def capacity_of(spec: GpuSpec) -> Capacity:
    """Return the capacity of a card.

    Raises:
        MisuseError: If the card's memory is unknown.
    """
    card = card_of(spec)
    if card is None:
        raise MisuseError(f"{spec.key}: its memory is not known")
    no_speed = why_no_speed(spec, Precision.BF16)
    return Capacity(
        gpu_key=spec.key,
        card=card,
        rooms=tuple(
            Room(
                trace=trace,
                context_tokens=UNIT_TOKENS * min(largest_of(trace.step, card), MOST_UNITS),
                device=device_of(trace.step, 1, card.card_class),
            )
            for trace in load_traces()
        ),
        speed_untold=no_speed and f"{no_speed}: {NO_SPEED}",
    )
