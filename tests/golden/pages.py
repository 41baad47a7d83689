"""Make the generated pages: cookbook, settings, JSON Schemas, and the first screen of the README.

``python tests/golden/pages.py`` writes all of them; a test compares them with today's output. All except the
README come from the frozen tables and runs of ``tests/golden``, so a new price changes no other page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from command import gpubench  # noqa: E402

from golden.documents import DOCUMENTS, schema_text  # noqa: E402
from golden.produce import DAY, DOUBTFUL, EXPECTED, OWN, SOUND, frozen_tables, run  # noqa: E402
from gpubench.cli.table import VERBS  # noqa: E402
from gpubench.options import Option, help_of, options_of, typed  # noqa: E402

COLUMNS, MOST_LINES = 100, 9

QUESTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "What should I rent?",
        "Without a workload, the job is a day of training three networks on one A100.",
        ("rank", "--limit", "3"),
    ),
    (
        "What does my job cost, within a day and 200 dollars?",
        "Give the number of samples and your limits; offers outside them are left out.",
        (
            "rank",
            "vgg16",
            "--samples",
            "1e8",
            "--deadline-hours",
            "24",
            "--budget-usd",
            "200",
            "--limit",
            "3",
        ),
    ),
    (
        "Buy or rent?",
        "Name the machine with its price, service life and utilization.",
        ("rank", "vgg16", "--have", OWN, "--limit", "2"),
    ),
    (
        "Which GPU answers within 20 ms?",
        "Set a latency limit for inference; slower GPUs are left out.",
        ("rank", "resnet50", "--task", "infer", "--max-latency-ms", "20", "--limit", "3"),
    ),
    (
        "How fast is a card that I do not have, and how certain is that?",
        "Each row shows a GPU's throughput, interval and basis.",
        ("predict", "show", "vgg16", "--gpu", "h100-sxm", "--gpu", "rtx-4090"),
    ),
    (
        "Does it fit, and what would make it fit?",
        "The answer breaks down the memory of a step and says what would help.",
        ("memory", "vgg16", "--gpu", "RTX 4090", "--batch-size", "512"),
    ),
    (
        "Which prices are known, and how old are they?",
        "Each price has its provider and date.",
        ("offers", "list", "--gpu", "rtx-4090"),
    ),
    ("What have I measured?", "Each row is one run.", ("results", "list")),
    (
        "Can this run be trusted?",
        "The exit code is 1 if there is a problem.",
        ("check", DOUBTFUL),
    ),
    (
        "Did an update make it slower?",
        "Name the older run first. The exit code is 1 if a case became slower than the limit allows, 6 if undecided.",
        ("compare", DOUBTFUL, SOUND, "--fail-over", "3%"),
    ),
)
"""Ten questions, each with its heading, a sentence, and the command that answers it."""

_DATED = {"rank", "offers"}


def cookbook() -> str:
    """Return the page of questions, each with the program's answer."""
    lines = [
        "# Cookbook: ten questions with their answers",
        "",
        f"Every answer is real output from a frozen table of prices and three runs, as of {DAY}. Your figures",
        "will differ. `...` marks omitted lines.",
        "",
    ]
    for number, (question, what, arguments) in enumerate(QUESTIONS, start=1):
        lines += [f"## {number}. {question}", "", what, "", "```sh", _line(arguments), "```", "", "```text"]
        lines += [*_answer(arguments), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(arguments: tuple[str, ...]) -> str:
    quoted = (f'"{each}"' if " " in each else each for each in arguments)
    return " ".join(["gpubench", *quoted])


def _answer(arguments: tuple[str, ...]) -> Iterator[str]:
    dated = ("--as-of", DAY) if arguments[0] in _DATED else ()
    code, out, err = run(*arguments, *dated, columns=COLUMNS, terminal=True)
    if code == 2 or not out.strip():
        raise SystemExit(f"{_line(arguments)}: {err}")
    lines = [line.rstrip() for line in _plain(out).strip("\n").splitlines()]
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield "..."


def _plain(text: str) -> str:
    from golden.produce import normalized

    return normalized(text)


def settings_page() -> str:
    """Return the page of settings: each with its purpose, and the verbs that use it."""
    used_by: dict[str, list[tuple[Option, str]]] = {}
    for path, verb in sorted(VERBS.items()):
        for each in (each for request in verb.requests for each in options_of(request)):
            if each.way == "setting":
                used_by.setdefault(typed(each.name), []).append((each, f"`{path.partition(' ')[0]}`"))
    groups: dict[str, list[str]] = {}
    for name, found in sorted(used_by.items()):
        what = " ".join(dict.fromkeys(help_of(each).replace("|", ", ") for each, _ in found))
        groups.setdefault(", ".join(dict.fromkeys(by for _, by in found)), []).append(f"- `{name}`: {what}\n")
    parts = (f"\n## {verbs}\n\n{''.join(lines)}" for verbs, lines in sorted(groups.items()))
    return SETTINGS_HEAD + "".join(parts)


SETTINGS_HEAD = """# Settings

Options that rarely change are settings in a file in the current folder: `gpubench.toml`, or else the table
`[tool.gpubench]` of `pyproject.toml`. They are not on the command line.

```toml
# gpubench.toml
tax = 0.19
tariff = "0.20-0.35"
utilization = 0.6
line = ["GeForce", "RTX"]
```

The last stderr line lists the settings in use, as does `settings` in the JSON. An unknown name fails and the message suggests
the nearest known one. Files in parent folders are ignored. `gpubench.rank()` reads no file: there, each setting is a keyword,
with `_` instead of `-`. A range is a string: `"0.2-0.5"`; a list is a TOML list or text with commas. A removed option says what
to use instead.
"""

FIRST_SCREEN = ("rank", "resnet50", "--as-of", DAY)


def readme() -> str:
    """Return the README with the first screen from the shipped tables, for a user without measurements."""
    path = ROOT / "README.md"
    nowhere = str(EXPECTED / "nowhere")
    environment = dict.fromkeys(("GPUBENCH_RESULTS", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), nowhere)
    done = gpubench(os.environ | environment | {"COLUMNS": "120"}, *FIRST_SCREEN, cwd=EXPECTED)
    screen = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    head, _, rest = path.read_text(encoding="utf-8").partition("```text\n")
    return f"{head}```text\n$ {_line(FIRST_SCREEN)}\n{screen}\n```{rest.partition('```')[2]}"


PAGES = {"cookbook.md": cookbook, "settings.md": settings_page} | {
    f"schema/{name}.json": partial(schema_text, name) for name in DOCUMENTS
}

if __name__ == "__main__":
    with frozen_tables():
        for name, make in PAGES.items():
            (ROOT / "docs" / name).write_text(make(), encoding="utf-8")
            print(f"wrote docs/{name}")
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
