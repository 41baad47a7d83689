"""Write ``gpubench/__init__.pyi``, by which editors and type checkers see the public API.

The functions are made from their requests, so that no checker could follow them; what they accept is written
down here, from their signatures: ``python tests/make_stub.py``. ``test_api.py`` holds the file to them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpubench

STUB = Path(gpubench.__file__).with_suffix(".pyi")

HEAD = '''"""The public API as type checkers see it; made by tests/make_stub.py, not by hand."""

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
    every = "".join(f'    "{name}",\n' for name in sorted(gpubench.__all__, key=_constants_first))
    return f"{HEAD}{imports}\n__version__: str\n__all__ = [\n{every}]\n\n{functions}"


def _constants_first(name: str) -> tuple[bool, str]:
    return not name[0].isupper(), name


def _imports(home: str, names: list[str]) -> str:
    line = f"from {home} import {', '.join(names)}\n"
    if len(line) <= 110:
        return line
    return f"from {home} import (\n{''.join(f'    {name},{chr(10)}' for name in names)})\n"


def _function(name: str) -> str:
    function = getattr(gpubench, name)
    signature = inspect.signature(function)
    returns = str(signature.return_annotation)
    doc = (inspect.getdoc(function) or "").replace("\n", "\n    ").replace("    \n", "\n")
    close = '"""' if "\n" not in doc else '\n    """'
    return f'def {name}({"".join(_parameters(signature))}) -> {returns}:\n    """{doc}{close}\n'


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    by_name = False
    for each in signature.parameters.values():
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not by_name:
            by_name = True
            yield "\n    *,"
        required = each.default is inspect.Parameter.empty
        yield f"\n    {each.name}: {each.annotation}{'' if required else f' = {_shown(each.default)}'},"
    if signature.parameters:
        yield "\n"


def _shown(default: Any) -> str:
    """Return a default as it stands in a stub; of a range just that there is one."""
    if default is None or isinstance(default, bool | int | float):
        return repr(default)
    if isinstance(default, str):
        return f'"{default}"'
    return "()" if default == () else "..."


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
