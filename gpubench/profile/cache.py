"""Get profiles without torch in this process: from the package, or from a child that traces the model.

``python -m tools.make profiles`` regenerates the file of the standard workloads.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from gpubench.children import Limit, run_child
from gpubench.decoders import described_decoder, find_decoder
from gpubench.discovery import workload_names
from gpubench.errors import MisuseError
from gpubench.folders import data_json, write_log
from gpubench.models import Checkpointing, Recipe, TaskKind, WeightType, WorkloadProfile, checkpointing_over
from gpubench.precisions import Precision, in_memory
from gpubench.profile import decoder_step
from gpubench.units import format_duration, plain
from gpubench.user_model import (
    HUGGING_FACE,
    check_own,
    config_of,
    is_own,
    own_name,
    refuse_namesakes,
    version_of,
)
from gpubench.workload import Workload, check_recipe

PROFILES_FILE = "workload_profiles.json"
TRACE_CPU_S = 60.0
"""A user's model that takes more CPU time than this to build and trace is unlikely ever to finish."""
CONFIG_CPU_S = 300.0
"""The same for a Hugging Face config: transformers is slow to import, and the model may be large."""
IDLE_LIMIT_S = 120.0
"""A model that does nothing for so long waits for something that will not come."""
NOTICE_AFTER_S = 5.0
"""Most traces end within this time; a message announces a longer one."""
_NOTE_CHARACTERS = 600
_ADVICE = {
    Limit.CPU: "; if it loops over many time steps in Python, shorten the loop; if the file trains when it "
    'is imported, put the training loop under if __name__ == "__main__"',
    Limit.IDLE: "; it waits: leave out what downloads, asks for input, or waits for another process",
}

# Messages to the user: without a logging setup, Python prints warnings on stderr unchanged
_logger = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The child's answer: a profile with remarks, or a one-line error and its traceback.

    Attributes:
        folder: The folder that contains ``files``, for a user's model.
        uncounted: Why the FLOPs of the profile cannot be counted; its memory is still known.
    """

    profile: WorkloadProfile | None = None
    folder: str | None = None
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    uncounted: str | None = None
    error: str | None = None
    traceback: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The requested changes to the recipe of a workload.

    Attributes:
        fields: The requested fields of the recipe.
        optional: Names of fields that are ignored if the workload has no setting of that name.
        gpu_count: GPUs of the job; some workloads choose their checkpointing by that number.
        precisions: The requested precisions, by name; ``amp`` means both types of AMP.
        with_ways: Whether the memory of cheaper ways to train the model is requested too.
        memory_of: The tasks whose memory is requested; empty for all.
    """

    fields: Mapping[str, Any] = {}
    optional: tuple[str, ...] = ()
    gpu_count: int = 1
    precisions: tuple[str, ...] = ()
    with_ways: bool = False
    memory_of: tuple[TaskKind, ...] = ()

    def recipe(self, workload: WorkloadProfile | Workload) -> Recipe:
        """Return the workload's recipe with the request applied.

        Raises:
            MisuseError: If the workload does not support that recipe.
        """
        recipe = self._usual(workload).changed(self.of(workload.settings))
        check_recipe(workload.name, workload.recipe, recipe, workload.settings)
        return recipe

    def requested(self, workload: Workload) -> frozenset[Recipe]:
        """Return every recipe whose memory is requested: one per precision, with the request applied."""
        recipe = self._usual(workload).changed(self.fields)
        return frozenset(recipe.at(in_memory(name)) for name in self.precisions) | {recipe}

    def ways(self, workload: Workload) -> frozenset[Recipe]:
        """Return recipes that save memory compared with the requested ones; none without ``with_ways``."""
        each = self.requested(workload) if self.with_ways else ()
        return frozenset(way for recipe in each for way in recipe.cheaper)

    def _usual(self, workload: WorkloadProfile | Workload) -> Recipe:
        how = checkpointing_over(workload.checkpointing_from, self.gpu_count)
        recipe = workload.recipe
        return recipe if how is None else msgspec.structs.replace(recipe, checkpointing=how)

    def of(self, settings: Collection[str]) -> dict[str, Any]:
        """Return the requested fields, without optional ones that are not among a workload's settings."""
        left_out = set(self.optional).difference(settings)
        return {name: value for name, value in self.fields.items() if name not in left_out}


NOTHING_ASKED = Asked()


@cache
def load_profiles() -> Mapping[str, WorkloadProfile]:
    """Read the shipped profiles of the standard workloads, by name."""
    profiles = data_json(PROFILES_FILE, tuple[WorkloadProfile, ...])
    return MappingProxyType({p.name: p for p in profiles})


def known_profile(name: str, recipe: Recipe = decoder_step.USUAL) -> WorkloadProfile | None:
    """Return the profile of a standard workload or a published decoder by its name; None for any other model.

    Args:
        name: As the user typed it.
        recipe: The recipe of a decoder; its profile is computed from its shape. A workload keeps its own.
    """
    decoder = None if name in load_profiles() else find_decoder(name)
    if decoder is not None:
        return decoder_step.profile_at(decoder, plain(name), recipe)
    return load_profiles().get(name)


def classic_names() -> tuple[str, ...]:
    """Return the installed workloads that "all" stands for: those that fit on an ordinary card."""
    shipped = load_profiles()
    return tuple(name for name in workload_names() if name not in shipped or shipped[name].is_classic)


def run_names() -> tuple[str, ...]:
    """Return the installed workloads that can be run; others have only a profile."""
    shipped = load_profiles()
    return tuple(name for name in workload_names() if name not in shipped or shipped[name].is_run)


def profiles_of(
    references: Sequence[str], asked: Mapping[str, Any] = MappingProxyType({}), **how: Any
) -> dict[str, WorkloadProfile]:
    """Profile several workloads, keyed by reference; the other arguments are as in ``profile_of``.

    Raises:
        MisuseError: As in ``profile_of``, or if two of the user's models have the same name.
    """
    refuse_namesakes([reference for reference in references if is_own(reference)])
    return {reference: profile_of(reference, asked, **how) for reference in references}


def profile_of(
    reference: str,
    asked: Mapping[str, Any] = MappingProxyType({}),
    *,
    gpu_count: int = 1,
    optional: Sequence[str] = (),
    precisions: Sequence[str | None] = (),
    for_memory: bool = False,
    with_ways: bool = False,
    memory_of: Sequence[TaskKind] = (),
) -> WorkloadProfile:
    """Profile a workload by name, ``./file.py[:NAME]`` or ``package.module:NAME``.

    The package includes the profiles of the standard workloads. Any other workload is imported and traced in
    a child process, which may exit or hang without harm. Its output is limited, and a traceback goes to a log
    file.

    Args:
        reference: The workload.
        asked: The requested recipe, by field; other fields are the workload's own.
        gpu_count: GPUs of the job; some workloads choose their checkpointing by that number.
        optional: Names in ``asked`` that are ignored for a workload without that setting.
        precisions: The requested precisions, by name; the memory of each is traced. None means the workload's
            usual one, which is always traced.
        for_memory: Whether only memory is requested; if so, the FLOPs of the step need not be countable.
        with_ways: Whether to trace the memory of cheaper recipes too, which takes twice as long.
        memory_of: The tasks whose memory is requested; empty for all. Tasks that the workload lacks are
            ignored.

    Raises:
        MisuseError: One line that names the model and what is wrong with it.
    """
    wanted = Asked(
        fields=dict(asked),
        optional=tuple(optional),
        gpu_count=gpu_count,
        precisions=tuple(each for each in precisions if each is not None),
        with_ways=with_ways,
        memory_of=tuple(memory_of),
    )
    found = _shipped(reference, wanted)
    if found is None:
        kept, key = _traced.get({}), (reference, msgspec.json.encode(wanted, order="deterministic"))
        is_new = key not in kept
        if is_new:
            kept[key] = _trace_in_child(reference, wanted)
        answer = kept[key]
        if answer.uncounted is not None and not for_memory:
            raise MisuseError(
                f"{shown_name(reference)}: its FLOPs cannot be counted: {plain(answer.uncounted)}"
            )
        for note in answer.notes if is_new else ():
            _logger.warning("%s", plain(note, _NOTE_CHARACTERS))
        assert answer.profile is not None
        found = answer.profile
    if "checkpointing" in wanted.of(found.settings):
        return msgspec.structs.replace(found, checkpointing_from=())  # for any number of GPUs
    return found


def _shipped(reference: str, asked: Asked) -> WorkloadProfile | None:
    """Return the profile from the package; None if the workload or its recipe must be traced."""
    if is_own(reference):
        return _described(reference, asked)
    usual = known_profile(reference)
    if usual is None:
        if reference not in workload_names():
            from gpubench.discovery import load_workload

            load_workload(reference)  # raises an error with the nearest names
        return None
    if reference in load_profiles():
        return _by_recipe(usual, asked)
    return known_profile(reference, asked.recipe(usual))


def _described(reference: str, asked: Asked) -> WorkloadProfile | None:
    """Return the profile of a Hugging Face config from its shape; None if the model must be traced."""
    fields = config_of(reference)
    decoder = None if fields is None else described_decoder(fields)
    if decoder is None or not {*asked.precisions} <= {Precision.BF16}:
        return None
    name = own_name(reference)
    usual = decoder_step.config_profile_at(decoder, name, Recipe(weight_type=WeightType.BFLOAT16))
    recipe = asked.recipe(usual)
    is_computed = recipe.weight_type in {WeightType.BFLOAT16, WeightType.NF4}
    if not is_computed or recipe.checkpointing is Checkpointing.SELECTIVE:
        return None
    found = decoder_step.config_profile_at(decoder, name, recipe)
    return msgspec.structs.replace(found, version=version_of(reference, found))


def _by_recipe(usual: WorkloadProfile, asked: Asked) -> WorkloadProfile | None:
    """Return the profile at the requested recipe; None if it must be traced."""
    recipe = asked.recipe(usual)
    found = usual.at(recipe)
    if found is None and not usual.settings:
        return msgspec.structs.replace(usual, recipe=recipe)  # the same step, with its weights cast
    return found


def profile_as_asked(
    usual: WorkloadProfile,
    asked: Mapping[str, Any],
    *,
    gpu_count: int = 1,
    optional: Sequence[str] = (),
) -> WorkloadProfile:
    """Return a caller's profile at the requested recipe. Args as in ``profile_of``.

    Raises:
        MisuseError: If the workload does not support that recipe, or the profile has no trace of it.
    """
    wanted = Asked(fields=dict(asked), optional=tuple(optional), gpu_count=gpu_count)
    found = _by_recipe(usual, wanted)
    if found is None and wanted.of(usual.settings):
        words = wanted.recipe(usual).words
        raise MisuseError(
            f"{usual.name}: this profile has no trace with {words}; pass the workload's name instead"
        )
    return found or usual


_traced: ContextVar[dict[tuple[str, bytes], Answer]] = ContextVar("_traced")


@contextmanager
def traced_once() -> Iterator[None]:
    """Within the block, trace each model only once per recipe.

    A later block traces a model again, because its file may have changed. A nested block shares the traces of
    the outer one.
    """
    before = _traced.set(_traced.get({}))
    try:
        yield
    finally:
        _traced.reset(before)


def contradiction(reference: str, profile: WorkloadProfile) -> str | None:
    """Say why a profile cannot belong to a model; None if it can.

    The model's code runs in the process that sends the profile, so it could have sent a false one.
    """
    name = own_name(reference) if is_own(reference) else reference
    if profile.name != name:
        return f"the profile is for {plain(profile.name, 80)!r}"
    if not 0 <= profile.trainable_parameters <= profile.parameters:
        return f"{profile.trainable_parameters} of {profile.parameters} parameters are trained"
    if min(profile.batches, default=1) < 1:
        return f"a batch of {min(profile.batches)}"
    amounts = (
        profile.forward_flops_per_sample,
        profile.train_flops_per_sample,
        profile.saved_bytes_per_sample,
        *(each.count for each in (*profile.train, *profile.infer)),
        *(each.flops_per_sample for each in (*profile.train, *profile.infer)),
    )
    wrong = next((amount for amount in amounts if not 0 <= amount < math.inf), None)
    return None if wrong is None else f"an amount of {wrong:.6g}"


def files_of(reference: str) -> tuple[Path, tuple[Path, ...]]:
    """Return the folder of a user's model, and the model's files in it.

    Raises:
        MisuseError: As in ``profile_of``.
    """
    answer = _trace_in_child(reference)
    if answer.folder is None:
        raise MisuseError(f"{shown_name(reference)}: its process did not report the model's files")
    return Path(answer.folder), tuple(map(Path, answer.files))


def shown_name(reference: str) -> str:
    """Return the name of a model in messages and records."""
    return plain(own_name(reference) if is_own(reference) else reference)


def _trace_in_child(reference: str, wanted: Asked = NOTHING_ASKED) -> Answer:
    """Trace a model in a child process, and return an answer that has a profile."""
    name = shown_name(reference)
    is_config = reference.startswith(HUGGING_FACE)
    cpu_limit_s = CONFIG_CPU_S if is_config else TRACE_CPU_S
    if is_own(reference):
        check_own(reference, wanted.fields)
    with _notice(name, cpu_limit_s):
        reply = run_child(
            ("-m", "gpubench.profile.child"),
            [reference, msgspec.json.encode(wanted).decode()],
            Answer,
            cpu_limit_s=cpu_limit_s,
            idle_limit_s=IDLE_LIMIT_S,
            # Tracing must not use a GPU
            environment={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
    if reply.swept:
        _logger.warning("%s: ended the processes that it left running: %s", name, ", ".join(reply.swept))
    answer = reply.answer
    if answer is None or (answer.profile is None and answer.error is None):
        log = write_log(name, None, reply.output)
        advice = "" if reply.limit is None else _ADVICE.get(reply.limit, "")
        raise MisuseError(
            f"{name}: its process {reply.how} while building and tracing the model{advice} ({log})"
        )
    if answer.profile is None:
        log = write_log(name, answer.traceback, reply.output)
        where = f" ({log})" if answer.traceback else ""
        raise MisuseError(f"{answer.error}{where}")
    if wrong := contradiction(reference, answer.profile):
        raise MisuseError(f"{name}: what its process reported cannot be true: {wrong}")
    return answer


@cache
def _say_once(words: str) -> None:
    _logger.warning("%s", words)


@contextmanager
def _notice(name: str, cpu_limit_s: float) -> Iterator[None]:
    """Announce a slow trace, once per model."""
    words = f"{name} is being built and traced, for at most {format_duration(cpu_limit_s)} of CPU time"
    timer = threading.Timer(NOTICE_AFTER_S, _say_once, (words,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
