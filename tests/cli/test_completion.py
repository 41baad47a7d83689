"""Shell completion of workloads, precisions, GPUs and providers by their first letters."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner
from command import here

from gpubench.cli import table
from gpubench.cli.app import app
from gpubench.specs import load_specs, matching_keys


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gpubench run vgg", "vgg16_transfer"),
        ("gpubench run --precision amp-b", "amp-bf16"),
        ("gpubench rank --gpu nvidia-l40s", "nvidia-l40s-48gb"),
        ("gpubench rank --gpu h1", "h100"),
        ("gpubench rank --gpu rtx-40", "rtx-4090"),
        ("gpubench rank --gpu RTX", "RTX-4090"),
        ('gpubench rank --gpu "RTX 40', "RTX 4090"),
        ("gpubench memory --gpu rtx-40", "rtx-4090"),
        ("gpubench memory --gpu h100-s", "h100-sxm5-80gb"),
        ("gpubench rank --provider lamb", "lambda"),
        ("gpubench memory --gpu nvidia-l40s", "nvidia-l40s-48gb"),
    ],
)
def test_a_shell_gets_the_possible_completions(line, found):
    words = shlex.split(line + '"' * (line.count('"') % 2))
    asked = {
        "_GPUBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = CliRunner().invoke(app, prog_name="gpubench", env=asked)
    assert f"plain,{found}" in done.stdout.splitlines(), done.stderr


def test_every_gpu_name_that_completion_offers_is_accepted():
    known = list(table._gpus())
    names = {
        typed for name in known for typed in (name, name.replace(" ", "-"), name.replace(" ", "-").lower())
    }
    assert len(names) > len(load_specs()) + 300
    assert all(matching_keys(name) for name in names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("benchmark",), "Did you mean 'run'? (see gpubench --help)"),
        (("offers", "list", "--bogus"), "(see gpubench offers list --help)"),
        (("rank", "--gpu"), "(see gpubench rank --help)"),
        (("offers", "list", "--gpu"), "(see gpubench offers list --help)"),
        (("rank", "-gpu", "L4"), "No such option '-g'. Did you mean '--gpu'? (see gpubench rank --help)"),
        (("rank", "-x"), "No such option '-x'. (see gpubench rank --help)"),
        (("predict", "nosuch"), "No such command 'nosuch'. (see gpubench predict --help)"),
        (("predict", "show", "resnet50", "L4"), "name a workload with --workload and a GPU with --gpu"),
        (("report", "resnet50"), "(resnet50); name a workload with --workload (see gpubench report --help)"),
        (("doctor", "L4"), "Got unexpected extra argument (L4) (see gpubench doctor --help)"),
        (("rank", "resnet50", "2x L4"), "2x L4 is a GPU, not a workload: write it after --gpu"),
    ],
)
def test_usage_error_points_to_the_help_of_its_verb(arguments, said):
    done = here(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
