"""Counts the assertions that pin prose: `python tests/prose.py` prints the number, `--list` each of them.

An assertion (or a `match=`) pins prose if one of its strings has four words or more. Only the goldens pin the
words of the terminal, the page and Markdown. Other tests name only what identifies a message: its values, its
options, a word or two.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

WORD = re.compile(r"[A-Za-z'\-,.;:]+")
MANY = 4


def pins(folder: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and string of each one."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assert):
                said = node.test
            elif isinstance(node, ast.keyword) and node.arg == "match":
                said = node.value
            else:
                continue
            strings = (each.value for each in ast.walk(said) if isinstance(each, ast.Constant))
            prose = [text for text in strings if isinstance(text, str) and is_prose(text)]
            if prose:
                yield path, said.lineno, prose[0]


def is_prose(text: str) -> bool:
    return sum(WORD.fullmatch(word) is not None for word in text.split()) >= MANY


if __name__ == "__main__":
    found = list(pins(Path(__file__).parent))
    if "--list" in sys.argv:
        for path, line, text in found:
            print(f"{path}:{line}: {text!r}")
    print(len(found))
