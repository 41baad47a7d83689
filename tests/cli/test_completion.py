"""Completion as a shell asks for it: workloads, precisions, GPUs and providers by their first letters."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gpubench run vgg", "vgg16_transfer"),
        ("gpubench run --precision amp-b", "amp-bf16"),
        ("gpubench rank --gpu nvidia-l40s", "nvidia-l40s-48gb"),
        ("gpubench rank --provider lamb", "lambda"),
    ],
)
def test_a_shell_is_told_what_can_follow(line, found):
    words = line.split()
    asked = {
        "_GPUBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
    }
    code = "import sys; sys.argv[0] = 'gpubench'; from gpubench.cli.app import app; app(prog_name='gpubench')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert found in done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("benchmark",), "Did you mean 'run'? (see gpubench --help)"),
        (("offers", "list", "--bogus"), "(see gpubench offers list --help)"),
        (("rank", "--limit", "x"), "'x' is not a whole number. (see gpubench rank --help)"),
        (("rank", "--gpu"), "(see gpubench rank --help)"),
    ],
)
def test_a_wrong_line_names_the_help_of_its_own_verb(arguments, said):
    done = subprocess.run(
        [sys.executable, "-m", "gpubench", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
