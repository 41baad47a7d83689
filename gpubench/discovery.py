"""Lists and loads workloads: standard workloads, plug-ins of other packages, and the user's own models.

Listing their names does not import them.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING

from gpubench import decoders, foreign_code, installing, options, specs, user_model
from gpubench.errors import MisuseError
from gpubench.files import is_there, read_text
from gpubench.names import counted, letters, nearest
from gpubench.units import MIB, plain
from gpubench.workload import Workload, need_torch

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "gpubench.workloads"
"""Entry point group for workloads of other packages; the standard ones need no entry."""
STANDARD = "gpubench_workloads"
"""Name under which the folder `workloads` of the repository is imported, and installed by a wheel."""
# What a message lists if no name is similar.
NO_MODEL_NEAR = ("none; `gpubench list` shows the workloads",)


def workload_names() -> tuple[str, ...]:
    """Return the sorted names of the installed workloads, without importing them.

    Raises:
        MisuseError: If two packages offer the same name.
    """
    return tuple(_installed())


def workload_named(reference: str) -> str:
    """Return an installed workload's name, given any spelling of it: case and separators are ignored.

    Any other name is returned unchanged: a user's model, a language model known only by its shape, a typo.

    >>> [workload_named(name) for name in ("ViT-B/16", "./resnet50", "llama-3.1-8b")]
    ['vit_b16', './resnet50', 'llama-3.1-8b']
    """
    if reference in _standard_names():  # without searching all installed packages
        return reference
    known = _installed()
    is_a_file = reference.startswith((".", "/")) or is_there(Path(reference))
    if reference in known or is_a_file or decoders.find_decoder(reference) is not None:
        return reference
    return next((name for name in known if letters(name) == letters(reference)), reference)


def load_workload(reference: str) -> Workload:
    """Import the workload that a reference names: an installed one, or a user's.

    A user's is ``./file.py[:NAME]``, ``package.module:NAME`` or ``hf:PATH/config.json``. Its code runs
    unsandboxed in this process, so load one only in a child process.

    Raises:
        MisuseError: With one line for the user; an error from the user's code is chained to it.
    """
    if user_model.is_own(reference):
        need_torch(f"a model of your own ({plain(reference, 200)})")
        _standard_folders()  # so that the module that builds a Hugging Face config can be imported
        from gpubench.user_model import load_own

        return load_own(reference)
    known = _installed()
    if reference not in known:
        name = plain(reference, 200)
        if decoders.find_decoder(reference) is not None:
            raise MisuseError(
                f"only the shape of {name} is known, which is enough for rank, memory and predict; to build "
                "it, give its config.json: hf:PATH/config.json"
            )
        if specs.known_keys(counted(reference)[1]):
            raise MisuseError(f"{name} is a GPU, not a workload: write it after --gpu")
        unknown = options.unknown_name("workload", reference, models_like(reference) or NO_MODEL_NEAR)
        raise MisuseError(
            f"{unknown}. For a model of your own, `gpubench new-workload my_model` writes a file to fill in; "
            "for a model of the Hugging Face hub, give its config.json: hf:PATH/config.json"
        )
    need_torch(f"building {reference}")
    workload = foreign_code.load_plugin("workload", known[reference])
    if not isinstance(workload, Workload):
        raise MisuseError(
            f"workload {reference}: {known[reference].value} is of type {type(workload).__name__}, not a "
            "Workload"
        )
    return workload


def models_like(word: str) -> tuple[str, ...]:
    """Return at most three workloads or language models with similar names and the same initial."""
    known = (*_installed(), *decoders.decoder_names())
    return nearest(word, (name for name in known if name[:1] == word[:1].lower()))


@cache
def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import EntryPoint, entry_points

    own = [EntryPoint(name, f"{STANDARD}.{name}:WORKLOAD", ENTRY_POINT_GROUP) for name in _standard_names()]
    declared = entry_points(group=ENTRY_POINT_GROUP)
    others = [p for p in declared if p.dist is None or p.dist.name != installing.DISTRIBUTION]
    found: dict[str, EntryPoint] = {}
    for point in sorted([*own, *others], key=lambda p: (p.name, p.value)):
        if point.name in found:
            raise MisuseError(
                f'two installed packages offer the workload "{point.name}": {found[point.name].value} and '
                f"{point.value}; uninstall one of them"
            )
        found[point.name] = point
    return found


@cache
def _standard_names() -> tuple[str, ...]:
    """Return the names of the standard workloads: the modules of their package.

    Modules with a leading underscore are shared code; ``conftest`` and ``bench_*`` are test files.
    """
    names = (found.name for found in iter_modules(_standard_folders()))
    return tuple(name for name in names if name != "conftest" and not name.startswith(("_", "bench_")))


def _standard_folders() -> list[str]:
    # Return the folders of the standard workloads, and make their package importable.
    root = checkout()
    if root is not None:
        _serve_from(root / "workloads")
        return [str(root / "workloads")]
    spec = importlib.util.find_spec(STANDARD)
    return [] if spec is None else list(spec.submodule_search_locations or [])


def keras_models() -> ModuleType:
    """Import the Keras models; Keras itself is imported when a model is built."""
    _standard_folders()
    return importlib.import_module(f"{STANDARD}._keras")


def checkout() -> Path | None:
    """Return the repository from which this package is imported; None for an installed wheel."""
    root = Path(__file__).resolve().parent.parent
    declared = root / "pyproject.toml"
    if not (declared.is_file() and (root / "workloads" / "__init__.py").is_file()):
        return None
    return root if re.search(rf'(?m)^name = "{installing.DISTRIBUTION}"', read_text(declared, MIB)) else None


def _serve_from(folder: Path) -> None:
    """Make the package of the standard workloads refer to this folder, so edits take effect.

    Otherwise, an editable install would import the copy made at installation.
    """
    spec = importlib.util.spec_from_file_location(
        STANDARD, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if STANDARD in sys.modules or spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[STANDARD] = module
    spec.loader.exec_module(module)
