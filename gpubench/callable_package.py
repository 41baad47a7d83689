"""Makes a package callable like its main function: ``gpubench.probe()`` and ``gpubench.probe.select``.

On first import, Python binds a subpackage as an attribute of its parent and replaces a function of that name.
Three names of the public API would therefore stop being functions as soon as somebody imported from their
packages. Each of these packages acts as the function, including its signature and docstring, regardless of
the order of imports.
"""

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
