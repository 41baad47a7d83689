"""Write CI's constraints: constraints.lock, from it constraints.txt, and from that constraints-run.txt.

Do this after changing the requirements or a version in constraints.txt, on Linux with CPython 3.11:

    PIP_CONSTRAINT=$PWD/constraints.txt pip install --dry-run --ignore-installed --report report.json -e '.[dev]'
    python tests/packaging/lock.py report.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from packaging.utils import canonicalize_name

from gpubench.installing import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
LOCK, ALL, RUN = (ROOT / f"constraints{end}" for end in (".lock", ".txt", "-run.txt"))
LOCK_HEAD = """# The packages that CI installs first, with the hash of each file: CPython 3.11 on Linux, x86-64.
# Made by tests/packaging/lock.py from a report of pip. torch is left out: its build is the machine's choice.
"""
ALL_HEAD = """# CI's versions, made by tests/packaging/lock.py. On a machine without a GPU, install the CPU build of this torch
# version.
"""
RUN_HEAD = """# CI's versions as upper bounds, made by tests/packaging/lock.py from constraints.txt. Installed packages may stay.
# torch, its dependencies and torchao are left out: a bound that does not fit a machine's torch would make pip replace
# it.
"""
LEFT_OUT = {DISTRIBUTION, "torch"}
OF_THE_MACHINE = {
    "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "setuptools", "sympy", "torch", "torchao",
    "typing-extensions",
}  # fmt: skip


def pins(path: Path) -> list[str]:
    """Return the lines of a constraints file without its comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def all_constraints(torch: str) -> str:
    """Return the content of constraints.txt: a torch, and all of the lock."""
    return ALL_HEAD + "".join(f"{line}\n" for line in (torch, *(pin.split()[0] for pin in pins(LOCK))))


def run_constraints() -> str:
    """Return the content of constraints-run.txt."""
    named = ((canonicalize_name(line.partition("==")[0]), line) for line in pins(ALL))
    return RUN_HEAD + "".join(
        f"{line.replace('==', '<=')}\n" for name, line in named if name not in OF_THE_MACHINE
    )


def line_of(package: dict) -> str:
    facts = package["metadata"]
    digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{facts['name'].lower()}=={facts['version']} --hash=sha256:{digest}\n"


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    versions = {package["metadata"]["name"]: package["metadata"]["version"] for package in report["install"]}
    packages = [package for package in report["install"] if package["metadata"]["name"] not in LEFT_OUT]
    LOCK.write_text(LOCK_HEAD + "".join(sorted(map(line_of, packages))), encoding="utf-8")
    ALL.write_text(all_constraints(f"torch=={versions['torch'].partition('+')[0]}"), encoding="utf-8")
    RUN.write_text(run_constraints(), encoding="utf-8")
