"""The README keeps its word: two commands, and CI runs the second one exactly."""

from __future__ import annotations

import re
from pathlib import Path

from gpubench.errors import exit_codes

ROOT = Path(__file__).parents[1]


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.+?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    return [
        line for block in blocks for line in block.strip().splitlines() if line.startswith("python3 -m venv")
    ]


def test_there_are_two_set_up_commands_and_ci_runs_the_second_word_for_word():
    main_job, tests = commands()
    assert main_job.endswith("gpubench run --report report.html")
    assert tests.endswith("pytest -n auto")
    assert tests in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_exit_codes_are_those_of_the_table():
    assert exit_codes() in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_the_pictures_of_the_readme_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
