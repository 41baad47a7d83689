"""PyTorch is an extra: whatever builds, times or traces a model asks here first."""

from __future__ import annotations

import importlib.util

from gpubench.errors import GpuBenchError, MisuseError

INSTALL_TORCH = 'pip install "gpubench[run]"'
"""The line that brings torch; comparing, ranking and reporting need none."""

OR_CPU_BUILD = "on a machine without a GPU install its CPU build first, see pytorch.org"


def need_torch(who: str, error: type[GpuBenchError] = MisuseError, install: str = INSTALL_TORCH) -> None:
    """Check, without importing it, that torch is installed.

    Args:
        who: What needs it, as the subject of the message.
        error: Raised where torch is missing.
        install: The line that brings it.

    Raises:
        GpuBenchError: With the exact line that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        raise error(f"{who} needs PyTorch, which is not installed: {install} ({OR_CPU_BUILD})")
