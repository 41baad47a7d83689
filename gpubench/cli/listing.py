"""`gpubench list`: what can be measured, and which GPUs are known. No torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpubench.cli.common import JsonOption, print_json
from gpubench.units import UNKNOWN, format_bytes, format_si, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpubench.models import GpuSpec, WorkloadProfile


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
            "parameters\ntrained",
            "FLOP/sample\nforward",
            "FLOP/sample\ntrain",
            "batches",
            "sample",
        ),
        (_workload_cells(name, profile) for name, profile in found.items()),
        right=(2, 3, 4),
        wide={1: 130, 6: 95},
    )


def _workload_row(name: str, profile: WorkloadProfile | None) -> dict[str, Any]:
    """One workload as JSON; null where a plug-in of others has not been profiled."""
    fields = (
        "version", "summary", "source", "parameters", "trainable_parameters", "forward_flops_per_sample",
        "train_flops_per_sample", "saved_bytes_per_sample", "optimizer", "batches", "sample_unit",
        "sample_shape", "is_image",
    )  # fmt: skip
    row = {"name": name, **{field: getattr(profile, field, None) for field in fields}}
    if profile is not None and not _has_counted_work(profile):
        row |= {"forward_flops_per_sample": None, "train_flops_per_sample": None}
    return row


def _has_counted_work(profile: WorkloadProfile) -> bool:
    """Whether its FLOPs are its work: an input pipeline interpolates and compares, which nobody counts."""
    return profile.parameters > 0


def _parameters(profile: WorkloadProfile) -> str:
    if not profile.parameters:
        return "none"
    if profile.trainable_parameters == profile.parameters:
        return f"{profile.parameters:,}"
    return f"{profile.trainable_parameters:,} of {profile.parameters:,}"


def _workload_cells(name: str, profile: WorkloadProfile | None) -> tuple[str, ...]:
    if profile is None:
        return (plain(name), "an installed plug-in, profiled when it is used", *(UNKNOWN,) * 5)
    shape = " x ".join(map(str, profile.sample_shape))
    counted = _has_counted_work(profile)
    return (
        name,
        profile.summary,
        _parameters(profile),
        format_si(profile.forward_flops_per_sample, "FLOP") if counted else UNKNOWN,
        format_si(profile.train_flops_per_sample, "FLOP") if counted else UNKNOWN,
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
        wide={1: 140, 2: 110, 4: 96, 6: 84},
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
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int], wide: Mapping[int, int]
) -> None:
    """Print a table without cutting a cell; in a pipe each row stays on one line.

    Args:
        head: Titles.
        rows: Cells.
        right: Columns that are set flush right.
        wide: Columns that need a terminal of so many characters, and are left out of a narrower one.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    shown = [n for n in range(len(head)) if console.width >= wide.get(n, 0)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place in shown:
        table.add_column(head[place], justify="right" if place in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[place]) for place in shown))
    console.print(table)
