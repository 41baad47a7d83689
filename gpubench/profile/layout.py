"""Whether a step can use channels_last images (faster at half precision), or run under autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gpubench.foreign_code import lacks_memory, one_line
from gpubench.models import TaskKind
from gpubench.profile.quick_fakes import gpu_without_values
from gpubench.profile.values import Reads, given
from gpubench.tensors import with_tensors
from gpubench.workload import Workload, forward, seeded, set_mode

IMAGE_DIMENSIONS = 4
"""Number of dimensions of a batch of images."""
_BATCH, _SEED = 2, 0


def why_contiguous(workload: Workload, reads: Reads | None) -> str | None:
    """Say why a step fails if its images are channels_last, but not if they are contiguous; None otherwise.

    A view that merges dimensions, for example, requires contiguous images. Fake tensors show this, because
    they track the layout of every result.

    Args:
        workload: Any workload; None is returned if it has no images.
        reads: The values that a step reads from its tensors; if None (unknown), real tensors are used.
    """
    if not workload.is_image:
        return None
    with nullcontext() if reads is None else gpu_without_values():
        try:
            _step(workload, torch.contiguous_format, given(reads or {}))
        except Exception:  # noqa: BLE001 - it fails in any layout
            return None
        try:
            _step(workload, torch.channels_last, given(reads or {}))
        except Exception as error:  # noqa: BLE001 - the author's code
            return one_line(error)
    return None


def why_no_amp(workload: Workload) -> str | None:
    """Say why a step that reads tensor values fails under autocast on the CPU; None if it works.

    Running out of memory here says nothing about autocast.
    """
    try:
        _step(workload, torch.contiguous_format, torch.autocast("cpu", dtype=torch.bfloat16))
    except Exception as error:  # noqa: BLE001 - the author's code, which ran in full precision
        return None if lacks_memory(error) else one_line(error)
    return None


def _step(
    workload: Workload, layout: torch.memory_format, how: AbstractContextManager[Any] | None = None
) -> None:
    def laid(tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=layout) if tensor.dim() == IMAGE_DIMENSIONS else tensor

    with seeded(_SEED):
        task = workload.build(_BATCH, _SEED)
        model = set_mode(task.model, train=TaskKind.TRAIN in workload.tasks)
        for module in model.modules():
            for name, weight in module._parameters.items():  # noqa: SLF001 - torch's parameter swaps reject fake tensors
                if weight is not None and weight.dim() == IMAGE_DIMENSIONS:
                    module._parameters[name] = torch.nn.Parameter(laid(weight.detach()), weight.requires_grad)  # noqa: SLF001 - as above
        inputs, targets = task.batches[0]
        with how or nullcontext():
            outputs = forward(model, with_tensors(inputs, laid))
            loss = task.loss(outputs, targets) if model.training else None
        if loss is not None:
            loss.backward()
