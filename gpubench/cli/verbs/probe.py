"""`gpubench probe`, and what `gpubench` alone prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from gpubench.blocks.terminal import show
from gpubench.cli.options import Verb
from gpubench.cli.output import answer, say
from gpubench.options import Option

if TYPE_CHECKING:
    from gpubench.probe.backend import ProbeReport


class DumpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what the driver answers is kept besides."""

    dump: Annotated[Path | None, Option("Write the driver's raw answers to FILE, identifiers masked.")] = None


def verb(request: DumpRequest, *, as_json: bool) -> None:
    """Say what the devices of this machine are, and what limits them."""
    from gpubench.probe.probe import probe
    from gpubench.sections.device import machine

    if request.dump is not None:
        from gpubench.files import write_file
        from gpubench.probe.nvidia import dump as read_dump
        from gpubench.probe.nvidia import dump_text

        calls = read_dump()
        write_file(request.dump, dump_text(calls).encode(), hint="choose another file")
        say(f"wrote {request.dump}: {len(calls)} driver calls, UUIDs and process numbers masked")
    report = probe()
    answer(as_json, lambda: _document(report), lambda: machine(report).parts)


def _document(report: ProbeReport) -> dict[str, Any]:
    """The report, and the row of the specification table of each GPU in it."""
    from gpubench.specs import load_specs

    keys = {device.gpu_key for device in report.devices if device.gpu_key}
    return {
        **msgspec.structs.asdict(report),
        "specifications": {key: load_specs()[key] for key in sorted(keys)},
    }


POPULAR = "resnet50"
"""The job that is answered where nobody asked for one: what most published GPUs were timed on."""


def overview() -> None:
    """Print what is in this machine and the next step; without a GPU, what one would rent for a job."""
    from gpubench.probe.probe import probe
    from gpubench.sections.device import machine

    report = probe()
    if any(not device.is_cpu for device in report.devices) or any(p.exit_code for p in report.problems):
        show(*machine(report).brief)
        return
    from gpubench.blocks.parts import Paragraph
    from gpubench.recommend.rank import rank
    from gpubench.recommend.request import RankRequest
    from gpubench.sections.answer import screen

    ranking = rank(RankRequest(workloads=(POPULAR,), one_a_gpu=True, limit=1))
    show(
        Paragraph(text=f"No GPU is in this machine. To train {POPULAR}, as an example:"),
        *screen(ranking),
        Paragraph(
            text="Ask for yours: gpubench llama-3.1-8b --lora --samples 20000, gpubench ./my_model.py, "
            "gpubench list; gpubench --help names every verb"
        ),
    )


VERB = Verb(verb, place=10, also_called=("info", "detect", "device", "devices", "gpus", "status"))
