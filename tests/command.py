"""The command line as a user types it: a process of its own, whose output is read whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def gpubench(
    environment: Mapping[str, str] | None, *arguments: str, cwd: Path | str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; None is the environment of the test."""
    return subprocess.run(
        [sys.executable, "-m", "gpubench", *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
