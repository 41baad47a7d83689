"""`gpubench list`: what can be measured, and which GPUs are known. No torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.errors import MisuseError
from gpubench.options import Option

if TYPE_CHECKING:
    from gpubench.models import WorkloadProfile


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which list; at most one may be named in place of the workloads."""

    gpus: Annotated[
        bool,
        Option(
            "List the GPUs of the specification table instead, and the processors that nothing is timed on."
        ),
    ] = False
    mlperf: Annotated[bool, Option("List published MLPerf Training runs, with today's cost of one.")] = False


def verb(request: ListRequest, *, as_json: bool) -> None:
    """List the workloads: parameters, work per sample, default batches."""
    lists = {"gpus": _list_gpus, "mlperf": _list_mlperf}
    asked = [name for name in lists if getattr(request, name)]
    if len(asked) > 1:
        raise MisuseError(f"--{asked[0]} and --{asked[1]} are two lists: give one of them")
    list_asked = lists[asked[0]] if asked else _list_workloads
    list_asked(as_json)


def _list_workloads(as_json: bool) -> None:
    from gpubench.discovery import workload_names
    from gpubench.profile import load_profiles
    from gpubench.sections.lists import workloads

    shipped = load_profiles()
    found = {name: shipped.get(name) for name in workload_names()}
    answer(
        as_json,
        lambda: {"workloads": [_workload_row(name, profile) for name, profile in found.items()]},
        lambda: [workloads(found)],
    )


def _workload_row(name: str, profile: WorkloadProfile | None) -> dict[str, Any]:
    """One workload as JSON; null where a plug-in of others has not been profiled."""
    from gpubench.sections.lists import has_counted_work

    fields = (
        "version", "summary", "source", "parameters", "trainable_parameters", "forward_flops_per_sample",
        "train_flops_per_sample", "saved_bytes_per_sample", "optimizer", "batches", "sample_unit",
        "sample_shape", "is_image",
    )  # fmt: skip
    row = {"name": name, **{field: getattr(profile, field, None) for field in fields}}
    if profile is not None and not has_counted_work(profile):
        row |= {"forward_flops_per_sample": None, "train_flops_per_sample": None}
    return row


def _list_gpus(as_json: bool) -> None:
    from gpubench.offers.hardware import card_prices
    from gpubench.probe.probe import UNMEASURED
    from gpubench.sections.lists import specifications, unmeasured
    from gpubench.specs import load_specs

    specs = tuple(load_specs().values())
    answer(
        as_json,
        lambda: {"gpus": specs, "card_prices": card_prices(), "unmeasured": UNMEASURED},
        lambda: [specifications(specs), unmeasured(UNMEASURED)],
    )


def _list_mlperf(as_json: bool) -> None:
    from gpubench.offers.snapshot import load_offers
    from gpubench.readings import load_mlperf, newest_and_fastest
    from gpubench.sections.lists import priced, runs_table, what

    offers = load_offers(None).offers
    answer(
        as_json,
        lambda: {"mlperf": priced(load_mlperf(), offers)},
        lambda: [runs_table(priced(newest_and_fastest(load_mlperf()), offers))],
    )
    if not as_json:
        say(f"{what()} Every run: --json.")


VERB = Verb(verb, place=30)
