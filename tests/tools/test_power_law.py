"""The power-limit law, refitted to the published readings and evaluated on cards that the fit has not seen.

Readings: You and others 2023, Zeus, NSDI (traces of four cards, Apache-2.0). ``python
tests/tools/test_power_law.py`` writes the shipped fit.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

from gpubench.folders import data_path
from gpubench.predict.estimate import DEEP_SHARE, LEAST_SHARE, POWER_FILE, load_power_law, log_factors

PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "zeus_power.csv.gz"
BOARD_W = {
    "NVIDIA A40": 300,
    "NVIDIA P100 PCIe (form not stated)": 250,
    "NVIDIA Quadro RTX 6000": 260,
    "NVIDIA V100 (form not stated)": 250,
}
JOB = ["gpu", "model", "batch_size", "optimizer"]
MEANT = 0.85
"""The share of a left-out card's readings that the intervals must contain."""
LAW = {"time": ([1, 1, 4], [0.3, 0.05, 0.5], [3, 20, 50]), "power": ([1, 4], [0.3, 0.5], [3, 50])}


@cache
def readings() -> pd.DataFrame:
    """Return each power-limited reading relative to the same job at full board power."""
    table = pd.read_csv(PUBLISHED)
    table["optimizer"] = table.notes.str.extract(r"optimizer (\w+)", expand=False)
    table["board_w"] = table.gpu.map(BOARD_W)
    full = table[table.power_limit_w == table.board_w][[*JOB, "value", "mean_power_w"]]
    both = table.merge(full, on=JOB, suffixes=("", "_full"))
    capped = both[both.power_limit_w < both.board_w]
    return capped.assign(
        share=capped.power_limit_w / capped.board_w,
        log_time=np.log(capped.value / capped.value_full),
        log_power=np.log(capped.mean_power_w / capped.mean_power_w_full),
    ).reset_index(drop=True)


def _step(beyond, sharpness):
    return np.logaddexp(0, sharpness * beyond) / sharpness


def _log_time(law, ratio):
    return law[1] * _step(np.log(law[0]) - np.log(ratio), law[2])


def _log_power(law, ratio):
    return -_step(np.log(law[0]) - np.log(ratio), law[1])


def fitted(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Fit the steps of time and power by least squares that are robust to a few outliers."""
    ratio = rows.power_limit_w / rows.mean_power_w_full

    def fit(form, seen, start, low, high):
        return least_squares(
            lambda law: form(law, ratio) - seen, start, bounds=(low, high), loss="soft_l1", f_scale=0.05
        ).x

    return fit(_log_time, rows.log_time, *LAW["time"]), fit(_log_power, rows.log_power, *LAW["power"])


def share_of_board(rows: pd.DataFrame) -> list[float]:
    """Return the median, 5 % and 95 % quantiles of uncapped over board power; each model on a card counts once."""
    share = (rows.mean_power_w_full / rows.board_w).groupby([rows.gpu, rows.model]).median()
    return [float(share.quantile(at)) for at in (0.5, 0.05, 0.95)]


def left_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each reading's log errors by a law without its card, with its uncapped power measured or assumed."""
    found = []
    for gpu in rows.gpu.unique():
        others, mine = rows[rows.gpu != gpu], rows[rows.gpu == gpu]
        time, power = fitted(others)
        assumed = share_of_board(others)[0] * mine.board_w
        for kind, usual_w in (("read", mine.mean_power_w_full), ("assumed", assumed)):
            ratio = mine.power_limit_w / usual_w
            told = _log_time(time, ratio)
            deep = np.where(mine.share < DEEP_SHARE - 1e-9, " deep", "")
            found.append(
                pd.DataFrame(
                    {
                        "gpu": gpu,
                        "kind": [f"{kind}{each}" for each in deep],
                        "time": mine.log_time - told,
                        "energy": mine.log_time + mine.log_power - told - _log_power(power, ratio),
                    }
                )
            )
    return pd.concat(found)


def ends(errors: pd.DataFrame) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the 5 % and 95 % quantiles of the errors by kind, each from its worst card."""
    by_card = errors.groupby(["kind", "gpu"])[["time", "energy"]]
    low, high = by_card.quantile(0.05).groupby("kind").min(), by_card.quantile(0.95).groupby("kind").max()
    return {
        kind: {of: (float(low[of][kind]), float(high[of][kind])) for of in ("time", "energy")}
        for kind in low.index
    }


def law_of(rows: pd.DataFrame) -> dict:
    """Fit the law as it is shipped."""
    time, power = fitted(rows)

    def rounded(numbers):
        return [float(f"{number:.6g}") for number in numbers]

    return {
        "time": rounded(time),
        "power": rounded(power),
        "share": rounded(share_of_board(rows)),
        "errors": {
            kind: {of: rounded(pair) for of, pair in each.items()}
            for kind, each in ends(left_out(rows)).items()
        },
        "readings": len(rows),
        "cards": rows.gpu.nunique(),
        "source": "Zeus (You and others 2023, NSDI), traces of summary_power, ml-energy/zeus@75a8b939, Apache-2.0",
        "fitted": "2026-11-28",
    }


def test_the_shipped_law_matches_the_fit_to_the_readings():
    shipped, again = json.loads(data_path(POWER_FILE).read_text()), law_of(readings())
    for name in ("time", "power", "share", "readings", "cards"):
        assert shipped[name] == pytest.approx(again[name], rel=1e-3)
    for kind, errors in again["errors"].items():
        for of, pair in errors.items():
            assert shipped["errors"][kind][of] == pytest.approx(pair, abs=2e-3)


def test_held_out_card_has_its_time_and_energy_predicted():
    error = left_out(readings())
    off = np.abs(np.expm1(-error[["time", "energy"]])).groupby([error.kind, error.gpu]).mean()
    assert off.loc["read"].time.max() < 0.05
    assert off.loc["read"].energy.max() < 0.08


def test_the_intervals_contain_the_readings_of_a_card_left_out():
    errors, held = left_out(readings()), []
    for gpu in readings().gpu.unique():
        within = ends(left_out(readings()[readings().gpu != gpu]))
        for kind, mine in errors[errors.gpu == gpu].groupby("kind"):
            for of, (low, high) in within[kind].items():
                held.append((kind, of, mine[of].between(low, high).sum(), len(mine)))
    table = pd.DataFrame(held, columns=["kind", "of", "inside", "all"]).groupby(["kind", "of"]).sum()
    assert (table.inside / table["all"]).min() >= MEANT


def test_the_package_has_the_values_of_the_fit():
    law, rows = load_power_law(), readings()
    ratio = rows.power_limit_w / rows.mean_power_w_full
    told = np.array([log_factors(law, each) for each in ratio])
    assert told[:, 0] == pytest.approx(_log_time(law.time, ratio))
    assert told[:, 1] == pytest.approx(_log_power(law.power, ratio))
    assert rows.share.min() == pytest.approx(LEAST_SHARE)


if __name__ == "__main__":
    data_path(POWER_FILE).write_text(json.dumps(law_of(readings()), indent=1) + "\n")
