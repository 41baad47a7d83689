"""Which builds of torch run on a GPU: our rules, and torch's own tables."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from gpubench.torch_builds import how_it_runs

CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.mark.parametrize(
    ("capability", "architectures", "way"),
    [
        ((8, 6), ["sm_80"], "code"),  # same major number, higher minor
        ((8, 0), ["sm_86"], None),  # not the other way round
        ((9, 0), ["sm_80", "sm_86"], None),  # machine code stays within its major number
        ((6, 1), CU126, "code"),
        ((6, 1), CU130, None),
        ((7, 0), CU130, None),
        ((8, 9), CU130, "code"),
        ((12, 0), CU126, None),
        ((12, 0), [*CU126, "compute_90"], "ptx"),  # PTX runs on anything newer
        ((9, 0), ["compute_90"], "ptx"),
        ((8, 9), ["compute_90"], None),  # and on nothing older
        ((12, 1), ["sm_120"], "code"),
        ((12, 0), ["sm_121"], None),
        ((8, 7), ["sm_80", "sm_86"], None),  # Orin runs only its own code
        ((8, 7), ["sm_87"], "code"),
        ((8, 9), ["sm_87"], None),
        ((8, 7), ["compute_80"], "ptx"),
        ((7, 2), ["sm_70"], None),
        ((11, 0), ["sm_101"], "code"),  # Thor under both of its names
        ((10, 1), ["sm_110"], "code"),
        ((10, 3), ["sm_101"], None),
        ((9, 0), ["sm_90a"], "code"),
        ((10, 0), ["sm_90a", "compute_90a"], None),  # an "a" is valid only for itself
        ((10, 3), ["sm_100a"], None),
        ((10, 3), ["sm_100f"], "code"),  # an "f" is valid for its family
        ((12, 0), ["sm_100f", "compute_100f"], None),
        ((10, 3), ["compute_100f"], "ptx"),
        ((8, 0), [], None),
        ((8, 0), ["gfx90a", "", "sm_", "sm_80x"], None),
    ],
)
def test_each_architecture_runs_only_the_code_that_fits_it(
    capability: tuple[int, int], architectures: list[str], way: str | None
) -> None:
    assert how_it_runs(capability, architectures) == way


@pytest.mark.parametrize(
    ("cuda", "way"), [(None, None), ("13.1", None), ("13.2", "code"), ("13.10", "code"), ("14.0", "code")]
)
def test_orin_runs_the_code_of_cards_from_cuda_13_2_on(cuda: str | None, way: str | None) -> None:
    assert how_it_runs((8, 7), ["sm_80"], cuda) == way
    assert how_it_runs((8, 9), ["sm_87"], cuda) is None  # not the other way round


@pytest.mark.parametrize(
    ("name", "release"),
    [("DEVICE_REQUIREMENT", "13.0"), ("DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION", "13.2")],
)
def test_build_table_matches_torch_architecture_tables(name: str, release: str) -> None:
    """torch bases its warnings on the first table since 2.9 and on the second since 2.15; both list only machine code."""
    from torch import cuda

    table = getattr(cuda, name, None)
    if table is None:
        pytest.skip(f"torch {version('torch')} has no {name}")
    devices = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121]
    for built, runs_on in table.items():
        for device in devices:
            if (built, device) == (110, 101) and device not in runs_on:
                continue  # before 2.15 torch knew the new name of Thor's code only under the new name of Thor
            ours = how_it_runs(divmod(device, 10), [f"sm_{built}"], release) == "code"
            assert ours == (device in runs_on), f"sm_{built} on {device}"
