"""Avoids slow parts of torch: imports them only when needed, and runs an author's compiled code uncompiled.

The import of the compiler takes a second of CPU time. Torch imports it for every optimizer and every tensor
without values, only to exclude some functions from compilation. The import of distributed tensors takes a
quarter of a second. Torch imports them for tensors without values, only to check whether those are
distributed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"
_DISTRIBUTED = "torch.distributed.tensor"


def import_compiler_late() -> None:
    """Delay the import of torch's compiler in this process; code runs uncompiled even after the import.

    This has no effect if the compiler is imported already, or if torch cannot be imported.
    """
    if _import_late(_NAME, _LateCompiler):
        importlib.import_module(f"{_NAME}.config")  # fake tensors read it
        sys.meta_path.insert(0, _Submodules())


def import_distributed_tensors_late() -> None:
    """Delay the import of torch's distributed tensors; until it happens, this process can make none.

    Call it after the import of an author's code, because code that imports them itself needs the real ones.
    It has no effect in a process that imported the compiler early, because that process may train on several
    GPUs.
    """
    if _is_late(_NAME):
        _import_late(_DISTRIBUTED, _LateTensors)


def _import_late(name: str, stand_in: type[_Late]) -> bool:
    # Delay the import of a package; return False if it is missing or already imported.
    spec = None
    with suppress(ImportError):
        spec = find_spec(name)
    if spec is None or name in sys.modules:
        return False
    package = module_from_spec(spec)
    package.__class__ = stand_in
    sys.modules[name] = package
    parent, _, short = name.rpartition(".")
    setattr(sys.modules[parent], short, package)  # as an import does
    return True


def uncompiled() -> AbstractContextManager[Any]:
    """Run an author's compiled code uncompiled, because the case says how a step is executed.

    This has no effect on torch before 2.6.
    """
    import torch

    set_stance = getattr(torch.compiler, "set_stance", None)
    if _is_late(_NAME) or set_stance is None:
        return nullcontext()
    stance: AbstractContextManager[Any] = set_stance("force_eager")
    return stance


def _is_late(name: str) -> bool:
    return isinstance(sys.modules.get(name), _Late)


class _Late(ModuleType):
    """Stands for a package until an attribute of it is used."""

    def __getattr__(self, name: str) -> Any:
        # The import system and debuggers look for optional attributes; `from package import *` needs this one
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        _import_now(self)
        return getattr(self, name)


class _LateCompiler(_Late):
    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        """Return the function, or a decorator that returns it: nothing is compiled, so none is excluded."""
        return (lambda each: each) if function is None else function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: optimizers call this at each step."""


class _LateTensors(_Late):
    DTensor = type("DTensor", (), {})  # no tensor is one


def _import_now(package: ModuleType) -> None:
    package.__class__ = ModuleType
    spec = package.__spec__
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(package)
    uncompiled()  # a call is enough: it takes effect here and for the rest of the process


class _Submodules(MetaPathFinder):
    """Imports the whole package before one of its submodules, as Python would."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        package = next((late for late in (_NAME, _DISTRIBUTED) if name.startswith(f"{late}.")), None)
        if package is None or not _is_late(package):
            return None
        _import_now(sys.modules[package])
        # If the package has imported the submodule, Python would execute it again, by its own spec.
        found = sys.modules.pop(name, None)
        return None if found is None else ModuleSpec(name, _Imported(found))


class _Imported(Loader):
    """Loads a module that was imported before."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec."""
        module.__spec__ = self._spec
