"""What there is: workloads, the GPUs of the specification table, processors that nothing is timed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpubench.blocks.parts import Table, number, table, text
from gpubench.units import UNKNOWN, format_bytes, format_si

if TYPE_CHECKING:
    from gpubench.models import GpuSpec, WorkloadProfile
    from gpubench.probe.probe import Unmeasured

BILLION = 1e9
_PLUG_IN = "an installed plug-in, profiled when it is used"


def workloads(found: Mapping[str, WorkloadProfile | None]) -> Table:
    """Return one line a workload; dashes where a plug-in of others has not been profiled."""

    def known(tell: Callable[[WorkloadProfile], str]) -> Callable[[str], str]:
        return lambda name: UNKNOWN if (profile := found[name]) is None else tell(profile)

    return table(
        "",
        tuple(found),
        text("Workload", lambda name: name),
        text("What it is", lambda name: getattr(found[name], "summary", _PLUG_IN), optional=2),
        number("Parameters\ntrained", known(_parameters)),
        number("FLOP/sample\nforward", known(lambda p: _flops(p, p.forward_flops_per_sample))),
        number("FLOP/sample\ntrain", known(lambda p: _flops(p, p.train_flops_per_sample))),
        text("Batches", known(lambda p: ", ".join(map(str, p.batches)))),
        text("sample", known(_sample), optional=1),
    )


def has_counted_work(profile: WorkloadProfile) -> bool:
    """Whether its FLOPs are its work: an input pipeline interpolates and compares, which nobody counts."""
    return profile.parameters > 0


def _sample(profile: WorkloadProfile) -> str:
    return f"{profile.sample_unit} {' x '.join(map(str, profile.sample_shape))}"


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
    return format_si(flops, "FLOP") if has_counted_work(profile) and flops else UNKNOWN


def specifications(specs: Sequence[GpuSpec]) -> Table:
    """Return one line a GPU of the specification table."""
    return table(
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


def unmeasured(processors: Sequence[Unmeasured]) -> Table:
    """Return one line a processor that nothing is timed on."""
    return table(
        "",
        processors,
        text("Processor", lambda row: row.name),
        text("Why it is not measured", lambda row: row.reason),
        text("What is known", lambda row: row.known, optional=1),
        text("What probe lists", lambda row: row.listed_by or "nothing", optional=2),
    )
