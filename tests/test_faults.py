"""Each expected fault has its tests, and the page matches the table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from command import here
from faults import FAULTS, PAGE, page

from gpubench import errors
from gpubench.errors import ExitCode

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "gpubench"
RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
CALLS_CODE = {"eval", "exec", "compile", "__import__"}


def file_of(named: str) -> Path:
    """Return the test file that the table names."""
    folder, _, file = named.split("::", maxsplit=1)[0].rpartition("/")
    places = (TESTS / folder / f"test_{file}.py", TESTS / "stress" / f"test_{file}.py")
    return next((place for place in places if place.exists()), places[0])


@cache
def functions_of(file: Path) -> tuple[list[str], dict[str, ast.FunctionDef]]:
    """Return the lines of a test file, and its functions by name."""
    text = file.read_text(encoding="utf-8")
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    return text.split("\n"), functions


def source_of(named: str) -> str:
    """Return the source of a test that the table names, with its parameters and the functions of its file it calls."""
    lines, functions = functions_of(file_of(named))
    test = functions[f"test_{named.split('::')[1]}"]
    called = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)} & functions.keys()
    parts = [test, *test.decorator_list, *(functions[name] for name in sorted(called))]
    return "\n".join(line for part in parts for line in lines[part.lineno - 1 : part.end_lineno])


def asks_for(code: ExitCode, source: str) -> bool:
    """Whether a test names an exit code, or an error that ends with it."""
    raised = [
        name
        for name, kind in vars(errors).items()
        if getattr(kind, "exit_code", None) == code and name in source
    ]
    return bool(raised) or re.search(rf"(?<![\d.]){code.value}(?![\d.])", source) is not None


def test_there_are_55_faults():
    assert len(FAULTS) == 55
    assert len({fault.name for fault in FAULTS}) == 55


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name[:40])
def test_every_test_and_exit_code_of_the_table_is_there(fault):
    assert fault.tests
    assert all(file_of(named).exists() for named in fault.tests)
    sources = [source_of(named) for named in fault.tests]
    for code in map(ExitCode, map(int, re.findall(r"\d+", fault.exit_code))):
        assert code is ExitCode.DONE or any(asks_for(code, source) for source in sources), (
            f"no test asks for {code}"
        )


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/faults.py writes it"


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def calls(tree: ast.AST) -> set[str]:
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def test_nothing_is_executed_from_data():
    """All data is JSON, CSV or text; the linter rules out torch.load."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not imports(tree) & RUNS_CODE, path
        assert not calls(tree) & CALLS_CODE, path


def test_a_pickle_is_refused_wherever_a_file_is_asked_for(tmp_path):
    """Each file is the pickle of an empty dict."""
    for command in ("results add run.json", "rank --offers run.csv", "memory hf:run.json", "run ./run.pt"):
        name = command.split()[-1].removeprefix("hf:")
        (tmp_path / name).write_bytes(b"\x80\x04}\x94.")
        done = here(*command.split(), cwd=tmp_path)
        assert done.returncode == 2, (command, done.stderr)
        assert "Traceback" not in done.stderr


WITHOUT_PLOTLY_AND_TORCH = """
import sys
sys.modules["plotly"] = sys.modules["torch"] = None
import gpubench
from gpubench.cli.app import main
from gpubench.profile import load_profiles
from gpubench.report import calculator
calculator.load_profiles = lambda: {"resnet50": load_profiles()["resnet50"]}  # all of them take two seconds
for command in (["report", "--results", sys.argv[1], "-o", sys.argv[2]], ["rank", "--gpu", "l4"]):
    sys.argv[1:] = command
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
print("the plot", file=sys.stderr)
gpubench.rank(gpu=["l4"]).plot()
"""


def test_the_page_needs_no_plotly_and_a_plot_names_it(tmp_path):
    page = tmp_path / "page.html"
    example = Path(__file__).parents[1] / "results" / "example"
    command = [sys.executable, "-c", WITHOUT_PLOTLY_AND_TORCH, str(example), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    before, _, of_the_plot = done.stderr.partition("the plot\n")
    assert done.stdout.startswith(f"{page}\n"), before
    assert "Traceback" not in before
    assert "plotly.js" in page.read_text(encoding="utf-8"), "it is shipped, and needs no package"
    assert done.returncode == 1
    assert "plotly" in of_the_plot.splitlines()[-1]
