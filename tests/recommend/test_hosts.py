"""What a job needs of its host: an offer that states less is excluded, and facts that it does not state are named."""

from __future__ import annotations

import csv

import pytest

from gpubench import rank
from gpubench.profile import profile_of
from gpubench.recommend.factors import NOTHING_ASKED, REQUIREMENTS, HostNeed, need_of, shortfall, unsaid
from gpubench.units import GIB

from .builders import H100, offer, rank_of, said

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
    """Return a function that ranks a user's hosts, each given by its name and its columns."""

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


def test_loading_takes_1_2_times_the_weights_and_4_gib_per_gpu():
    """8.03e9 weights of 2 bytes are 16.06e9 B; 1.2 times that is 17.9 GiB, plus 4 GiB for each GPU."""
    need = need_of([profile_of("llama_8b_lora")], "train", 0)
    weights = profile_of("llama_8b_lora").parameters * 2
    assert need.ram_bytes(1) == pytest.approx(1.2 * weights + 4 * GIB)
    assert need.ram_bytes(8) == pytest.approx(1.2 * weights + 32 * GIB)
    assert need_of([profile_of("vgg16")], "train", 0).weights_bytes == profile_of("vgg16").parameters * 4
    both = [profile_of("vgg16"), profile_of("llama_8b_lora")]
    assert need_of(both, "train", 0).weights_bytes == weights


def test_a_host_with_too_little_memory_is_excluded_unless_it_is_unstated(asked):
    found = asked(
        "llama_8b_lora",
        small={"ram_gib": "16"},
        enough={"ram_gib": "24"},
        silent={"ram_gib": ""},
    )
    assert instances(found) == {"enough", "silent"}
    assert reason(found, "small").startswith("its 16.0 GiB of RAM is below the ")
    assert instances(asked("vgg16", small={"ram_gib": "16"})) == {"small"}


def test_required_host_memory_grows_with_the_number_of_gpus(asked):
    tight = {"ram_gib": "30", "gpu_count": "4", "price_usd_per_hour": "2"}
    found = asked("llama_8b_lora", one={"ram_gib": "30"}, four=tight)
    assert instances(found) == {"one"}


def test_the_host_disk_must_fit_the_image_data_set(asked):
    """ImageNet alone is 131 GiB; inference does not read it."""
    hosts = {
        "small": {"disk_bytes": str(100 * 10**9)},
        "large": {"disk_bytes": str(200 * 10**9)},
        "silent": {},
    }
    found = asked("resnet50", **hosts)
    assert instances(found) == {"large", "silent"}
    assert "its disk of 93.1 GiB is below the " in reason(found, "small")
    assert instances(asked("resnet50", options={"task": "infer"}, **hosts)) == set(hosts)
    few = asked("resnet50", options={"epochs": 10, "dataset_size": 1000}, **hosts)
    assert instances(few) == set(hosts)


def test_gpu_on_a_slow_pcie_riser_is_excluded(asked):
    found = asked(
        "vgg16",
        riser={"pcie_bytes_per_s": "8e8"},
        slot={"pcie_bytes_per_s": "1.2e10"},
        silent={"pcie_bytes_per_s": ""},
    )
    assert instances(found) == {"slot", "silent"}
    assert reason(found, "riser") == "its GPUs get 0.8 GB/s over PCIe, as on a one-lane riser"


def test_unknown_facts_of_a_host_are_listed_with_the_jobs_needs(asked):
    said = {"ram_gib": "64", "disk_bytes": "1000000000000", "pcie_bytes_per_s": "1.2e10"}
    assert not [note for note in asked("vgg16", all=said).said("note") if "does not state" in note]
    (note,) = [note for note in asked("vgg16", none={}).said("note") if "does not state" in note]
    assert note.startswith("The host of 1x L4 does not state its RAM (")
    assert note.endswith(" needed) and PCIe bandwidth: ask before you pay.")


def test_without_host_requirements_nothing_is_excluded():
    """Without any need, a byte of memory and disk is enough, and no unstated fact is named."""
    tiny = offer(H100, ram_bytes=1, disk_bytes=1)
    need = HostNeed(weights_bytes=GIB, disk_bytes=GIB)
    assert [bool(shortfall(requirement, NOTHING_ASKED, tiny)) for requirement in REQUIREMENTS] == [
        False,
        False,
        False,
    ]
    assert [bool(shortfall(requirement, need, tiny)) for requirement in REQUIREMENTS] == [True, True, False]
    assert not [*unsaid(offer(H100), NOTHING_ASKED)]
    assert len([*unsaid(offer(H100), need)]) == 3


def test_a_private_host_is_priced_with_its_risk_and_a_cloud_is_not():
    """At equal speed the host takes 1.5 % longer, because it fails once a week, as the answer states."""
    job = {"samples": 3000 * 3600 * 100, "startup_minutes": 10, "host_lost": None}
    offers = [offer(H100, "1.00"), offer(H100, "2.00", provider="vast", kind="marketplace")]
    ranking = rank_of(offers, {H100: 3000.0}, draws=1, **job)
    cloud, host = sorted(ranking.rows, key=lambda row: row.offer.seller)
    start = 10 / 60
    assert cloud.hours.value == pytest.approx(start + 100)
    assert host.hours.value == pytest.approx(start + 100 * 1.0150780, abs=1e-5)
    assert host.cost_usd.value == pytest.approx(host.hours.value * host.usd_per_hour.value, rel=1e-5)
    assert "fail once in 168 hours: 1.5 % of the work" not in said(ranking), "the answers are from the cloud"
    alone = rank_of(offers[1:], {H100: 3000.0}, draws=1, **job)
    assert "fail once in 168 hours: 1.5 % of the work" in said(alone)


def test_the_cost_of_a_host_failure_grows_with_the_data_and_can_be_set():
    """100 GB at 100 Mbit/s take another 2.22 h until the next step: 2.22 / 168 = 1.3 % of the work."""
    host = [offer(H100, "2.00", provider="vast", kind="marketplace")]
    job = {"samples": 3000 * 3600 * 100, "startup_minutes": 0}

    def hours(**more):
        ranking = rank_of(host, {H100: 3000.0}, draws=1, **job | more)
        assert "fail once" in said(ranking) or "host_lost" in {name for name, value in more.items() if value}
        return ranking.rows[0].hours.value

    sent = 100 * 8000 / 100 / 3600
    without = hours(host_lost=None)
    assert hours(host_lost=None, dataset_gb=100) == pytest.approx(without + sent + 100 * sent / 168)
    assert hours(host_lost=0.5) == pytest.approx(150)
    answering = rank_of(host, {H100: 3000.0}, draws=1, **job | {"task": "infer", "host_lost": None})
    assert answering.rows[0].hours.value == pytest.approx(100), "inference repeats no work"
