"""What of a document does not fit a JSON schema: the keywords that the schemas of ``tests/data/schemas`` use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def faults(value: Any, schema: Any, root: Any = None, where: str = "") -> Iterator[str]:  # noqa: PLR0912 - one a keyword
    """Yield a line for each place where a value is not what a schema allows."""
    root = schema if root is None else root
    if schema is True or not schema:
        return
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, where)
    kinds = schema.get("type", [*_TYPES])
    allowed = [_TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    is_number = isinstance(value, bool) and bool not in allowed
    if is_number or not any(isinstance(value, kind) for kind in allowed):
        yield f"{where}: {value!r} is no {kinds}"
        return
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and all([*faults(value, each, root, where)] for each in schema[keyword]):
            yield f"{where}: {value!r} is none of {keyword}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} is not like {schema['pattern']}"
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        yield f"{where}: {value} is out of range"
    if isinstance(value, list):
        for each in value:
            yield from faults(each, schema.get("items"), root, f"{where}[]")
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        yield from (f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            if name in known:
                yield from faults(each, known[name], root, f"{where}.{name}")
            elif other is False and not any(re.search(p, name) for p in schema.get("patternProperties", {})):
                yield f"{where}.{name} is no field"
            elif isinstance(other, dict):
                yield from faults(each, other, root, f"{where}.{name}")
