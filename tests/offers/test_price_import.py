"""Tables that somebody else made: SkyPilot's, gpuhunt's, a spreadsheet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpubench.errors import MisuseError
from gpubench.models import Pricing
from gpubench.offers.importing import import_offers, read_table
from gpubench.offers.snapshot import load_offers

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


def test_a_skypilot_table_is_told_by_its_columns_and_its_cloud_by_its_folder(skypilot):
    table = read_table(skypilot, price_date="2026-10-01")
    assert {
        (o.provider, o.instance, o.gpu_key, o.gpu_count, o.pricing): float(o.price_usd_per_hour)
        for o in table.offers
    } == {
        ("aws", "p4d.24xlarge", "nvidia-a100-sxm-40gb", 8, Pricing.ON_DEMAND): 21.96,
        ("aws", "p4d.24xlarge", "nvidia-a100-sxm-40gb", 8, Pricing.SPOT): 10.0,
        ("aws", "g5.xlarge", "nvidia-a10g-24gb", 1, Pricing.ON_DEMAND): 1.006,
    }
    assert {reason for _, reason in table.set_aside} == {
        "GPU 'Z9000' is unknown or ambiguous",
        "price 0.0 is not above 0",
    }
    assert {o.price_date for o in table.offers} == {"2026-10-01"}


def test_a_row_without_a_machine_is_a_fee_and_never_a_whole_instance(tmp_path):
    path = tmp_path / "gcp.csv"
    path.write_text("InstanceType,AcceleratorName,AcceleratorCount,Price,Region\n,T4,1,0.35,us-central1\n")
    (offer,) = read_table(path, price_date="2026-10-01").offers
    assert offer.kind == "attach-fee"


def test_a_skypilot_row_that_breaks_off_is_no_crash(tmp_path):
    path = tmp_path / "aws.csv"
    path.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\ng6.xlarge,L4\ng6.xlarge,L4,1,0.8,r\n"
    )
    table = read_table(path, price_date="2026-10-01")
    assert len(table.offers) == 1


def test_a_gpuhunt_catalog_is_read_without_the_library():
    path = Path(__file__).parent / "answers" / "gcp.csv"
    table = read_table(path, price_date="2026-11-18")
    instances = {o.instance for o in table.offers}
    assert {"a2-highgpu-1g", "a3-highgpu-8g", "n1-standard-8 + 1x V100"} <= instances
    assert "price 'nonsense' is not a number" in {reason for _, reason in table.set_aside}


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.csv", "x,y\n1,2\n", {}, "columns of no known format"),
        ("a.csv", "provider,instance\n", {"format_": "own"}, "is no own table: it lacks gpu_key"),
        ("aws.csv", "instance_name,gpu_name\n", {}, "carry no dates"),
        ("aws.csv", "instance_name,gpu_name\n", {"price_date": "soon"}, "--price-date: price date 'soon'"),
        ("1.csv", "instance_name,gpu_name\n", {"price_date": "2026"}, "say it with --provider"),
        ("aws.csv", "instance_name,gpu_name\n", {"price_date": "2026"}, "holds no usable offer"),
    ],
)
def test_what_cannot_be_imported_is_one_line(tmp_path, name, text, options, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(MisuseError, match=message) as caught:
        import_offers(path, results=tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_an_import_lies_over_the_shipped_prices_and_under_an_explicit_file(tmp_path, write_table):
    row = {"provider": "aws", "instance": "g4dn.xlarge", "region": "us-east-1"}
    done = import_offers(
        write_table(row | {"on_demand_usd_per_h": "0.40"}, name="my quote!.csv"), results=tmp_path
    )
    assert done.path == tmp_path / "offers" / "imported" / "my_quote_.json"
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


def test_a_jump_is_not_imported_unless_accepted(tmp_path, write_table):
    path = write_table(
        {"provider": "aws", "instance": "g4dn.xlarge", "region": "us-east-1", "on_demand_usd_per_h": "0.05"}
    )
    with pytest.raises(MisuseError, match="--accept-outliers"):
        import_offers(path, results=tmp_path)
    assert len(import_offers(path, results=tmp_path, accept_outliers=True).table.offers) == 1


def test_a_damaged_import_is_a_note(tmp_path):
    folder = tmp_path / "offers" / "imported"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text("[{]")
    assert "import it again or delete it" in load_offers(tmp_path).notes[0]


def test_the_command_imports_and_says_what_it_left_out(gpubench, skypilot, tmp_path):
    done = gpubench("import", skypilot, "--price-date", "2026-10-01", "--results", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["offers"] == 3
    assert "set aside: 2" in done.stderr
    assert gpubench("import", skypilot, "--format", "excel").returncode == 2
