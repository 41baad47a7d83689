"""Decoders of the Llama 3 family: full fine-tuning and adapters, at sizes that buyers ask about."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual alias

from gpubench.models import Checkpointing, ParallelMode, Recipe, TaskKind, Trainable, WeightType
from gpubench.workload import CASTS, Batch, Task, Workload, seeded, token_batches
from gpubench_workloads._decoder_blocks import (
    DecoderLayer,
    LoraLinear,
    MakeLinear,
    NarrowEmbedding,
    NarrowLinear,
    RmsNorm,
    Sizes,
    checkpointed,
    chunked_cross_entropy,
    rotation,
)

ADAPTER_RANK = 16
REFERENCE_TOKENS = 32
"""Tokens per reference sample. At 8 billion parameters, a forward pass of four samples is 2 TFLOP: seconds on
a CPU."""
SOURCE = "Grattafiori and others 2024, The Llama 3 Herd of Models, arXiv:2407.21783"

LLAMA_1B = Sizes(
    vocabulary=128_256, width=2048, layers=16, heads=32, key_value_heads=8, forward=8192, tied=True
)
LLAMA_8B = Sizes(vocabulary=128_256, width=4096, layers=32, heads=32, key_value_heads=8, forward=14_336)
LLAMA_70B = Sizes(vocabulary=128_256, width=8192, layers=80, heads=64, key_value_heads=8, forward=28_672)
TINY = Sizes(vocabulary=64, width=32, layers=2, heads=4, key_value_heads=2, forward=64)
TINY_TIED = Sizes(vocabulary=64, width=32, layers=2, heads=4, key_value_heads=2, forward=64, tied=True)


class Decoder(nn.Module):
    """Embedding, decoder layers, norm and head; it returns the loss, never the logits of all tokens.

    Shapes:
        tokens, targets: (N, T) int64; out: a scalar, the mean loss over every token.
    """

    def __init__(self, sizes: Sizes, recipe: Recipe, dtype: torch.dtype, make: MakeLinear) -> None:
        super().__init__()
        self.sizes, self.recipe = sizes, recipe
        self.words = NarrowEmbedding(sizes.vocabulary, sizes.width, dtype=dtype)
        self.layers = nn.ModuleList(DecoderLayer(sizes, make, dtype) for _ in range(sizes.layers))
        self.norm = RmsNorm(sizes.width, sizes.epsilon, dtype)
        self.head = None if sizes.tied else NarrowLinear(sizes.width, sizes.vocabulary, dtype)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Score each token against its target."""
        angles = rotation(torch.arange(tokens.shape[1], device=tokens.device), self.sizes)
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpointed(layer, self.recipe.checkpointing)(x, angles)
        weight = self.words.weight if self.head is None else self.head.weight
        return chunked_cross_entropy(
            self.norm(x), lambda rows: F.linear(rows, weight), targets, self.recipe.loss_chunks
        )


def dtype_of(recipe: Recipe) -> torch.dtype:
    """Return the type in which a model is built; quantization happens on the device, from bfloat16."""
    is_cast = recipe.weight_type in CASTS
    return getattr(torch, recipe.weight_type) if is_cast else torch.bfloat16  # type: ignore[no-any-return]


def scored_batches(batch_size: int, length: int, vocabulary: int) -> tuple[Batch, ...]:
    """Draw batches for a model that computes its own loss, with targets among the inputs."""
    drawn = token_batches(batch_size, length, vocabulary, label_each_token=True)
    return tuple(((tokens, labels), labels) for tokens, labels in drawn)


def given_loss(loss: Tensor, targets: Tensor) -> Tensor:
    """Return the loss computed by the model."""
    del targets
    return loss


def build(batch_size: int, seed: int, *, sizes: Sizes, recipe: Recipe, length: int = 2048) -> Task:
    """Build a decoder for full fine-tuning or adapters, and four batches of random tokens.

    Shapes:
        inputs: tokens and targets, (N, length) int64 each; targets in [1, 5); the model gives its loss.

    Args:
        batch_size: N, sequences per step.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        sizes: Sizes of the decoder.
        recipe: Weight type, checkpointing, adapters, loss chunks.
        length: Default number of tokens per sequence.
    """
    length, dtype = recipe.context_tokens or length, dtype_of(recipe)
    with seeded(seed):
        model = Decoder(sizes, recipe, dtype, partial(_linear, dtype=dtype, recipe=recipe))
        if recipe.trainable is not Trainable.FULL:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(".down." in name or ".up." in name)
        batches = scored_batches(batch_size, length, sizes.vocabulary)
    return Task(
        model=model,
        batches=batches,
        loss=given_loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-4),
        reference_tokens=REFERENCE_TOKENS,
    )


def _linear(inputs: int, outputs: int, *, adapted: bool, dtype: torch.dtype, recipe: Recipe) -> nn.Module:
    layer = NarrowLinear(inputs, outputs, dtype)
    if adapted and recipe.trainable is not Trainable.FULL:
        return LoraLinear(layer, inputs, outputs, ADAPTER_RANK, dtype)
    return layer


_SETTINGS = ("weight_type", "checkpointing", "loss_chunks", "context_tokens")
_TINY_LENGTH = 16
_FULL = Recipe(weight_type=WeightType.BFLOAT16, loss_chunks=8)
_LORA = Recipe(
    weight_type=WeightType.BFLOAT16,
    checkpointing=Checkpointing.FULL,
    trainable=Trainable.LORA,
    loss_chunks=8,
)
_SHARDED = Recipe(weight_type=WeightType.BFLOAT16, checkpointing=Checkpointing.SELECTIVE, loss_chunks=8)
_LARGE = Recipe(weight_type=WeightType.BFLOAT16, checkpointing=Checkpointing.FULL, loss_chunks=8)
_QLORA = Recipe(
    weight_type=WeightType.NF4, checkpointing=Checkpointing.FULL, trainable=Trainable.QLORA, loss_chunks=8
)

ONE = Workload(
    name="llama_1b",
    summary="Llama 3.2 1B, full fine-tuning",
    version=1,
    sample_unit="sequence",
    sample_shape=(2048,),
    batches=(1, 4, 8),
    is_image=False,
    source=SOURCE,
    build=partial(build, sizes=LLAMA_1B, recipe=_FULL),
    tiny=partial(build, sizes=TINY_TIED, recipe=_FULL, length=_TINY_LENGTH),
    tasks=(TaskKind.TRAIN,),
    recipe=_FULL,
    settings=_SETTINGS,
    precisions=("bf16", "amp"),
    variants=(
        Recipe(loss_chunks=8),
        Recipe(weight_type=WeightType.BFLOAT16, checkpointing=Checkpointing.FULL, loss_chunks=8),
        Recipe(checkpointing=Checkpointing.FULL, loss_chunks=8),
    ),
    is_classic=False,
)
EIGHT_LORA = Workload(
    name="llama_8b_lora",
    summary="Llama 3 8B, LoRA adapters on a frozen base",
    version=1,
    sample_unit="sequence",
    sample_shape=(2048,),
    batches=(1, 2, 4),
    is_image=False,
    source=f"{SOURCE}; adapters of Hu and others 2021, arXiv:2106.09685",
    build=partial(build, sizes=LLAMA_8B, recipe=_LORA),
    tiny=partial(build, sizes=TINY, recipe=_LORA, length=_TINY_LENGTH),
    tasks=(TaskKind.TRAIN,),
    recipe=_LORA,
    settings=_SETTINGS,
    precisions=("bf16",),
    is_classic=False,
)
EIGHT_QLORA = replace(
    EIGHT_LORA,
    name="llama_8b_qlora",
    summary="Llama 3 8B, QLoRA adapters on a base in 4 bits",
    source=f"{SOURCE}; Dettmers and others 2023, QLoRA, arXiv:2305.14314",
    build=partial(build, sizes=LLAMA_8B, recipe=_QLORA),
    tiny=partial(build, sizes=TINY, recipe=_QLORA, length=_TINY_LENGTH),
    recipe=_QLORA,
    settings=("checkpointing", "loss_chunks", "context_tokens"),
)
EIGHT_FSDP = replace(
    ONE,
    name="llama_8b_fsdp",
    summary="Llama 3 8B, full fine-tuning, 8,192 tokens",
    sample_shape=(8192,),
    batches=(1, 2),
    build=partial(build, sizes=LLAMA_8B, recipe=_SHARDED, length=8192),
    tiny=partial(build, sizes=TINY, recipe=_SHARDED, length=_TINY_LENGTH),
    recipe=_SHARDED,
    precisions=("bf16",),
    variants=(_LARGE,),
    checkpointing_from=((1, Checkpointing.FULL), (8, Checkpointing.SELECTIVE)),
    parallel_mode=ParallelMode.FSDP,
)
SEVENTY = replace(
    EIGHT_FSDP,
    name="llama_70b",
    summary="Llama 3 70B, full fine-tuning: fit and rank",
    build=partial(build, sizes=LLAMA_70B, recipe=_LARGE, length=8192),
    tiny=partial(build, sizes=TINY, recipe=_LARGE, length=_TINY_LENGTH),
    recipe=_LARGE,
    variants=(),
    checkpointing_from=(),
    is_run=False,
)
