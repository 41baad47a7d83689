"""SSD300 as NVIDIA trains it, on a ResNet-50 with full resolution in the fourth stage."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from definitions.blocks import defined
from gpubench_workloads.resnet50 import DEPTHS_50, ResNet

SIDE, CLASSES, COORDINATES = 300, 81, 4
WIDTHS = (1024, 512, 512, 256, 256, 256)
"""Channels of the six feature maps on which boxes are detected."""
INNER_WIDTHS = (256, 256, 128, 128, 128)
BOXES_PER_PLACE = (4, 6, 6, 6, 4, 4)
BOXES = 8732
HALVED = 3
"""How many of the further maps halve their side with a stride; the others lose a border of one."""


def backbone() -> nn.Sequential:
    """Build ResNet-50 without its last stage and its head."""
    whole = ResNet(DEPTHS_50, 64, 1000)
    last = whole.get_submodule("layer3.0")
    for convolution in (last.conv2, last.downsample[0]):
        convolution.stride = (1, 1)
    return nn.Sequential(
        whole.conv1, whole.bn1, whole.relu, whole.maxpool,
        *(whole.get_submodule(f"layer{stage}") for stage in (1, 2, 3)),
    )  # fmt: skip


def further_map(channels: int, width: int, inner: int, *, is_halved: bool) -> nn.Sequential:
    """Build a 1 x 1 and a 3 x 3 convolution, each with a batch norm and a ReLU."""
    stride, padding = (2, 1) if is_halved else (1, 0)
    return nn.Sequential(
        nn.Conv2d(channels, inner, 1, bias=False),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        nn.Conv2d(inner, width, 3, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class SSD(nn.Module):
    """The network.

    Shapes:
        images: (N, 3, 300, 300); places: (N, 4, 8732); scores: (N, 81, 8732).
    """

    def __init__(self) -> None:
        super().__init__()
        self.backbone = backbone()
        steps = enumerate(zip(WIDTHS, WIDTHS[1:], INNER_WIDTHS, strict=False))
        self.further = nn.ModuleList(
            further_map(channels, width, inner, is_halved=place < HALVED)
            for place, (channels, width, inner) in steps
        )
        self.place, self.score = (
            nn.ModuleList(
                nn.Conv2d(width, boxes * wide, 3, padding=1)
                for width, boxes in zip(WIDTHS, BOXES_PER_PLACE, strict=True)
            )
            for wide in (COORDINATES, CLASSES)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = [self.backbone(images)]
        for step in self.further:
            maps.append(step(maps[-1]))
        found = [
            torch.cat(
                [head(x).reshape(len(x), wide, -1) for head, x in zip(heads, maps, strict=True)], dim=2
            ).contiguous()
            for heads, wide in ((self.place, COORDINATES), (self.score, CLASSES))
        ]
        return found[0], found[1]


def loss(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    """Return the error of the boxes with an object and of up to three times as many without one."""
    places, scores = outputs
    wanted, labels = targets
    holds = labels > 0
    count = holds.sum(dim=1)
    distance = nn.functional.smooth_l1_loss(places, wanted, reduction="none").sum(dim=1)
    distance = (holds.float() * distance).sum(dim=1)
    confidence = nn.functional.cross_entropy(scores, labels, reduction="none")
    empty = torch.where(holds, 0.0, confidence)
    _, order = empty.sort(dim=1, descending=True)
    _, rank = order.sort(dim=1)
    hardest = rank < (3 * count).clamp(max=BOXES)[:, None]
    total = distance + (confidence * (holds.float() + hardest.float())).sum(dim=1)
    return (total * (count > 0).float() / count.float().clamp(min=1e-6)).mean()


def _batches(batch_size: int) -> tuple[tuple[Tensor, tuple[Tensor, Tensor]], ...]:
    targets = torch.randn(batch_size, COORDINATES, BOXES), torch.randint(CLASSES, (batch_size, BOXES))
    return ((torch.randn(batch_size, 3, SIDE, SIDE), targets),)


DEFINITION = defined(
    "ssd",
    "SSD300 on ResNet-50, 81 classes",
    "Liu and others 2015, arXiv:1512.02325; ResNet-50 and its strides as NVIDIA/DeepLearningExamples, SSD",
    model=SSD,
    optimizer=partial(torch.optim.SGD, lr=2.6e-3, momentum=0.9),
    batch_size=32,
    shape=(3, SIDE, SIDE),
    batches=_batches,
    loss=loss,
)
