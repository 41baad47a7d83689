"""ResNet-50 and ResNet-152 as milabench trains them: SGD without momentum, and Adam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from definitions.blocks import defined
from gpubench.workload import Workload
from gpubench_workloads.resnet50 import DEPTHS_50, ResNet

DEPTHS_152 = (3, 8, 36, 3)


def _definition(
    name: str, depths: Sequence[int], optimizer: Callable[..., torch.optim.Optimizer]
) -> Workload:
    source = "He, Zhang, Ren and Sun 2015, arXiv:1512.03385, table 1; stride on the 3 x 3"
    model = partial(ResNet, depths, 64, 1000)
    return defined(name, name, source, model=model, optimizer=optimizer, batch_size=128, count=1)


RESNET50 = _definition("resnet50_sgd", DEPTHS_50, partial(torch.optim.SGD, lr=0.01, foreach=True))
RESNET152 = _definition("resnet152_adam", DEPTHS_152, partial(torch.optim.Adam, lr=1e-3, foreach=True))
