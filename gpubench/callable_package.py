"""Makes a package callable like its main function: ``gpubench.probe()`` and ``gpubench.probe.select``.

``probe``, ``predict`` and ``report`` are public functions, and also packages. Importing anything from such a
package makes Python set ``gpubench.probe`` to the package, which would hide the function. The package
therefore acts as the function too, with its signature and docstring.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str) -> None:
    """Make ``package`` callable as the function of its own name in ``module``, imported at the first call."""

    def function() -> Any:
        return getattr(import_module(module), package.rpartition(".")[2])

    class CallablePackage(ModuleType):
        __signature__ = property(lambda _: inspect.signature(function()))
        __doc__ = property(lambda _: inspect.getdoc(function()))

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return function()(*arguments, **options)

    sys.modules[package].__class__ = CallablePackage
