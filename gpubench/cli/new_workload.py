"""`gpubench new-workload`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpubench.cli.common import JsonOption, print_json, say
from gpubench.errors import MisuseError, StorageError
from gpubench.files import create_file


def verb(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the model; the file is ./NAME.py.")],
    as_json: JsonOption = False,
) -> None:
    """Write a commented template for a model of your own; it runs unchanged."""
    from gpubench.folders import package_text

    stem = name.removesuffix(".py")
    if not stem.isidentifier():
        raise MisuseError(f"{name!r} is no name for a Python file: use letters, digits and _, as in my_model")
    path = Path(f"{stem}.py")
    if not path.exists() and _is_taken(stem):
        raise MisuseError(
            f"{stem} is the name of a module that Python or an installed package brings, and {path} could be "
            f"taken for it; choose another, as in my_{stem}"
        )
    text = package_text("data/own_model_template.txt")
    text = text.replace("NAME: describe", f"{stem}: describe", 1).replace("./FILE", f"./{stem}.py")
    _write(path, text)
    if as_json:
        print_json({"path": str(path)})
    say(f"wrote {path}; next: gpubench rank --workload ./{path}, or gpubench run --workload ./{path} --quick")


def _is_taken(name: str) -> bool:
    """Whether ``import name`` finds another module than the file to be written; nothing is imported."""
    if name in sys.stdlib_module_names or name in sys.builtin_module_names or name in sys.modules:
        return True
    return importlib.util.find_spec(name) is not None


def _write(path: Path, text: str) -> None:
    """Write a new file; one that is there is the user's work."""
    try:
        create_file(path, text.encode())
    except FileExistsError as error:
        raise MisuseError(f"{path} is there already; choose another name or move it away") from error
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; change to a folder you may write in"
        ) from error
