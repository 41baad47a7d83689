"""The name of this package in pip, and the command that installs its dependencies."""

from __future__ import annotations

import re
from shlex import join

DISTRIBUTION = "gpubench-suite"
"""The name in pip: on the package index, ``gpubench`` belongs to somebody else."""


def pip_install(*packages: str) -> str:
    """Return the pip command for packages, with the version bounds from this package's metadata.

    The command never names this package, since the index may have another package of that name.

    Args:
        packages: Names on the index, with an extra if needed. Options of pip are passed through.

    >>> pip_install("jax[cuda13]", "requests-of-nobody")
    "pip install 'jax[cuda13]>=0.7,<1' requests-of-nobody"
    """
    bounds = _own_bounds()
    return join(["pip", "install", *(name + bounds.get(name.partition("[")[0], "") for name in packages)])


def _own_bounds() -> dict[str, str]:
    """Return the version bounds of every dependency of gpubench and its extras; empty if not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(DISTRIBUTION) or ()
    except PackageNotFoundError:
        return {}
    named = (re.match(r"([\w.-]+)(?:\[[^]]*\])? *([^;]*)", line) for line in lines)
    # Sorted in reverse, the lower bound ">=" comes before the upper bound "<".
    found = {each[1]: ",".join(sorted(each[2].strip().split(","), reverse=True)) for each in named if each}
    # A CPU-only build has its own name but the same versions.
    return {name.removesuffix("-cpu"): bounds for name, bounds in found.items()} | found
