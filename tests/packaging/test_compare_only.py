"""``pip install .`` without extras installs only what comparing and fetching prices need."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpubench.installing import DISTRIBUTION

ROOT = Path(__file__).parents[2]
MOST_DOWNLOADED_MB = 45
"""Limit of the download, including gpubench itself [MB]."""
MOST_WHEEL_MB = 3
MOST_MB = 220
"""Limit of the installed packages, including compiled files, without pip itself [MB]."""

ANSWERS = (
    ("rank", "resnet50"),
    ("memory", "resnet50", "--gpu", "L4"),
    ("predict", "show", "resnet50", "--precision", "amp", "--gpu", "L4"),
    ("offers", "list", "--json"),
    ("report", "-o", "page.html"),
)
"""Commands that need no extra."""

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


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("plain install")]


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory) -> Path:
    """Make a folder with the wheel of this checkout and those of its dependencies."""
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "-w", folder, str(ROOT)], check=True)
    return folder


@pytest.fixture(scope="module")
def programs(wheelhouse, tmp_path_factory) -> Path:
    """Make an environment with gpubench installed from that folder alone; return its folder of programs."""
    folder = tmp_path_factory.mktemp("plain")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-index", "--find-links", wheelhouse)
    subprocess.run([*pip, DISTRIBUTION], check=True)
    return folder / "bin"


def table(sizes: dict[str, float]) -> str:
    rows = sorted(sizes.items(), key=lambda row: -row[1])
    return "\n".join(f"{size:8.1f} MB  {name}" for name, size in [*rows, ("in all", sum(sizes.values()))])


def test_the_download_is_small(wheelhouse):
    sizes = {wheel.name: wheel.stat().st_size / 1e6 for wheel in wheelhouse.iterdir()}
    print(table(sizes))
    assert sum(sizes.values()) <= MOST_DOWNLOADED_MB, table(sizes)
    (own,) = (size for name, size in sizes.items() if name.startswith(DISTRIBUTION.replace("-", "_")))
    assert own <= MOST_WHEEL_MB


def test_install_without_extras_works_and_stays_small(programs, tmp_path):
    told = subprocess.run([programs / "python", "-c", SIZES], check=True, capture_output=True, text=True)
    sizes = json.loads(told.stdout)
    assert not {"torch", "scipy", "plotly"} & {*sizes}
    print(table(sizes))
    assert sum(size for name, size in sizes.items() if name not in {"pip", "setuptools"}) <= MOST_MB, table(
        sizes
    )
    for arguments in ANSWERS:
        subprocess.run([programs / "gpubench", *arguments], cwd=tmp_path, check=True)


def test_uv_runs_it_from_the_wheels_without_an_install_or_a_network(wheelhouse, tmp_path):
    uv = (sys.executable, "-m", "uv", "tool", "run", "--offline", "--no-index", "--find-links", wheelhouse)
    ended = subprocess.run(
        [*uv, "--python", sys.executable, "--from", DISTRIBUTION, "gpubench", "rank", "resnet50"],
        cwd=tmp_path,
        env=os.environ | {"UV_CACHE_DIR": str(tmp_path / "cache")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Sensible" in ended.stdout


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args):
        pass


@pytest.fixture
def catalogs(tmp_path) -> Iterator[str]:
    """Serve one of the catalogs that gpuhunt reads; yield the URL on this machine."""
    folder = tmp_path / "site" / "gcp"
    (folder / "20261118").mkdir(parents=True)
    (folder / "version").write_text("20261118")
    with zipfile.ZipFile(folder / "20261118" / "catalog.zip", "w") as archive:
        archive.write(ROOT / "tests" / "offers" / "answers" / "gcp.csv", "gcp.csv")
    handler = functools.partial(Quiet, directory=str(folder.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_refresh_that_a_ranking_advises_works_without_extras(programs, catalogs, tmp_path):
    """Each source answers or says in one line why not; only this machine can be reached, since the proxy is dead."""
    nowhere = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "all")}
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"GPUHUNT_CATALOG_URL": catalogs, "GPUBENCH_RESULTS": str(tmp_path / "results")} | nowhere

    def gpubench(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [programs / "gpubench", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )

    assert "gpubench offers refresh" in gpubench("rank", "--table").stdout
    done = gpubench("offers", "refresh", "--json")
    sources = json.loads(done.stdout)["sources"]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert {name for name, each in sources.items() if each["state"] == "ok"} == {"gpuhunt-gcp"}, sources
    assert sources["aws"]["reason"].startswith("boto3 is not installed: pip install 'boto3>="), sources
    assert "is not reachable" in sources["azure"]["reason"], sources
    listed = json.loads(gpubench("offers", "list", "--json").stdout)
    assert any(each["source"] == "gpuhunt catalog gcp 20261118" for each in listed["offers"])
