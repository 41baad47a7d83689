"""Execute every command on the pages as written, line by line, in one folder per page.

One run is measured here in a fraction of a second. Every line that measures stores and prints that run, so
only the minutes of measuring are left out.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest
from golden import produce

from gpubench.cli.verbs import run as run_verb
from gpubench.folders import FOLDER_VARIABLE
from gpubench.measure import plan
from gpubench.measure.budget import QUICK
from gpubench.measure.request import RunRequest
from gpubench.record import store
from gpubench.session.session import Session, execute, prepare

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

CI = "test_readme.py::test_the_readme_has_two_setup_commands_and_ci_runs_the_second_exactly"
INSTALL = "packaging/test_compare_only.py::test_install_without_extras_works_and_stays_small"
KERAS = "measure/test_keras.py::test_documented_framework_command_measures_the_named_frameworks"
ELSEWHERE = {
    "python3 -m venv": INSTALL,
    ". .venv/bin/activate": INSTALL,
    "pip install": INSTALL,
    "pytest -n auto": CI,
    "ruff ": CI,
    "mypy": CI,
    "lint-imports": CI,
    "codespell": CI,
    "bash .ci/run": CI,
    "pytest workloads": (
        "record/test_pytest_benchmark.py::test_pytest_workloads_measures_and_writes_json_with_case_and_device"
    ),
    "gpubench offers import": "offers/test_price_import.py::test_the_catalog_of_each_cloud_is_read_unmodified",
    "gpubench offers refresh": (
        "offers/test_price_refresh.py::test_a_refresh_writes_one_dated_file_that_loading_reads"
    ),
    "gpubench feed": "workloads/test_feed.py::test_feed_answers_in_json",
    "gpubench check --cuda": (
        "strict_cuda/test_check_cuda.py::test_a_sound_device_passes_every_part_and_is_confirmed"
    ),
    "gpubench run --framework torch,keras-torch": KERAS,
    "gpubench run --workload ./my_keras_model.py": KERAS,
    "gpubench run cnn --device cpu --thread-scaling": (
        "measure/test_threads.py::test_each_row_states_its_threads_and_the_run_states_all_threads_of_the_cpu"
    ),
    "gpubench run --device opencl": (
        "measure/test_micro_opencl.py::test_a_run_of_micro_benchmarks_is_stored_and_shown"
    ),
    "torchrun --nnodes 2": "measure/test_nodes.py::test_two_machines_do_one_run_and_another_command_adds_a_launch",
    "gpubench run vgg16 --gpus 4": (
        "cli/test_run_on_several.py::test_two_processes_on_a_cpu_are_compared_with_one_and_reported"
    ),
}
"""Prefixes of lines that need a network, a new environment, minutes or GPUs, and the test that executes each."""

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 8192,
}
"""Configuration of the Hugging Face model that a page calls PATH."""

ANSWERS = {"check": {0, 1}, "share": {0, 1}, "compare": {0, 1, 6}, "doctor": {0, 1}}
"""Exit codes of verbs that judge; all others exit with 0."""


SHELL = {"", "sh", "bash"}
SHOWN = {"text", "csv", "json", "python", "toml", "mermaid"}
"""Kinds of blocks without commands: program output, files, code."""


def fences_of(text: str) -> list[tuple[str, str]]:
    """Return each fenced block of a page as its kind and its text."""
    pieces = re.split(r"^```([^\n`]*)\n", text, flags=re.MULTILINE)
    return list(zip((kind.strip() for kind in pieces[1::4]), pieces[2::4], strict=True))


def unread(text: str) -> list[str]:
    """Return what looks like a command but is not executed: prompts, and blocks of an unknown kind."""
    found = []
    for kind, body in fences_of(text):
        if kind not in SHELL | SHOWN and "gpubench" in body:
            found.append(f"a block of {kind!r} names gpubench")
        elif kind in SHELL:
            found += [line for line in body.splitlines() if re.match(r"\s*[$>%] *gpubench ", line)]
    return found


def lines_of(page: Path) -> list[str]:
    """Return each command in a page's shell blocks and tables of questions."""
    text = page.read_text(encoding="utf-8")
    blocks = [body for kind, body in fences_of(text) if kind in SHELL]
    commands = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    if page.name in {"README.md", "questions.md"}:
        cells = [row.split("|")[2] for row in text.splitlines() if row.startswith("|")]
        commands += [
            one for cell in cells for one in re.findall(r"`((?:gpubench [a-z]|torchrun )[^`]*)`", cell)
        ]
    known = re.compile(r"(gpubench|torchrun|pip|python3|pytest|bash|ruff) |\. ")
    return [part.strip() for line in commands if known.match(line) for part in line.split("&&")]


def elsewhere(line: str) -> str | None:
    return next((test for start, test in ELSEWHERE.items() if line.startswith(start)), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_documented_command_is_hidden_from_execution(page):
    """A command in a block of another kind, or after a prompt, would not be executed."""
    assert not unread(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("block", ["```console\n$ gpubench run\n```\n", "```sh\n$ gpubench run\n```\n"])
def test_a_command_behind_a_prompt_is_noticed(block):
    assert unread(block)


def test_commands_exempted_from_this_test_are_run_by_another():
    for test in ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / "tests" / path).read_text(encoding="utf-8"), test


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Session:
    """Measure a run on this machine."""
    brief = msgspec.structs.replace(
        QUICK, timed_s=0.5, warmup_steps=2, warmup_least_s=0.0, warmup_most_s=0.3, round_s=0.01, curve_steps=2
    )
    root = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "budget_of", lambda name, *, on_cpu: brief)
        asked = RunRequest(
            workloads=("cnn",), precisions=("fp32",), batch_size=8, micro="none", device="cpu", results=root
        )
        return execute(prepare(asked))


@pytest.fixture
def place(tmp_path, monkeypatch, measured):
    """Make a folder with results, runs of another machine, and whatever else a line of a page may name."""
    results = tmp_path / "results"
    shutil.copytree(produce.RESULTS, results)
    shutil.copytree(produce.RESULTS, tmp_path / "runs")
    (tmp_path / "PATH").mkdir()
    (tmp_path / "PATH" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)

    def stores(prepared):
        path = store.write_run(prepared.root, measured.run)
        return Session(run=measured.run, path=path)

    monkeypatch.setattr(run_verb, "_measure", stores)
    store.write_run(results, measured.run)
    return tmp_path


# The cookbook is made from the answers to its commands.
HERE = [page for page in PAGES if page.name != "cookbook.md" and not all(map(elsewhere, lines_of(page)))]


@pytest.mark.slow
@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_documented_commands_do_what_the_page_says(page, place):
    pairs = {"A": produce.SOUND, "B": produce.DOUBTFUL}
    by_device = {"A": produce.CPU, "B": produce.DOUBTFUL}
    asked = set()
    for line in lines_of(page):
        if line in asked or elsewhere(line):
            continue
        asked.add(line)
        names = by_device if "--by device" in line else pairs
        command, _, kept = line.partition(" > ")
        arguments = [names.get(word, word) for word in shlex.split(command)[1:]]
        code, out, err = produce.run(
            *arguments,
            variables={"GPUBENCH_RESULTS": str(place / "results"), FOLDER_VARIABLE: ""},  # the shipped tables
        )
        if "this CPU has no bf16 instructions" in err:
            continue  # it says so in one line; there is nothing to measure here
        assert code in ANSWERS.get(arguments[0], {0}), (line, code, err)
        assert out or err, line
        if kept:
            (place / kept).write_text(out, encoding="utf-8")
        assert "Traceback" not in err, line
        for written in re.findall(r"(?:-o|--report) (\S+)", line):
            assert (place / written).stat().st_size > 0, line
