"""What a calibration depends on: the tables and profiles that its fit reads, and no others."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from gpubench.folders import data_bytes, package_path
from gpubench.predict.calibration import PROFILE, load_calibration
from gpubench.profile import load_profiles

PROFILES = "workload_profiles.json"
READ = "llama_8b_lora"
"""The only workload with a profile that the fit reads: the models of the published rows have their own table."""


@pytest.fixture
def stale_with(tmp_path, monkeypatch):
    """``stale_with(profiles)``: what the shipped calibration is too old for if these are the workloads."""
    shutil.copytree(package_path("data"), tmp_path / "data")
    calibration = load_calibration()

    def stale(profiles: list[dict]) -> tuple[str, ...]:
        (tmp_path / "data" / PROFILES).write_bytes(msgspec.json.encode(profiles))
        load_profiles.cache_clear()
        return calibration.stale

    monkeypatch.setenv("GPUBENCH_DATA", str(tmp_path / "data"))
    yield stale
    load_profiles.cache_clear()


@pytest.fixture
def profiles():
    return msgspec.json.decode(data_bytes(PROFILES))


def test_a_new_workload_needs_no_new_calibration(stale_with, profiles):
    """Adding one touches its module, its profile and its row in docs/workloads.md."""
    first = profiles[0]
    assert stale_with([*profiles, first | {"name": "new"}]) == ()
    assert load_profiles()["new"].name == "new"


def test_order_and_changes_of_other_workloads_do_not_matter(stale_with, profiles):
    shuffled = [dict(reversed(each.items())) for each in reversed(profiles)]
    assert stale_with(shuffled) == ()
    only = [each for each in profiles if each["name"] == READ]
    assert stale_with(only) == ()


def _with_more_flops(profile):
    first, *rest = profile["train"]
    return profile | {"train": [first | {"flops_per_sample": first["flops_per_sample"] + 1.0}, *rest]}


@pytest.mark.parametrize(
    "changed",
    [_with_more_flops, lambda profile: profile | {"version": 99}, lambda profile: profile | {"name": "gone"}],
    ids=["operator", "version", "removed"],
)
def test_every_change_of_a_profile_that_the_fit_reads_is_noticed(stale_with, profiles, changed):
    found = stale_with([changed(each) if each["name"] == READ else each for each in profiles])
    assert found == (f"{PROFILE}{READ}",)


def test_a_calibration_that_did_not_read_this_profile_is_stale():
    calibration = load_calibration()
    inputs = dict(calibration.inputs)
    del inputs[f"{PROFILE}{READ}"]
    assert msgspec.structs.replace(calibration, inputs=inputs).stale == (f"{PROFILE}{READ}",)


def test_a_profile_behind_own_runs_is_watched_too():
    calibration = load_calibration()
    own = {"own runs": "0" * 64, f"{PROFILE}cnn": "0" * 64}
    assert msgspec.structs.replace(calibration, inputs=calibration.inputs | own).stale == (f"{PROFILE}cnn",)
