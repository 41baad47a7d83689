"""The networks that are defined here, by the names of their rows in data/model_profiles.csv.

``python tests/definitions/networks.py`` prints the rows of all of them; with names, only of these models.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from definitions import (
    bert_mlm,
    convnext,
    ddpm,
    efficientnet,
    gnmt,
    language,
    regnet,
    resnet50_cifar,
    ssd,
    swin,
    t5,
    unet,
    vit,
    whisper,
)
from definitions.rows import line
from gpubench.models import TaskKind
from gpubench.profile.trace import trace_operators
from gpubench.workload import Workload

DEFINITIONS: Mapping[str, Workload] = {
    "bert_hf_mlm": bert_mlm.DEFINITION,
    "convnext_large": convnext.DEFINITION,
    "ddpm_64": ddpm.DEFINITION,
    "gnmt": gnmt.DEFINITION,
    "regnet_y_128gf": regnet.DEFINITION,
    "resnet50_cifar": resnet50_cifar.DEFINITION,
    "ssd": ssd.DEFINITION,
    "swin_base_patch4_window7_224": swin.DEFINITION,
    "t5_hf": t5.DEFINITION,
    "tf_efficientnetv2_b0": efficientnet.DEFINITION,
    "unet_256": unet.DEFINITION,
    "vit_base_patch16_224": vit.DEFINITION,
    "whisper_hf": whisper.DEFINITION,
    **{definition.name: definition for definition in language.DEFINITIONS},
}
FORWARD = (
    "bert_large_s512", "gpt2_large_s1024", "gpt3_27_s2048", "gpt3_xl_s2048", "opt_13_s2048",
    "swin_base_patch4_window7_224", "tf_efficientnetv2_b0",
)  # fmt: skip
"""Networks with a row in data/inference_profiles.csv."""

if __name__ == "__main__":
    for name in sys.argv[1:] or DEFINITIONS:
        definition = DEFINITIONS[name]
        profile = trace_operators(definition).profile
        print(line(name, profile, definition.source))
        if name in FORWARD:
            print(line(name, profile, definition.source, task=TaskKind.INFER))
        forward = profile.forward_flops_per_sample / 2e9
        print(f"{name}: {profile.parameters:,} parameters, {forward:.3f} GMAC forward", file=sys.stderr)
