"""The decoders that show the capacity of a card: 1 to 70 billion parameters, for training and inference.

A "sample" here is 1,024 tokens of one sequence, so a larger batch is a longer sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import msgspec

from gpubench.models import Checkpointing, Recipe, TaskKind, Trainable, WeightType
from gpubench.workload import Task, Workload
from gpubench_workloads import _llama, llama_8b
from gpubench_workloads._decoder_blocks import Sizes
from gpubench_workloads._llama import LLAMA_1B, LLAMA_8B, LLAMA_70B

UNIT_TOKENS = 1024
NEW_TOKENS = 128
FAMILY = {
    "Llama 3.2 1B": LLAMA_1B,
    "Llama 3.2 3B": Sizes(
        vocabulary=128_256, width=3072, layers=28, heads=24, key_value_heads=8, forward=8192, tied=True
    ),
    "Llama 3 8B": LLAMA_8B,
    "Qwen2.5 14B": Sizes(
        vocabulary=152_064, width=5120, layers=48, heads=40, key_value_heads=8, forward=13_824
    ),
    "Qwen2.5 32B": Sizes(
        vocabulary=152_064, width=5120, layers=64, heads=40, key_value_heads=8, forward=27_648
    ),
    "Llama 3 70B": LLAMA_70B,
}
"""Llama: arXiv:2407.21783 and the published sizes of 3.2; Qwen2.5: arXiv:2412.15115, without biases."""
_TRAINED = {
    "full": (WeightType.BFLOAT16, Trainable.FULL),
    "LoRA": (WeightType.BFLOAT16, Trainable.LORA),
    "QLoRA": (WeightType.NF4, Trainable.QLORA),
}
_RUN = {
    "decode, 16 bits": WeightType.BFLOAT16,
    "decode, 8 bits": WeightType.INT8,
    "decode, 4 bits": WeightType.INT4,
}


def ways(sizes: Sizes) -> Iterator[tuple[str, Workload]]:
    """Yield the ways to train or run a decoder of these sizes."""
    for way, (weight_type, trainable) in _TRAINED.items():
        recipe = Recipe(
            weight_type=weight_type, checkpointing=Checkpointing.FULL, trainable=trainable, loss_chunks=8
        )
        yield way, replace(_llama.ONE, recipe=recipe, build=partial(_trained, sizes=sizes, recipe=recipe))
    for way, weight_type in _RUN.items():
        recipe = Recipe(weight_type=weight_type)
        made = replace(llama_8b.WORKLOAD, recipe=recipe, build=partial(_run, sizes=sizes, recipe=recipe))
        yield way, replace(made, tasks=(TaskKind.INFER,))


def _trained(units: int, seed: int, *, sizes: Sizes, recipe: Recipe) -> Task:
    return _llama.build(1, seed, sizes=sizes, recipe=recipe, length=UNIT_TOKENS * units)


def _run(units: int, seed: int, *, sizes: Sizes, recipe: Recipe) -> Task:
    """Build a prompt that fills the context except for the generated tokens."""
    length = UNIT_TOKENS * units
    full = msgspec.structs.replace(
        recipe, prompt_tokens=length - NEW_TOKENS, new_tokens=NEW_TOKENS, cache_tokens=length
    )
    return llama_8b.build(1, seed, sizes=sizes, recipe=full, context=length)
