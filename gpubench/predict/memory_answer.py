"""What `gpubench memory` and the report answer: the need of a step, card by card, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpubench.errors import MisuseError
from gpubench.models import (
    CardClass,
    CardMemory,
    Case,
    GpuSpec,
    MemoryBasis,
    MemoryFit,
    MemoryNeed,
    MemoryParts,
    Precision,
    Run,
    TaskKind,
)
from gpubench.precisions import AMP
from gpubench.predict import memory
from gpubench.predict.anchors import Reading, readings_of
from gpubench.predict.question import Question, Refusal, case_for, check, precision_of
from gpubench.profile.allowance import card_of
from gpubench.profile.memory import judge, with_blocks_recomputed
from gpubench.specs import load_specs, require_spec

T = TypeVar("T")

MOST_GPUS = 8
"""No machine with more than this is proposed to make a step fit."""


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    """One change, and the need of the step after it.

    Attributes:
        what: The change in words.
    """

    what: str
    fit: MemoryFit


class CardAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the step fits on cards of one size and class, and what would make it fit.

    Attributes:
        gpu_keys: Every card of this size and class that was asked for.
    """

    gpu_keys: tuple[str, ...]
    precision: Precision
    fit: MemoryFit
    mends: tuple[Mend, ...] = ()


class MemoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The need of one step and, card by card, whether it fits.

    Attributes:
        need: On a card with GDDR memory, or on the class of the first card asked for.
        refused: GPUs without an answer, and why.
    """

    case: Case
    need: MemoryNeed
    cards: tuple[CardAnswer, ...]
    refused: tuple[Refusal, ...] = ()

    def flat(self) -> dict[str, Any]:
        """Return the document of ``gpubench memory --json``."""
        case = self.case
        return {
            "schema_version": 1,
            "workload": case.workload,
            "task": case.task,
            "precision": case.precision,
            "batch_size": case.batch_size,
            **self.need.flat(),
            "cards": [
                {
                    "gpu_keys": card.gpu_keys,
                    "precision": card.precision,
                    **card.fit.flat(),
                    "mends": [{"what": mend.what, **mend.fit.flat()} for mend in card.mends],
                }
                for card in self.cards
            ],
            "refused": [msgspec.to_builtins(refusal) for refusal in self.refused],
        }


def answer_memory(
    question: Question,
    specs: Sequence[GpuSpec],
    *,
    own: Sequence[Run] = (),
    reference: Sequence[Run] = (),
    mends: bool = True,
) -> MemoryAnswer:
    """Say what a step needs, and whether it fits on each card.

    Args:
        question: Workload, precision, task and batch; ``amp`` is the best of each card.
        specs: The cards, at least one.
        own: This user's runs: a peak measured in the same case replaces the model.
        reference: Runs that the package ships.
        mends: Whether to work out what would make it fit where it does not.

    Raises:
        MisuseError: If the question itself is impossible.
    """
    check(question)
    readings = readings_of(question, own, reference)
    refused: list[Refusal] = []
    groups: dict[tuple[CardMemory, bool], list[tuple[GpuSpec, Case]]] = {}
    for spec in specs:
        case, card = case_for(question, spec), card_of(spec)
        if isinstance(case, Refusal):
            refused.append(case)
        elif card is None:
            refused.append(Refusal(gpu_key=spec.key, reason="its memory is not known"))
        else:
            groups.setdefault((card, case.precision.is_amp), []).append((spec, case))
    asked = [pair for pairs in groups.values() for pair in pairs] or [(specs[0], _any_case(question))]
    like = next((pair for pair in asked if _card_class(pair[0]) is CardClass.GDDR), asked[0])
    spec, case = asked[0] if len(specs) == 1 else like
    cards = [_answer(question, pairs, readings, mends) for pairs in groups.values()]
    return MemoryAnswer(
        case=case,
        need=memory.need_of(question, case, spec, readings),
        cards=tuple(sorted(cards, key=lambda card: (card.fit.card.usable_bytes, card.gpu_keys))),
        refused=tuple(refused),
    )


def _any_case(question: Question) -> Case:
    """The case where no card can run it: at the precision asked for."""
    precision = Precision.AMP_FP16 if question.precision == "amp" else Precision(question.precision)
    profile = question.profile
    return Case(
        workload=profile.name,
        workload_version=profile.version,
        task=question.task,
        precision=precision,
        execution=question.execution,
        memory_format=None,
        batch_size=question.batch,
        sample_unit=profile.sample_unit,
    )


def _card_class(spec: GpuSpec) -> CardClass | None:
    card = card_of(spec)
    return None if card is None else card.card_class


def _answer(
    question: Question, pairs: Iterable[tuple[GpuSpec, Case]], readings: Sequence[Reading], mends: bool
) -> CardAnswer:
    specs, cases = zip(*pairs, strict=True)
    fit = memory.fit_of(question, cases[0], specs[0], readings)
    assert fit is not None
    return CardAnswer(
        gpu_keys=tuple(spec.key for spec in specs),
        precision=cases[0].precision,
        fit=fit,
        mends=() if fit.fits or not mends else tuple(_mends(question, cases[0], fit, readings)),
    )


def _mends(question: Question, case: Case, fit: MemoryFit, readings: Sequence[Reading]) -> Iterable[Mend]:
    """What would make it fit, each with its need; what would not is told as well."""
    profile, task, precision, batch = question.profile, case.task, case.precision, case.batch_size
    scale = memory.scale_of(question, readings)

    def need(batch_size: int, at: Precision = precision, of: Any = profile) -> MemoryFit:
        return judge(of, task, at, batch_size, fit.card, scale=scale)

    if not precision.is_amp:
        yield Mend(
            what="automatic mixed precision (amp-fp16, or amp-bf16 from Ampere on)",
            fit=need(batch, Precision.AMP_FP16),
        )
    recomputed = with_blocks_recomputed(profile)
    if task is TaskKind.TRAIN and recomputed is not None:
        yield Mend(what="activation checkpointing of every block", fit=need(batch, of=recomputed))
    if fit.largest_batch:
        yield Mend(what=f"batch {fit.largest_batch}", fit=need(fit.largest_batch))
    if task is TaskKind.TRAIN:
        yield from _on_several(question, case, fit, scale)


def _on_several(question: Question, case: Case, fit: MemoryFit, scale: float) -> Iterable[Mend]:
    """The fewest GPUs on which the batch, split, fits; each holds the gradients once more, in buckets."""
    profile = question.profile
    gpu_count = 2
    while gpu_count <= MOST_GPUS and gpu_count <= case.batch_size:
        each = -(-case.batch_size // gpu_count)
        split = judge(profile, case.task, case.precision, each, fit.card, scale=scale)
        shared = _with_buckets(split, 4.0 * profile.trainable_parameters)
        if shared.fits:
            yield Mend(what=f"{gpu_count} GPUs, batch {each} on each", fit=shared)
            return
        gpu_count *= 2


def _with_buckets(fit: MemoryFit, bucket_bytes: float) -> MemoryFit:
    """The same beside the buckets in which gradients are summed over GPUs."""
    need = fit.need

    def more(figure: Any) -> Any:
        return figure.each(lambda x: x + bucket_bytes)

    device = more(need.device)
    grown = msgspec.structs.replace(
        need,
        allocated=more(need.allocated),
        reserved=more(need.reserved),
        device=device,
        parts=msgspec.structs.replace(need.parts, gradients_bytes=need.parts.gradients_bytes + bucket_bytes),
    )
    return judged(fit, grown)


def judged(fit: MemoryFit, need: MemoryNeed) -> MemoryFit:
    """The answer for another need on the same card."""
    return msgspec.structs.replace(fit, need=need, verdict=fit.card.verdict_of(need.device))


def read_questions(
    workloads: Sequence[str] | None,
    *,
    gpus: Sequence[str] | None,
    precision: str,
    task: str,
    batch_size: int | None,
    results: Path | None,
) -> tuple[MemoryAnswer, ...]:
    """Answer for workloads by name or path, from this user's results where they help.

    Args:
        workloads: None is every standard workload that has the task.
        gpus: Keys or names; None is every NVIDIA GPU of the table.
        precision: A precision, or ``amp``: the best of each GPU.
        task: ``train`` or ``infer``.
        batch_size: Samples per step on one GPU; None is the main batch of each workload.
        results: Results folder; None is the usual one.

    Raises:
        MisuseError: If a name, a precision or the batch is not known or not possible.
    """
    from gpubench.profile import load_profiles, profiles_of
    from gpubench.record.store import newest_runs, reference_runs, results_root

    kind = _read(TaskKind, task, "task", TaskKind)
    at = _read(precision_of, precision, "precision", (AMP, *Precision))
    if workloads is None:
        profiles = [p for p in load_profiles().values() if kind in p.tasks]
    else:
        profiles = list(profiles_of(workloads).values())
    if gpus is None:
        known = load_specs().values()
        specs = [s for s in known if s.vendor == "NVIDIA" and s.memory_bytes and not s.variants]
    else:
        specs = [require_spec(name) for name in gpus]
    own, reference = newest_runs(results_root(results)).runs, reference_runs()
    return tuple(
        answer_memory(
            Question(profile=profile, precision=at, task=kind, batch_size=batch_size),
            specs,
            own=own,
            reference=reference,
        )
        for profile in profiles
    )


def _read(read: Callable[[str], T], text: str, what: str, known: Iterable[str]) -> T:
    """Read an option, or say which values there are."""
    try:
        return read(text)
    except ValueError:
        raise MisuseError(f"unknown {what} {text!r}; known: {', '.join(known)}") from None


def basis_words(need: MemoryNeed) -> str:
    """What the figures rest on, in a sentence without its end."""
    return {
        MemoryBasis.MEASURED: "a peak measured in this case, with what the allocator and the driver add",
        MemoryBasis.TRACED: "a trace of the whole step, with what readings say the rest takes",
        MemoryBasis.FORMULA: f"a formula with the widest bound; not traced: {need.untraced}",
    }[need.basis]


def part_rows(parts: MemoryParts) -> tuple[tuple[str, float], ...]:
    """Name and size of each part [B], as the terminal and the page show them."""
    return (
        ("weights", parts.weights_bytes),
        ("gradients", parts.gradients_bytes),
        ("optimizer state", parts.optimizer_bytes),
        ("activations, saved", parts.saved_bytes),
        ("activations, transient", parts.transient_bytes),
        ("workspace and context", parts.workspace_bytes),
        ("margin", parts.margin_bytes),
    )
