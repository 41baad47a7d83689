"""The fp32 switches of torch: set in one order, read back, restored; and the proof that they took effect.

Legacy names come first and the new ones second: with only the new ones set, torch 2.13 raises when
``cudnn.allow_tf32`` is read; the other way round conv and rnn read ``none``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import torch

from gpubench.errors import GpuBenchError
from gpubench.models import Precision, Switches
from gpubench.precisions import PROOF_CHANNELS, PROOF_IMAGE, PROOF_SIZE, RECURRENT

HELD_IMAGES = 4
"""Of a convolution, which are held against float64: all of the largest take the host over a second."""
PROOF_TOKENS = 16
PROOF_WIDTH = 128
CONTROL_SCALES = (1, 4, 8)
"""Of the convolution, in turn until TF32 shows; an H100 computed the smallest in fp32 under TF32, too."""


class SwitchesRefusedError(GpuBenchError):
    """The switches do not read back as they were set."""


@contextmanager
def switches_for(precision: Precision) -> Iterator[Switches]:
    """Set the switches of a precision, give them as read back, and restore what was found.

    Raises:
        SwitchesRefusedError: If they do not read back as set.
    """
    before = read_switches()
    try:
        _set(Switches.wanted(precision))
        found = read_switches()
        if wrong := found.unexpected(precision):
            all_five = ", ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(found).items())
            raise SwitchesRefusedError(
                f"{precision} was set and {wrong} read back ({all_five}): "
                "this torch cannot be trusted with precision; please report it with its version"
            )
        yield found
    finally:
        _set(before)


def read_switches() -> Switches:
    """Read all five switches; None for those that this torch does not have (before 2.9)."""
    conv, rnn, matmul = _new_switches()
    return Switches(
        cudnn_allow_tf32=torch.backends.cudnn.allow_tf32,
        matmul_allow_tf32=torch.backends.cuda.matmul.allow_tf32,
        conv_fp32_precision=_read(conv),
        rnn_fp32_precision=_read(rnn),
        matmul_fp32_precision=_read(matmul),
    )


def probe_errors(
    device: torch.device, dtype: torch.dtype = torch.float32, *, scale: int = 1
) -> dict[str, float]:
    """Return the relative error of a float32 matmul and convolution against float64: setting is not effect.

    Inputs are normal with a fixed seed; the error is that of the whole result, ``|x - y| / |y|``.

    Args:
        device: Where they are computed.
        dtype: In which the results must come, another one under autocast; one in another type is NaN.
        scale: Times the channels and images of the smallest convolution.
    """
    sizes = (PROOF_SIZE, scale * PROOF_CHANNELS, PROOF_IMAGE, scale * HELD_IMAGES)
    with torch.no_grad():
        (a, b, image, kernel), exact = _proof(*sizes)
        found = {
            "matmul": (a.to(device) @ b.to(device)).cpu(),
            "conv": _convolve(image.to(device), kernel.to(device))[:HELD_IMAGES].cpu(),
        }
        return {
            name: relative_error(result, exact[name]) if result.dtype is dtype else math.nan
            for name, result in found.items()
        }


@lru_cache(maxsize=3)
def _proof(
    edge: int, channels: int, image_edge: int, images: int
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """The operands, and what they give in float64, which takes longest: computed once in a process."""
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (edge, edge),
        (edge, edge),
        (images, channels, image_edge, image_edge),
        (channels, channels, 3, 3),
    )
    operands = tuple(torch.randn(*shape, generator=generator) for shape in shapes)
    a, b, image, kernel = (operand.double() for operand in operands)
    return operands, {"matmul": a @ b, "conv": _convolve(image[:HELD_IMAGES], kernel)}


def _convolve(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(image, kernel, padding=1)


@dataclass(frozen=True)
class Control:
    """What shows that a proof of strict fp32 can fail on this device.

    Attributes:
        errors: Of the operators of the proof under TF32; empty where the device has none.
        scale: Of the convolution by which TF32 shows: cuDNN computes small ones in fp32 all the same.
    """

    errors: dict[str, float] = field(default_factory=dict)
    scale: int = CONTROL_SCALES[0]


def control_on(device: torch.device) -> Control:
    """Compute the operators of the proof under TF32, with the smallest convolution on which it shows.

    Where it shows on none the control is that of the largest, which fails.
    """
    limit = Precision.FP32.facts.error_limit("conv")
    with switches_for(Precision.TF32):
        recurrent = {RECURRENT: recurrent_error(device)}
        for scale in CONTROL_SCALES:
            control = Control(probe_errors(device, scale=scale) | recurrent, scale)
            if control.errors["conv"] > limit:
                break
    return control


def errors_on(
    device: torch.device, precision: Precision, *, recurrent: bool, scale: int = CONTROL_SCALES[0]
) -> dict[str, float]:
    """Return the errors by which a precision is proven, computed as the steps of its cases are."""
    name = precision.facts.autocast
    dtype = torch.float32 if name is None else getattr(torch, name)
    with torch.autocast(device.type, dtype=dtype) if name is not None else nullcontext():
        errors = probe_errors(device, dtype, scale=scale)
        return errors | {RECURRENT: recurrent_error(device)} if recurrent else errors


def recurrent_error(device: torch.device) -> float:
    """Return the relative error of a float32 LSTM layer against float64; inputs and weights as in a probe.

    Weights are scaled so that the gates are not saturated: a saturated layer forgives any error.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):  # a layer draws its first weights from the state of the case
        exact = torch.nn.LSTM(PROOF_WIDTH, PROOF_WIDTH).double()
    with torch.no_grad():
        for weight in exact.parameters():
            weight.copy_(torch.randn(*weight.shape, generator=generator) / math.sqrt(PROOF_WIDTH))
        single = copy.deepcopy(exact).float().to(device)
        inputs = torch.randn(PROOF_TOKENS, PROOF_IMAGE, PROOF_WIDTH, generator=generator)
        return relative_error(single(inputs.to(device))[0].cpu(), exact(inputs.double())[0])


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the error of a whole result, ``|x - y| / |y|``."""
    return float((found.double() - exact).norm() / exact.norm())


def _set(wanted: Switches) -> None:
    torch.backends.cudnn.allow_tf32 = wanted.cudnn_allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted.matmul_allow_tf32
    values = (wanted.conv_fp32_precision, wanted.rnn_fp32_precision, wanted.matmul_fp32_precision)
    for switch, value in zip(_new_switches(), values, strict=True):
        if switch is not None and value is not None:
            switch.fp32_precision = value


def _new_switches() -> tuple[Any, Any, Any]:
    """The three switches that torch has since 2.9; None each on an older one."""
    cudnn = torch.backends.cudnn
    found = (getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), torch.backends.cuda.matmul)
    if any(switch is None or not _has_name(switch) for switch in found):
        return None, None, None
    return found


def _has_name(switch: Any) -> bool:
    try:
        return isinstance(switch.fp32_precision, str)
    except (AttributeError, RuntimeError):  # older torch answers an unknown name with either
        return False


def _read(switch: Any) -> str | None:
    return None if switch is None else str(switch.fp32_precision)
