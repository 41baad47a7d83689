"""Importing other people's tables: SkyPilot's, gpuhunt's, a spreadsheet."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gpubench.errors import MisuseError
from gpubench.models import Pricing
from gpubench.offers.refresh import import_offers
from gpubench.offers.snapshot import imported_offers, load_offers
from gpubench.offers.tables import read_table

SKYPILOT = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p4d.24xlarge,A100,8.0,96.0,1152.0,"{'Gpus': [{'Name': 'A100', 'MemoryInfo': {'SizeInMiB': 40960}}]}",21.96,9.0,us-east-1,us-east-1a
p4d.24xlarge,A100,8.0,96.0,1152.0,"{'Gpus': [{'Name': 'A100', 'MemoryInfo': {'SizeInMiB': 40960}}]}",21.96,11.0,us-east-1,us-east-1b
g5.xlarge,A10G,1.0,4.0,16.0,,1.006,,us-east-1,us-east-1a
m5.large,,,2.0,8.0,,0.096,0.04,us-east-1,us-east-1a
x9.large,Z9000,1.0,4.0,16.0,,1.0,,us-east-1,us-east-1a
g6.xlarge,L4,1.0,4.0,16.0,,0.0,,us-east-1,us-east-1a
"""


@pytest.fixture
def skypilot(tmp_path) -> Path:
    path = tmp_path / "aws" / "vms.csv"
    path.parent.mkdir()
    path.write_text(SKYPILOT)
    return path


def test_a_skypilot_table_is_recognized_by_its_columns_and_its_cloud_by_its_folder(skypilot):
    _, table = read_table(skypilot, price_date="2026-10-01")
    assert {
        (o.provider, o.instance, o.gpu_key, o.gpu_count, o.pricing): float(o.price_usd_per_hour)
        for o in table.offers
    } == {
        ("aws", "p4d.24xlarge", "nvidia-a100-sxm-40gb", 8, Pricing.ON_DEMAND): 21.96,
        ("aws", "p4d.24xlarge", "nvidia-a100-sxm-40gb", 8, Pricing.SPOT): 10.0,
        ("aws", "g5.xlarge", "nvidia-a10g-24gb", 1, Pricing.ON_DEMAND): 1.006,
    }
    assert {" ".join(reason.split()[:2]) for _, reason in table.set_aside} == {"GPU 'Z9000'", "price 0.0"}
    assert {o.price_date for o in table.offers} == {"2026-10-01"}


CATALOG = Path(__file__).parent / "answers" / "skypilot"


@pytest.mark.parametrize(
    ("cloud", "kind", "machines"),
    [
        (
            "verda",
            "vm",
            {
                ("2B300.60V", "nvidia-b300-sxm-270gb", 2, "spot"): 4.893,
                ("1H100.80S.32V", "nvidia-h100-sxm-80gb", 1, "on_demand"): 2.29,
                ("1H100.80S.32V", "nvidia-h100-sxm-80gb", 1, "spot"): 0.8015,
                ("4A100.88V", "nvidia-a100-sxm-80gb", 4, "on_demand"): 5.16,
                ("1V100.6V", "nvidia-v100-unstated-16gb", 1, "on_demand"): 0.1381,
                ("2RTX6000ADA.20V", "nvidia-rtx-6000-ada-48gb", 2, "on_demand"): 1.652,
            },
        ),
        (  # the memory is the sum over all GPUs, and a spot price of 0.00 means that there is none
            "vast",
            "marketplace",
            {
                ("2x-H200-32-65536", "nvidia-h200-sxm-141gb", 2, "on_demand"): 5.18,
                ("1x-H100_NVL-32-65536", "nvidia-h100-nvl-94gb", 1, "on_demand"): 2.08,
                ("2x-A100_SXM4-32-65536", "nvidia-a100-sxm-40gb", 2, "on_demand"): 1.49,
                ("1x-A100_PCIE-32-65536", "nvidia-a100-pcie-80gb", 1, "on_demand"): 0.87,
                ("4x-RTX_5090-32-65536", "nvidia-geforce-rtx-5090-32gb", 4, "on_demand"): 1.87,
                ("2x-RTX_4070S_Ti-32-65536", "nvidia-geforce-rtx-4070-ti-super-16gb", 2, "on_demand"): 0.36,
                ("1x-RTX_3060-32-65536", "nvidia-geforce-rtx-3060-12gb", 1, "on_demand"): 0.27,
            },
        ),
        (  # the total memory is that of one GPU
            "lambda",
            "vm",
            {
                ("gpu_8x_v100_n", "nvidia-v100-unstated-16gb", 8, "on_demand"): 6.32,
                ("gpu_2x_a6000", "nvidia-rtx-a6000-48gb", 2, "on_demand"): 2.18,
            },
        ),
        (  # its memory is in gigabytes, and two data centers of a country are one region
            "runpod",
            "marketplace",
            {
                ("1x_A100-80GB_SECURE", "nvidia-a100-pcie-80gb", 1, "on_demand"): 1.39,
                ("1x_A100-80GB_SECURE", "nvidia-a100-pcie-80gb", 1, "spot"): 1.39,
                ("2x_A100-80GB_SECURE", "nvidia-a100-pcie-80gb", 2, "on_demand"): 2.78,
                ("2x_A100-80GB_SECURE", "nvidia-a100-pcie-80gb", 2, "spot"): 2.78,
            },
        ),
        (
            "yotta",
            "vm",
            {
                (
                    "2x28v238g_NVIDIA_GeForce_RTX_5090_32G_SECURE",
                    "nvidia-geforce-rtx-5090-32gb",
                    2,
                    "on_demand",
                ): 1.3
            },
        ),
        ("hyperbolic", "vm", {("2x-H100-149-1443", "nvidia-h100-sxm-80gb", 2, "on_demand"): 2.58}),
        (
            "nebius",
            "vm",
            {
                ("gpu-h100-sxm_8gpu-128vcpu-1600gb", "nvidia-h100-sxm-80gb", 8, "on_demand"): 23.6,
                ("gpu-h100-sxm_8gpu-128vcpu-1600gb", "nvidia-h100-sxm-80gb", 8, "spot"): 10.0,
                ("gpu-l40s-d_2gpu-64vcpu-384gb", "nvidia-l40s-48gb", 2, "on_demand"): 4.5688,
            },
        ),
    ],
)
def test_the_catalog_of_each_cloud_is_read_unmodified(cloud, kind, machines):
    _, table = read_table(CATALOG / cloud / "vms.csv", price_date="2026-11-20")
    assert table.set_aside == ()
    assert {(o.provider, o.kind) for o in table.offers} == {(cloud, kind)}
    found = {
        (o.instance, o.gpu_key, o.gpu_count, str(o.pricing)): float(o.price_usd_per_hour)
        for o in table.offers
    }
    assert found == machines


def test_a_tpu_slice_comes_with_its_host_and_counts_its_chips():
    _, table = read_table(CATALOG / "gcp" / "vms.csv", price_date="2026-11-20")
    assert {(o.instance, o.gpu_key, o.gpu_count, o.kind) for o in table.offers} == {
        ("tpu-v6e-32", "google-tpu-v6e", 32, "vm")
    }


def test_the_memory_of_one_gpu_is_read_next_to_the_total(tmp_path):
    """Two RTX 4060 Ti have 16 GiB each and 32 GiB together, so they are not the card with 8 GiB."""
    path = tmp_path / "acme.csv"
    info = (
        "{'Gpus': [{'Name': 'RTX4060Ti', 'MemoryInfo': {'SizeInMiB': 16384}}], 'TotalGpuMemoryInMiB': 32768}"
    )
    path.write_text(
        f'InstanceType,AcceleratorName,AcceleratorCount,GpuInfo,Price,Region\nbig,RTX4060Ti,2,"{info}",0.3,x\n'
    )
    (offer,) = read_table(path, price_date="2026-11-20")[1].offers
    assert offer.gpu_key == "nvidia-geforce-rtx-4060-ti-16gb"


def test_a_row_without_a_machine_is_a_fee_and_never_an_instance(tmp_path):
    path = tmp_path / "gcp.csv"
    path.write_text("InstanceType,AcceleratorName,AcceleratorCount,Price,Region\n,T4,1,0.35,us-central1\n")
    (offer,) = read_table(path, price_date="2026-10-01")[1].offers
    assert offer.kind == "attach-fee"


def test_a_truncated_skypilot_row_causes_no_crash(tmp_path):
    path = tmp_path / "aws.csv"
    path.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\ng6.xlarge,L4\ng6.xlarge,L4,1,0.8,r\n"
    )
    _, table = read_table(path, price_date="2026-10-01")
    assert len(table.offers) == 1


def test_a_gpuhunt_catalog_is_read_without_the_library():
    path = Path(__file__).parent / "answers" / "gcp.csv"
    _, table = read_table(path, price_date="2026-11-18")
    instances = {o.instance for o in table.offers}
    assert {"a2-highgpu-1g", "a3-highgpu-8g", "n1-standard-8 + 1x V100"} <= instances
    assert any("price 'nonsense'" in reason for _, reason in table.set_aside)


def test_a_tpu_of_a_gpuhunt_catalog_is_recognized_by_its_vendor(tmp_path):
    path = tmp_path / "gcp.csv"
    path.write_text(
        "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,gpu_vendor\n"
        "v5litepod-8,us-central1-a,9.6,224,384,1,v5litepod-8,0,False,google\n"
    )
    (offer,) = read_table(path, price_date="2026-11-18")[1].offers
    assert (offer.gpu_key, offer.gpu_count) == ("google-tpu-v5e", 8)


def test_vastai_catalog_from_gpuhunt_is_attributed_to_vast(tmp_path):
    path = tmp_path / "vastai.csv"
    path.write_text(
        "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,gpu_vendor\n"
        "9001,us-texas,0.4,16,64,1,RTX4090,24,False,nvidia\n"
    )
    (offer,) = read_table(path, price_date="2026-11-18")[1].offers
    assert (offer.provider, offer.kind) == ("vast", "marketplace")


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.csv", "x,y\n1,2\n", {}, "no column gpu_key .* its columns are x, y"),
        (
            "a.csv",
            "provider,instance\n",
            {"format_": "own"},
            "no column gpu_key .* and no column on_demand",
        ),
        ("aws.csv", "instance_name,gpu_name\n", {}, "have no dates"),
        ("aws.csv", "instance_name,gpu_name\n", {"price_date": "soon"}, "--price-date 'soon' is not a date"),
        (
            "aws.csv",
            "instance_name,gpu_name\n",
            {"price_date": "2136-01-01"},
            "2136-01-01 is in the future",
        ),
        ("1.csv", "instance_name,gpu_name\n", {"price_date": "2026"}, "name it with --provider"),
        ("aws.csv", "instance_name,gpu_name\n", {"price_date": "2026"}, "has no usable offer"),
    ],
)
def test_a_failed_import_is_one_line(tmp_path, name, text, options, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(MisuseError, match=message) as caught:
        import_offers(path, results=tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_an_import_overrides_the_shipped_prices_and_an_explicit_file_overrides_both(tmp_path, write_table):
    row = {"provider": "aws", "instance": "g4dn.xlarge", "region": "us-east-1"}
    done = import_offers(
        write_table(row | {"on_demand_usd_per_h": "0.40"}, name="my quote!.csv"), results=tmp_path
    )
    assert done.path == tmp_path / "offers" / "imported" / f"own-{tmp_path.name}-my_quote_.json"
    extra = write_table(row | {"on_demand_usd_per_h": "0.35"}, name="extra.csv")

    def price(*arguments):
        (found,) = (
            o
            for o in load_offers(tmp_path, *arguments).offers
            if (o.instance, o.region) == ("g4dn.xlarge", "us-east-1")
        )
        return float(found.price_usd_per_hour)

    assert price() == 0.40
    assert price(extra) == 0.35


def test_catalogs_of_two_clouds_with_equal_file_names_coexist(tmp_path):
    def imported(cloud):
        return import_offers(
            CATALOG / cloud / "vms.csv", price_date="2026-11-20", results=tmp_path, accept_outliers=True
        )

    verda, nebius = imported("verda"), imported("nebius")
    assert (verda.path.name, nebius.path.name) == ("skypilot-verda.json", "skypilot-nebius.json")
    assert (verda.replaced, nebius.replaced) == (None, None)
    kept = [each for table in imported_offers(tmp_path / "offers") for each in table.offers]
    assert Counter(each.provider for each in kept) == {"verda": 6, "nebius": 3}
    assert imported("verda").replaced == 6


def test_own_tables_with_one_file_name_coexist_and_override_catalogs(tmp_path, write_table):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = write_table({"instance": "x"}, {"instance": "y"}, name="a/prices.csv")
    second = write_table({"instance": "z", "on_demand_usd_per_h": "0.51"}, name="b/prices.csv")
    assert import_offers(first, results=tmp_path).path.name == "own-a-prices.json"
    assert import_offers(second, results=tmp_path).replaced is None
    import_offers(CATALOG / "verda" / "vms.csv", price_date="2026-11-20", results=tmp_path)
    *_, one, two = imported_offers(tmp_path / "offers")
    assert [len(one.offers), len(two.offers)] == [2, 1]


def test_a_jump_is_not_imported_unless_accepted(tmp_path, write_table):
    path = write_table(
        {"provider": "aws", "instance": "g4dn.xlarge", "region": "us-east-1", "on_demand_usd_per_h": "0.05"}
    )
    with pytest.raises(MisuseError, match="accept-outliers"):
        import_offers(path, results=tmp_path)
    assert len(import_offers(path, results=tmp_path, accept_outliers=True).table.offers) == 1


def test_a_damaged_import_is_a_note(tmp_path):
    folder = tmp_path / "offers" / "imported"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text("[{]")
    assert "import it again" in load_offers(tmp_path).notes[0]


def test_the_command_imports_and_reports_what_it_left_out(gpubench, skypilot, tmp_path):
    done = gpubench("import", skypilot, "--price-date", "2026-10-01", "--results", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["offers"] == 3
    assert "set aside: 2" in done.stderr
    assert gpubench("import", skypilot, "--format", "excel").returncode == 2
