"""Write constraints.lock: what CI installs, each package with the hash of its file.

After a change of the requirements or of constraints.txt, on Linux with CPython 3.11:

    PIP_CONSTRAINT=$PWD/constraints.txt pip install --dry-run --ignore-installed --report report.json -e '.[dev]'
    python tests/packaging/lock.py report.json

torch is left out: its build is the machine's choice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpubench.installing import DISTRIBUTION

LOCK = Path(__file__).resolve().parents[2] / "constraints.lock"
HEAD = """# What CI installs before anything else, with the hash of each file: CPython 3.11 on Linux, x86-64.
# Made by tests/packaging/lock.py from a report of pip. torch is left out: its build is the machine's choice.
"""
LEFT_OUT = {DISTRIBUTION, "torch"}


def line_of(package: dict) -> str:
    facts = package["metadata"]
    digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{facts['name'].lower()}=={facts['version']} --hash=sha256:{digest}\n"


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    packages = [package for package in report["install"] if package["metadata"]["name"] not in LEFT_OUT]
    LOCK.write_text(HEAD + "".join(sorted(map(line_of, packages))), encoding="utf-8")
