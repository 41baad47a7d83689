"""What pip calls this package, and the command that installs one that it needs."""

from __future__ import annotations

import re
from shlex import join

DISTRIBUTION = "gpubench-suite"
"""On the package index ``gpubench`` belongs to somebody else; that name is only imported and typed."""


def pip_install(*packages: str) -> str:
    """Return the command that installs packages, each within the bounds that our own metadata gives it.

    No command names this package itself: under that name the index may have something else, or nothing.

    Args:
        packages: Their names on the index, with an extra where one is needed. An option of pip is kept.

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
    # A build for a CPU alone has its own name, and the versions of the one for every device.
    return {name.removesuffix("-cpu"): bounds for name, bounds in found.items()} | found
