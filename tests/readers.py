"""Every reader of files that may come from elsewhere, each with the content of a valid file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from cuda_check.builders import check, read_check

from gpubench.children import Lines
from gpubench.cuda_check.judge import encode
from gpubench.errors import GpuBenchError
from gpubench.files import BadContentError, decode_json, read_bytes
from gpubench.folders import data_bytes
from gpubench.measure.messages import Phase, Report, RoundDone
from gpubench.models import Offer, Round
from gpubench.offers.snapshot import Snapshot, read_imported, read_snapshot
from gpubench.offers.tables import read_own, read_table
from gpubench.predict.calibration import read_calibration
from gpubench.record import store
from tools.published import published_bytes, read_csv

HERE = Path(__file__).parent
RUN = next((HERE / "golden" / "data" / "results" / "runs" / "cpu").glob("*.json"))
OWN = b"""provider,instance,gpu_key,gpu_count,price_date,on_demand_usd_per_h,reserved_1y_usd_per_h,source
acme,8x H100 pod,H100 SXM,8,2026-11-14,19.20,15.60,quote 4711
acme,\xc3\xa4 L4,L4,1,2026-11-14,0.70,,
"""
OWN_JSON = (
    b'[{"provider": "acme", "instance": "x", "gpu_key": "L4", "gpu_count": 1, "price_date": "2026-11-14", '
    b'"spot_usd_per_h": 0.3}]'
)
SKYPILOT = b"""InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p4d.24xlarge,A100,8,96,1152,,32.77,9.83,us-east-1,us-east-1a
"""


class Reader(NamedTuple):
    """A reader, the content of a file that it accepts, and the suffix of its name."""

    read: Callable[[Path], object]
    sample: Callable[[], bytes]
    ending: str = ".json"
    on_command: bool = True
    """Whether a user names the file; it may then be a link."""


def _pipe() -> bytes:
    told = (Phase(name="timed"), RoundDone(timed=True, round=Round(steps=3, wall_s=0.5, loss=1.5)))
    return b"".join(msgspec.json.encode(message) + b"\n" for message in told)


def _read_pipe(path: Path) -> object:
    """Read the messages of a child, as its parent splits and decodes them."""
    lines = Lines()
    try:
        whole = [
            line
            for n in range(0, 1 << 20, 4096)
            for line in lines.add(read_bytes(path, 1 << 26)[n : n + 4096])
        ]
    except ValueError as error:
        raise BadContentError(str(error)) from error
    return [decode_json(line, Report, path, what="a report") for line in whole]


def _read_config(path: Path) -> object:
    from gpubench_workloads import _hugging_face  # takes seconds and 300 MB with torch and transformers

    return _hugging_face.describe(path, path.stem)


CONFIG = (
    b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, '
    b'"num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 128}'
)
READERS = {
    "run": Reader(store.read_run, RUN.read_bytes, on_command=False),
    "config of a model": Reader(_read_config, lambda: CONFIG),
    "own prices, CSV": Reader(read_own, lambda: OWN, ".csv"),
    "own prices, JSON": Reader(read_own, lambda: OWN_JSON),
    "prices to import": Reader(lambda path: read_table(path, provider="aws", price_date="2026-11-01"), lambda: SKYPILOT, ".csv"),
    "prices in a named format": Reader(
        lambda path: read_table(path, provider="aws", format_="skypilot", price_date="2026-11-01"), lambda: SKYPILOT, ".csv"
    ),
    "price snapshot": Reader(
        read_snapshot, lambda: msgspec.json.encode(Snapshot(retrieved_at="2026-11-20T00:00:00Z")), on_command=False
    ),
    "imported prices": Reader(
        read_imported, lambda: msgspec.json.encode(_offers()), on_command=False
    ),
    "calibration": Reader(read_calibration, lambda: data_bytes("calibration.json")),
    "measurements to score": Reader(read_csv, lambda: b"".join(published_bytes("published.csv").splitlines(keepends=True)[:40]), ".csv"),
    "check of gpubench": Reader(read_check, lambda: encode(check())),
    "pipe of a child": Reader(_read_pipe, _pipe, ".jsonl", on_command=False),
}  # fmt: skip


def _offers() -> tuple[Offer, ...]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "own.csv"
        path.write_bytes(OWN)
        return tuple(read_own(path).offers)


def outcome(reader: Reader, path: Path) -> str | None:
    """Return the reader's message about a file that it refuses; None if it accepts the file.

    Any error other than gpubench's own would be shown as a fault of gpubench.
    """
    try:
        reader.read(path)
    except GpuBenchError as error:
        return str(error)
    return None
