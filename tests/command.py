"""The command line as a user types it: a process of its own, whose output is read whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

WITH_BF16 = """
from gpubench.probe import cpu
found = cpu.instructions
cpu.instructions = lambda *root: found(*root) | {"avx512_bf16"}
from gpubench.cli.app import main
main()
"""
"""A program: the command line on a processor with bf16, whichever this is; torch computes in it on any."""


def gpubench(
    environment: Mapping[str, str] | None,
    *arguments: str,
    cwd: Path | str | None = None,
    program: Sequence[str] = ("-m", "gpubench"),
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; None is the environment of the test."""
    return subprocess.run(
        [sys.executable, *program, *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
