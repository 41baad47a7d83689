from typing import Any

from gpubench.cli.output import answer, say
from gpubench.cli.table import ListRequest
from gpubench.discovery import workload_names
from gpubench.errors import MisuseError
from gpubench.models import WorkloadProfile
from gpubench.offers.hardware import card_prices
from gpubench.probe.probe import UNMEASURED
from gpubench.profile import load_profiles
from gpubench.readings import load_mlperf, newest_and_fastest
from gpubench.sections.catalog import has_counted_work, specifications, unmeasured, workloads
from gpubench.specs import load_specs


def verb(request: ListRequest, *, as_json: bool) -> None:
    if request.gpus and request.mlperf:
        raise MisuseError("--gpus and --mlperf are two lists: give one of them")
    if request.gpus:
        specs = tuple(load_specs().values())
        answer(
            as_json,
            lambda: {"gpus": specs, "card_prices": card_prices(), "unmeasured": UNMEASURED},
            lambda: [specifications(specs), unmeasured(UNMEASURED)],
        )
    elif request.mlperf:
        from gpubench.offers.snapshot import load_offers
        from gpubench.sections.mlperf import priced, runs_table, what  # loads numpy

        runs, offers = load_mlperf(), load_offers(None).offers
        answer(
            as_json,
            lambda: {"mlperf": priced(runs, offers)},
            lambda: [runs_table(priced(newest_and_fastest(runs), offers))],
        )
        if not as_json:
            say(f"{what()} Every run: --json.")
    else:
        shipped = load_profiles()
        found = {name: shipped.get(name) for name in workload_names()}
        answer(
            as_json,
            lambda: {"workloads": [_workload_row(*each) for each in found.items()]},
            lambda: [workloads(found)],
        )


_FIELDS = (
    "version", "summary", "source", "parameters", "trainable_parameters", "forward_flops_per_sample",
    "train_flops_per_sample", "saved_bytes_per_sample", "optimizer", "batches", "sample_unit",
    "sample_shape", "is_image",
)  # fmt: skip


def _workload_row(name: str, profile: WorkloadProfile | None) -> dict[str, Any]:
    """One workload as JSON; null where a plug-in of others has not been profiled."""
    row = {"name": name, **{field: getattr(profile, field, None) for field in _FIELDS}}
    if profile is not None and not has_counted_work(profile):
        row |= {"forward_flops_per_sample": None, "train_flops_per_sample": None}
    return row
