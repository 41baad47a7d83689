"""Which GPUs stand in a cloud's instance, told by its name; the one reader of data/instances.csv.

A cloud's GPU name ("H100", "A100") leaves the form factor open. Its instance name does not: p5.48xlarge has
eight SXM cards, whatever a price list calls them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from gpubench.shipped import data_rows


class Machine(NamedTuple):
    """What an instance holds; None is not known from the name."""

    gpu_key: str
    gpu_count: int | None
    vcpus: float | None
    ram_gib: float | None


@cache
def find_machine(provider: str, instance: str) -> Machine | None:
    """Return the machine of an instance name; None where the table has no such name.

    A row's instance may end in ``*``: it then stands for every name that begins so; the longest wins.
    """
    name = instance.lower()
    rows = _table().get(provider, {})
    exact = rows.get(name)
    if exact is not None:
        return exact
    stems = [stem for stem in rows if stem.endswith("*") and name.startswith(stem[:-1])]
    return rows[max(stems, key=len)] if stems else None


@cache
def _table() -> Mapping[str, Mapping[str, Machine]]:
    table: dict[str, dict[str, Machine]] = {}
    for row in data_rows("instances.csv"):
        table.setdefault(row["provider"], {})[row["instance"].lower()] = Machine(
            gpu_key=row["gpu_key"],
            gpu_count=int(row["gpu_count"]) if row["gpu_count"] else None,
            vcpus=float(row["vcpus"]) if row["vcpus"] else None,
            ram_gib=float(row["ram_gib"]) if row["ram_gib"] else None,
        )
    return table
