"""The child that imports and traces a model, run by ``ask_child``; its argument names the model."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpubench.children import ParentChannel
from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.models import WorkloadProfile
from gpubench.profile.cache import NOTHING_ASKED, Answer, Asked, called
from gpubench.profile.first_loss import check_first_loss
from gpubench.profile.log import traceback_of
from gpubench.profile.trace import trace_workload
from gpubench.workload import is_own, one_line

MOST_VARIANTS_S = 10.0
"""Of CPU time: the other ways to train a model of billions of parameters are told by the formula instead."""

MOST_ON_CPU_S = 15.0
"""Of the time limit: a model that looks at its values and is slow to compute is counted without them then."""


def main() -> None:
    """Trace the model and answer."""
    parent = ParentChannel()
    reference, asked = parent.arguments
    parent.send(_answer(reference, parent.return_home, msgspec.json.decode(asked, type=Asked)))


def _answer(
    reference: str, return_home: Callable[[], None] = lambda: None, asked: Asked = NOTHING_ASKED
) -> Answer:
    try:
        profile, notes, uncounted = _profile(reference, return_home, asked)
        folder, files = _files(reference)
    except MisuseError as error:
        theirs = None if _is_plain(error) else traceback_of(error)
        return Answer(error=str(error), traceback=theirs)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - code of others: whatever it does is one line
        return Answer(
            error=f"{called(reference)}: {one_line(error)}",
            traceback=traceback_of(error),
        )
    return Answer(profile=profile, notes=notes, folder=folder, files=files, uncounted=uncounted)


def _is_plain(error: BaseException) -> bool:
    """Whether a refusal is our own from its first cause on: its one line says it all."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, MisuseError)


def _files(reference: str) -> tuple[str | None, tuple[str, ...]]:
    if not is_own(reference):
        return None, ()
    from gpubench.own_model import files_of

    folder, files = files_of(reference)
    return str(folder), tuple(map(str, files))


def _profile(
    reference: str, return_home: Callable[[], None], asked: Asked
) -> tuple[WorkloadProfile, tuple[str, ...], str | None]:
    """Trace the model, look at its loss where the trace had no values, and name its version.

    The last is why its FLOPs are no count.
    """
    workload = load_workload(reference)
    changed = workload.at(asked.recipe(workload))
    if workload.settings:
        workload = changed
    traced = trace_workload(workload, MOST_VARIANTS_S, MOST_ON_CPU_S)
    profile = traced.profile
    if not workload.settings:  # the step is the same: its weights are cast
        profile = msgspec.structs.replace(profile, recipe=changed.recipe)
    if traced.missing_kernel is not None:
        note = None  # nothing computes its loss here
    elif traced.why_on_cpu is None:
        note = check_first_loss(workload, profile)
    else:
        note = f"built and traced on the CPU, because torch's meta device cannot: {traced.why_on_cpu}"
    if is_own(reference):
        from gpubench.own_model import version_of

        return_home()  # the reference is a path from there
        profile = msgspec.structs.replace(profile, version=version_of(reference, profile))
    sound = msgspec.convert(msgspec.to_builtins(profile), WorkloadProfile)  # its fields are of others too
    notes = [note] if note is not None else []
    if profile.memory_untraced is not None:
        notes.append(
            f"its memory was estimated from above by a formula, not traced: {profile.memory_untraced}"
        )
    return sound, tuple(f"{profile.name}: {n}" for n in notes), traced.missing_kernel


if __name__ == "__main__":
    main()
