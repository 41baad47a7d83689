"""Rows of data/model_profiles.csv that are traced from the networks of torchvision and timm.

These do not import beside the CPU build of torch that the tests use; in an environment of their own, outside
of this folder::

    python3 -m venv tv && tv/bin/pip install torch==2.14.1 torchvision==0.29.1 timm .
    tv/bin/python tests/definitions/libraries.py           # prints the rows that differ from the table
    tv/bin/python tests/definitions/libraries.py vgg16     # prints the row of a model, whether it differs or not

Nothing needs a GPU.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn

from definitions.rows import line
from gpubench.models import WorkloadProfile
from gpubench.profile.trace import trace_operators
from gpubench.shipped import data_text
from gpubench.workload import Task, Workload, image_batches, seeded

KERAS = "a network of torchvision stands for that of Keras"
AUXILIARY_WEIGHT = {"inception_v3": 0.4, "googlenet": 0.3}
"""What the losses of the heads in between count, as their papers say."""


@dataclass(frozen=True)
class Network:
    """A classifier of a library.

    Attributes:
        library: The package.
        name: Of the network there.
        side: Of the square images [pixels].
        classes: Number of classes.
        approximate: Why the row holds for ratios of GPUs only; empty where it does not.
    """

    library: str
    name: str
    side: int = 224
    classes: int = 1000
    approximate: str = ""


_TORCHVISION = """
    alexnet convnext_base densenet121 densenet161 densenet169 densenet201 mnasnet0_5 mnasnet0_75 mnasnet1_0
    mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small resnet18 resnet34 resnet50 resnet101 resnet152
    resnext50_32x4d resnext101_32x8d resnext101_64x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_v2_b vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19
    vgg19_bn vit_b_16 wide_resnet50_2 wide_resnet101_2
"""
_KERAS = {
    "AlexNet": "alexnet",
    "MobileNetV2": "mobilenet_v2",
    "ResNet18": "resnet18",
    "ResNet34": "resnet34",
    "ResNet50": "resnet50",
    "VGG11": "vgg11",
    "VGG13": "vgg13",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
}
_SIDES = (32, 64, 128, 224, 256)
_LEAST_SIDE = {"AlexNet": 64}

NETWORKS: Mapping[str, Network] = {
    **{name: Network("torchvision", name) for name in _TORCHVISION.split()},
    "inception3": Network("torchvision", "inception_v3", side=299),
    "inception4": Network("timm", "inception_v4", side=299),
    "focalnet_base_lrf": Network("timm", "focalnet_base_lrf"),
    **{
        f"{name}@{side}": Network("torchvision", network, side=side, classes=10, approximate=KERAS)
        for name, network in _KERAS.items()
        for side in _SIDES
        if side >= _LEAST_SIDE.get(name, 0)
    },
}
"""What a row is of, by the name of the row."""


def loss(outputs: Tensor | tuple[Tensor, ...], targets: Tensor, *, auxiliary_weight: float) -> Tensor:
    """Cross entropy of the head, and of the heads in between where there are any."""
    if isinstance(outputs, Tensor):
        return nn.functional.cross_entropy(outputs, targets)
    losses = [nn.functional.cross_entropy(logits, targets) for logits in outputs]
    return losses[0] + auxiliary_weight * torch.stack(losses[1:]).sum()


def build(batch_size: int, seed: int, *, network: Network) -> Task:
    """Build one training step.

    Shapes:
        inputs: (N, 3, side, side) float32; targets: (N,) int64; logits: (N, classes).
    """
    with seeded(seed):
        return Task(
            model=_model(network),
            batches=image_batches(batch_size, (3, network.side, network.side), range(4), count=1),
            loss=partial(loss, auxiliary_weight=AUXILIARY_WEIGHT.get(network.name, 0.0)),
            optimizer=partial(torch.optim.SGD, lr=0.01),
        )


def _model(network: Network) -> Any:
    if network.library == "timm":
        import timm

        return timm.create_model(network.name, num_classes=network.classes)
    import torchvision

    options = {"init_weights": False} if network.name in AUXILIARY_WEIGHT else {}
    return torchvision.models.get_model(network.name, weights=None, num_classes=network.classes, **options)


def profile_of(network: Network) -> WorkloadProfile:
    """Trace a network of a library that is installed."""
    definition = Workload(
        name=network.name,
        version=1,
        sample_unit="image",
        sample_shape=(3, network.side, network.side),
        batches=(32,),
        is_image=True,
        source=network.library,
        build=partial(build, network=network),
    )
    return trace_operators(definition).profile


def source(network: Network, library_version: str) -> str:
    """Where the row says that it comes from."""
    parts = [f"{network.library} {library_version}", network.name]
    if network.classes != Network.classes:
        parts.append(f"{network.classes} classes")
    return ", ".join([*parts, f"{network.side} x {network.side}"])


def lines(names: list[str]) -> Iterator[str]:
    """The rows of these models, or of all whose row in the table differs from its trace."""
    table = {row[0]: row for row in csv.reader(data_text("model_profiles.csv").splitlines())}
    for name in names or NETWORKS:
        network = NETWORKS[name]
        traced = line(
            name, profile_of(network), source(network, version(network.library)), network.approximate
        )
        if names or next(csv.reader([traced])) != table.get(name):
            yield traced


if __name__ == "__main__":
    for row in lines(sys.argv[1:]):
        print(row, flush=True)
