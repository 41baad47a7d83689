"""Profiles without torch in this process: from the package, or from a child process that traces the model.

``python -m gpubench.profile`` writes the file of the standard workloads again.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec
import platformdirs

from gpubench.errors import MisuseError
from gpubench.models import WorkloadProfile
from gpubench.profile.bounded import Ended, run_bounded
from gpubench.units import format_duration, plain
from gpubench.workload import is_own, workload_names

PROFILES_FILE = Path(__file__).resolve().parent.parent / "data" / "workload_profiles.json"
TRACE_LIMIT_S = 60.0
"""An own model that has not been built and traced by then never will be, in all likelihood."""
ANSWER_LIMIT_BYTES = 16 * 1024**2


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the child process has to say: a profile, or one line and the traceback behind it."""

    profile: WorkloadProfile | None = None
    error: str | None = None
    traceback: str | None = None


@cache
def load_profiles() -> Mapping[str, WorkloadProfile]:
    """Read the shipped profiles of the standard workloads, by name."""
    profiles = msgspec.json.decode(PROFILES_FILE.read_bytes(), type=tuple[WorkloadProfile, ...])
    return MappingProxyType({p.name: p for p in profiles})


def write_profiles(profiles: Iterable[WorkloadProfile]) -> None:
    """Write the file that ``load_profiles`` reads."""
    ordered = sorted(profiles, key=lambda p: p.name)
    PROFILES_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


def profile_of(reference: str, *, time_limit_s: float = TRACE_LIMIT_S) -> WorkloadProfile:
    """Profile a workload by name, ``./file.py[:NAME]`` or ``package.module:NAME``.

    A standard workload comes from the package. Any other is imported and traced in a child process: what it
    prints is bounded, it may exit or hang, and its traceback goes to a log file.

    Raises:
        MisuseError: One line that names the model and what is wrong with it.
    """
    shipped = load_profiles()
    if not is_own(reference) and (reference in shipped or reference not in workload_names()):
        if reference in shipped:
            return shipped[reference]
        from gpubench.workload import load_workload

        load_workload(reference)  # an unknown name: says so, with the names that come near
    return _profile_in_child(reference, time_limit_s)


def _profile_in_child(reference: str, time_limit_s: float) -> WorkloadProfile:
    with tempfile.TemporaryDirectory(prefix="gpubench-") as folder:
        answer_file = Path(folder) / "answer.json"
        ended = run_bounded(
            [sys.executable, "-P", "-m", "gpubench.profile.child", reference, str(answer_file)],
            time_limit_s=time_limit_s,
            environment={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # tracing needs no GPU, and takes none
        )
        answer = _read_answer(answer_file)
    if answer is not None and answer.profile is not None:
        return answer.profile
    name = plain(Path(reference).name)
    log = _write_log(name, answer, ended)
    if answer is not None and answer.error is not None:
        where = f" (traceback in {log})" if answer.traceback else ""
        raise MisuseError(f"{answer.error}{where}")
    raise MisuseError(f"{name}: {_ending(ended, time_limit_s)} (its output is in {log})")


def _read_answer(path: Path) -> Answer | None:
    """Read what the child left, or None where it left nothing or something broken."""
    try:
        if path.stat().st_size > ANSWER_LIMIT_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError):
        return None


def _ending(ended: Ended, time_limit_s: float) -> str:
    if ended.exit_code is None:
        return f"has not been built and traced within {format_duration(time_limit_s)}; its process was ended"
    if ended.exit_code < 0:
        killed = signal.Signals(-ended.exit_code).name
        return f"its process was ended by {killed} while it was built and traced"
    return f"its process ended by itself, with exit code {ended.exit_code}, while it was built and traced"


def _write_log(name: str, answer: Answer | None, ended: Ended) -> Path:
    """Keep the traceback and the last of the output, one file a model, in the user's data folder."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    path = platformdirs.user_data_path("gpubench") / "logs" / f"{safe}.log"
    traceback = answer.traceback if answer is not None and answer.traceback else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{traceback}\n--- output, at most its end ---\n{ended.tail}", encoding="utf-8")
    except OSError as error:
        return Path(f"(no log: cannot write {path}: {error.strerror})")
    return path
