"""docs/architecture.md is correct: its layers are the linter's, and every file that it names exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def layers() -> list[str]:
    """Return the modules of the linter's layers, from the top."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    assert contract["exhaustive"]
    assert contract["containers"] == ["gpubench"]
    return [name for layer in contract["layers"] for name in re.findall(r"\w+", layer)]


def test_the_layers_on_the_page_match_the_linter():
    rows = PAGE.partition("## Packages")[2].partition("\n## ")[0]
    told = [name for row in re.findall(r"(?m)^\| (`.+?) \|", rows) for name in re.findall(r"`(\w+)`", row)]
    assert told == layers()


def test_every_package_is_a_layer():
    package = ROOT / "gpubench"
    found = {p.stem for p in package.glob("*.py")} | {p.parent.name for p in package.glob("*/__init__.py")}
    assert found - {"__init__"} == set(layers())


def layer_of(module: str) -> int | None:
    """Return the layer of a module of the package, 0 at the top; None for the package itself."""
    name = module.split(".")[1:2]
    return ORDER.get(name[0]) if name else None


ORDER = {name: place for place, name in enumerate(layers())}


def test_no_lower_layer_refers_to_a_higher_package_by_string():
    """The linter sees no import by string, so each string that names a package must name one that is not higher."""
    package, up = ROOT / "gpubench", {}
    for path in package.rglob("*.py"):
        own = layer_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if path == package / "__init__.py":
            continue  # the public names, each in its package
        texts = (
            n.value
            for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(n, ast.Constant)
        )
        named = {
            each for each in texts if isinstance(each, str) and re.fullmatch(r"gpubench\.\w[\w.]*", each)
        }
        higher = {each for each in named if (place := layer_of(each)) is not None and place < own}
        if higher:
            up[path.relative_to(package).as_posix()] = higher
    from gpubench.models.record import ABOVE

    assert up == {"models/record.py": set(ABOVE.values())}


LIBRARIES = {
    "torch": {"measure", "profile", "probe", "workload", "user_model", "user_loss", "tensors", "compiler"},
    "plotly": {"report"},
    "pynvml": {"probe"},
    "requests": {"offers"},
}
"""Heavy libraries, and the packages that may import them according to the page."""


def test_the_linter_keeps_every_other_package_from_the_heavy_libraries(tmp_path):
    """In a copy of the package, one module of each package imports all of them."""
    copy = shutil.copytree(ROOT / "gpubench", tmp_path / "gpubench")
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("data"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in layers():
        inside = sorted(each for each in (copy / name).glob("*.py") if each.stem != "__init__")
        module = inside[-1] if inside else copy / f"{name}.py"
        with module.open("a", encoding="utf-8") as file:
            file.write(f"\nimport {', '.join(LIBRARIES)}\n")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    linted = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 1, linted.stderr
    broken = re.findall(r"gpubench\.(\w+)(?:\.\w+)* -> (\w+) \(l\.", linted.stdout)
    for library, allowed in LIBRARIES.items():
        assert {name for name, of in broken if of == library} == set(layers()) - allowed, library


def test_every_file_that_the_page_names_exists():
    named = [name for name in re.findall(r"`([\w./]+)`", PAGE) if "/" in name]
    assert "gpubench/precisions.py" in named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "docs" / name).exists(), name


@pytest.mark.parametrize(
    ("asked", "place", "what"),
    [
        ("the default value of an hour of waiting", "recommend/request.py", "HOUR_WORTH_USD ="),
        ("the rule that excludes an offer", "offers/listing.py", "def outdated("),
        ("the rule that excludes an offer", "offers/outliers.py", '"the only listing"'),
        ("a finding's text or limit", "findings.py", "NOISY ="),
        ("the screen that `rank` prints first", "sections/answer.py", "def screen("),
        ("torch settings", "measure/step.py", "allow_tf32"),
        ("when a series of rounds ends", "measure/loop.py", "def stop_rule("),
        ("a measured figure's interval", "models/measurement.py", "def interval("),
        ("what the driver reports", "probe/select.py", "def select_device("),
        ("a step's FLOPs", "profile/kernels.py", "flops"),
        ("the largest batch in a run", "measure/batch_search.py", "def largest_that_fits("),
        ("a step's memory", "profile/memory.py", "def need_of("),
        ("how a GPU's name becomes its key", "specs.py", "def find_spec("),
        ("how a run file is written", "record/store.py", "def write_run("),
        ("how a run file is written, read", "record/run_file.py", "def read_run("),
        ("a command's exit code", "errors.py", "EVERY_CASE_FAILED ="),
        ("the page's script", "report/calculator.py", "def calculator("),
        ("launches (processes) and time of a run", "measure/budget.py", "DEFAULT ="),
        ("how a user's price table", "offers/tables.py", "HEADINGS"),
        ("how a user's price table", "offers/hardware.py", "def parse_owned("),
        ("whether torch has kernels for a GPU", "torch_builds.py", "def runs_on_todays_torch("),
        ("the removal of serial numbers", "probe/backend.py", "def storable("),
        ("a sentence of the answer", "data/sentences.json", '"sureness"'),
    ],
)
def test_the_page_names_the_places_of_the_code(asked, place, what):
    looked_for = PAGE.partition("## Where is")[2].partition("\n## ")[0]
    (row,) = (line for line in looked_for.splitlines() if line.startswith(f"| {asked}"))
    assert f"`gpubench/{place}`" in row
    assert what in (ROOT / "gpubench" / place).read_text(encoding="utf-8")


def test_verb_modules_contain_no_table_layout():
    """Sentences about a result are data of `sections`: a verb calls and prints."""
    laid_out = set()
    for path in (ROOT / "gpubench" / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "gpubench.blocks.parts":
                laid_out |= {(path.stem, name.name) for name in node.names}
    assert ("output", "Part") in laid_out
    assert not {verb for verb, name in laid_out if name in {"table", "text", "number", "Table", "Bullets"}}


def test_report_section_needs_only_its_file_and_an_entry_in_places():
    from gpubench.sections.data import PLACES

    folder = ROOT / "gpubench" / "sections"
    files = {path.stem for path in folder.glob("*.py") if re.search(r"(?m)^SECTIONS\b", path.read_text())}
    found = {module for module, _ in PLACES.values()}
    assert found == files
    made = [key for name in files for key in importlib.import_module(f"gpubench.sections.{name}").SECTIONS]
    assert sorted(made) == sorted(PLACES)
    assert len(found) > 5


def test_price_source_needs_only_its_own_file():
    from gpubench.offers.sources import own_sources

    folder = ROOT / "gpubench" / "offers" / "sources"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    fetches = [getattr(source.fetch, "func", source.fetch) for source in own_sources()]
    assert {fetch.__module__.rpartition(".")[2] for fetch in fetches} == files
    assert len(files) > 5


def test_verb_needs_only_a_table_row_and_a_function():
    from gpubench.cli.table import VERBS

    folder = ROOT / "gpubench" / "cli" / "verbs"
    found = {}
    for path in (path for path in folder.glob("*.py") if path.stem != "__init__"):
        module = importlib.import_module(f"gpubench.cli.verbs.{path.stem}")
        for name, function in vars(module).items():
            own = inspect.isfunction(function) and function.__module__ == module.__name__
            if (
                own
                and "as_json" in (asked := inspect.signature(function).parameters)
                and not name.startswith("_")
            ):
                action = name.removesuffix("_") if name != "verb" else ""
                requests = [
                    each.annotation for each in asked.values() if each.kind is each.POSITIONAL_OR_KEYWORD
                ]
                found[f"{path.stem.replace('_', '-')} {action}".strip()] = tuple(requests)
    found.pop("run tell")  # the tests of a run call it
    assert found == {path: verb.requests for path, verb in VERBS.items() if verb.requests}
    assert {path.partition(" ")[0] for path in found} >= {
        path for path, verb in VERBS.items() if not verb.requests
    }


def test_every_option_of_the_command_line_is_declared_in_a_request():
    """The parser gets options from requests in one place; the options below belong to no verb."""
    files = {path: path.read_text(encoding="utf-8") for path in (ROOT / "gpubench").rglob("*.py")}
    found = {
        (path.relative_to(ROOT / "gpubench").as_posix(), line.strip())
        for path, text in files.items()
        for line in text.splitlines()
        if re.search(r"\bclick\.(\w*[oO]ption|[aA]rgument)\(", line)
    }
    assert {path for path, _ in found} == {"cli/app.py", "cli/table.py"}
    assert len([path for path, _ in found if path == "cli/app.py"]) == 1  # version


def test_vendor_backend_needs_only_its_file_and_one_entry():
    from gpubench.probe.probe import load_backends

    folder = ROOT / "gpubench" / "probe"
    files = {path.stem for path in folder.glob("*.py") if re.search(r"(?m)^BACKEND\b", path.read_text())}
    assert {type(each).__module__.rpartition(".")[2] for each in load_backends([]).found.values()} == {
        *files,
        "host",  # the CPU, and the GPU of an Apple chip
    }


def test_workload_needs_only_its_own_file():
    from gpubench.discovery import workload_names

    files = (path for path in (ROOT / "workloads").glob("*.py") if not path.name.startswith("_"))
    assert set(workload_names()) == {
        path.stem for path in files if re.search(r"\bWORKLOAD\b", path.read_text())
    }
