"""Let a room be called like the function it is known for: ``gpubench.probe()`` and ``gpubench.probe.select``.

Python binds a subpackage as an attribute of its parent on first import, over any function of that name. So
three names of the public API would stop being functions as soon as somebody imported from their rooms.
Each of these packages therefore is the function for whoever calls it, asks for its signature or reads its
docstring, in whatever order things were imported.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function; imported at the first call, so that the package itself stays light."""
        return _called(self)(*arguments, **options)

    __signature__ = property(lambda self: inspect.signature(_called(self)))
    __doc__ = property(lambda self: inspect.getdoc(_called(self)))


def _called(package: ModuleType) -> Any:
    """Return the function; kept apart from the class, so that no name of a room is hidden."""
    module, name = package.__dict__["_called"]
    return getattr(import_module(module), name)


def make_callable(package: str, module: str) -> None:
    """Make ``package`` callable as the function of its own name in ``module``."""
    found = sys.modules[package]
    found.__dict__["_called"] = (module, package.rpartition(".")[2])
    found.__class__ = _CallablePackage
