"""The child process that ``run_child`` starts to import and trace the model named in its arguments.

Models are traced on the meta device, where tensors have no values, so the child also computes the loss of one
real batch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import msgspec

from gpubench.children import ParentChannel
from gpubench.compiler import import_compiler_late, import_distributed_tensors_late, uncompiled
from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.folders import traceback_of
from gpubench.foreign_code import lacks_memory, one_line
from gpubench.models import TaskKind, WorkloadProfile
from gpubench.profile.cache import NOTHING_ASKED, Answer, Asked, shown_name
from gpubench.units import format_number, format_si
from gpubench.user_model import files_of, is_own, version_of
from gpubench.workload import Workload, forward, seeded, set_mode

MOST_VARIANTS_S = 10.0
"""Limit on CPU time for tracing other ways to train a model. If a model with billions of parameters needs
more, a formula estimates the ways that are left."""

MOST_ON_CPU_S = 30.0
"""Limit on CPU time for a model that reads tensor values. A slower model is traced without values."""
SAMPLES = 2
MOST_PARAMETERS = 200e6
"""Drawing this many weights takes two cores about 2 s and 0.8 GB."""
MOST_FORWARD_FLOPS = 200e9
"""Two cores reach about 150 GFLOP/s."""
MOST_KEPT_BYTES = 2e9
_SEED = 0
_ON_CPU, _READS_ON_CPU = "built and traced on the CPU", "traced with values that a step on the CPU computed"


def main() -> None:
    """Trace the model and answer."""
    parent = ParentChannel()
    import_compiler_late()
    gc.freeze()  # what is imported by now is never freed, and a collection would take 0.1 s to examine it
    reference, asked = parent.arguments
    parent.send(_answer(reference, parent.return_home, msgspec.json.decode(asked, type=Asked)))
    parent.finish()


def _answer(
    reference: str, return_home: Callable[[], None] = lambda: None, asked: Asked = NOTHING_ASKED
) -> Answer:
    try:
        profile, notes, uncounted = _profile(reference, return_home, asked)
        folder, files = files_of(reference) if is_own(reference) else (None, ())
    except MisuseError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        is_explained = isinstance(cause, MisuseError)  # the message says enough
        return Answer(error=str(error), traceback=None if is_explained else traceback_of(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code: any failure becomes one line
        return Answer(error=f"{shown_name(reference)}: {one_line(error)}", traceback=traceback_of(error))
    return Answer(
        profile=profile,
        notes=notes,
        folder=None if folder is None else str(folder),
        files=tuple(map(str, files)),
        uncounted=uncounted,
    )


def _profile(
    reference: str, return_home: Callable[[], None], asked: Asked
) -> tuple[WorkloadProfile, tuple[str, ...], str | None]:
    """Trace the model, check its loss if the trace had no values, and set its version.

    Returns:
        The profile, remarks for the user, and why the FLOPs cannot be counted; None if they can.
    """
    workload = load_workload(reference)  # reports a missing torch
    import_distributed_tensors_late()
    from gpubench.profile.trace import trace_workload
    from gpubench.tensors import off_gpu

    changed = workload.at(asked.recipe(workload))
    if workload.settings:
        workload = changed
    with off_gpu(), uncompiled():
        traced = trace_workload(
            workload,
            MOST_VARIANTS_S,
            MOST_ON_CPU_S,
            asked.requested(workload),
            ways=asked.ways(workload),
            memory_of=asked.memory_of,
        )
    profile = traced.profile
    if not workload.settings:  # the same step, with its weights cast
        profile = msgspec.structs.replace(profile, recipe=changed.recipe)
    if traced.missing_kernel is not None:
        note = None  # its loss cannot be computed here
    elif traced.why_on_cpu is None:
        note = check_first_loss(workload, profile)
    else:
        how = _READS_ON_CPU if traced.only_reads_on_cpu else _ON_CPU
        note = f"{how}, because torch's meta device cannot: {traced.why_on_cpu}"
    if is_own(reference):
        return_home()  # the reference is relative to that folder
        profile = msgspec.structs.replace(profile, version=version_of(reference, profile))
    # Foreign code sets some fields of the profile, so all types are checked
    checked = msgspec.convert(msgspec.to_builtins(profile), WorkloadProfile)
    eager_step = (
        "a step that reads tensor values, so it is ranked as eager" if profile.is_eager_only else None
    )
    where = " in inference" if profile.memory else ""
    remarks = {
        "": note,
        "its images are kept contiguous at every precision, because a step with channels_last fails: ": (
            traced.why_contiguous
        ),
        "a training step fails under a GPU's autocast, so AMP is not offered: ": profile.why_no_amp,
        "no CUDA graph can capture ": eager_step,
        f"a formula gives an upper estimate of its memory{where}, which was not traced: ": (
            profile.memory_untraced
        ),
    }
    notes = (f"{profile.name}: {begin}{rest}" for begin, rest in remarks.items() if rest is not None)
    return checked, tuple(notes), traced.missing_kernel


def check_first_loss(workload: Workload, profile: WorkloadProfile) -> str | None:
    """Compute the loss of one real forward pass on the CPU.

    Returns:
        Why the check was skipped; None if the loss is finite, or the workload is never trained.

    Raises:
        MisuseError: If the loss is not a finite number, or the pass fails on real values.
    """
    if TaskKind.TRAIN not in workload.tasks:
        return None
    flops = SAMPLES * profile.forward_flops_per_sample
    kept = SAMPLES * profile.saved_bytes_per_sample
    if profile.parameters > MOST_PARAMETERS or flops > MOST_FORWARD_FLOPS or kept > MOST_KEPT_BYTES:
        return (
            f"its loss was not checked: {format_number(profile.parameters / 1e6)} million parameters and "
            f"{format_si(flops, 'FLOP')} are too much to run here; gpubench run checks it"
        )
    from gpubench.profile.operators import refusal, require_finite
    from gpubench.tensors import off_gpu

    try:
        task = workload.build(SAMPLES, _SEED)
        inputs, targets = task.batches[0]
        set_mode(task.model, train=True)
        with seeded(_SEED), off_gpu():
            require_finite(task.loss(forward(task.model, inputs), targets))
    except Exception as error:  # a user's model may raise anything; the cause is kept
        if lacks_memory(error) or isinstance(error, NotImplementedError):
            return f"its loss was not checked, because it cannot run on this CPU: {one_line(error)}"
        raise MisuseError(refusal(workload.name, error)) from error
    return None


if __name__ == "__main__":
    main()
