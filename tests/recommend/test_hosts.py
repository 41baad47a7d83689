"""What a job takes of the host: a row falls where a column says that it lacks it, and what is not said is told."""

from __future__ import annotations

import csv

import pytest

from gpubench import rank
from gpubench.profile import profile_of
from gpubench.recommend.hosts import NOTHING_ASKED, need_of
from gpubench.units import GIB

TABLE = {
    "provider": "acme",
    "gpu_key": "nvidia-l4-24gb",
    "gpu_count": "1",
    "price_usd_per_hour": "0.6",
    "price_date": "2026-11-20",
    "vcpus": "64",
}


@pytest.fixture
def asked(tmp_path):
    """Rank hosts of one's own, each by its name and what it says."""

    def ask(workload, /, *, options=None, **hosts):
        path = tmp_path / "hosts.csv"
        fields = dict.fromkeys([*TABLE, "instance", *(name for each in hosts.values() for name in each)])
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(TABLE | {"instance": name} | each for name, each in hosts.items())
        return rank(workload, offers=path, provider=["acme"], as_of="2026-11-20", **options or {})

    return ask


def instances(ranking):
    return {row.offer.instance for row in ranking.rows}


def reason(ranking, name):
    return next(each.reason for each in ranking.excluded if each.instance == name)


def test_loading_takes_the_file_of_weights_and_a_fifth_and_4_gib_a_gpu():
    """8.03e9 weights at 2 bytes are 16.06e9 B: x 1.2 are 17.9 GiB, and 4 GiB for each GPU."""
    need = need_of([profile_of("llama_8b_lora")], "train", 0)
    weights = profile_of("llama_8b_lora").parameters * 2
    assert need.ram_bytes(1) == pytest.approx(1.2 * weights + 4 * GIB)
    assert need.ram_bytes(8) == pytest.approx(1.2 * weights + 32 * GIB)
    assert need_of([profile_of("vgg16")], "train", 0).weights_bytes == profile_of("vgg16").parameters * 4
    both = [profile_of("vgg16"), profile_of("llama_8b_lora")]
    assert need_of(both, "train", 0).weights_bytes == weights


def test_a_host_with_too_little_memory_falls_and_one_that_does_not_say_stays(asked):
    found = asked(
        "llama_8b_lora",
        small={"ram_gib": "16"},
        enough={"ram_gib": "24"},
        silent={"ram_gib": ""},
    )
    assert instances(found) == {"enough", "silent"}
    assert reason(found, "small").startswith("its 16.0 GiB of RAM are under the ")
    assert instances(asked("vgg16", small={"ram_gib": "16"})) == {"small"}


def test_so_many_gpus_take_as_much_more(asked):
    tight = {"ram_gib": "30", "gpu_count": "4", "price_usd_per_hour": "2"}
    found = asked("llama_8b_lora", one={"ram_gib": "30"}, four=tight)
    assert instances(found) == {"one"}


def test_a_disk_must_hold_what_the_photographs_take(asked):
    """ImageNet alone is 131 GiB; at inference nobody reads it."""
    hosts = {
        "small": {"disk_bytes": str(100 * 10**9)},
        "large": {"disk_bytes": str(200 * 10**9)},
        "silent": {},
    }
    found = asked("resnet50", **hosts)
    assert instances(found) == {"large", "silent"}
    assert "its disk of 93.1 GiB is under the " in reason(found, "small")
    assert instances(asked("resnet50", options={"task": "infer"}, **hosts)) == set(hosts)
    few = asked("resnet50", options={"epochs": 10, "dataset_size": 1000}, **hosts)
    assert instances(few) == set(hosts)


def test_a_gpu_on_a_riser_falls(asked):
    found = asked(
        "vgg16",
        riser={"pcie_bytes_per_s": "8e8"},
        slot={"pcie_bytes_per_s": "1.2e10"},
        silent={"pcie_bytes_per_s": ""},
    )
    assert instances(found) == {"slot", "silent"}
    assert reason(found, "riser") == "its GPUs get 0.8 GB/s over PCIe, as on a riser of one lane"


def test_what_a_host_does_not_say_is_told_with_what_the_job_takes(asked):
    said = {"ram_gib": "64", "disk_bytes": "1000000000000", "pcie_bytes_per_s": "1.2e10"}
    assert not [note for note in asked("vgg16", all=said).said("note") if "Nobody says" in note]
    (note,) = [note for note in asked("vgg16", none={}).said("note") if "Nobody says" in note]
    assert note.startswith("Nobody says of the host of 1x L4 its RAM (")
    assert note.endswith(" needed) and lanes of PCIe: ask before you pay.")


def test_where_nobody_asked_about_a_host_nothing_falls():
    assert NOTHING_ASKED.disk_bytes == NOTHING_ASKED.weights_bytes == 0
