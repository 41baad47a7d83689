"""Which builds of torch have kernels for a GPU, from the shipped table, compared with torch itself."""

from __future__ import annotations

import re

import pytest

from gpubench.specs import load_specs
from gpubench.torch_builds import (
    load_builds,
    newest_build_for,
    newest_release,
    other_build_for,
    runs_on_todays_torch,
)


@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("8.9", True),  # by the kernels of 8.0 and 8.6
        ("10.3", True),
        ("12.1", True),
        ("7.5", True),
        ("7.0", False),
        ("6.1", False),
        ("3.7", False),
        ("13.0", False),
        ("gfx942", True),
        ("gfx1010", None),  # the architectures of the newest ROCm build are unknown
        (None, None),
        ("", None),
        ("of tomorrow", None),
        ("7.2", None),  # systems on a chip have builds from their vendor
        ("8.7", None),
        ("11.0", None),
    ],
)
def test_unknown_facts_exclude_no_gpu(target, runs):
    assert runs_on_todays_torch(target) is runs


@pytest.mark.parametrize(
    ("target", "build"),
    [
        ("7.0", "torch 2.14 cu126"),
        ("5.2", "torch 2.14 cu126"),
        ("3.7", "torch 2.7 cu118"),
        ("3.5", None),
        ("9.0", None),
        ("gfx1010", None),
        (None, None),
    ],
)
def test_the_newest_build_that_still_has_kernels_is_named(target, build):
    found = other_build_for(target)
    assert (None if found is None else str(found)) == build


def test_the_default_build_comes_first_of_its_release_and_releases_count_as_numbers():
    assert str(newest_build_for("9.0")) == "torch 2.15 cu132"
    releases = [tuple(map(int, build.release.split("."))) for build in load_builds()]
    assert releases == sorted(releases, reverse=True)
    assert releases[0] > (2, 9)


def test_amd_card_is_judged_by_the_newest_torch_release_with_known_rocm_builds():
    read = [build.release for build in load_builds() if build.cuda is None and build.architectures]
    assert runs_on_todays_torch("gfx942") is True
    assert read[0] != newest_release(), "the newest release has known ROCm builds, so this test shows nothing"


def test_torch_build_table_is_complete():
    builds = load_builds()
    assert len({(build.release, build.name) for build in builds}) == len(builds)
    for release in {build.release for build in builds}:
        assert [b.cuda is not None for b in builds if b.release == release and b.is_default] == [True]
    known = re.compile(r"(sm|compute)_\d{2,3}|gfx[0-9a-f]{3,4}")
    assert all(known.fullmatch(each) for build in builds for each in build.architectures or ())
    assert [build.name for build in builds if build.architectures is None] == ["rocm7.14"]


def test_every_gpu_of_the_newest_generations_has_kernels():
    for spec in load_specs().values():
        if spec.architecture in {"Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"}:
            assert runs_on_todays_torch(spec.compute_capability) is not False, spec.key


def test_build_table_matches_torch_release_architectures():
    import torch

    theirs = getattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", None)
    release = ".".join(torch.__version__.split(".")[:2])
    ours = {b.cuda: b.architectures for b in load_builds() if b.release == release and b.cuda}
    if theirs is None or not ours:
        pytest.skip(f"torch {torch.__version__} or our table has no list of the builds of its release")
    for cuda, architectures in ours.items():
        of_torch = {f"sm_{each}" for each in theirs[cuda]["x86_64"]}
        assert {each for each in architectures if each.startswith("sm_")} == of_torch, cuda


def test_the_table_is_as_new_as_the_installed_torch():
    import torch

    installed = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert tuple(map(int, newest_release().split("."))) >= installed
