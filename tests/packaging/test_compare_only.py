"""``pip install .`` in a fresh environment: no torch, what comparing needs, and not more than it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_MB = 420
"""What the packages may take together, compiled files included, pip itself left out [MB]."""

SIZES = """
import json, os
from importlib.metadata import distributions
from pathlib import Path

def megabytes(package):
    files = {Path(package.locate_file(f)) for f in package.files or ()}
    compiled = {c for f in files if f.suffix == ".py" for c in (f.parent / "__pycache__").glob(f.stem + ".*.pyc")}
    return sum(os.path.getsize(f) for f in files | compiled if f.is_file()) / 1e6

print(json.dumps({p.metadata["Name"]: megabytes(p) for p in distributions()}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fresh_install_without_torch_compares_and_stays_small(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", str(ROOT)], check=True)
    sizes = json.loads(
        subprocess.run([python, "-c", SIZES], check=True, capture_output=True, text=True).stdout
    )
    table = "\n".join(f"{size:8.1f} MB  {name}" for name, size in sorted(sizes.items(), key=lambda x: -x[1]))
    assert "torch" not in sizes
    assert sum(size for name, size in sizes.items() if name not in {"pip", "setuptools"}) <= MOST_MB, table
    print(table)
    for arguments in (("rank", "--limit", "3"), ("offers", "list", "--json"), ("report", "-o", "page.html")):
        subprocess.run([tmp_path / "venv" / "bin" / "gpubench", *arguments], cwd=tmp_path, check=True)
