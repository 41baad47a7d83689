"""`gpubench list`: what can be measured, and which GPUs are known. No torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from gpubench.blocks.parts import number, table, text
from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.errors import MisuseError
from gpubench.options import Option
from gpubench.units import UNKNOWN, format_bytes, format_si

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpubench.models import WorkloadProfile


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which list; at most one may be named in place of the workloads."""

    gpus: Annotated[bool, Option("List the GPUs of the specification table instead.")] = False
    mlperf: Annotated[bool, Option("List published MLPerf Training runs, with today's cost of one.")] = False
    unmeasured: Annotated[bool, Option("List processors that nothing is timed on, with the reason.")] = False


def verb(request: ListRequest, *, as_json: bool) -> None:
    """List the workloads: parameters, work per sample, default batches."""
    lists = {"gpus": _list_gpus, "mlperf": _list_mlperf, "unmeasured": _list_unmeasured}
    asked = [name for name in lists if getattr(request, name)]
    if len(asked) > 1:
        raise MisuseError(f"--{asked[0]} and --{asked[1]} are two lists: give one of them")
    list_asked = lists[asked[0]] if asked else _list_workloads
    list_asked(as_json)


def _list_workloads(as_json: bool) -> None:
    from gpubench.discovery import workload_names
    from gpubench.profile import load_profiles

    shipped = load_profiles()
    found = {name: shipped.get(name) for name in workload_names()}

    def known(tell: Callable[[WorkloadProfile], str]) -> Callable[[str], str]:
        return lambda name: UNKNOWN if (profile := found[name]) is None else tell(profile)

    answer(
        as_json,
        lambda: {"workloads": [_workload_row(name, profile) for name, profile in found.items()]},
        lambda: [
            table(
                "",
                tuple(found),
                text("Workload", lambda name: name),
                text("What it is", lambda name: getattr(found[name], "summary", _PLUG_IN), optional=2),
                number("Parameters\ntrained", known(_parameters)),
                number("FLOP/sample\nforward", known(lambda p: _flops(p, p.forward_flops_per_sample))),
                number("FLOP/sample\ntrain", known(lambda p: _flops(p, p.train_flops_per_sample))),
                text("Batches", known(lambda p: ", ".join(map(str, p.batches)))),
                text(
                    "sample",
                    known(lambda p: f"{p.sample_unit} {' x '.join(map(str, p.sample_shape))}"),
                    optional=1,
                ),
            )
        ],
    )


BILLION = 1e9
_PLUG_IN = "an installed plug-in, profiled when it is used"


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
    trained = profile.trainable_parameters
    if trained in {0, profile.parameters}:
        return _short(profile.parameters) if profile.parameters >= BILLION else f"{profile.parameters:,}"
    few = _short(trained) if profile.parameters >= BILLION else f"{trained:,}"
    return f"{few} of {_short(profile.parameters)}"


def _short(parameters: int) -> str:
    """A number of parameters as everybody names a large model's."""
    return f"{parameters / BILLION:.2f}B" if parameters >= BILLION else f"{parameters / 1e6:.1f}M"


def _flops(profile: WorkloadProfile, flops: float) -> str:
    return format_si(flops, "FLOP") if _has_counted_work(profile) and flops else UNKNOWN


def _list_unmeasured(as_json: bool) -> None:
    from gpubench.probe.probe import UNMEASURED

    rows = table(
        "",
        UNMEASURED,
        text("Processor", lambda row: row.name),
        text("Why it is not measured", lambda row: row.reason),
        text("What is known", lambda row: row.known, optional=1),
        text("What probe lists", lambda row: row.listed_by or "nothing", optional=2),
    )
    answer(as_json, lambda: {"unmeasured": UNMEASURED}, lambda: [rows])


def _list_gpus(as_json: bool) -> None:
    from gpubench.offers.hardware import card_prices
    from gpubench.specs import load_specs

    specs = tuple(load_specs().values())
    rows = table(
        "",
        specs,
        text("Key", lambda spec: spec.key),
        text("Name", lambda spec: spec.name, optional=4),
        text("Architecture", lambda spec: spec.architecture or UNKNOWN, optional=3),
        number("Memory", lambda spec: format_bytes(spec.memory_bytes)),
        number("Bandwidth", lambda spec: format_si(spec.memory_bandwidth_bytes_per_s, "B/s"), optional=2),
        number("FP32", lambda spec: format_si(spec.fp32_flops_per_s, "FLOP/s")),
        number("FP16 tensor", lambda spec: format_si(spec.fp16_tensor_flops_per_s, "FLOP/s"), optional=1),
    )
    answer(as_json, lambda: {"gpus": specs, "card_prices": card_prices()}, lambda: [rows])


def _list_mlperf(as_json: bool) -> None:
    from gpubench.offers.snapshot import load_offers
    from gpubench.readings import load_mlperf, newest_and_fastest
    from gpubench.recommend.mlperf import priced
    from gpubench.sections.mlperf import runs_table, what

    offers = load_offers(None).offers
    answer(
        as_json,
        lambda: {"mlperf": priced(load_mlperf(), offers)},
        lambda: [runs_table(priced(newest_and_fastest(load_mlperf()), offers))],
    )
    if not as_json:
        say(f"{what()} Every run: --json.")


VERB = Verb(verb, place=30)
