"""Avoids torch's compiler: imports it only when needed, and runs an author's compiled code uncompiled.

The import takes a second of CPU time. Torch imports its compiler for every optimizer and every tensor without
values, only to exclude some functions from compilation.
"""

from __future__ import annotations

import copy
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


def import_compiler_late() -> None:
    """Delay the import of torch's compiler in this process; code runs uncompiled even after the import.

    This has no effect if the compiler is imported already, or if torch cannot be imported.
    """
    spec = None
    with suppress(ImportError):
        spec = find_spec(_NAME)
    if spec is None or _NAME in sys.modules:
        return
    package = module_from_spec(spec)
    package.__class__ = _Late
    sys.modules[_NAME] = package
    setattr(sys.modules["torch"], _NAME.partition(".")[2], package)  # as an import does
    importlib.import_module(f"{_NAME}.config")  # torch's fake tensors read it
    sys.meta_path.insert(0, _Submodules())


def uncompiled() -> AbstractContextManager[Any]:
    """Run an author's compiled code uncompiled, because the case says how a step is executed.

    This has no effect on torch before 2.6.
    """
    import torch

    set_stance = getattr(torch.compiler, "set_stance", None)
    if _is_late() or set_stance is None:
        return nullcontext()
    stance: AbstractContextManager[Any] = set_stance("force_eager")
    return stance


def _is_late() -> bool:
    return isinstance(sys.modules.get(_NAME), _Late)


class _Late(ModuleType):
    """Stands for the compiler's package until an attribute of it is used."""

    @staticmethod
    def disable(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        """Return the function, or a decorator that does: while nothing is compiled, nothing is excluded."""
        return (lambda each: each) if function is None else function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: optimizers call this at each step."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system and debuggers look for optional attributes
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(self)
        uncompiled()  # takes effect when called, until this process ends
        return getattr(self, name)


class _Submodules(MetaPathFinder, Loader):
    """Imports the whole package before one of its submodules, as Python would."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        if not (name.startswith(f"{_NAME}.") and _is_late()):
            return None
        sys.modules[_NAME].optimize  # noqa: B018 - any use of the package imports it
        found = sys.modules.get(name)  # the package may have imported it
        spec = None if found is None else copy.copy(found.__spec__)
        if spec is not None:
            spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module was executed with its package."""
