"""Each fault that can be expected has its tests, and the page that says so is of the same table."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FAULTS, PAGE, page

TESTS = Path(__file__).parent
ROOM = TESTS.parent / "gpubench"
RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
CALLS_CODE = {"eval", "exec", "compile", "__import__"}


def names_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }


def test_there_are_54_faults():
    assert len(FAULTS) == 54
    assert len({fault.name for fault in FAULTS}) == 54


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name[:40])
def test_every_test_that_the_table_names_is_there(fault):
    assert fault.tests
    for named in fault.tests:
        place, name = named.split("::")
        folder, _, file = place.rpartition("/")
        found = [
            p
            for p in (TESTS / folder / f"test_{file}.py", TESTS / "stress" / f"test_{file}.py")
            if p.exists()
        ]
        assert found, place
        assert f"test_{name}" in names_in(found[0]), named


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
    """What is read is JSON, CSV or text; torch.load is ruled out by the linter."""
    for path in ROOM.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not imports(tree) & RUNS_CODE, path
        assert not calls(tree) & CALLS_CODE, path


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules[{module!r}] = None; from gpubench.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_the_page_needs_no_plotly_and_a_plot_names_it(tmp_path):
    page = tmp_path / "page.html"
    done = without("plotly", "report", "-o", str(page))
    assert (done.returncode, done.stdout) == (0, f"{page}\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert "plotly.js" in page.read_text(encoding="utf-8"), "it is shipped, and needs no package"
    assert without("plotly", "rank", "--gpu", "l4").returncode == 0
    code = "import sys; sys.modules['plotly'] = None; import gpubench; gpubench.rank(gpu=['l4']).plot()"
    plot = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert plot.returncode == 1
    assert "plotly" in plot.stderr.splitlines()[-1]
