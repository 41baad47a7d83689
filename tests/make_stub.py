"""Writes ``gpubench/__init__.pyi``, in which editors and type checkers see the public API.

The functions are made from their requests, which no checker could follow. ``python tests/make_stub.py``
writes their signatures into the stub, and ``test_api.py`` compares the file with them.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import gpubench

STUB = Path(gpubench.__file__).with_suffix(".pyi")
WIDTH = 110

HEAD = '''"""The public API as type checkers see it; made by tests/make_stub.py, not by hand."""

# fmt: off
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Literal

import pandas as pd

'''


def stub() -> str:
    """Return the text of the stub."""
    names = sorted(set(gpubench.__all__) - {"__version__"})
    types = [name for name in names if inspect.isclass(getattr(gpubench, name))]
    homes: dict[str, list[str]] = {}
    for name in types:
        homes.setdefault(gpubench._HOMES[name], []).append(name)
    imports = "".join(_imports(home, sorted(given)) for home, given in sorted(homes.items()))
    functions = "\n".join(_function(name) for name in names if name not in types)
    every = _filled(", ".join(f'"{name}"' for name in sorted(gpubench.__all__, key=_constants_first)))
    return f"{HEAD}{imports}\n__version__: str\n__all__ = [\n{every},\n]\n\n{functions}"


def _constants_first(name: str) -> tuple[bool, str]:
    return not name[0].isupper(), name


def _imports(home: str, names: list[str]) -> str:
    line = f"from {home} import {', '.join(names)}\n"
    if len(line) <= WIDTH:
        return line
    return f"from {home} import (\n{''.join(f'    {name},{chr(10)}' for name in names)})\n"


def _filled(words: str) -> str:
    indent = " " * 4
    return textwrap.fill(
        words, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _function(name: str) -> str:
    """Return a function with its signature; the description of each option is in its docstring at run time."""
    function = getattr(import_module(gpubench._HOMES[name]), name)
    signature = inspect.signature(function)
    doc = (inspect.getdoc(function.__wrapped__) or "").replace("\n", "\n    ").replace("    \n", "\n")
    close = '"""' if "\n" not in doc else '\n    """'
    taken = f"\n{_filled(', '.join(_parameters(signature)))},\n" if signature.parameters else ""
    return f'def {name}({taken}) -> {signature.return_annotation}:\n    """{doc}{close}\n'


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    by_name = False
    for each in signature.parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not by_name:
            by_name = True
            yield "*"
        required = each.default is inspect.Parameter.empty
        yield f"{each.name}: {each.annotation}{'' if required else f' = {_shown(each.default)}'}"


def _shown(default: Any) -> str:
    """Return a default as it appears in a stub; a range only shows that there is one."""
    if default is None or isinstance(default, bool | int | float):
        return repr(default)
    if isinstance(default, str):
        return f'"{default}"'
    return "()" if default == () else "..."


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
