"""Every GPU key in the shipped data and in the tests is a row of the specification table."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpubench.specs
from gpubench.specs import load_specs
from tools.published import DATA as PUBLISHED

DATA = Path(gpubench.specs.__file__).parent / "data"
TESTS = Path(__file__).parent
KEYED_BY_GPU = re.compile(r"(train|infer)\.(rows|apart)_by_gpu")
"""Places in data/calibration.json where an object has one key per GPU."""
ABOUT_NAMES = {"test_names.py", Path(__file__).name}
"""Files about other spellings of GPUs."""
INVENTED = {
    "nvidia-h100-x",
    "../../etc",
    "no-such-gpu",
    "nvidia-banana-9000",
    "nvidia-geforce-rtx-3060-laptop-gpu",
    "nvidia-geforce-rtx-3070-laptop-gpu",
    "nvidia-geforce-rtx-4091-24gb",
    "nvidia-nothing",
    "nvidia-unknown",
}
"""GPUs that no table has, as a test needs them."""
NO_GPUS = {
    "google-chrome",
    "google-colab",
    "nvidia-dle",
    "nvidia-fabricmanager",
    "nvidia-ml-py",
    "nvidia-smi",
}
KEY = re.compile(r"(amd|apple|google|intel|nvidia)(-[a-z0-9]+)+")


def data_files() -> list[Path]:
    files = [path for folder in (DATA, PUBLISHED) for path in folder.rglob("*")]
    return sorted(path for path in files if path.suffix in {".csv", ".json"})


def keys_of(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return set(_keys_in(json.loads(text)))
    rows = list(csv.DictReader(text.splitlines()))
    columns = [name for name in rows[0] if name in {"key", "variants"} or name.endswith("gpu_key")]
    return {key for row in rows for name in columns for key in row[name].split(";") if key}


def _keys_in(value: Any, place: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        if KEYED_BY_GPU.fullmatch(place):
            yield from value
        for name, each in value.items():
            yield from _keys_in(each, f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            yield from _keys_in(each, place)
    elif isinstance(value, str) and place.endswith("gpu_key"):
        yield value


@pytest.mark.parametrize("path", data_files(), ids=lambda path: path.relative_to(TESTS.parent).as_posix())
def test_every_gpu_key_of_the_shipped_data_is_in_the_catalog(path):
    assert keys_of(path) <= set(load_specs())


def test_every_place_with_gpu_keys_in_the_shipped_data_is_found():
    names = ("calibration.json", "chips.csv", "gpus.csv", "instances.csv", "offers.csv")
    for path in (*(DATA / name for name in names), PUBLISHED / "published.csv"):
        assert "nvidia-tesla-v100-sxm2-16gb" in keys_of(path), path
    assert set(_keys_in({"device": {"gpu_key": "a"}, "rows": [{"reference_gpu_key": "b"}]})) == {"a", "b"}


def test_a_gpu_in_a_test_is_real_or_deliberately_invented():
    known = set(load_specs()) | INVENTED | NO_GPUS
    made_up = {
        str(path.relative_to(TESTS)): unknown
        for path in sorted(TESTS.rglob("*.py"))
        if path.name not in ABOUT_NAMES
        and (unknown := set(_named(ast.parse(path.read_text(encoding="utf-8")))) - known)
    }
    assert made_up == {}, "take keys of the catalog, or name a GPU that must be unknown in INVENTED"


def _named(tree: ast.AST) -> Iterator[str]:
    """Yield texts that look like a key, and every value given as ``gpu_key``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and (node.arg or "").endswith("gpu_key"):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                yield node.value.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
            yield node.value
