"""The command line as a user types it: its own process, whose output is read whole."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

WITH_BF16 = """
from gpubench.probe import host
found = host.instructions
host.instructions = lambda *root: found(*root) | {"avx512_bf16"}
from gpubench.cli.app import main
main()
"""
"""A program: the command line on a processor with bf16, whichever this is; torch computes in it on any."""

IN_SHORT = """
import msgspec
from gpubench.measure import budget, plan
plan.budget_of = lambda name, *, on_cpu: msgspec.structs.replace(
    budget.QUICK, timed_s=0.3, warmup_steps=2, warmup_least_s=0, warmup_most_s=0.3, round_s=0.01, window_s=0.02,
    curve_steps=2)
"""
"""The head of a program: every case takes a fraction of a second."""


def gpubench(
    environment: Mapping[str, str] | None,
    *arguments: str,
    cwd: Path | str | None = None,
    program: Sequence[str] = ("-m", "gpubench"),
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, by ``run`` as a process; None is the environment of the test."""
    return run(
        [sys.executable, *program, *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def settings(file: str = "gpubench.toml", **values: Any) -> Iterator[Path]:
    """Stand in a folder where a file sets these; JSON is how TOML writes such values too."""
    lines = (f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in values.items())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if values:
            Path(file).write_text("".join(lines), encoding="utf-8")
        yield Path(folder)
