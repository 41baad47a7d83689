"""Tables from users may have names with sizes and qualifiers, currency signs, commas and unknown columns."""

from __future__ import annotations

import json
import os
from decimal import Decimal

import pytest
from click.testing import CliRunner

from gpubench.cli.app import app
from gpubench.errors import MisuseError
from gpubench.offers.tables import read_own, read_table
from gpubench.specs import offered_gpu_key, offered_keys
from gpubench.units import GIB

HEAD = "provider,instance,gpu_key,gpu_count,price_date,on_demand_usd_per_h"


def read(tmp_path, text):
    """Return the table that a user's CSV file with this text gives."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    return read_own(path)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A100 (40 GB)", "nvidia-a100-unstated-40gb"),
        ("A100 80G", "nvidia-a100-unstated-80gb"),
        ("A100-80G", "nvidia-a100-unstated-80gb"),
        ("T4 16GB", "nvidia-tesla-t4-16gb"),
        ("T4 (16 GB)", "nvidia-tesla-t4-16gb"),
        ("H100 80GB SXM5", "nvidia-h100-sxm-80gb"),
        ("H100 SXM (80GB)", "nvidia-h100-sxm-80gb"),
        ("H100 HGX", "nvidia-h100-sxm-80gb"),
        ("PCIe A100 80 GB", "nvidia-a100-pcie-80gb"),
        ("L4 (24GB)", "nvidia-l4-24gb"),
        ("A6000 48GB", "nvidia-rtx-a6000-48gb"),
        ("3080Ti (12 GB)", "nvidia-geforce-rtx-3080-ti-12gb"),
        ("RTX PRO 6000 96GB", "nvidia-rtx-pro-6000-unstated-96gb"),
        ("B200 192GB", "nvidia-b200-sxm-180gb"),
        ("GB200 NVL72", "nvidia-gb200-186gb"),
        ("5090", "nvidia-geforce-rtx-5090-32gb"),
        ("A100 SXM 80", "nvidia-a100-sxm-80gb"),
        ("V100 SXM2 32", "nvidia-tesla-v100-sxm2-32gb"),
        ("GTX 1080 8", "nvidia-geforce-gtx-1080-8gb"),
        ("A10 Tensor Core GPU 24GB GDDR6", "nvidia-a10-24gb"),
        ("RTX 4090 24 GB GDDR6X", "nvidia-geforce-rtx-4090-24gb"),
        ("A100 80 GB HBM2e", "nvidia-a100-unstated-80gb"),
        ("H100 80 GB HBM3 (SXM)", "nvidia-h100-sxm-80gb"),
        ("H100 HBM3 80 GB", "nvidia-h100-sxm-80gb"),
        ("GH200 Grace Hopper Superchip 96 GB", "nvidia-gh200-96gb"),
    ],
)
def test_a_gpu_name_may_have_a_size_a_qualifier_and_any_word_order(name, key):
    assert offered_gpu_key(name) == key


@pytest.mark.parametrize(
    "name",
    [
        "A100-SXM-64GB",
        "T4 24GB",
        "A100-SXM4-40GB-MIG-1g.5gb",
        "a100_3g.20gb",
        "nvidia.com/gpu",
        "gpu",
        "16GB",
        "6000",
        "T4 24",
        "A100 SXM 64",
        "8 A100 SXM 80",
        "L40S-48Q",
    ],
)
def test_a_wrong_size_a_part_of_a_card_and_a_name_without_a_model_match_nothing(name):
    assert offered_gpu_key(name) is None


def test_ambiguous_gpu_family_is_resolved_by_its_memory_column(tmp_path):
    assert offered_keys("A100") == ("nvidia-a100-unstated-40gb", "nvidia-a100-unstated-80gb")
    rows = (
        "A100,8,2026-11-20,20,320",
        "A100,1,2026-11-20,2,80",
        "A100,1,2026-11-20,2,",
        "A800,1,2026-11-20,2,",
    )
    lines = [f"acme,i{n},{row}" for n, row in enumerate(rows)]
    table = read(tmp_path, "\n".join([f"{HEAD},gpu_memory_gib", *lines]))
    assert [o.gpu_key for o in table.offers] == ["nvidia-a100-unstated-40gb", "nvidia-a100-unstated-80gb"]
    family, other = [reason for _, reason in table.set_aside]
    assert "may mean nvidia-a100-unstated-40gb and nvidia-a100-unstated-80gb: name it" in family
    assert "may mean nvidia-a800-" in other


def test_gpu_count_in_a_name_must_match_the_count_column(tmp_path):
    names = [
        ("8x A100 SXM 80GB", 8),
        ("1x L4", 1),
        ("RTX 4090 x2", 2),
        ("H100x8", 8),
        ("8x A100 SXM 80GB", 1),
        ("4x T4", ""),
    ]
    table = read(
        tmp_path,
        "\n".join(
            [HEAD, *(f"acme,i{at},{name},{n},2026-11-20,{n or 4}" for at, (name, n) in enumerate(names))]
        ),
    )
    assert [(o.gpu_key, o.gpu_count) for o in table.offers] == [
        ("nvidia-a100-sxm-80gb", 8),
        ("nvidia-l4-24gb", 1),
        ("nvidia-geforce-rtx-4090-24gb", 2),
        ("nvidia-h100-unstated-80gb", 8),
        ("nvidia-tesla-t4-16gb", 4),
    ]
    assert [reason for _, reason in table.set_aside] == [
        "its GPU is '8x A100 SXM 80GB', but its GPU count is 1"
    ]


def test_the_name_of_an_instance_gives_the_number_of_gpus_and_contradicts_a_wrong_row(tmp_path):
    """Each of these rows would otherwise rank as a machine of another size, kind or pricing."""
    rows = [
        "8x H100 pod,H100 SXM,,19.2,",  # the number is only in the name
        "2xlarge,L4,1,0.8,",  # a size, not a number of GPUs
        "HGX B200 (with preemptible),B200,8,60,8",
        "H100 (spot),H100 SXM,1,,1.7",
        "1x RTX4090 server,RTX 4090,8,1.6,",
        "8x H100 (spot),H100 SXM,8,9,8.5",
        "H100 MIG 1g.10gb,H100 SXM,1,0.4,",
        "1/8 A10,A10,1,0.2,",
        "RTX 4090 Laptop,RTX 4090,1,0.1,",
        "3y reserved,H100 SXM,8,8,",
    ]
    table = read(tmp_path, "\n".join(["instance,gpu,gpus,on_demand_usd_per_h,spot_usd_per_h", *rows]))
    assert [(o.instance, o.gpu_count, o.pricing) for o in table.offers if o.gpu_count > 1] == [
        ("8x H100 pod", 8, "on_demand"),
        ("HGX B200 (with preemptible)", 8, "on_demand"),
        ("HGX B200 (with preemptible)", 8, "spot"),
        ("8x H100 (spot)", 8, "spot"),
    ]
    assert {o.instance for o in table.offers if o.gpu_count == 1} == {"2xlarge", "H100 (spot)"}
    assert [reason for _, reason in table.set_aside] == [
        "its instance is '1x RTX4090 server', but its GPU count is 8",
        "its instance is '8x H100 (spot)', but its price is on demand",
        "its instance is 'H100 MIG 1g.10gb', but its GPU is 'H100 SXM'",
        "its instance is '1/8 A10', but its GPU is 'A10'",
        "its instance is 'RTX 4090 Laptop', but its GPU is 'RTX 4090'",
        "its instance is '3y reserved', but its price is on demand",
    ]


def test_a_price_per_gpu_is_multiplied_in_any_currency_and_may_not_contradict_that_of_the_machine(tmp_path):
    table = read(
        tmp_path,
        "provider,gpu,gpus,on_demand_usd_per_h,usd_per_gpu_hour,spot_usd_per_h,currency,usd_per_unit,rate_date\n"
        "acme,H100 SXM,8,,2.00,,EUR,1.1,2026-11-20\n"
        "bolt,H100 SXM,8,32.77,4.10,,,,\n"
        "cask,A30,3,2.366,$2.366,0.9,,,\n"
        "dune,A30,3,7.5 USD,$2.50,,,,\n",
    )
    assert {(o.provider, str(o.pricing)): o.price_usd_per_hour for o in table.offers} == {
        ("acme", "on_demand"): Decimal("17.60"),
        ("bolt", "on_demand"): Decimal("32.77"),
        ("cask", "spot"): Decimal("0.9"),
        ("dune", "on_demand"): Decimal("7.5"),
    }
    ((row, reason),) = table.set_aside
    assert row == "t.csv:4 cask A30 3"
    assert reason == "its price is 2.366 for 3 GPUs, but 2.366 per GPU"


def test_the_day_of_a_rate_is_not_taken_for_that_of_the_price(tmp_path):
    (offer,) = read(
        tmp_path,
        "provider,gpu,price,currency,usd_per_unit,rate_date,date\nacme,T4,1,EUR,1.1,2026-11-01,2026-11-20\n",
    ).offers
    assert offer.price_date == "2026-11-20"
    assert "of 2026-11-01" in offer.note


def test_machines_with_the_same_name_or_no_name_are_kept_unless_one_is_priced_twice(tmp_path):
    rows = ("pool,A100 SXM 80GB,1,2026-11-20,2", "pool,A100 SXM 80GB,8,2026-11-20,16", "pool,L4,1,2026-11-20,0.5",
            ",T4,1,2026-11-20,0.2", ",L4,1,2026-11-20,0.6", "pool,L4,1,2026-11-20,0.7")  # fmt: skip
    table = read(tmp_path, "\n".join([HEAD, *(f"acme,{row}" for row in rows)]))
    assert [o.instance for o in table.offers] == [
        "pool", "pool (8x A100 SXM 80GB)", "pool (1x L4)", "T4", "L4",
    ]  # fmt: skip
    ((_, reason),) = table.set_aside
    assert "second on-demand price" in reason


def test_dollars_may_be_marked_before_or_after_the_amount_and_euros_are_not_dollars(tmp_path):
    table = read(
        tmp_path,
        f"{HEAD},currency,usd_per_unit,rate_date\n"
        "acme,a,T4,1,2026-11-20,$0.62,,,\n"
        "acme,b,T4,1,2026-11-20,0.31 USD,,,\n"
        "acme,c,T4,1,2026-11-20,$0.62,EUR,1.1,2026-11-20\n"
        "acme,d,T4,1,2026-11-20,US$16.00/hr,,,\n"
        'acme,e,T4,1,2026-11-20,"$1,234.50 per hour",,,\n'
        "acme,f,T4,1,2026-11-20,USD 2,,,\n"
        'acme,g,T4,1,2026-11-20,"0,408",,,\n'
        "acme,h,T4,1,2026-11-20,2 a month,,,\n"
        "acme,i,T4,1,2026-11-20,3 $,,,\n",
    )
    assert [o.price_usd_per_hour for o in table.offers] == [
        Decimal(usd) for usd in ("0.62", "0.31", "16.00", "1234.50", "2", "0.408", "3")
    ]
    assert [reason for _, reason in table.set_aside] == [
        "price '$0.62' is not a number", "price '2 a month' is not a number",
    ]  # fmt: skip


def test_a_comma_is_the_decimal_separator_if_semicolons_separate_cells(tmp_path):
    (offer,) = read(
        tmp_path,
        f"{HEAD};currency;usd_per_unit;rate_date;note\n".replace(",", ";")
        + "campus;a;T4;1;2026-11-01;0,408;EUR;1,16;2026-11-01;one, or two\n",
    ).offers
    assert offer.price_usd_per_hour == Decimal("0.408") * Decimal("1.16")
    assert offer.note.startswith("one, or two")


@pytest.mark.parametrize("value", [True, [1, 2], {"a": 1}, None, 3.5, "blue"])
def test_an_unknown_column_is_ignored_whatever_it_contains(tmp_path, value):
    row = dict(zip(HEAD.split(","), ("acme", "a", "T4", 1, "2026-11-20", 0.5), strict=True))
    path = tmp_path / "t.json"
    path.write_text(json.dumps([row | {"theirs": value}]))
    assert [o.instance for o in read_own(path).offers] == ["a"]


@pytest.mark.parametrize("read", [read_own, read_table])
def test_the_error_for_a_table_without_gpus_or_prices_names_missing_and_existing_columns(tmp_path, read):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"rentable": True, "usd_per_month": 9}]))
    with pytest.raises(
        MisuseError, match=r"no column gpu_key .* and no column on_demand_usd_per_h .*rentable, usd_"
    ):
        read(path)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("GPU,Price\nL4,0.7\n", [("t", "L4", 1, "0.7", "on demand")]),
        ("gpu;count;$/hr\nL4;4;2,80\n", [("t", "L4", 4, "2.80", "on demand")]),
        ("Cloud,GPU Model,# GPUs,$/GPU/hr\nAcme,L4,4,0.7\n", [("acme", "L4", 4, "2.8", "on demand")]),
        ("Name,GPU Type,GPUs,On-demand,Per-GPU,Spot\nx,L4,2,$1.40,0.70,$0.5\n",
         [("t", "x", 2, "1.40", "on demand"), ("t", "x", 2, "0.5", "spot")]),
        ("Name,vGPU,Current Price\n2x L4 GPU,2,$1.803\n", [("t", "2x L4 GPU", 2, "1.803", "on demand")]),
        ("GPU,hourly rate,price per month,VRAM,RAM (GB)\n8x L4,8 USD,999,24 GB,2 TiB\n",
         [("t", "8x L4", 8, "8", "on demand")]),
        ("gpu_name,num_gpus,gpu_ram,dph_total\nL4,2,23034,0.9\n", [("t", "L4", 2, "0.9", "on demand")]),
        ("gpu\tprice per hour\tpricing\nL4\t0.95\tspot\nL4\t2.40\tOn demand\n",
         [("t", "L4", 1, "0.95", "spot"), ("t", "L4", 1, "2.40", "on demand")]),
        # Our own columns take precedence over another column that looks like a price.
        ("gpu,price_usd_per_hour,pricing,price\nL4,0.4,spot,99\n", [("t", "L4", 1, "0.4", "spot")]),
    ],
)  # fmt: skip
def test_columns_are_found_by_their_common_names(tmp_path, text, meant):
    path = tmp_path / "t.csv"
    path.write_text(text)
    told = [(o.provider, o.instance, o.gpu_count, str(o.price_usd_per_hour), o.pricing.value.replace("_", " "))
            for o in read_own(path).offers]  # fmt: skip
    assert told == meant
    assert {o.gpu_key for o in read_own(path).offers} == {"nvidia-l4-24gb"}


def test_prices_without_a_date_get_the_date_of_the_files_last_change(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("gpu,price,RAM\nL4,0.7,2 TiB\n")
    os.utime(path, (0, 1_700_000_000))
    (offer,) = read_own(path).offers
    assert (offer.price_date, offer.ram_bytes) == ("2023-11-14", 2 * 1024 * GIB)


def test_catalog_without_dates_is_not_read_as_a_user_table(tmp_path):
    with pytest.raises(MisuseError, match=r"columns of gpuhunt, .*offers import FILE --price-date DAY"):
        read(tmp_path, "instance_name,gpu_name,price,spot\na,L4,0.7,True\n")


def test_the_list_inside_an_api_response_is_read(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"success": True, "offers": [{"gpu_name": "L4", "dph_total": 0.9}]}))
    assert [o.gpu_key for o in read_own(path).offers] == ["nvidia-l4-24gb"]


def test_a_users_rejected_rows_are_reported_with_the_answer(tmp_path, gpubench):
    path = tmp_path / "mine.csv"
    path.write_text(
        f"{HEAD}\nacme,a,L4,1,2026-11-20,0.5\nacme,b,banana,1,2026-11-20,0.5\nacme,c,L4,1,2026-11-20,-1\n"
    )
    shown = CliRunner().invoke(app, ["rank", "vgg16", "--offers", str(path)], env={"COLUMNS": "9000"}).stdout
    assert (
        f"Set aside from {path}: 2 rows, including mine.csv:3 acme b banana (GPU 'banana' is unknown: name it by its key, as "
        f"gpubench list --gpus shows it); `gpubench offers list --offers {path} --explain` shows why."
    ) in " ".join(shown.split())
    told = gpubench("list", "--offers", path, "--explain", "--provider", "acme").stderr
    assert "mine.csv:3 acme b banana: GPU 'banana' is unknown" in told
    assert "mine.csv:4 acme c L4: price -1 is not above 0" in told


@pytest.mark.parametrize(
    ("column", "cell", "is_ranked"),
    [
        ("note", "interruptible", False),
        ("note", "8 vCPUs; spot price", False),
        ("remarks", "Preemptible by default", False),
        ("type", "Spot", False),
        ("interruptible", "true", False),
        ("term", "12 months", False),
        ("commitment", "1 year", False),
        ("upfront", "$5,000", False),
        ("availability", "sold out", False),
        ("note", "in EUR", False),
        ("comment", "€", False),
        ("note", "spot observed 2026-09; non-preemptible", True),
        ("note", "reserved up to 20% off", True),
        ("type", "on demand", True),
        ("interruptible", "false", True),
        ("term", "none", True),
        ("warranty", "3 years", True),
        ("upfront", "0", True),
        ("availability", "high", True),
    ],
)
def test_a_cell_that_contradicts_a_price_on_demand_in_dollars_sets_its_row_aside(
    tmp_path, column, cell, is_ranked
):
    """An interruptible H100 at half the price of others won, though its note said so."""
    table = read(tmp_path, f'gpu,price per hour,{column}\nH100 SXM,0.95,"{cell}"\nH100 SXM,2.40,\n')
    assert [float(offer.price_usd_per_hour) for offer in table.offers] == ([0.95] if is_ranked else [2.4])
    assert is_ranked or table.set_aside[0].row.startswith("t.csv:2")


def test_the_note_of_a_starting_price_marks_it(tmp_path):
    table = read(
        tmp_path,
        "gpu,price per hour,note\nH100 SXM,2.40,starting at\nRTX 4090,0.4,from stock\nL4,0.4,as low as\n",
    )
    assert [offer.is_floor for offer in table.offers] == [True, None, True]


@pytest.mark.parametrize("header", ["list price,your price", "price,net price", "price,discounted price"])
def test_the_price_for_this_buyer_comes_before_the_list_price(tmp_path, header):
    table = read(tmp_path, f"gpu,{header}\nH100 SXM,2.99,1.80\n")
    assert [offer.price_usd_per_hour for offer in table.offers] == [Decimal("1.80")]


def test_a_price_of_several_nodes_is_set_aside(tmp_path):
    """It may be the price of one node or of all."""
    path = tmp_path / "t.csv"
    for heading, usable in (
        ("nodes", 2),
        ("# nodes", 2),
        ("Number of nodes", 2),
        ("node", 2),
        ("node name", 3),
    ):
        path.write_text(f"gpu,gpus,{heading},price\nL4,8,4,60\nL4,4,1,4\nL4,2,,2\n")
        table = read_own(path)
        assert len(table.offers) == usable, heading
        assert ["is 4: give" in why for _, why in table.set_aside] == [True] * (3 - usable)


def test_a_serverless_price_that_can_be_preempted_is_not_on_demand(tmp_path):
    rows = "L4,serverless,on demand,0.8,preemptible by default\nL4,serverless,spot,0.8,preemptible by default"
    table = read(tmp_path, f"gpu,kind,pricing,price_usd_per_hour,note\n{rows}\n")
    assert [offer.pricing for offer in table.offers] == ["spot"]
    assert "preemptible by default" in table.set_aside[0].reason


def set_aside(tmp_path, text):
    """Return the reasons of the rows of a CSV table that are not used."""
    return [why for _, why in read(tmp_path, text).set_aside]


def test_a_memory_that_contradicts_the_name_is_in_the_reason(tmp_path):
    """The name alone is known, so "L4 may mean the L4" would not say what is wrong."""
    reasons = set_aside(tmp_path, "gpu,vram,price\nL4,48,0.5\nL4,0,0.5\nRTX 4090,24,0.5\n")
    named = "may mean nvidia-l4-24gb: name it by its key, as gpubench list --gpus shows it"
    assert reasons == [f"GPU 'L4' with 48 GiB {named}", f"GPU 'L4' with 0 GiB {named}"]


def test_an_exchange_rate_of_a_future_day_is_set_aside(tmp_path):
    head = "gpu,price,currency,usd_per_unit,rate_date\n"
    (reason,) = set_aside(tmp_path, f"{head}L4,0.5,EUR,1.16,2126-11-20\nT4,0.5,EUR,1.16,2026-11-20\n")
    assert reason == "date 2126-11-20 is in the future"


@pytest.mark.parametrize("heading", ["available", "Availability", "In stock", "stock"])
def test_a_gpu_that_is_not_available_is_not_on_demand(tmp_path, heading):
    rows = "".join(f"{gpu},0.5,{cell}\n" for gpu, cell in (("L4", "0"), ("T4", "no"), ("A10", "False")))
    assert len(set_aside(tmp_path, f"gpu,price,{heading}\n{rows}A30,0.5,yes\nL40S,0.5,3\nA2,0.5,\n")) == 3


@pytest.mark.parametrize("status", ["waitlist", "Coming soon", "contact sales", "on request", "pre-order"])
def test_a_gpu_that_cannot_be_ordered_is_not_on_demand(tmp_path, status):
    (reason,) = set_aside(tmp_path, f"gpu,price,status\nL4,0.5,{status}\nT4,0.5,available\n")
    assert status in reason


def test_a_copied_table_of_a_cloud_console_is_read(tmp_path):
    found = [
        (offer.gpu_count, offer.price_usd_per_hour)
        for offer in read(
            tmp_path,
            "Machine type,GPUs,GPU type,GPU memory,Pay as you go,Currency\n"
            "a2-highgpu-1g,1 GPU,NVIDIA A100 40GB,40 GB HBM2,$2.934 / 1 hour,US$\n"
            "a2-highgpu-2g,2 GPUs,NVIDIA A100 40GB,40 GB HBM2,$5.868 / 1 hour,$\n",
        ).offers
    ]
    assert found == [(1, Decimal("2.934")), (2, Decimal("5.868"))]


@pytest.mark.parametrize(
    ("name", "edition"),
    [("RTX Pro 6000 Max-Q", "blackwell-maxq"), ("RTX PRO 6000 SE", "blackwell-server"),
     ("RTX PRO 6000 Workstation", "blackwell-workstation")],
)  # fmt: skip
def test_an_edition_of_the_rtx_pro_6000_needs_no_architecture_in_its_name(name, edition):
    assert offered_gpu_key(name) == f"nvidia-rtx-pro-6000-{edition}-96gb"
