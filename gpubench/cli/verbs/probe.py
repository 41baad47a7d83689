import msgspec

from gpubench import specs
from gpubench.blocks.parts import Paragraph
from gpubench.blocks.terminal import show
from gpubench.cli.output import answer, say
from gpubench.cli.table import DumpRequest
from gpubench.files import write_file
from gpubench.probe import nvidia
from gpubench.probe.probe import probe
from gpubench.sections.device import machine


def verb(request: DumpRequest, *, as_json: bool) -> None:
    if request.dump is not None:
        calls = nvidia.dump()
        write_file(request.dump, nvidia.dump_text(calls).encode(), hint="choose another file")
        say(f"wrote {request.dump}: {len(calls)} driver calls, UUIDs and process numbers masked")
    report = probe()
    keys = sorted({device.gpu_key for device in report.devices if device.gpu_key})
    beside = {"specifications": {key: specs.load_specs()[key] for key in keys}}
    answer(as_json, lambda: msgspec.structs.asdict(report) | beside, lambda: machine(report).parts)


POPULAR = "resnet50"
"""The job that is answered where nobody asked for one: what most published GPUs were timed on."""


def overview() -> None:
    """Print what is in this machine and the next step; without a GPU, what one would rent for a job."""
    report = probe()
    if any(not device.is_cpu for device in report.devices) or any(p.exit_code for p in report.problems):
        show(*machine(report).brief)
        return
    from gpubench.recommend.rank import rank
    from gpubench.sections.answer import screen

    ranking = rank(POPULAR, one_a_gpu=True, limit=1)
    show(
        Paragraph(text=f"No GPU is in this machine. To train {POPULAR}, as an example:"),
        *screen(ranking),
        Paragraph(
            text="Ask for yours: gpubench llama-3.1-8b --lora --samples 20000, gpubench ./my_model.py, "
            "gpubench list; gpubench --help names every verb"
        ),
    )
