"""Shared by the tests of offers: a guard against outside connections, a local server, and small tables in our columns."""

from __future__ import annotations

import csv
import functools
import socket
import threading
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command import here

LOOPBACK = {"127.0.0.1", "::1", "localhost"}

ROW = {
    "provider": "acme",
    "instance": "big.1",
    "gpu_key": "nvidia-tesla-t4-16gb",
    "gpu_count": "1",
    "vcpus": "4",
    "ram_gib": "16",
    "on_demand_usd_per_h": "0.50",
    "spot_usd_per_h": "",
    "region": "moon-1",
    "price_date": "2026-11-01",
    "kind": "vm",
    "source": "a quote",
    "note": "",
}


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and the hash of each file that has no hash file."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if path.suffix == ".sha256" and not path.exists() and path.with_suffix("").exists():
            path.write_text(f"{sha256(path.with_suffix('').read_bytes()).hexdigest()}  latest.json")
            super().do_GET()
            path.unlink()
        else:
            super().do_GET()

    def log_message(self, *_args):
        pass


@pytest.fixture(autouse=True)
def _only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test in this folder that connects beyond this machine."""
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family != socket.AF_UNIX and address[0] not in LOOPBACK:
            pytest.fail(f"a test tried to connect to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def site(tmp_path):
    """A served folder; yields the folder and its URL."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def write_table(tmp_path: Path):
    """Write rows in our columns, each given as differences from one good row; return the path."""

    def write(*rows: dict[str, str], name: str = "prices.csv", without: tuple[str, ...] = ()) -> Path:
        columns = [c for c in dict.fromkeys([*ROW, *(c for row in rows for c in row)]) if c not in without]
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(ROW | row for row in rows)
        return path

    return write


@pytest.fixture
def gpubench():
    """Run ``gpubench offers ...``."""
    return functools.partial(here, "offers")
