"""FLOPs, bytes, and memory of one training step of a published decoder, computed from its shape.

This is the closed form of a trace of the plain model, operator by operator: attention is fused, and every
other operator is a separate kernel, as in eager PyTorch and PEFT. No model is built and torch is not needed;
tests compare it with traces of real models.

Sizes are in elements per token until they become an operator or a memory line.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import TypeAlias

import msgspec

from gpubench.decoders import Decoder, Linear
from gpubench.models import (
    BlockSizes,
    Checkpointing,
    MemoryLine,
    Operator,
    OperatorKind,
    ParallelMode,
    Recipe,
    Stack,
    StepMemory,
    TaskKind,
    Trainable,
    WeightType,
    WorkloadProfile,
)
from gpubench.recipes import ADAPTER_BASES, LOSS_CHUNKS
from gpubench.user_model import check_context

ADAPTER_RANK = 16
"""Rank of the adapters on every linear layer of attention."""
USUAL_CONTEXT = 2048
USUAL = Recipe(weight_type=WeightType.BFLOAT16, checkpointing=Checkpointing.FULL, stack=Stack.PLAIN)
"""TRL's defaults: activations are recomputed block by block, and the loss is not chunked."""
SETTINGS = ("weight_type", "checkpointing", "trainable", "loss_chunks", "context_tokens", "stack")
_BATCHES = (1, 2, 4)
# Bytes per element as operators count them, for every type
_COUNTED = 4
_HALF = 2
_FLOAT = 4
_LONG = 8
# Number of prebuilt batches of tokens and targets
_PREBUILT = 4
# Bytes moved per trained 16-bit weight: weight, gradient and two states are read, weight and states written
_MOVED_BY_ADAMW = 14
# Bytes alive per weight of a 4-bit layer at the worst moment of its unpacking by torchao
_UNPACKED = 14 + 1 / 32
# The torchao kernels that unpack a layer: how many, and the elements that each moves per weight
_UNPACKING = ((4, 1.0), (2, 1.0), (1, 1 / 32), (2, 33 / 64), (2, 1.5), (1, 2.0))
# Bytes alive per weight with bitsandbytes, which unpacks a layer with one kernel
_UNPACKED_BY_KERNEL = 2.0
_MATRIX_UNPACKED, _SCALES_UNPACKED = 1.28, 0.05
"""Elements per weight moved by that kernel, and by each of the two kernels for the scales."""
# FLOP per unpacked weight, at the rate of a depthwise convolution, without tensor cores.
#
# With this value, an A800 unpacks 1.5e11 weights per second, as measured (bitsandbytes issue 1319: unpacking
# takes 0.3 to 0.5 times as long as the product with 2,048 tokens). On a card with more FLOP/s per byte/s, the
# bandwidth is the limit.
_UNPACKING_FLOPS = 13.0
_Widths: TypeAlias = tuple[int, float, float, float, float]
# Kernels and traffic that PEFT adds to each layer and that are not counted elsewhere. The key is whether the
# base is in 4 bits; PEFT then casts embedding and norms to float32, and the values between two products. The
# first entry is for one forward and backward pass, the second for the recomputation. Each has the number of
# kernels, then elements in multiples of the width of the model, of its queries, its keys and its feed-forward
# network (tests/data/peft_layers.csv).
_PEFT_EXTRA: Mapping[bool, tuple[_Widths, _Widths]] = {
    False: ((31, 26, 0, 0, 0), (7, 12, 0, 0, 0)),
    True: ((31 + 34, 26 + 36, 51, 80, 32), (7 + 12, 12 + 2, 26, 38, 5)),
}
# Bytes per score of a chunk, or of plain torch's loss: the score's logarithm, the gradient of the logarithm,
# and the gradient of the score, all in float32
_CHUNKED_SCORE_BYTES = 12
# The same if all scores are in memory at once: transformers also keeps them in 16 bits and in float32
_SCORE_BYTES = 18
# The same for the loop that takes the least memory, for the lower end: the score, its logarithm, and the
# gradients of both, all in 16 bits. A published loop with models of transformers trains all of Llama 3 8B on
# 16,384 tokens on an 80 GB A100, so it needs less than 18 bytes (VectorInstitute/vectorlm@0703e075).
_LEAST_SCORE_BYTES = 8
_NF4_BYTES = 0.5 + 1 / 64 + _HALF / (64 * 256)

_Passes: TypeAlias = tuple[int, ...]
_NORM = {"rms": (2, 2, 1, 2, 2, 2), "layer": (2,), "none": (2,)}
_NORM_BACKWARD = {"rms": (2, 2, 3, 2, 1, 1, 2, 2, 3, 3, 2), "layer": (3,), "none": (3,)}
_NORM_WEIGHT: Mapping[str, _Passes] = {"rms": (3, 1), "layer": (), "none": ()}
_ROTARY = (2, 1, 2, 2, 2, 3, 2)
_ROTARY_BACKWARD = (2, 2, 2, 2, 1, 2, 2, 3)
_SCORES, _SCORES_BACKWARD = (2, 2, 2, 2, 2), (2, 3, 2, 2)
_GELU_NEW, _GELU_NEW_BACKWARD = (2, 2, 3, 2, 2, 2, 2, 3), (3, 3, 3, 2, 2, 3, 2, 2, 3)
"""Elements that each kernel reads and writes, relative to its input: the kernels of a norm, of the gradient
of its weight, of the rotary embedding, of stored scores, and of an activation that takes several."""
_KEPT_AND_WIDE = {
    "swiglu": (3, 6), "geglu": (3, 6), "gegelu": (3, 6), "clamped_swiglu": (6, 9), "gelu": (1, 3),
    "gelu_new": (4, 8), "relu": (1, 3),
}  # fmt: skip
"""Elements per unit of width that an activation keeps for its backward pass, and that are alive during it."""
_ROOTS, _ROOTS_BACKWARD = 2, 3
"""Number of kernels of a norm that work on one value per token."""
# Elements moved by a sum: two are read, one is written
_ADD = 3


@lru_cache(maxsize=64)  # a ranking needs the same profile for each of its rows
def profile_at(decoder: Decoder, name: str, recipe: Recipe) -> WorkloadProfile:
    """Return the profile of a decoder with a recipe, in a few milliseconds, without torch or weights.

    Args:
        decoder: Its shape.
        name: As the user typed it.
        recipe: What is trained and how; the default number of tokens per sequence is ``USUAL_CONTEXT``, or
            the model's context if that is shorter.

    Raises:
        MisuseError: If a sequence is longer than the model's context.
    """
    check_context(name, recipe.context_tokens, decoder.context)
    step = _Step(decoder, recipe)
    once = _Step(decoder, msgspec.structs.replace(recipe, checkpointing=Checkpointing.NONE, loss_chunks=1))
    forward, train = step.operators()
    return WorkloadProfile(
        name=name,
        version=zlib.crc32(msgspec.json.encode(msgspec.structs.replace(decoder, aliases=(), note=None))),
        summary=f"{decoder.hub_name}, from its published shape",
        sample_unit="sequence",
        sample_shape=(step.tokens,),
        is_image=False,
        source=decoder.source,
        optimizer="AdamW",
        parameters=decoder.counted_parameters + step.adapters,
        trainable_parameters=step.trained,
        batches=_BATCHES,
        forward_flops_per_sample=flops_of(forward),
        train_flops_per_sample=flops_of(once.operators()[1]),
        saved_bytes_per_sample=step.saved_bytes,
        optimizer_bytes_per_parameter=2.0 * _HALF,
        train=train,
        infer=forward,
        tasks=(TaskKind.TRAIN,),
        memory=tuple(_Step(decoder, other).memory() for other in _with_cheaper(recipe)),
        blocks=BlockSizes(
            count=decoder.layers,
            largest_parameters=max(step.layer_parameters),
            outside_parameters=decoder.outside_parameters,
        ),
        recipe=recipe,
        settings=SETTINGS,
        precisions=("bf16",),
        parallel_mode=ParallelMode.FSDP if recipe.trainable is Trainable.FULL else ParallelMode.DDP,
        is_classic=False,
        is_run=False,
        is_by_shape=True,
        tokens_per_sample=step.tokens,
    )


def config_profile_at(decoder: Decoder, name: str, recipe: Recipe) -> WorkloadProfile:
    """Return the profile of a decoder in a Hugging Face config, as a trace of the model would give it.

    Args and errors are as in ``profile_at``.
    """
    return msgspec.structs.replace(
        profile_at(decoder, name, recipe),
        summary=f"{decoder.family}, by its Hugging Face config",
        source="a user's Hugging Face config",
        settings=tuple(each for each in SETTINGS if each != "stack"),
        also_at=("amp",),
        parallel_mode=ParallelMode.DDP,
        is_run=True,
    )


def _with_cheaper(recipe: Recipe) -> Iterator[Recipe]:
    # The recipe, and cheaper ones that ``gpubench memory`` may suggest.
    yield recipe
    ways = {Trainable.FULL: WeightType.BFLOAT16, **ADAPTER_BASES}
    for (how, base), again, chunks in product(ways.items(), Checkpointing, (1, LOSS_CHUNKS)):
        other = msgspec.structs.replace(
            recipe, trainable=how, weight_type=base, checkpointing=again, loss_chunks=chunks
        )
        if other != recipe:
            yield other


def flops_of(operators: tuple[Operator, ...]) -> float:
    """Return the FLOPs of these operators per sample, without those that do not grow with the batch."""
    return sum(each.count * each.flops_per_sample for each in operators)


@dataclass
class _Tally:
    """Counts of operators by kind, FLOPs and bytes; each processes the ``tokens`` of a sample."""

    tokens: float
    found: Counter[tuple[OperatorKind, float, float, float, float]] = field(default_factory=Counter)

    def moves(self, elements: float, times: float = 1, fixed: float = 0.0) -> None:
        """Add kernels that each move ``elements`` per token and ``fixed`` elements once."""
        kind, moved = OperatorKind.MEMORY, _COUNTED * elements * self.tokens
        self.found[kind, 0.0, moved, _COUNTED * fixed, 0.0] += round(times)

    def each(self, passes: _Passes, elements: float, times: float = 1) -> None:
        """Add a kernel for each number in ``passes``, which moves that multiple of ``elements`` per token."""
        for multiple in passes:
            self.moves(multiple * elements, times)

    def multiplies(self, layer: Linear, times: float = 1, share: float = 1.0) -> None:
        """Add matrix products with a layer's weights, for a share of the tokens."""
        rows = share * self.tokens
        moved = _COUNTED * rows * (layer.inputs + layer.outputs)
        fixed = float(_COUNTED * layer.weights)
        self.found[OperatorKind.MATMUL, 2.0 * rows * layer.weights, moved, fixed, 0.0] += round(times)

    def unpacks(self, layer: Linear, times: float) -> None:
        """Add the bitsandbytes kernel that unpacks a matrix to 16 bits, after two for its scales."""
        self.moves(0.0, 2 * times, fixed=_SCALES_UNPACKED * layer.weights)
        fixed = _COUNTED * _MATRIX_UNPACKED * layer.weights
        self.found[OperatorKind.DEPTHWISE, 0.0, 0.0, fixed, _UNPACKING_FLOPS * layer.weights] += round(times)

    def attends(self, decoder: Decoder, times: float = 1, passes: int = 1) -> None:
        """Add attention over all pairs of tokens; its backward pass counts as two passes."""
        wide = decoder.query_width + decoder.heads * decoder.head_width
        flops = 2.0 * passes * self.tokens**2 * wide
        elements = passes * (wide + decoder.key_width + decoder.value_width)
        scores = round(decoder.heads * self.tokens)
        if decoder.score_bytes:  # scores are stored, so each product is a kernel
            products = 2 * passes
            elements += products * scores
            self.each(_SCORES if passes == 1 else _SCORES_BACKWARD, scores, times)
        else:
            products = 1
        moved = _COUNTED * elements * self.tokens
        self.found[OperatorKind.MATMUL, flops / products, moved / products, 0.0, 0.0] += round(
            times * products
        )

    def __add__(self, other: _Tally) -> _Tally:
        return _Tally(self.tokens, self.found + other.found)

    def operators(self) -> tuple[Operator, ...]:
        """Return the operators, with equal ones merged."""
        return tuple(
            Operator(
                kind=kind,
                count=count,
                flops_per_sample=flops,
                bytes_per_sample=moved,
                bytes_fixed=fixed,
                flops_fixed=flops_fixed,
            )
            for (kind, flops, moved, fixed, flops_fixed), count in self.found.items()
        )


class _Step:
    """One training step of a decoder with a recipe."""

    def __init__(self, decoder: Decoder, recipe: Recipe) -> None:
        kept = _FLOAT + _HALF if recipe.stack is Stack.NO_FLASH else decoder.score_bytes
        self.decoder = msgspec.structs.replace(decoder, score_bytes=kept)
        self.recipe = recipe
        self.is_full = recipe.trainable is Trainable.FULL
        self.is_packed = recipe.weight_type is WeightType.NF4
        self.by_torch = recipe.stack is Stack.TORCH
        self.by_peft = not self.is_full and recipe.stack in {Stack.PLAIN, Stack.NO_FLASH}
        # Fused kernels never keep all scores at once
        self.held_chunks = max(LOSS_CHUNKS if recipe.stack is Stack.FUSED else 1, recipe.loss_chunks)
        self.tokens = recipe.context_tokens or min(USUAL_CONTEXT, decoder.context)
        self.has_gelu_new = decoder.activation == "gelu_new"
        self.head = Linear(inputs=decoder.embedding_width or decoder.width, outputs=decoder.vocabulary)
        self.adapters = 0 if self.is_full else decoder.layers * self._layer_adapters

    @property
    def trained(self) -> int:
        """Parameters with a gradient."""
        return self.decoder.counted_parameters if self.is_full else self.adapters

    @property
    def layer_parameters(self) -> tuple[int, ...]:
        """Parameters of each kind of layer, adapters included."""
        dense, sparse = self.decoder.dense_layer_parameters, self.decoder.sparse_layer_parameters
        found = [dense] if self.decoder.sparse_layers < self.decoder.layers else []
        found += [sparse] if self.decoder.sparse_layers else []
        return tuple(each + (0 if self.is_full else self._layer_adapters) for each in found)

    @property
    def _layer_adapters(self) -> int:
        return sum(ADAPTER_RANK * (each.inputs + each.outputs) for each in self.decoder.attention)

    # --- arithmetic ------------------------------------------------------------------------------------

    def operators(self) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """Return the operators of a forward pass, and of a whole training step."""
        forward, again, backward = (_Tally(self.tokens) for _ in range(3))
        layers, how = self.decoder.layers, self.recipe.checkpointing
        self._forward(forward, layers)
        if how is not Checkpointing.NONE:
            self._forward(again, layers, is_again=True)
            self._peft_extra(again, 1)
        self._backward(backward, layers)
        self._peft_extra(backward, 0)
        forward.moves(self.decoder.width, fixed=self.decoder.embedding_parameters)
        self._norm(forward, 1)
        loss, loss_again = self._loss()
        train = forward + again + loss + loss_again + backward
        train.found[OperatorKind.OPTIMIZER, 0.0, 0.0, float(_MOVED_BY_ADAMW * self.trained), 0.0] += 1
        return (forward + loss).operators(), train.operators()

    def _peft_extra(self, into: _Tally, part: int) -> None:
        # Add the work of PEFT in all layers that is not counted elsewhere.
        decoder, (kernels, *elements) = self.decoder, _PEFT_EXTRA[self.is_packed][part]
        widths = decoder.width, decoder.query_width, decoder.key_width, self._inner
        if self.by_peft:
            moved = sum(each * width for each, width in zip(elements, widths, strict=True))
            into.moves(moved / kernels, kernels * decoder.layers)

    def _forward(self, into: _Tally, layers: int, *, is_again: bool = False) -> None:
        """Add the forward pass of the layers, or its recomputed part.

        Recomputation stops once the backward pass has everything it needs: in 16 bits the last product of a
        feed-forward network is skipped. Selective checkpointing keeps attention and every second product.
        """
        decoder, width = self.decoder, self.decoder.width
        selective = is_again and self.recipe.checkpointing is Checkpointing.SELECTIVE
        share = 0.5 if selective else 1.0
        self._norm(into, layers * decoder.layer_norms)
        for layer in decoder.attention:
            self._linear(into, layer, layers * share, adapters=layers)
        self._queries_and_keys(into, layers, _ROTARY, _NORM)
        if not selective:
            into.attends(decoder, layers)
        into.moves(2 * decoder.heads * decoder.head_width, layers)
        into.moves(_ADD * width, layers * (1 if is_again else 2))
        for times, networks in self._networks(layers):
            for inner, copies, routed in networks:
                *enter, leave = decoder.network(inner)
                for layer in enter:
                    self._linear(into, layer, times * copies * share, share=routed)
                into.each(_GELU_NEW if self.has_gelu_new else (2,), inner * routed, times * copies)
                if decoder.gated:
                    into.moves(_ADD * inner * routed, times * copies)
                if not is_again or (self.is_packed and self.by_torch):
                    self._linear(into, leave, times * copies, share=routed)

    def _queries_and_keys(
        self, into: _Tally, layers: int, rotary: _Passes, norm: Mapping[str, _Passes]
    ) -> None:
        # Add the work on queries and keys before attention.
        for width in (self.decoder.query_width, self.decoder.key_width):
            if self.decoder.rotary:
                into.each(rotary, width, layers)
            if self.decoder.query_key_norm != "none":
                into.each(norm["rms"], width, layers)

    def _norm(self, into: _Tally, times: int) -> None:
        into.each(_NORM[self.decoder.norm], self.decoder.width, times)
        if self.decoder.norm == "rms":
            into.moves(2, _ROOTS * times)

    def _networks(self, layers: int) -> Iterator[tuple[int, list[tuple[int, int, float]]]]:
        """Yield the number of layers of each kind, and their networks.

        A network is its width, its number of copies (experts), and the share of tokens routed to each copy.
        """
        decoder = self.decoder
        sparse = decoder.sparse_layers
        if layers > sparse:
            yield layers - sparse, [(decoder.forward_width, 1, 1.0)]
        if sparse:
            shared = [(decoder.shared_width, 1, 1.0)] if decoder.shared_width else []
            routed = decoder.active_experts / decoder.experts
            yield sparse, [(decoder.expert_width, decoder.experts, routed), *shared]

    def _backward(self, into: _Tally, layers: int) -> None:
        decoder, width = self.decoder, self.decoder.width
        norms = layers * decoder.layer_norms + 1
        into.each(_NORM_BACKWARD[decoder.norm], width, norms)
        if decoder.norm == "rms":
            into.moves(2, _ROOTS_BACKWARD * norms)
        if self.is_full:
            into.each(_NORM_WEIGHT[decoder.norm], width, norms)
        for layer in decoder.attention:
            self._linear(into, layer, layers, adapters=layers, is_backward=True)
        self._queries_and_keys(into, layers, _ROTARY_BACKWARD, _NORM_BACKWARD)
        into.attends(decoder, layers, passes=2)
        into.moves(_ADD * width, 5 * layers)  # sums of gradients
        for times, networks in self._networks(layers):
            for inner, copies, routed in networks:
                for layer in decoder.network(inner):
                    self._linear(into, layer, times * copies, share=routed, is_backward=True)
                passes = _GELU_NEW_BACKWARD if self.has_gelu_new else (_ADD,)
                into.each(passes * (3 if decoder.gated else 1), inner * routed, times * copies)
        if self.is_full:
            into.moves(width, fixed=decoder.embedding_parameters)

    def _linear(
        self,
        into: _Tally,
        layer: Linear,
        times: float,
        *,
        adapters: int = 0,
        share: float = 1.0,
        is_backward: bool = False,
    ) -> None:
        """Add a linear layer of a block: forward, or the gradients of its input and trained weights."""
        into.multiplies(layer, times * (2 if is_backward and self.is_full else 1), share)
        if self.is_packed:
            for kernels, elements in _UNPACKING if self.by_torch else ():
                into.moves(0.0, times * kernels, fixed=elements * layer.weights)
            if not self.by_torch:
                into.unpacks(layer, times)
        if not adapters or self.is_full:
            return
        down = Linear(inputs=layer.inputs, outputs=ADAPTER_RANK)
        up = Linear(inputs=ADAPTER_RANK, outputs=layer.outputs)
        for narrow in (down, up):
            into.multiplies(narrow, adapters * (2 if is_backward else 1))
        into.moves(2 * layer.outputs, adapters)  # the scale of the adapter, then the sum of both branches
        into.moves(_ADD * (layer.inputs if is_backward else layer.outputs), adapters)

    def _loss(self) -> tuple[_Tally, _Tally]:
        """Return head and loss of the forward pass, and their backward pass, which recomputes chunks."""
        chunks, vocabulary = self.recipe.loss_chunks, self.decoder.vocabulary
        forward, backward = _Tally(self.tokens / chunks), _Tally(self.tokens / chunks)
        for tally, times in ((forward, chunks), (backward, chunks if chunks > 1 else 0)):
            tally.multiplies(self.head, times)
            tally.moves(2 * vocabulary, 2 * times)
            tally.moves(vocabulary, times)
        backward.multiplies(self.head, chunks * (2 if self.is_full else 1))
        for elements in (2, 3, 2):
            backward.moves(elements * vocabulary, chunks)
        if self.is_full:  # the head's gradients are summed over chunks and with those of a tied embedding
            backward.moves(0.0, chunks - 1 + self.decoder.tied, fixed=_ADD * self.head.weights)
        return forward, backward

    # --- memory ----------------------------------------------------------------------------------------

    def memory(self) -> StepMemory:
        """Return the memory of the step: a line for each moment that can be the peak at some batch."""
        decoder = self.decoder
        weights = self._weights_bytes
        trained = float(_HALF * self.trained)
        # Cosines and sines of the rotary embedding
        tables = 2.0 * _FLOAT * self.tokens * (decoder.rotary_width or decoder.head_width) * decoder.rotary

        def lines(score_bytes: int) -> tuple[MemoryLine, ...]:
            moments = self._moments(weights + 2 * trained + tables, trained, score_bytes)
            of_all = (
                msgspec.structs.replace(line, bytes_per_sample=line.bytes_per_sample + self._tokens_bytes)
                for line in moments
            )
            return tuple(sorted(of_all, key=lambda line: (line.bytes_per_sample, line.fixed_bytes)))

        at_once = self.held_chunks == 1 and not self.by_torch
        step = StepMemory(
            task=TaskKind.TRAIN,
            is_amp=False,
            lines=lines(_SCORE_BYTES if at_once else _CHUNKED_SCORE_BYTES),
            weights_bytes=weights,
            trained_bytes=trained,
            optimizer_bytes=2 * trained,
            saved=_line(tables, self.saved_bytes + self._tokens_bytes),
            recipe=self.recipe,
        )
        least = msgspec.structs.replace(step, lines=lines(_LEAST_SCORE_BYTES)) if at_once else None
        return msgspec.structs.replace(step, least=least)

    def _moments(self, base: float, trained: float, score_bytes: int) -> Iterator[MemoryLine]:
        """Yield a line for each moment of loss, backward pass and update that can be the peak.

        Each line includes ``base``, the bytes that are alive throughout, but not the prebuilt batches.
        """
        decoder, is_full = self.decoder, self.is_full
        head = float(_HALF * self.head.weights)
        stream = self._bytes(decoder.width)
        saved = self.saved_bytes
        at_once = self.held_chunks == 1
        scores = score_bytes * self.tokens * decoder.vocabulary / self.held_chunks
        # Without chunks, both ``saved`` and ``scores`` include one copy of the scores
        kept_scores = _FLOAT * self.tokens * decoder.vocabulary if at_once else 0.0
        yield _line(base, saved - kept_scores + stream + scores)  # the loss
        if self.held_chunks > 1 and is_full:  # the head's gradient, with one chunk and summed over chunks
            yield _line(base + head, saved + stream + scores)
            yield _line(base + 3 * head, saved + stream)
        layers = self._held(self.recipe.checkpointing) * (decoder.layers - 1) + stream
        at_work = self._at_work
        inner = max(width for _, networks in self._networks(decoder.layers) for width, _, _ in networks)
        widest = max(layer.weights for layer in decoder.network(inner))
        widest_bytes = widest * _HALF
        yield _line(base + (head + widest_bytes if is_full else 0.0), layers + at_work)  # the last layer
        if is_full:  # the first layer, the embedding, and the update
            later = max(0.0, trained - _HALF * (decoder.embedding_parameters + min(self.layer_parameters)))
            yield _line(base + later + widest_bytes, stream + at_work, later)
            tied = 3 * head if decoder.tied else head
            rest = max(0.0, trained - head)
            yield _line(base + rest + tied, stream, rest)
            yield _line(base + trained, 0.0, trained)
        if self.is_packed:  # the last layer while its widest matrix is unpacked
            per_weight_bytes = _UNPACKED if self.by_torch else _UNPACKED_BY_KERNEL
            yield _line(base + per_weight_bytes * widest, layers + self._unpacking)

    def _bytes(self, elements: float) -> float:
        # Bytes of activations with this many elements per token
        return _HALF * elements * self.tokens

    @property
    def _tokens_bytes(self) -> float:
        return 2.0 * _PREBUILT * _LONG * self.tokens

    @property
    def _weights_bytes(self) -> float:
        decoder = self.decoder
        whole = _HALF * (decoder.counted_parameters + self.adapters)
        if not self.is_packed:
            return float(whole)
        packed = sum(layer.weights for layer in decoder.attention) * decoder.layers
        packed += sum(
            times * copies * layer.weights
            for times, networks in self._networks(decoder.layers)
            for inner, copies, _ in networks
            for layer in decoder.network(inner)
        )
        return whole - (_HALF - _NF4_BYTES) * packed + self._upcast_bytes

    @property
    def _upcast_bytes(self) -> float:
        # When PEFT prepares a 4-bit base, it casts embedding and head to float32.
        tables = self.decoder.embedding_parameters * (1 if self.decoder.tied else 2)
        return 0.0 if self.by_torch else float((_FLOAT - _HALF) * tables)

    @property
    def _inner(self) -> float:
        # Elements inside the feed-forward networks of one layer, over all networks that a token goes through
        return max(
            sum(width * copies * share for width, copies, share in networks)
            for _, networks in self._networks(self.decoder.layers)
        )

    @property
    def _attended(self) -> float:
        """Bytes that attention keeps: queries, keys, values, output, and the scores or their log-sum-exp."""
        decoder = self.decoder
        kept = decoder.query_width + decoder.key_width + decoder.value_width
        middles = 0 if self.is_full else ADAPTER_RANK * len(decoder.attention)  # inside the adapters
        normed = 0.0
        if decoder.query_key_norm != "none":
            normed = self._normed(decoder.query_width + decoder.key_width, "rms")
        held = (decoder.score_bytes * self.tokens or _FLOAT) * self.tokens * decoder.heads
        return self._bytes(kept + decoder.heads * decoder.head_width + middles) + normed + held

    def _held(self, how: Checkpointing) -> float:
        """Bytes that one layer keeps for the backward pass."""
        decoder = self.decoder
        stream = self._bytes(decoder.width)
        if how is Checkpointing.FULL:
            return stream
        if how is Checkpointing.SELECTIVE:
            output = decoder.heads * decoder.head_width  # of attention
            kept = 2 * decoder.width + output + decoder.key_width + self._inner
            return self._bytes(kept) + _FLOAT * self.tokens * decoder.heads
        copies = (1 + self.is_full) * decoder.active_experts  # outputs of experts, and inputs of trained ones
        kept = self._bytes(self._inner_kept * self._inner + copies * decoder.width) + self._attended
        return kept + decoder.layer_norms * self._normed(decoder.width, decoder.norm) - self._not_kept

    def _normed(self, width: int, norm: str) -> float:
        """Bytes that a norm keeps: its input, in float32 unless it is one kernel, and its output."""
        if norm != "rms":
            return self._bytes(2 * width)
        return self._bytes((4 if self.is_full else 3) * width) + _FLOAT * self.tokens

    @property
    def _not_kept(self) -> float:
        # Bytes of the feed-forward network's normalized input, which frozen layers do not keep
        return 0.0 if self.is_full or self.decoder.layer_norms == 1 else self._bytes(self.decoder.width)

    @property
    def _inner_kept(self) -> int:
        # Elements that the feed-forward network keeps, in multiples of its width. The result of relu is kept
        # once, for its own gradient and for that of the trained layer after it.
        kept, _ = _KEPT_AND_WIDE[self.decoder.activation]
        return kept + (self.is_full and self.decoder.activation != "relu")

    @property
    def _at_work(self) -> float:
        """Bytes of one layer at the worst moment of its backward pass, including those that it keeps."""
        decoder = self.decoder
        inside = self._bytes((_KEPT_AND_WIDE[decoder.activation][1] - self._inner_kept) * self._inner)
        if decoder.score_bytes:
            # Gradients of the scores in float32; without flash kernels, torch holds two, plus one in 16 bits
            more_bytes = _HALF + 2 * _FLOAT if self.recipe.stack is Stack.NO_FLASH else _FLOAT
            inside = max(inside, more_bytes * self.tokens**2 * decoder.heads)
        whole = self._held(Checkpointing.NONE)
        # While the rotary embedding rotates the gradients of queries and keys back
        turning = self._bytes(2 * decoder.width + 11 * decoder.query_width + 2 * decoder.value_width)
        return max(whole + inside, turning if decoder.rotary else 0.0)

    @property
    def _unpacking(self) -> float:
        # Bytes of one layer while the last matrix of its feed-forward network is unpacked
        decoder = self.decoder
        inside = (self._inner_kept + 1) * self._inner
        return self._bytes(4 * decoder.width + inside) + self._attended - self._bytes(decoder.width)

    @property
    def saved_bytes(self) -> float:
        """Activations between forward and backward pass, without the prebuilt batches."""
        stream = self._bytes(self.decoder.width)
        last = 2 * stream + _FLOAT * self.tokens  # the last norm: input, output, and reciprocal roots
        scores = 0.0 if self.held_chunks > 1 else _FLOAT * self.tokens * self.decoder.vocabulary
        return self.decoder.layers * self._held(self.recipe.checkpointing) + last + scores


def _line(fixed: float, per_sample: float, gradients: float = 0.0) -> MemoryLine:
    return MemoryLine(fixed_bytes=fixed, bytes_per_sample=per_sample, gradient_bytes=gradients)
