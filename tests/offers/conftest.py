"""What the tests of offers share: no socket beyond this machine, and small tables in our columns."""

from __future__ import annotations

import csv
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpubench.cli.app import main

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


@pytest.fixture(autouse=True)
def _only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this folder reaches beyond this machine: such a connection fails the test."""
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family != socket.AF_UNIX and address[0] not in LOOPBACK:
            pytest.fail(f"a test tried to connect to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def write_table(tmp_path: Path):
    """Write rows in our columns, each given as what differs from one good row; return the path."""

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
def gpubench(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run ``gpubench offers ...`` as a process would, in this one, which has imported pandas."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = ["gpubench", "offers", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed, said = capfd.readouterr()
        return subprocess.CompletedProcess(command, int(ended.value.code or 0), printed, said)

    return run
