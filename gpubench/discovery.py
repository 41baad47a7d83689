"""Which workloads there are, and how one is loaded: by entry point, or from a file of the user's own.

Finding the names imports nothing of them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from gpubench.errors import MisuseError
from gpubench.files import read_text
from gpubench.names import nearest
from gpubench.own_model import load_own
from gpubench.units import MIB
from gpubench.workload import Workload, import_foreign, is_own

ENTRY_POINT_GROUP = "gpubench.workloads"


def workload_names() -> tuple[str, ...]:
    """Names of the installed workloads, sorted, without importing any of them.

    Raises:
        MisuseError: If two packages offer the same name.
    """
    return tuple(_installed())


def load_workload(reference: str) -> Workload:
    """Import a workload by its name, ``./file.py[:NAME]`` or ``package.module:NAME``.

    An own model is the user's trusted code and runs here: call this for one in a child process only.

    Raises:
        MisuseError: With one line for the user; the cause, where their code raised, is chained to it.
    """
    if is_own(reference):
        return load_own(reference)
    known = _installed()
    if reference not in known:
        close = nearest(reference, known)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}."
        raise MisuseError(
            f'unknown workload "{reference}"; {hint} A model of your own is given as ./file.py or module:NAME'
        )
    workload = import_foreign(f"workload {reference}", known[reference].load)
    if not isinstance(workload, Workload):
        raise MisuseError(
            f"workload {reference}: {known[reference].value} is a {type(workload).__name__}, not a Workload"
        )
    return workload


@cache
def _installed() -> dict[str, importlib.metadata.EntryPoint]:
    """Entry points by name; a source checkout's own are read from its pyproject.toml."""
    root = checkout()
    points = [*importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)]
    if root is not None:
        _serve_from(root / "workloads")
        points = [p for p in points if p.dist is None or p.dist.name != "gpubench"]
        points += _declared(root / "pyproject.toml")
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for point in sorted(points, key=lambda p: (p.name, p.value)):
        if point.name in found:
            raise MisuseError(
                f'two installed packages offer the workload "{point.name}": {found[point.name].value} and '
                f"{point.value}; uninstall one of them"
            )
        found[point.name] = point
    return found


def checkout() -> Path | None:
    """The repository this package is imported from, or None for an installed wheel."""
    root = Path(__file__).resolve().parent.parent
    declared = root / "pyproject.toml"
    if not (declared.is_file() and (root / "workloads" / "__init__.py").is_file()):
        return None
    return root if re.search(r'(?m)^name = "gpubench"$', read_text(declared, MIB)) else None


def _declared(pyproject: Path) -> list[importlib.metadata.EntryPoint]:
    """The workloads that a checkout declares; what pip once copied of it may be older."""
    project = tomllib.loads(read_text(pyproject, MIB))["project"]
    group = project.get("entry-points", {}).get(ENTRY_POINT_GROUP, {})
    return [importlib.metadata.EntryPoint(n, v, ENTRY_POINT_GROUP) for n, v in group.items()]


def _serve_from(folder: Path) -> None:
    """Make ``gpubench_workloads`` mean this folder, so that an edit counts at once.

    An editable install would find the copy that was made when it was installed.
    """
    name = "gpubench_workloads"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if name in sys.modules or spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
