"""The cost of choosing by a prediction: the page's figures are recomputed, and three GPUs are checked by hand."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from tools.evaluate import (
    BEGIN,
    DOCS,
    END,
    REGRETS,
    Settings,
    disappointments,
    regret_table,
    regrets,
    ways_of,
)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Three GPUs: 1 $/h and 10 s a sample, 3 $/h and 2 s, 4 $/h and 3 s.

    The second costs least, 6 against 10 and 12.
    """
    monkeypatch.setattr(
        "gpubench.predict.roofline.leading_mode", lambda work, arithmetic: np.zeros(3, dtype=int)
    )
    table = SimpleNamespace(
        gpu_key=np.array(["a-slow", "b-fast", "nvidia-h100-x"]),
        log_seconds=np.log([10.0, 2.0, 3.0]),
        batch=np.ones(3),
        level_known=np.array([True, True, True]),
        chips=SimpleNamespace(peaks=np.array([[1.0], [4.0], [8.0]]), bandwidth=np.array([1.0, 4.0, 8.0])),
        work=None,
        arithmetic=None,
    )
    return Settings(
        table=table,  # type: ignore[arg-type]
        predicted_s=np.array([10.0, 2.5, 2.0]),
        usd_per_s=np.array([1.0, 3.0, 4.0]) / 3600,
        worth_usd_per_s=0.0,
        rows=(np.arange(3),),
    )


def test_regret_is_the_extra_cost_of_the_picked_gpu_over_the_best(three: Settings) -> None:
    """The predicted costs are 10, 7.5 and 8, so gpubench picks the second GPU, which is the best.

    The H100 really costs 12 against 6, and the slow GPU 10.
    """
    found = {name: regrets(three, way).tolist() for name, way in ways_of(three).items()}
    assert found["gpubench"] == [0.0]
    assert found["always the H100"] == [pytest.approx(100.0)]
    assert found["lowest price an hour"] == [pytest.approx(100 * (10 / 6 - 1))]
    assert found["peak FLOPS per dollar"] == [pytest.approx(100.0)]


def test_disappointment_compares_the_measured_with_the_predicted_speed(three: Settings) -> None:
    named, every, beside = disappointments(three)
    assert np.exp(named).tolist() == [pytest.approx(2.0 / 2.5)]
    assert np.exp(every).tolist() == [pytest.approx(x) for x in (1.0, 0.8, 1.5)]
    assert beside.tolist() == [pytest.approx(math.log(0.8) - math.log(0.8 * 1.5) / 3)]


def test_the_regret_page_has_the_current_figures() -> None:
    _, _, rest = (DOCS / REGRETS).read_text(encoding="utf-8").partition(BEGIN)
    here, again = (
        [line for line in text.splitlines() if line.startswith("| ")]
        for text in (rest.partition(END)[0], regret_table())
    )
    assert [row.split("|")[1] for row in here] == [row.split("|")[1] for row in again]
    for row, made in zip(here[2:7], again[2:7], strict=True):
        shown, now = (re.findall(r"(\d+): ([\d,.]+)", text) for text in (row, made))
        assert [count for count, _ in shown] == [count for count, _ in now]
        for (_, one), (_, other) in zip(shown, now, strict=True):
            assert float(one.replace(",", "")) == pytest.approx(
                float(other.replace(",", "")), rel=0.2, abs=3.0
            )
