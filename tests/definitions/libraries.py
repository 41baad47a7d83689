"""The rows of the profile tables that are traced from networks of torchvision and timm.

These packages do not work with the CPU build of torch in the tests. Use a separate environment outside this folder::

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
from gpubench.models import TaskKind, WorkloadProfile
from gpubench.profile.trace import trace_operators
from gpubench.workload import Task, Workload, image_batches, seeded
from tools.published import PROFILES, published_bytes

KERAS = "a network of torchvision stands for that of Keras"
AUXILIARY_WEIGHT = {"inception_v3": 0.4, "googlenet": 0.3}
"""Weight of the losses of the auxiliary heads, from their papers."""


@dataclass(frozen=True)
class Network:
    """A classifier of a library.

    Attributes:
        library: The package.
        name: Name of the network there.
        side: Side of the square images [pixels].
        classes: Number of classes.
        approximate: Why the row is valid only for ratios of GPUs; empty otherwise.
        sized: Whether the network must be built for its image side.
    """

    library: str
    name: str
    side: int = 224
    classes: int = 1000
    approximate: str = ""
    sized: bool = False


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
"""The network behind each row, by the row's name."""

_TIMM_224 = """
    beit_base_patch16_224 caformer_s18 cait_s24_224 coatnet_0_rw_224 convformer_s18 convmixer_768_32
    convnext_atto convnext_base convnext_large convnext_small convnext_tiny convnextv2_base
    convnextv2_nano davit_small deit3_base_patch16_224 deit_small_patch16_224 densenet121 densenet201
    dla102x dla60 dpn68 dpn92 eca_nfnet_l0 ecaresnet50d efficientformer_l3 efficientnet_b0
    efficientvit_b1 ese_vovnet39b eva02_base_patch14_224 fbnetc_100 focalnet_base_lrf ghostnet_100
    gmlp_s16_224 hgnet_small hgnetv2_b4 hiera_base_224 hrnet_w32 inception_next_tiny lcnet_100 levit_256
    maxvit_tiny_tf_224 mixer_b16_224 mixnet_m mnasnet_100 mobilenetv2_100 mobilenetv3_large_100
    mobilenetv4_conv_medium mvitv2_small nest_tiny nextvit_small pit_s_224 poolformer_s24 pvt_v2_b2
    rdnet_tiny regnetx_032 regnetx_160 regnety_016 regnety_032 regnety_160 regnety_320 res2net50_26w_4s
    resmlp_24_224 resnest50d resnet101 resnet152 resnet18 resnet34 resnet50 resnetv2_50 resnext101_32x8d
    resnext50_32x4d rexnet_100 selecsls60 sequencer2d_s seresnet50 skresnet50
    swin_base_patch4_window7_224 swin_large_patch4_window7_224 swin_small_patch4_window7_224
    swin_tiny_patch4_window7_224 swinv2_cr_small_224 tf_efficientnet_b0 tiny_vit_21m_224
    tnt_s_patch16_224 tresnet_m twins_svt_base vgg11 vgg16 vgg19_bn visformer_small vit_base_patch16_224
    vit_base_patch32_224 vit_base_patch8_224 vit_huge_patch14_224 vit_large_patch16_224
    vit_small_patch16_224 vit_so400m_patch14_siglip_224 vit_tiny_patch16_224 volo_d1_224
    wide_resnet101_2 wide_resnet50_2 xcit_small_12_p16_224
"""
_TIMM_OTHER_SIDES = """
    botnet26t_256@256 crossvit_18_240@240 cs3darknet_l@256 cspresnet50@256 darknet53@256
    edgenext_small@256 efficientnet_b2@256 efficientnet_b4@320 efficientnetv2_m@320 efficientnetv2_s@288
    eva_large_patch14_196@196 gernet_l@256 halonet50ts@256 inception_v3@299 inception_v4@299
    mobilevit_s@256 mobilevitv2_100@256 nf_resnet50@256 nfnet_f0@192 swinv2_tiny_window8_256@256
    tf_efficientnetv2_s@300 vit_base_patch14_dinov2@518 vit_base_patch16_384@384
    vit_base_patch16_siglip_256@256 xception65@299
"""
_TORCHVISION_FORWARD = """
    densenet121 densenet161 densenet169 densenet201 mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3
    mobilenet_v3_large mobilenet_v3_small resnet101 resnet152 resnet18 resnet34 resnet50
    resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0
    shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 vgg11 vgg11_bn vgg13 vgg13_bn
    vgg16 vgg16_bn vgg19 vgg19_bn wide_resnet101_2 wide_resnet50_2
"""


def _timm(name: str, side: str) -> tuple[str, Network]:
    return f"{name}@{side}", Network("timm", name, side=int(side), sized=True)


FORWARD: Mapping[str, Network] = {
    **dict(_timm(name, "224") for name in _TIMM_224.split()),
    **dict(_timm(*each.split("@")) for each in _TIMM_OTHER_SIDES.split()),
    **{name: NETWORKS[name] for name in _TORCHVISION_FORWARD.split()},
}
"""The same for data/inference_profiles.csv.

Networks that timm times in another form than it trains (RepVGG, MobileOne and FastViT with merged branches) are
excluded.
"""


def loss(outputs: Tensor | tuple[Tensor, ...], targets: Tensor, *, auxiliary_weight: float) -> Tensor:
    """Return the cross entropy of the head, and of the auxiliary heads if there are any."""
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

        try:
            side = {"img_size": network.side} if network.sized else {}
            return timm.create_model(network.name, num_classes=network.classes, **side)
        except TypeError:  # this network takes images of any side
            return timm.create_model(network.name, num_classes=network.classes)
    import torchvision

    options = {"init_weights": False} if network.name in AUXILIARY_WEIGHT else {}
    return torchvision.models.get_model(network.name, weights=None, num_classes=network.classes, **options)


def profile_of(network: Network) -> WorkloadProfile:
    """Trace a network of an installed library."""
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
    """Return the source as the row states it."""
    parts = [f"{network.library} {library_version}", network.name]
    if network.classes != Network.classes:
        parts.append(f"{network.classes} classes")
    return ", ".join([*parts, f"{network.side} x {network.side}"])


def lines(names: list[str], task: TaskKind) -> Iterator[str]:
    """Yield the rows of these models; without names, every row that differs from its trace."""
    networks = NETWORKS if task is TaskKind.TRAIN else FORWARD
    table = {row[0]: row for row in csv.reader(published_bytes(PROFILES[task]).decode().splitlines())}
    for name in [n for n in names if n in networks] or ([] if names else networks):
        network = networks[name]
        words = source(network, version(network.library))
        traced = line(name, profile_of(network), words, network.approximate, task)
        if names or next(csv.reader([traced])) != table.get(name):
            yield traced


if __name__ == "__main__":
    for task in TaskKind:
        for row in lines(sys.argv[1:], task):
            print(f"{PROFILES[task]}: {row}", flush=True)
