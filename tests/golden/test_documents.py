"""Each golden document matches its schema in ``docs/schema``: no key is missing, and none is new."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from golden.documents import DOCUMENTS
from golden.produce import EXPECTED

DOCS = Path(__file__).resolve().parents[2] / "docs"
SAME = {
    "rank": "rank*",
    "run": "run-file",
    "predict-show": "predict-show*",
    "check": "check-*",
    "compare": "compare*",
}
GOLDENS = [
    (name, path)
    for name in DOCUMENTS
    for path in sorted((EXPECTED / "values").glob(f"{SAME.get(name, name)}.json"))
]


def closed(part):
    """Return the schema closed, so that it refuses a key that it does not name."""
    if isinstance(part, list):
        return [closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    shut = {"additionalProperties": False} if "properties" in part else {}
    return {name: closed(each) for name, each in part.items()} | shut


def without_launches(part):
    """Return a golden with no raw rounds in place of those that ``produce.py`` cuts out."""
    if isinstance(part, list):
        return [without_launches(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {name: [] if each == "<in the file>" else without_launches(each) for name, each in part.items()}


def faults(name, document):
    schema = json.loads((DOCS / "schema" / f"{name}.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(closed(schema))
    return [error.message for error in validator.iter_errors(without_launches(document))]


@pytest.mark.parametrize(("name", "path"), GOLDENS, ids=[path.name for _, path in GOLDENS])
def test_golden_document_matches_its_schema(name, path):
    assert faults(name, json.loads(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("change", [{"as_off": "2026-11-20"}, {"as_of": 3}])
def test_schema_rejects_unknown_keys_and_wrong_types(change):
    document = json.loads((EXPECTED / "values" / "rank.json").read_text(encoding="utf-8"))
    assert len(faults("rank", document | change)) == 1


def test_every_document_with_a_schema_has_a_golden_and_is_on_the_page():
    assert {name for name, _ in GOLDENS} == set(DOCUMENTS)
    page = (DOCS / "json.md").read_text(encoding="utf-8")
    for name, (printed_by, _) in DOCUMENTS.items():
        assert f"| {printed_by} | [{name}](schema/{name}.json) |" in page
