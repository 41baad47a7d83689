from typing import Any

from gpubench import discovery, profile, readings, specs
from gpubench.cli import output, table
from gpubench.errors import MisuseError
from gpubench.models import WorkloadProfile
from gpubench.offers.hardware import card_prices
from gpubench.probe.probe import UNMEASURED
from gpubench.sections import lists


def verb(request: table.ListRequest, *, as_json: bool) -> None:
    if request.gpus and request.mlperf:
        raise MisuseError("--gpus and --mlperf are different lists: give one of them")
    if request.gpus:
        gpus = tuple(specs.load_specs().values())
        output.answer(
            as_json,
            lambda: {"gpus": gpus, "card_prices": card_prices(), "unmeasured": UNMEASURED},
            lambda: [lists.specifications(gpus), lists.unmeasured(UNMEASURED)],
        )
    elif request.mlperf:
        from gpubench.offers.snapshot import load_offers
        from gpubench.sections import prices  # loads numpy

        runs, offers = readings.load_mlperf(), load_offers(None).offers
        output.answer(
            as_json,
            lambda: {"mlperf": prices.priced(runs, offers)},
            lambda: [prices.runs_table(prices.priced(readings.newest_and_fastest(runs), offers))],
        )
        if not as_json:
            output.say(f"{prices.about_mlperf()} --json lists every run.")
    else:
        shipped = profile.load_profiles()
        found = {name: shipped.get(name) for name in discovery.workload_names()}
        output.answer(
            as_json,
            lambda: {"workloads": [_workload_row(*each) for each in found.items()]},
            lambda: [lists.workloads(found)],
        )


_FIELDS = (
    "version", "summary", "source", "parameters", "trainable_parameters", "forward_flops_per_sample",
    "train_flops_per_sample", "saved_bytes_per_sample", "optimizer", "batches", "sample_unit",
    "sample_shape", "is_image",
)  # fmt: skip


def _workload_row(name: str, known: WorkloadProfile | None) -> dict[str, Any]:
    # Return one workload for JSON; an unprofiled third-party plug-in has null in every field but its name.
    row = {"name": name, **{field: getattr(known, field, None) for field in _FIELDS}}
    if known is not None and not lists.has_counted_work(known):
        row |= {"forward_flops_per_sample": None, "train_flops_per_sample": None}
    return row
