"""The name of this package in pip, and the command that installs its dependencies."""

from __future__ import annotations

import re
from shlex import join

DISTRIBUTION = "gpubench-suite"
"""On the package index ``gpubench`` belongs to somebody else; that name is only imported and typed."""


def pip_install(*packages: str) -> str:
    """Return the command that installs packages, each within the bounds of our metadata.

    No command names this package itself: the index may have another package of that name, or none.

    Args:
        packages: Their names on the index, with an extra if needed. An option of pip is kept.

    >>> pip_install("jax[cuda13]", "requests-of-nobody")
    "pip install 'jax[cuda13]>=0.7,<1' requests-of-nobody"
    """
    bounds = _own_bounds()
    return join(["pip", "install", *(name + bounds.get(name.partition("[")[0], "") for name in packages)])


def _own_bounds() -> dict[str, str]:
    """Bounds of every package that gpubench or an extra of it asks for; empty if it is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(DISTRIBUTION) or ()
    except PackageNotFoundError:
        return {}
    named = (re.match(r"([\w.-]+)(?:\[[^]]*\])? *([^;]*)", line) for line in lines)
    found = {each[1]: ",".join(sorted(each[2].strip().split(","), reverse=True)) for each in named if each}
    # A CPU-only build has its own name, with the versions of the general one.
    return {name.removesuffix("-cpu"): bounds for name, bounds in found.items()} | found
