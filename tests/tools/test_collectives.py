"""Bare collectives on seven NVLink systems and one PCIe system: the share of a link's rate that an exchange reaches."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpubench.predict.model import link_of
from gpubench.specs import load_specs
from tools.calibrate import SHARE_PRIORS

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
NVLINK = {
    "a100_sxm": "nvidia-a100-sxm-80gb",
    "h100_sxm": "nvidia-h100-sxm-80gb",
    "h200_sxm": "nvidia-h200-sxm-141gb",
    "b200_sxm": "nvidia-b200-sxm-180gb",
    "b300_sxm": "nvidia-b300-sxm-270gb",
    "gb200": "nvidia-gb200-186gb",
    "gb300": "nvidia-gb300-279gb",
}
PCIE = {"rtx_pro_6000_server": "nvidia-rtx-pro-6000-blackwell-server-96gb"}
"""The other PCIe system in the table, with L40S cards, takes 721 ms for 512 MiB: its host is broken."""
LEAST_BYTES = 16 * 2**20
BYTES_EACH = {"half": 2, "int8": 1}  # the sizes in the table count elements


@cache
def exchanges() -> pd.DataFrame:
    """Return the measured time of each exchange, and the time of its bytes at the link's full rate [s]."""
    table = pd.read_csv(PUBLISHED / "collectives.csv.gz")
    size = table.message_size * table.dtype.map(BYTES_EACH)
    systems = NVLINK | PCIE
    large = table[(size >= LEAST_BYTES) & table.system.isin(systems) & (table.op_name != "alltoall")]
    once = np.where(large.op_name == "all_reduce", 2, 1) * (large.num_gpus - 1) / large.num_gpus
    rate = large.system.map({name: link_of(load_specs()[key])[1] for name, key in systems.items()})
    told = large.assign(bytes=size[large.index], s=large.latency * 1e-3, at_rate=once * size / rate)
    alike = told.groupby(["system", "op_name", "num_gpus", "bytes"])
    return alike.agg(s=("s", "median"), at_rate=("at_rate", "first")).reset_index()


def start_and_share(rows: pd.DataFrame) -> tuple[float, float]:
    """Fit the latency of an exchange [s] and the share of the rate, by least squares of relative errors."""
    sides = np.stack([1 / rows.s, rows.at_rate / rows.s], axis=1)
    start, slower = np.linalg.lstsq(sides, np.ones(len(rows)), rcond=None)[0]
    return start, 1 / slower


def of(systems) -> pd.DataFrame:
    return exchanges()[exchanges().system.isin(systems)]


def test_an_nvlink_system_left_out_is_predicted_by_the_others():
    errors = {}
    for name in NVLINK:
        start, share = start_and_share(of(set(NVLINK) - {name}))
        mine = of({name})
        errors[name] = float(np.mean(np.abs((start + mine.at_rate / share) / mine.s - 1)))
    assert np.mean(list(errors.values())) < 0.15
    assert max(errors.values()) < 0.15


def test_the_priors_of_the_links_match_the_collectives():
    for systems, link in ((NVLINK, "nvlink"), (PCIE, "pcie")):
        _, share = start_and_share(of(systems))
        assert SHARE_PRIORS[link][0] == pytest.approx(share, abs=0.03)
    assert SHARE_PRIORS["pcie"][1] > 3 * SHARE_PRIORS["nvlink"][1]  # one system says little
