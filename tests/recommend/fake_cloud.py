"""Stand-ins for the tools that a trial's script calls: ``sky``, ``rsync`` and ``uv``.

A machine is a folder below ``$FAKE_CLOUD``, empty at first, which is its home directory. The commands of a
task really run there, in child processes. Only the finished run is changed: it names the device
``$FAKE_DEVICE`` instead of this CPU, and omits the finding that parallel tests kept the CPU busy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

CLOUD = Path(os.environ["FAKE_CLOUD"])


def sky(verb: str, *words: str) -> int:
    """``sky launch --yes --cluster NAME FILE`` and ``sky down --yes NAME``."""
    if verb == "down":
        home = CLOUD / words[-1]
        home.rename(home.with_suffix(".down"))
        return 0
    import yaml

    file = words[-1]
    home = CLOUD / words[words.index("--cluster") + 1]
    task = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    home.mkdir(parents=True)  # fails if a machine of this name is still up
    work = shutil.copytree(task["workdir"], home / "sky_workdir")
    machine = {
        "HOME": str(home),
        "PATH": f"{Path(sys.argv[0]).parent}:/usr/bin:/bin",
        "FAKE_CLOUD": str(CLOUD),
    }
    for script in (task["setup"], task["run"]):
        done = subprocess.run(["/bin/bash", "-c", script], cwd=work, env=machine, check=False)
        if done.returncode:
            return 100
    device = json.loads(os.environ["FAKE_DEVICE"])
    for path in (work / "results").rglob("*.json"):
        run = json.loads(path.read_text()) | {"device": device}
        for case in run["measurements"]:
            case["findings"] = [each for each in case["findings"] if each["kind"] != "HOST_BUSY"]
        path.write_text(json.dumps(run))
    return 0


def rsync(*words: str) -> int:
    """``rsync -rt --no-links CLUSTER:FOLDER/ FOLDER/``."""
    cluster, _, folder = words[-2].partition(":")
    shutil.copytree(CLOUD / cluster / folder, words[-1], dirs_exist_ok=True)
    return 0


def uv(verb: str, *words: str) -> int:
    """``uv venv --python 3.12 FOLDER`` and ``uv pip install --quiet --python PYTHON SOURCE[run]``.

    The dependencies come from the environment of the test; only gpubench itself is installed.
    """
    if verb == "venv":
        folder = words[-1]
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        needed = "\n".join(path for path in sys.path if path.endswith("site-packages"))
        (site,) = Path(folder).glob("lib/python*/site-packages")
        (site / "needs.pth").write_text(needed)
        return 0
    python, (source, _, extra) = Path(words[-2]), words[-1].partition("[")
    if extra != "run]":  # without it a real machine would have no torch
        return 2
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    for folder, package in (("gpubench", "gpubench"), ("workloads", "gpubench_workloads")):
        shutil.copytree(Path(source) / folder, site / package)
    program = python.with_name("gpubench")
    program.write_text(f"#!{python}\nfrom gpubench.cli.app import main\nmain()\n")
    program.chmod(0o755)
    return 0


if __name__ == "__main__":
    tool = Path(sys.argv[0]).name
    sys.exit({"sky": sky, "rsync": rsync, "uv": uv}[tool](*sys.argv[1:]))
