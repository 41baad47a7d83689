"""Startup stays light: everyday verbs load no heavy library."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

import pytest
from command import gpubench, here

HEAVY = {"torch", "pandas", "plotly", "scipy", "pydantic", "requests", "tools"}
PROGRAM = """
import json, sys
sys.argv = ["gpubench", *{arguments!r}]
from gpubench.cli.app import main
try:
    main()
except SystemExit as end:
    code = end.code or 0
print(json.dumps([code, sorted(set(sys.modules) & set({heavy!r}))]), file=sys.stderr)
"""


def run_and_see(*arguments: str) -> tuple[int, list[str]]:
    heavy = HEAVY if arguments[0] == "probe" else HEAVY | {"pynvml"}
    program = PROGRAM.format(arguments=list(arguments), heavy=sorted(heavy))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
        timeout=60,
    )
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    return code, loaded


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("probe", "--json"),
        ("rank", "--json"),
        ("predict", "show", "--workload", "vgg16", "--batch-size", "max", "--json"),
        ("memory", "vgg16", "--json"),
        ("list", "--json"),
        ("offers", "list", "--json"),
    ],
    ids=" ".join,
)
def test_a_verb_that_prints_figures_loads_no_heavy_library(arguments):
    code, loaded = run_and_see(*arguments)
    assert code == 0
    assert loaded == []


def cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.timing
def test_a_run_with_its_page_takes_at_most_a_minute_and_a_half(tmp_path):
    """On two quiet cores; installation not included."""
    page, began_s = tmp_path / "page.html", time.monotonic()
    done = gpubench(None, "run", "--results", str(tmp_path / "results"), "--report", str(page))
    assert done.returncode == 0, done.stderr
    assert page.stat().st_size > 100_000
    assert time.monotonic() - began_s < 90


@pytest.mark.timing
@pytest.mark.benchmark(group="startup", timer=cpu_of_children_s)
@pytest.mark.parametrize(
    ("arguments", "limit_s"),
    [
        (("--help",), 0.30),
        (("probe",), 0.45),
        (("rank",), 0.75),
        (("rank", "vgg16"), 0.75),
        (("predict", "show", "--workload", "vgg16"), 0.50),
        (("predict", "show", "--workload", "bert_base", "--batch-size", "max"), 0.50),
        (("predict", "show", "--workload", "resnet50", "--task", "infer", "--gpu", "RTX 4090"), 0.50),
        (("memory", "--workload", "vgg16"), 0.50),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_verb_starts_within_its_budget(benchmark, tmp_path, arguments, limit_s):
    """CPU seconds including all children: the minimum of seven starts, with compiled bytecode."""
    environment = {**os.environ, "GPUBENCH_RESULTS": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "gpubench", *arguments]
    given = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    benchmark.pedantic(subprocess.run, args=(command,), kwargs=given, rounds=7, warmup_rounds=1)
    assert benchmark.stats.stats.min <= limit_s


def test_help_imports_the_requests_and_no_code_that_answers():
    """Every verb declares its options at each start, so their requests must not import the code that answers."""
    program = (
        "import sys; sys.argv = ['gpubench', '--help']\n"
        "from gpubench.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'models', 'specs', 'stats', 'workload', 'profile', 'record.store', 'probe.backend', 'measure.plan'}\n"
        "found = {f'gpubench.{name}' for name in heavy} | {'numpy', 'scipy', 'plotly', 'pandas', 'torch'}\n"
        "sys.exit(' '.join(found & set(sys.modules)) or None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("no-such-verb",), 2),
        (("rank", "--no-such-option"), 2),
        (("run", "no-such-workload"), 2),
        (("run", "cnn", "--precision", "fp99"), 2),
        (("run", "cnn", "--batch-size", "0"), 2),
        (("run", "cnn", "--device", "toaster"), 2),
        (("run", "cnn", "--device", "cuda"), 3),
        (
            ("run", "cnn", "--device", "cpu", "--results", __file__),
            5,
        ),  # a file: found before any child starts
        (("rank", "--gpu", "nvidia-banana-9000"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_misuse_is_one_line_on_stderr_and_the_documented_exit_code(arguments, exit_code):
    done = here(*arguments)
    assert done.returncode == exit_code, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_that_quotes_a_file_name_sends_no_escape_to_the_terminal(tmp_path):
    done = here("rank", "--offers", tmp_path / "\x1b]0;owned\x07.csv")
    assert done.returncode == 2
    assert "owned" in done.stderr
    assert not set("\x1b\x07") & set(done.stderr)
