import msgspec

from gpubench import files, specs
from gpubench.blocks import parts, terminal
from gpubench.cli import output, table
from gpubench.probe import nvidia, probe
from gpubench.sections.device import machine


def verb(request: table.DumpRequest, *, as_json: bool) -> None:
    if request.dump is not None:
        calls = nvidia.dump()
        files.write_file(request.dump, nvidia.dump_text(calls).encode(), hint="choose another file")
        output.say(f"wrote {request.dump}: {len(calls)} driver calls; UUIDs and process IDs are masked")
    report = probe.probe()
    keys = sorted({device.gpu_key for device in report.devices if device.gpu_key})
    beside = {"specifications": {key: specs.load_specs()[key] for key in keys}}
    output.answer(as_json, lambda: msgspec.structs.asdict(report) | beside, lambda: machine(report).parts)


# The example workload for a machine without a GPU. It has published timings on the most GPUs.
_EXAMPLE = "resnet50"


def overview() -> None:
    """Print the devices of this machine and the next step; without a GPU, what to rent for an example job."""
    report = probe.probe()
    if any(not device.is_cpu for device in report.devices) or any(p.exit_code for p in report.problems):
        terminal.show(*machine(report).brief)
        return
    from gpubench.recommend.rank import rank
    from gpubench.sections.answer import screen

    ranking = rank(_EXAMPLE, one_a_gpu=True, limit=1)
    terminal.show(
        parts.Paragraph(text=f"This machine has no GPU. To train {_EXAMPLE}, for example:"),
        *screen(ranking),
        parts.Paragraph(
            text="For your own job: gpubench llama-3.1-8b --lora --samples 20000, gpubench ./my_model.py; "
            "models: gpubench list; all verbs: gpubench --help"
        ),
    )
