"""What the wheel and the source distribution contain; an installation keeps an existing torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from gpubench import __version__
from gpubench.discovery import workload_names

ROOT = Path(__file__).parents[2]


def _built(kind: str, folders: pytest.TempPathFactory) -> Path:
    """Build a wheel or a source distribution of the current tree; return its one file."""
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    out = folders.mktemp(kind)
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = (path for path in out.iterdir() if path.name.endswith((".whl", ".tar.gz")))
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    return zipfile.ZipFile(_built("wheel", tmp_path_factory))


def test_wheel_contains_data_and_workloads_under_its_own_top_level_names(wheel):
    names = set(wheel.namelist())
    assert {
        "gpubench/data/gpus.csv",
        "gpubench/data/offers.csv",
        "gpubench_workloads/cnn.py",
        "gpubench/py.typed",
    } <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "gpubench",
        "gpubench_suite",
        "gpubench_workloads",
    }
    assert not any("__pycache__" in name for name in names)


def test_the_wheel_is_small_and_excludes_files_that_no_answer_needs(wheel):
    assert Path(wheel.filename).stat().st_size < 3_000_000
    assert sum(each.file_size for each in wheel.infolist()) < 6_000_000
    of_tools = {path.name for path in (ROOT / "tools" / "data").iterdir()}
    assert "published.csv" in of_tools
    assert not {Path(name).name for name in wheel.namelist()} & of_tools


def test_predict_score_from_a_wheel_names_the_missing_table(wheel, tmp_path):
    wheel.extractall(tmp_path)
    scored = ROOT / "tools" / "data" / "published.csv"
    done = subprocess.run(
        [sys.executable, "-m", "gpubench", "predict", "score", scored],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no {tmp_path / 'tools' / 'data' / 'published.csv'}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_data_file_of_the_source_is_in_the_wheel(wheel):
    shipped = set(wheel.namelist())
    for path in (ROOT / "gpubench").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(ROOT).as_posix() in shipped


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> set[str]:
    """Build the source distribution; return the path of each file in the repository."""
    with tarfile.open(_built("sdist", tmp_path_factory)) as packed:
        return {name.partition("/")[2] for name in packed.getnames()}


def test_the_source_distribution_contains_what_its_pages_link_to(source):
    for page in [
        "README.md",
        "CONTRIBUTING.md",
        "results/README.md",
        *(n for n in source if re.fullmatch(r"docs/[^/]+\.md", n)),
    ]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8")):
            path = (ROOT / page).parent.joinpath(target).resolve().relative_to(ROOT).as_posix()
            assert path in source or any(name.startswith(f"{path}/") for name in source), (page, target)


def test_sdist_contains_the_ci_files_its_tests_read(source):
    workflows = {f".github/workflows/{name}.yml" for name in ("ci", "prices", "release")}
    assert {".ci/run", *workflows} <= source


def test_the_source_distribution_contains_the_tools_and_their_tables(source):
    assert {"tools/calibrate.py", "tools/data/published.csv"} <= source


def test_the_source_distribution_contains_the_complete_examples(source):
    for folder in ("example", "example-cpu"):
        for path in (ROOT / "results" / folder).rglob("*"):
            assert not path.is_file() or path.relative_to(ROOT).as_posix() in source, path


def test_any_torch_from_2_4_satisfies_the_wheel(wheel):
    """No upper bound and no pin, so pip keeps the torch that an environment has."""
    metadata = next(wheel.read(n).decode() for n in wheel.namelist() if n.endswith("METADATA"))
    assert "Requires-Dist: torch>=2.4; extra == 'run'\n" in metadata
    assert "Requires-Dist: torch>=2.4\n" not in metadata
    assert "Requires-Python: >=3.11\n" in metadata


def test_the_wheel_names_the_console_script(wheel):
    text = next(wheel.read(n).decode() for n in wheel.namelist() if n.endswith("entry_points.txt"))
    assert "gpubench = gpubench.__main__:main" in text


def test_an_installed_wheel_has_every_workload_of_the_repository(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = "import gpubench.discovery as d; print(d.__file__, *d.workload_names())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    file, *names = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert tuple(names) == workload_names()


def test_release_workflow_needs_no_secret_and_requires_a_matching_tag():
    """The index trusts the identity of the last job, so that job needs no key and runs no code of ours."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert (publish["needs"], publish["environment"]) == ("build", "release")
    assert publish["permissions"] == {"id-token": "write"}
    assert all("uses" in step for step in publish["steps"])
    assert "secrets." not in f"{workflow}"
    (checked,) = (
        step["run"] for step in build["steps"] if step.get("name") == "Check that the tag is the version"
    )
    for tag, status in ((f"v{__version__}", 0), ("v999.0.0", 1)):
        tagged = os.environ | {
            "GITHUB_REF_NAME": tag,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        assert subprocess.run(["bash", "-c", checked], cwd=ROOT, env=tagged, check=False).returncode == status


@pytest.mark.slow
def test_pip_installs_the_source_archive(tmp_path_factory, tmp_path):
    archive = _built("sdist", tmp_path_factory)
    options = ("-q", "--no-deps", "--no-build-isolation", "--target", tmp_path)
    pip = (sys.executable, "-m", "pip", "install", *options)
    subprocess.run([*pip, archive], check=True)
    assert (tmp_path / "gpubench" / "data" / "gpus.csv").is_file()
    assert (tmp_path / "gpubench_workloads" / "cnn.py").is_file()
