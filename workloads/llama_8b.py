"""Llama 3 8B inference: process a prompt, then generate one token at a time with a key-value cache."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual alias

from gpubench.errors import MisuseError
from gpubench.models import DecodeWork, Recipe, TaskKind, WeightType
from gpubench.workload import Task, Workload, seeded, token_batches
from gpubench_workloads._decoder_blocks import (
    DecoderLayer,
    NarrowEmbedding,
    NarrowLinear,
    RmsNorm,
    Rotation,
    Sizes,
    attend,
    rotation,
)
from gpubench_workloads._llama import LLAMA_8B, REFERENCE_TOKENS, SOURCE, TINY, dtype_of

CONTEXT = 8192
"""Context length of the model."""


class Generator(nn.Module):
    """A decoder with a key-value cache of fixed length.

    A call processes a prompt and fills the cache; ``next`` adds one token to every sequence. Both return the
    logits of the following token, (N, vocabulary).

    Shapes:
        tokens: (N, T) int64, with T below the length of the cache.
    """

    def __init__(self, sizes: Sizes, cache_tokens: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes, self.cache_tokens = sizes, cache_tokens

        def make(inputs: int, outputs: int, *, adapted: bool) -> nn.Module:
            del adapted
            return NarrowLinear(inputs, outputs, dtype)

        self.words = NarrowEmbedding(sizes.vocabulary, sizes.width, dtype=dtype)
        self.layers = nn.ModuleList(DecoderLayer(sizes, make, dtype) for _ in range(sizes.layers))
        self.norm = RmsNorm(sizes.width, sizes.epsilon, dtype)
        self.head = NarrowLinear(sizes.width, sizes.vocabulary, dtype)
        self.requires_grad_(requires_grad=False)
        self.cache: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Process the prompts, which have the same length."""
        length = tokens.shape[1]
        angles = rotation(torch.arange(length, device=tokens.device), self.sizes)
        x = self.words(tokens)
        cache = self._cache_for(x)
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            assert isinstance(layer, DecoderLayer)
            query, key, value = layer.attention.projected(layer.attention_norm(x), angles)
            keys[: len(x), :, :length] = key
            values[: len(x), :, :length] = value
            x = x + layer.attention.combined(attend(query, key, value))
            x = x + layer.network(layer.network_norm(x))
        return self._scores(x[:, -1])

    def next(self, ids: Tensor, place: Tensor) -> Tensor:
        """Process one token of every sequence.

        Shapes:
            ids: (N,) int64; place: (1,) int64, the number of preceding tokens.
        """
        angles = rotation(place, self.sizes)
        seen = torch.arange(self.cache_tokens, device=ids.device) <= place
        x = self.words(ids)[:, None]
        assert self.cache is not None
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            assert isinstance(layer, DecoderLayer)
            cache = keys[: len(x)], values[: len(x)]
            x = x + _attend_cached(layer, x, angles, (place, seen), cache)
            x = x + layer.network(layer.network_norm(x))
        return self._scores(x[:, -1])

    def _scores(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(x))
        return scores.float()

    def _cache_for(self, x: Tensor) -> Tensor:
        """Return keys and values of every layer, kept until the batch grows or device or type change."""
        cache = self.cache
        if cache is None or cache.device != x.device or cache.dtype != x.dtype or cache.shape[2] < len(x):
            sizes = self.sizes
            shape = (sizes.layers, 2, len(x), sizes.key_value_heads, self.cache_tokens, sizes.head_width)
            with torch.inference_mode(mode=False):  # later steps outside inference mode write to it too
                cache = self.cache = x.new_zeros(shape)
        return cache


def _attend_cached(
    layer: DecoderLayer,
    x: Tensor,
    angles: Rotation,
    where: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
) -> Tensor:
    """Attend from one token to the cache up to its position.

    Heads that share a key take the place of the query dimension, so no key is copied.

    Shapes:
        x: (N, 1, width); where: place (1,) int64 and the mask of visible positions (length,) bool; cache:
            keys and values, (N, key heads, length, channels) each.
    """
    (place, seen), (keys, values) = where, cache
    attention = layer.attention
    query, key, value = attention.projected(layer.attention_norm(x), angles)
    keys.index_copy_(2, place, key)
    values.index_copy_(2, place, value)
    grouped = query.unflatten(1, (attention.key_value_heads, -1)).squeeze(3)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[None, None, None])
    return attention.combined(out.flatten(1, 2).unsqueeze(2))


def _check(recipe: Recipe, context: int = CONTEXT) -> None:
    if recipe.cache_tokens > context:
        raise MisuseError(
            f"llama_8b: a prompt of {recipe.prompt_tokens:,} tokens and {recipe.new_tokens:,} new ones "
            f"exceed the model's context of {context:,} tokens; shorten one of them"
        )


def build(batch_size: int, seed: int, *, sizes: Sizes, recipe: Recipe, context: int = CONTEXT) -> Task:
    """Build the decoder and four batches of random prompts.

    Shapes:
        inputs: (N, prompt) int64; targets: (N,) int64 in [1, 5); scores: (N, vocabulary).

    Args:
        batch_size: N, sequences that are generated in parallel.
        seed: Fixes weights and batches; equal seeds give equal tasks.
        sizes: Sizes of the decoder.
        recipe: Tokens of prompt and answer, weight type.
        context: Context length of the model.

    Raises:
        MisuseError: If prompt and answer are longer than the context.
    """
    _check(recipe, context)
    with seeded(seed):
        model = Generator(sizes, recipe.cache_tokens, dtype_of(recipe))
        batches = token_batches(batch_size, recipe.prompt_tokens, sizes.vocabulary)
    return Task(
        model=model,
        batches=batches,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-4),
        reference_tokens=REFERENCE_TOKENS,
        new_tokens=recipe.new_tokens,
        decode=_decode_work(sizes, recipe),
    )


def _decode_work(sizes: Sizes, recipe: Recipe) -> DecodeWork:
    """Return the work per new token, which reads every weight, but only one row of the embedding."""
    narrow = sizes.head_width * sizes.key_value_heads
    layer = 2 * sizes.width * (sizes.width + narrow) + 3 * sizes.width * sizes.forward
    quantized = float(sizes.layers * layer + sizes.vocabulary * sizes.width)
    norms = 2 * sizes.layers + 1  # in 2 bytes per weight
    return DecodeWork(
        weight_bytes=quantized * recipe.weight_type.bytes_each + 2.0 * sizes.width * norms,
        cache_bytes_per_token=2.0 * 2 * sizes.layers * narrow,
        flops_per_token=2 * quantized,
    )


_RECIPE = Recipe(weight_type=WeightType.BFLOAT16, prompt_tokens=512, new_tokens=128, cache_tokens=640)
_TINY_RECIPE = Recipe(weight_type=WeightType.BFLOAT16, prompt_tokens=12, new_tokens=4, cache_tokens=16)

WORKLOAD = Workload(
    name="llama_8b",
    summary="Llama 3 8B inference: a prompt of 512 tokens, 128 new ones",
    version=1,
    sample_unit="sequence",
    sample_shape=(512,),
    batches=(1, 8, 32),
    is_image=False,
    source=SOURCE,
    build=partial(build, sizes=LLAMA_8B, recipe=_RECIPE),
    tiny=partial(build, sizes=TINY, recipe=_TINY_RECIPE, context=32),
    tasks=(TaskKind.INFER,),
    recipe=_RECIPE,
    settings=("weight_type", "prompt_tokens", "new_tokens", "cache_tokens"),
    precisions=("bf16",),
    variants=(
        _RECIPE.changed({"prompt_tokens": 2048}),
        _RECIPE.changed({"weight_type": WeightType.INT8}),
        _RECIPE.changed({"weight_type": WeightType.INT4}),
    ),
    is_classic=False,
    check=_check,
)
