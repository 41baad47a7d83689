"""`gpubench list`: what can be measured, and which GPUs are known. No torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpubench.cli.common import JsonOption, print_json
from gpubench.units import UNKNOWN, format_bytes, format_si, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpubench.models import GpuSpec, WorkloadProfile

WIDE = 100
"""Columns of a terminal on which every column of a table has room."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("list")(verb)


def verb(
    gpus: Annotated[
        bool, typer.Option("--gpus", help="List the GPUs of the specification table instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the workloads: parameters, work per sample, default batches."""
    if gpus:
        _list_gpus(as_json)
    else:
        _list_workloads(as_json)


def _list_workloads(as_json: bool) -> None:
    from gpubench.profile import load_profiles
    from gpubench.workload import workload_names

    shipped = load_profiles()
    found = {name: shipped.get(name) for name in workload_names()}
    if as_json:
        print_json({"workloads": [_workload_row(name, profile) for name, profile in found.items()]})
        return
    _print_table(
        (
            "workload",
            "what it is",
            "parameters",
            "FLOP/sample\nforward",
            "FLOP/sample\ntrain",
            "batches",
            "sample",
        ),
        (_workload_cells(name, profile) for name, profile in found.items()),
        right=(2, 3, 4),
        spare=(1,),
    )


def _workload_row(name: str, profile: WorkloadProfile | None) -> dict[str, Any]:
    """One workload as JSON; null where a plug-in of others has not been profiled."""
    fields = (
        "version", "summary", "source", "parameters", "trainable_parameters", "forward_flops_per_sample",
        "train_flops_per_sample", "saved_bytes_per_sample", "optimizer", "batches", "sample_unit",
        "sample_shape", "is_image",
    )  # fmt: skip
    return {"name": name, **{field: getattr(profile, field, None) for field in fields}}


def _workload_cells(name: str, profile: WorkloadProfile | None) -> tuple[str, ...]:
    if profile is None:
        return (plain(name), "an installed plug-in, profiled when it is used", *(UNKNOWN,) * 5)
    shape = " x ".join(map(str, profile.sample_shape))
    return (
        name,
        profile.summary,
        f"{profile.parameters:,}",
        format_si(profile.forward_flops_per_sample, "FLOP"),
        format_si(profile.train_flops_per_sample, "FLOP"),
        ", ".join(map(str, profile.batches)),
        f"{profile.sample_unit} {shape}",
    )


def _list_gpus(as_json: bool) -> None:
    from gpubench.specs import load_specs

    specs = tuple(load_specs().values())
    if as_json:
        print_json({"gpus": specs})
        return
    _print_table(
        ("key", "name", "architecture", "memory", "bandwidth", "FP32", "FP16 tensor"),
        (_gpu_cells(spec) for spec in specs),
        right=(3, 4, 5, 6),
        spare=(1, 2, 3, 5),  # the key holds name and memory
    )


def _gpu_cells(spec: GpuSpec) -> tuple[str, ...]:
    return (
        spec.key,
        spec.name,
        spec.architecture or UNKNOWN,
        format_bytes(spec.memory_bytes),
        format_si(spec.memory_bandwidth_bytes_per_s, "B/s"),
        format_si(spec.fp32_flops_per_s, "FLOP/s"),
        format_si(spec.fp16_tensor_flops_per_s, "FLOP/s"),
    )


def _print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int], spare: Sequence[int]
) -> None:
    """Print a table; in a pipe each row stays on one line.

    Args:
        head: The titles.
        rows: As many cells as titles.
        right: Columns of figures; these keep their line, for a figure cut short is a wrong one.
        spare: Columns that a narrow terminal goes without.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown = [place for place in range(len(head)) if place not in spare or console.width >= WIDE]
    for place in shown:
        figure = place in right
        table.add_column(head[place], justify="right" if figure else "left", no_wrap=figure or place == 0)
    for row in rows:
        table.add_row(*(Text(row[place]) for place in shown))
    console.print(table)
