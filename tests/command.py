"""Runs the command line as a user types it, in its own process or, if startup is not tested, in this one."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

WITH_BF16 = """
from gpubench.probe import host
found = host.instructions
host.instructions = lambda *root: found(*root) | {"avx512_bf16"}
from gpubench.cli.app import main
main()
"""
"""A program: the command line on a processor with bf16, whatever the real one is; torch can compute in bf16
on any processor.
"""

IN_SHORT = """
import msgspec
from gpubench.measure import budget, plan
plan.budget_of = lambda name, *, on_cpu: msgspec.structs.replace(
    budget.QUICK, timed_s=0.2, warmup_steps=2, warmup_least_s=0, warmup_most_s=0.1, round_s=0.01, window_s=0.02,
    curve_steps=2)
"""
"""The head of a program in which every case takes a fraction of a second."""


def gpubench(
    environment: Mapping[str, str] | None,
    *arguments: str,
    cwd: Path | str | None = None,
    program: Sequence[str] = ("-m", "gpubench"),
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a process started by ``run``; None is the environment of the test."""
    return run(
        [sys.executable, *program, *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def here(
    *arguments: object, cwd: Path | str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process through the same entry point, since starting an interpreter takes half a second."""
    from gpubench.cli.app import main

    return called(main, "gpubench", *arguments, cwd=cwd, **environment)


def called(
    main: Callable[[], object], *argv: object, cwd: Path | str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call the main function of a program in this process, with these words as ``sys.argv``."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    thresholds, on_sigterm = gc.get_threshold(), signal.getsignal(signal.SIGTERM)
    code = 0
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", [*map(str, argv)]),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            gc.set_threshold(*thresholds)
            signal.signal(signal.SIGTERM, on_sigterm)
    said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([*map(str, argv)], code, *said)


@contextlib.contextmanager
def settings(file: str = "gpubench.toml", **values: Any) -> Iterator[Path]:
    """Change to a folder with a settings file; a value has the same form in JSON and in TOML."""
    lines = (f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in values.items())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if values:
            Path(file).write_text("".join(lines), encoding="utf-8")
        yield Path(folder)
