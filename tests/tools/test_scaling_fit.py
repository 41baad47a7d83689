"""The fit of multi-GPU scaling to published jobs, with each harness left out in turn."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from gpubench.predict.calibration import load_calibration
from gpubench.predict.model import SHARES
from tools.calibrate import SHARE_PRIORS, fit_scaling, jobs
from tools.evaluate import scaling_figures


def test_scaling_fit_matches_published_jobs_within_its_intervals():
    """With its harness left out, a job that resembles none in another harness is the hard case."""
    figures = scaling_figures()
    assert figures["jobs"] > 100
    assert figures["mape"] < 0.06
    assert 0.85 <= figures["coverage_90"] <= 0.95
    alone = figures["by_slice"]["from one GPU"]
    assert alone["jobs"] > 50
    assert 0.85 <= alone["coverage_90"] <= 0.95
    assert binomtest(round(alone["coverage_90"] * alone["targets"]), alone["targets"], 0.9).pvalue > 0.05
    fitted = load_calibration().scaling
    assert math.exp(fitted.logs[SHARES.index("pcie")]) < 0.6
    again = fit_scaling(jobs())
    assert again.logs == pytest.approx(fitted.logs, rel=1e-3, abs=1e-4)
    assert again.factor == pytest.approx(fitted.factor, rel=1e-3)


def test_link_type_without_published_jobs_keeps_its_prior():
    fitted = fit_scaling(jobs()[[exchange.link != "pcie" for exchange in jobs().exchange]])
    assert math.exp(fitted.logs[SHARES.index("pcie")]) == pytest.approx(SHARE_PRIORS["pcie"][0], rel=0.02)
