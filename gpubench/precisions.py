"""Precisions of a training step and number formats of matrix products, with all facts about each.

A new precision is a member of ``Precision`` and a row of ``_FACTS``. ``measure.quantize`` adds what autocast
cannot do (fp8 and int8). A rate that is new to predictions needs a ``Mode`` in ``predict.chips``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Literal

import msgspec

AMP = "amp"
"""The user's name for the best AMP precision of a device: see ``best_amp``."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A number format of matrix products, for a micro-benchmark and a column of a datasheet.

    Attributes:
        name: The name in micro-benchmarks and in the drivers' lists of formats.
        peak: The field of ``GpuSpec`` with the dense peak rate.
        on_tensor_cores: Whether that peak is a tensor-core rate.
        torch_type: Torch's type for the timed operands; None if torch cannot multiply in this format.
        sizes: Edge lengths of the square matrices that are multiplied on a GPU.
        usual_share: Share of the peak that the best of these sizes reaches on a healthy H200.
        unit: Unit of the rates: integer products are not floating-point operations.
    """

    name: str
    peak: str
    on_tensor_cores: bool = True
    torch_type: str | None = None
    sizes: tuple[int, ...] = ()
    usual_share: float | None = None
    unit: Literal["FLOP/s", "OP/s"] = "FLOP/s"

    @property
    def words(self) -> str:
        """The format and its hardware units: "bf16, tensor cores"."""
        return f"{self.name}, tensor cores" if self.on_tensor_cores else self.name


FP32 = Format(
    name="fp32",
    peak="fp32_flops_per_s",
    on_tensor_cores=False,
    torch_type="float32",
    sizes=(4096, 8192),
    usual_share=0.77,
)
TF32 = Format(
    name="tf32",
    peak="tf32_tensor_flops_per_s",
    torch_type="float32",
    sizes=(4096, 8192, 16384),
    usual_share=0.70,
)
FP16 = Format(
    name="fp16",
    peak="fp16_tensor_flops_per_s",
    torch_type="float16",
    sizes=(4096, 8192, 16384),
    usual_share=0.67,
)
BF16 = Format(
    name="bf16",
    peak="bf16_tensor_flops_per_s",
    torch_type="bfloat16",
    sizes=(4096, 8192, 16384),
    usual_share=0.71,
)
FP8 = Format(
    name="fp8",
    peak="fp8_tensor_flops_per_s",
    torch_type="float8_e4m3fn",
    sizes=(4096, 8192, 16384),
)
INT8 = Format(
    name="int8",
    peak="int8_ops_per_s",
    torch_type="int8",
    sizes=(4096, 8192, 16384),
    unit="OP/s",
)
FORMATS = (FP32, TF32, FP16, BF16, FP8, INT8)


RECURRENT = "rnn"
"""The name of a recurrent layer among the operators compared with float64."""


class PrecisionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties, requirements and error limits of a precision.

    Attributes:
        format: The format of most products.
        words: Display name.
        autocast: The torch type of autocast; None if autocast is off.
        whole_model: The torch type of weights, activations and optimizer state; None if the weights are
            float32. A precision with this type is measured only if a workload or a user requests it.
        comes_with: Another precision; a workload that supports that one also supports this one.
        in_blocks: Whether it applies only to the linear layers of repeated blocks.
        only: The only task that supports it, "train" or "infer"; None for both.
        scales_gradients: Whether training needs a gradient scaler.
        tf32: Whether torch's fp32 switches allow TF32; under AMP, for operators that autocast leaves in fp32.
        product_error: Largest relative error of a matrix product or convolution against float64.
        recurrent_error: The same for a recurrent layer, where rounding errors add up; None to use
            ``product_error``.
        loss_error: Largest relative difference of the first loss from the loss in float32 on the CPU.
        least_capability: Lowest CUDA compute capability with hardware support; None if all have it.
        hardware: What a GPU with a lower capability lacks, in words.
        of_nvidia: Whether only NVIDIA tensor cores support it.
        needs_rate: Whether a GPU of another vendor supports it only if its datasheet has a rate for
            ``format``.
        on_cpu: Whether a CPU may support it, depending on its instructions for ``format`` and
            ``whole_model``.
        needs: The additional package that implements it.
        keras_policy: Keras's name for its types; None if it has none. fp32 and tf32 share a name, because
            the backend decides between them.
        predicted_as: The name of its ``Mode`` in ``predict.chips``; None without published speeds.
    """

    format: Format
    words: str
    autocast: str | None = None
    whole_model: str | None = None
    comes_with: str | None = None
    in_blocks: bool = False
    only: Literal["train", "infer"] | None = None
    scales_gradients: bool = False
    tf32: bool = True
    product_error: float = 1e-2
    recurrent_error: float | None = None
    loss_error: float
    least_capability: tuple[int, int] | None = None
    hardware: str | None = None
    of_nvidia: bool = False
    needs_rate: bool = False
    on_cpu: bool = False
    needs: str | None = None
    keras_policy: str | None = None
    predicted_as: Literal["fp32", "tf32", "half"] | None = None

    def error_limit(self, operator: str) -> float:
        """Return the largest allowed relative error against float64 of ``matmul``, ``conv`` or ``rnn``."""
        if operator == RECURRENT and self.recurrent_error is not None:
            return self.recurrent_error
        return self.product_error


class Precision(StrEnum):
    """The precision of a step.

    ``fp32`` is IEEE, with TF32 off in matmul, convolution and RNN. AMP is autocast, at fp16 with GradScaler.
    ``bf16`` is the entire model in bfloat16, weights included, as is usual for large language models. ``fp8``
    adds 8-bit products in the linear layers of the blocks, for training; ``int8`` stores weights and
    activations of the linear layers as 8-bit integers, for inference.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"

    @property
    def facts(self) -> PrecisionFacts:
        """All other facts about this precision."""
        return _FACTS[self]

    @property
    def is_amp(self) -> bool:
        """Whether autocast is on."""
        return self.facts.autocast is not None

    @property
    def in_half(self) -> bool:
        """Whether activations take 2 bytes per element, by autocast or by casting the entire model."""
        return self.is_amp or self.facts.whole_model is not None

    @property
    def is_usual(self) -> bool:
        """Whether every workload supports it on a capable device: not if the weights must be cast."""
        return self.facts.whole_model is None

    @property
    def words(self) -> str:
        """The precision in words."""
        return self.facts.words

    def why_not_for(self, task: str) -> str | None:
        """Return why a task, "train" or "infer", does not support it; None if it does."""
        only = self.facts.only
        if only in {None, task}:
            return None
        other = "inference (--task infer)" if only == "infer" else "training (--task train)"
        return f"{self} is a precision for {other} only"

    def within(self, capability: tuple[int, int] | None) -> bool:
        """Return whether a CUDA compute capability is high enough; False if it is needed but unknown."""
        least = self.facts.least_capability
        return least is None or (capability is not None and capability >= least)


TORCHAO = "torchao"
"""The package for 8-bit products and for weights of 8 bits or fewer."""
_AMPERE = (8, 0)
_FACTS = {
    # Relative errors of a product, measured on an H200: fp32 5e-7, tf32 3e-4, fp16 4e-4, bf16 3e-3.
    Precision.FP32: PrecisionFacts(
        format=FP32,
        words="fp32 (IEEE, TF32 off)",
        tf32=False,
        product_error=1e-5,
        # The geometric mean of an LSTM's errors in IEEE fp32, 5.7e-6, and in TF32, 3.6e-4.
        recurrent_error=4.5e-5,
        loss_error=1e-4,
        on_cpu=True,
        keras_policy="float32",
        predicted_as="fp32",
    ),
    Precision.TF32: PrecisionFacts(
        format=TF32,
        words="tf32",
        loss_error=1e-2,
        least_capability=_AMPERE,
        hardware="TF32 tensor cores",
        of_nvidia=True,
        keras_policy="float32",
        predicted_as="tf32",
    ),
    Precision.AMP_FP16: PrecisionFacts(
        format=FP16,
        words="amp-fp16",
        autocast="float16",
        scales_gradients=True,
        loss_error=2e-2,
        keras_policy="mixed_float16",
        predicted_as="half",
    ),
    # Below capability 8.0 bf16 is emulated and slow, and is known to give NaN.
    Precision.AMP_BF16: PrecisionFacts(
        format=BF16,
        words="amp-bf16",
        autocast="bfloat16",
        loss_error=2e-2,
        least_capability=_AMPERE,
        hardware="BF16 hardware",
        needs_rate=True,
        on_cpu=True,
        keras_policy="mixed_bfloat16",
        predicted_as="half",
    ),
    Precision.BF16: PrecisionFacts(
        format=BF16,
        words="bf16 (weights too)",
        whole_model="bfloat16",
        loss_error=2e-2,
        least_capability=_AMPERE,
        hardware="BF16 hardware",
        needs_rate=True,
        on_cpu=True,
        keras_policy="bfloat16",
        predicted_as="half",
    ),
    # Products of Gaussian numbers are off by 3.6 % in e4m3, with three mantissa bits, and by 6 % in e5m2 (two
    # bits), the type of gradients.
    Precision.FP8: PrecisionFacts(
        format=FP8,
        words="fp8 (linear layers of the blocks, otherwise bf16)",
        whole_model="bfloat16",
        comes_with="bf16",
        in_blocks=True,
        only="train",
        product_error=8e-2,
        loss_error=8e-2,
        least_capability=(8, 9),
        hardware="FP8 tensor cores",
        of_nvidia=True,
        needs=TORCHAO,
    ),
    # 127 steps up to a row's largest value: products of Gaussian numbers are off by 0.9 %, rounding to bf16
    # included.
    Precision.INT8: PrecisionFacts(
        format=INT8,
        words="int8 (linear layers, otherwise bf16)",
        whole_model="bfloat16",
        comes_with="bf16",
        only="infer",
        product_error=2e-2,
        loss_error=5e-2,
        least_capability=_AMPERE,
        hardware="BF16 hardware",
        on_cpu=True,
        needs=TORCHAO,
    ),
}

CHOICES = (AMP, *Precision)
"""Values that a user may give."""

PROOF_SIZE, PROOF_CHANNELS, PROOF_IMAGE = 512, 32, 16
"""Edge length of the matrices, and channels and image edge of the convolution, in a precision test."""

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""Environment variable that NVIDIA's libraries read at loading: 0 disables TF32 in the process."""
TF32_VARIABLES = (TF32_OVERRIDE, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Environment variables that override torch's TF32 switches."""
CPU_MATH_VARIABLES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Environment variables that allow oneDNN to compute fp32 with fewer bits on a CPU."""


def forcing_tf32(variables: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that turn on TF32 despite strict fp32."""
    return [name for name in TF32_VARIABLES if variables.get(name, "") not in {"", "0"}]


def forcing_fewer_bits(variables: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that lower the precision of fp32 on a CPU."""
    return [name for name in CPU_MATH_VARIABLES if variables.get(name, "").upper() not in {"", "STRICT"}]


def in_memory(name: str) -> Precision:
    """Return a precision by name, for questions of memory: ``amp`` is fp16, since bf16 has the same size."""
    return Precision.AMP_FP16 if name == AMP else Precision(name)


def best_amp(has: Callable[[Precision], bool]) -> Precision:
    """Return the precision that ``amp`` means on a device: bf16 if supported, else fp16."""
    return Precision.AMP_BF16 if has(Precision.AMP_BF16) else Precision.AMP_FP16
