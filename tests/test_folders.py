"""The shipped tables have one owner, which can be pointed at other tables."""

from __future__ import annotations

import ast
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpubench.errors import MisuseError
from gpubench.files import table_json
from gpubench.folders import (
    FOLDER_VARIABLE,
    data_bytes,
    data_json,
    data_path,
    data_table,
    data_text,
)
from gpubench.models import GpuSpec, Offer
from gpubench.offers.hardware import CardPrice, card_prices
from gpubench.offers.quotes import Machine

PACKAGE = Path(__file__).resolve().parents[1] / "gpubench"
OWNER = PACKAGE / "folders.py"
MAY_LOCATE_CODE = {
    "foreign_code.py": {"__file__"},  # which modules are the user's own
    # the folder of workloads in a checkout, and the modules in it
    "discovery.py": {"__file__", "pkgutil", "pkgutil.iter_modules"},
    "offers/sources/__init__.py": {"pkgutil", "pkgutil.iter_modules"},  # the sources in their folder
}


def _reads_package_data(source: str) -> set[str]:
    """Return the operations reserved to the owner: reading package resources, or locating its own folder."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id == "__file__":
            found.add("__file__")
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = [*modules, *(f"{(modules or [''])[0]}.{name.name}".strip(".") for name in node.names)]
            found |= {
                name for name in names if name.startswith(("importlib.resources", "pkgutil", "pkg_resources"))
            }
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            found |= {name} & {"PackageLoader", "get_data"}
    return found


@pytest.mark.parametrize(
    "source",
    [
        "from importlib.resources import files",
        "import importlib.resources",
        "from importlib import resources",
        "import pkgutil",
        "import jinja2\njinja2.PackageLoader('gpubench')",
        "from pathlib import Path\nPath(__file__)",
    ],
)
def test_package_data_detector_finds_every_kind_of_access(source):
    assert _reads_package_data(source)


def test_one_module_opens_package_data():
    found = {
        str(path.relative_to(PACKAGE)): ways
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != OWNER and (ways := _reads_package_data(path.read_text(encoding="utf-8")))
    }
    assert found == MAY_LOCATE_CODE


def test_every_table_comes_from_the_folder_that_the_variable_names(tmp_path):
    """In its own process: with one GPU in the table, one GPU is listed."""
    head, first, *_ = data_text("gpus.csv").splitlines()
    (tmp_path / "gpus.csv").write_text(f"{head}\n{first}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "gpubench", "list", "--gpus"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, FOLDER_VARIABLE: str(tmp_path)},
    )
    table, _, _ = done.stdout.partition("\n\n")  # before processors that are not measured
    assert [line.split()[0] for line in table.splitlines()[2:]] == [first.partition(",")[0]]


class _Card(msgspec.Struct):
    key: str
    memory_bytes: int | None
    ecc: bool | None
    aliases: tuple[str, ...]


def test_a_table_is_read_by_its_column_names(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "cards.csv").write_text("ecc,aliases,key,memory_bytes,as_of\ntrue,A;B,a,8,2026\n,,b,,2026\n")
    assert data_table("cards.csv", _Card) == [_Card("a", 8, True, ("A", "B")), _Card("b", None, None, ())]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("yes,,a,8", "`bool | null`.*ecc"),
        (",,,8", "`str`.*key"),
        (",,a,8 GiB", "memory_bytes"),
        ("true", "`str`.*key"),
    ],
)
def test_an_invalid_cell_is_refused_with_its_place(tmp_path, monkeypatch, row, why):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "cards.csv").write_text(f"ecc,aliases,key,memory_bytes\n,,a,8\n{row}\n")
    with pytest.raises(MisuseError, match=rf"cards\.csv, line 3: .*{why}"):
        data_table("cards.csv", _Card)


def test_a_table_that_a_spreadsheet_saved_is_read_or_refused_with_the_fix(tmp_path, monkeypatch):
    """It may start with a byte order mark, or be in the encoding of an old system."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    text = "key,memory_bytes,ecc,aliases\nCafé,8,,\n"
    (tmp_path / "cards.csv").write_text(text, encoding="utf-8-sig")
    assert data_table("cards.csv", _Card) == [_Card("Café", 8, None, ())]
    (tmp_path / "cards.csv").write_text(text, encoding="latin-1")
    with pytest.raises(MisuseError, match=r"cards\.csv is not UTF-8 text .*save it as UTF-8"):
        data_table("cards.csv", _Card)


@pytest.mark.parametrize("content", [b"{", b'{"key": 1}'])
def test_a_broken_json_table_is_refused_by_name(tmp_path, monkeypatch, content):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (tmp_path / "card.json").write_bytes(content)
    with pytest.raises(MisuseError, match=r"card\.json is not a table of this gpubench: "):
        data_json("card.json", _Card)


@pytest.mark.parametrize(
    ("name", "shape", "more"),
    [
        ("gpus.csv", GpuSpec, set()),
        ("offers.csv", Offer, set()),
        ("card_prices.csv", CardPrice, set()),
        ("instances.csv", Machine, {"source", "as_of"}),
    ],
)
def test_the_columns_of_a_shipped_table_are_the_fields_of_its_struct(name, shape, more):
    """A column that is not a field would be ignored silently."""
    columns = set(data_text(name).splitlines()[0].split(","))
    assert columns - set(shape.__struct_fields__) == more


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu_key": "nvidia-nothing"}, "its GPU is not in gpus.csv"),
        ({"condition": "quoted"}, "its condition is quoted"),
        ({"price_usd": "0"}, "its price is not above 0"),
        ({"price_date": "2026-13"}, "'2026-13' is not a day of the calendar"),
        ({}, "an earlier row has the same card and condition"),
    ],
)
def test_a_card_price_that_cannot_be_used_is_refused_in_one_line(tmp_path, monkeypatch, change, reason):
    good, *_ = csv.DictReader(data_text("card_prices.csv").splitlines())
    folder = shutil.copytree(data_path(""), tmp_path / "data")
    with (folder / "card_prices.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, good)
        table.writeheader()
        table.writerows([good | change] if change else [good, good])
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    with pytest.raises(MisuseError, match=rf"card_prices\.csv, .* USD: .*{reason}; correct the row"):
        card_prices.__wrapped__()


def test_a_folder_that_lacks_a_table_is_refused_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert data_path("gpus.csv") == tmp_path / "gpus.csv"
    with pytest.raises(MisuseError, match=r"cannot read .*gpus\.csv: .*unset GPUBENCH_DATA"):
        data_bytes("gpus.csv")


@pytest.mark.parametrize(
    "name", ["calibration.json", "capacity.json", "memory_allowance.json", "workload_profiles.json"]
)
def test_generated_table_is_stored_in_canonical_form(name):
    stored = data_bytes(name)
    assert table_json(msgspec.json.decode(stored)) == stored
