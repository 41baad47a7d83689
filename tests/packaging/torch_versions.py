"""Test everything that depends on torch under one version of it.

VERSION may be ``newest``, the newest on pip's index. The script makes an environment with ``.[run]``, the
tools of the tests and each extra that is compatible with this torch; it names the others with the reason, and
their tests are skipped. The last line printed is the result. The environment stays in FOLDER
(build/torch/VERSION by default) and is reused; a CUDA build of torch takes several gigabytes.

    python tests/packaging/torch_versions.py VERSION [FOLDER]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from gpubench.installing import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("definitions", "workloads", "measure", "strict_cuda", "contracts", "probe/test_torch_kernels.py")
OWN = re.compile(rf"{re.escape(DISTRIBUTION)}\[(.*)\]")
PACKAGE = re.compile(r"[\w.-]+")
VERSION = "import importlib.metadata, torch; print(importlib.metadata.version('torch'))"
IMPORTS = """
import sys, torch
from importlib import import_module, util
for name in filter(util.find_spec, sys.argv[1:]):
    package = import_module(name)
    if name == "transformers" and not package.utils.is_torch_available():
        sys.exit("it has no models for this torch")
"""


def wanted() -> tuple[list[str], dict[str, list[str]]]:
    """Return the tools in the extra ``test``, and the packages of each extra that it includes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = {name for line in extras["test"] for own in OWN.findall(line) for name in own.split(",")}
    packages = {
        name: [PACKAGE.match(line)[0] for line in extras[name] if not OWN.match(line)]
        for name in sorted(named - {"run"})
    }
    return [line for line in extras["test"] if not OWN.match(line)], packages


def constraints(folder: Path) -> Path:
    """Write CI's constraints, except for torch and its dependencies, as exact versions."""
    text = (ROOT / "constraints-run.txt").read_text(encoding="utf-8")
    path = folder / "constraints.txt"
    path.write_text(text.replace("<=", "=="), encoding="utf-8")
    return path


def install(python: Path, held: Path, *requirements: str) -> str | None:
    """Install into the environment; return pip's reason for refusing, or None."""
    command = [python, "-m", "pip", "install", "--upgrade", *requirements]
    environment = os.environ | {"PIP_CONSTRAINT": str(held)}  # instead of the constraints that pip was given
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode == 0:
        return None
    lines = [line.strip() for line in ended.stdout.splitlines() if " depends on " in line]
    return "; ".join(line for line in lines if "gpubench" not in line) or ended.stderr.strip()


def add(python: Path, held: Path, torch: str, extra: str, packages: list[str]) -> None:
    """Install an extra, and remove it again if it is not compatible with this torch."""
    refused = install(python, held, f"torch=={torch}", "--editable", f".[{extra}]")
    if refused is None:
        command = [python, "-c", IMPORTS, *packages]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            return
        refused = f"cannot be imported: {ended.stderr.strip().splitlines()[-1]}"
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *packages], check=True)
    print(f"torch {torch}: without the extra {extra}: {refused}", flush=True)


def environment(version: str, folder: Path) -> tuple[Path, str]:
    """Make the environment; return its Python and its version of torch."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    held = constraints(folder)
    tools, extras = wanted()
    asked = "torch" if version == "newest" else f"torch=={version}"
    refused = install(python, held, asked, "--editable", ".[run]", *tools)
    if refused:
        sys.exit(f"torch {version}: not installed: {refused}")
    ended = subprocess.run([python, "-c", VERSION], check=True, capture_output=True, text=True)
    torch = ended.stdout.strip()
    for extra, packages in extras.items():
        add(python, held, torch, extra, packages)
    return python, torch


def main(version: str, folder: Path) -> int:
    """Test under a version, and print the result in the last line."""
    folder.mkdir(parents=True, exist_ok=True)
    python, torch = environment(version, folder.resolve())
    print(f"torch {torch} is installed in {folder}", flush=True)
    command = [python, "-m", "pytest", "-q", "-n", "auto", *(f"tests/{name}" for name in TESTS)]
    ended = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    last = ""
    for line in ended.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    status = ended.wait()
    whole = " in " in last  # pytest's summary says how long it took
    print(f"torch {torch}: {last if whole else f'pytest was ended before its summary (status {status})'}")
    return status


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        sys.exit(__doc__)
    asked = sys.argv[1]
    sys.exit(main(asked, Path(sys.argv[2]) if len(sys.argv) == 3 else ROOT / "build" / "torch" / asked))
