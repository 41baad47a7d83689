import importlib.util
import keyword
import sys
from pathlib import Path

from gpubench import files, folders
from gpubench.cli import output, table
from gpubench.errors import MisuseError, StorageError


def verb(request: table.NewWorkloadRequest, *, as_json: bool) -> None:
    stem = request.name.removesuffix(".py")
    if not stem.isidentifier() or keyword.iskeyword(stem):
        raise MisuseError(
            f"{request.name!r} is not a valid name for a Python module: use letters, digits and _, as in "
            "my_model, but no Python keyword"
        )
    path = Path(f"{stem}.py")
    known = {*sys.stdlib_module_names, *sys.builtin_module_names, *sys.modules}
    if not path.exists() and (stem in known or importlib.util.find_spec(stem) is not None):
        raise MisuseError(
            f"{stem} is the name of a Python module or of an installed package, and {path} could be "
            f"mistaken for it; choose another name, such as my_{stem}"
        )
    text = (
        folders.package_text("data/own_model_template.txt")
        .replace("NAME: describe", f"{stem}: describe", 1)
        .replace("./FILE", f"./{stem}.py")
    )
    try:
        files.create_file(path, text.encode())
    except FileExistsError as error:
        raise MisuseError(f"{path} already exists; choose another name or move it away") from error
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; change to a folder you may write in"
        ) from error
    if as_json:
        output.print_json({"path": str(path)})
    output.say(
        f"wrote {path}; next: gpubench rank --workload ./{path}, or gpubench run --workload ./{path} --quick"
    )
