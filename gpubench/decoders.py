"""Reads data/decoders.csv, the shapes of published decoder language models, and finds them by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpubench.folders import data_table

_HUGGING_FACE = "hf:"
_BREAKS = re.compile(r"[\s_-]+")
# The end of a chat model's name after its separators are removed.
_TUNED = re.compile(r"(?:instruct|chat|it)$")


# For each type of Hugging Face config, a decoder in the table that differs only in sizes.
_SAME_DESIGN = {
    "granite": "granite-3.0-8b",
    "llama": "llama-2-7b",
    "mistral": "mistral-7b",
    "olmo2": "olmo-2-7b",
    "qwen2": "qwen2-7b",
    "qwen3": "qwen3-8b",
}
_SIZES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "forward_width": "intermediate_size",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
}
# Config fields that are read here, or that change neither the work nor the memory of a training step.
_KNOWN_FIELDS = frozenset({
    "architectures", "attention_dropout", "attention_multiplier", "bos_token_id", "dtype",
    "embedding_multiplier", "eos_token_id", "hidden_act", "initializer_range", "logits_scaling",
    "max_window_layers", "model_type", "pad_token_id", "pretraining_tp", "residual_multiplier",
    "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings", "torch_dtype",
    "transformers_version", "use_cache", *_SIZES.values(),
})  # fmt: skip


class Linear(msgspec.Struct, frozen=True, kw_only=True):
    """One linear layer: a product with a matrix of ``inputs`` by ``outputs``."""

    inputs: int
    outputs: int

    @property
    def weights(self) -> int:
        """Number of elements of the matrix."""
        return self.inputs * self.outputs


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: the shape of one published model, and its source.

    Widths are elements per token. The sizes of absent parts are 0.

    Attributes:
        hub_name: The name on the model hub, including the owner.
        aliases: Other common names, and models with the same shape.
        head_width: Channels of one head; for latent attention, of its values.
        forward_width: Inner width of the feed-forward network of a dense layer.
        activation: swiglu, clamped_swiglu, geglu and gegelu have a gate and therefore three matrices;
            gelu_new and clamped_swiglu are not single kernels.
        vocabulary: Rows of the embedding, including padding.
        context: Context length in tokens.
        tied: Whether the head shares the embedding.
        norm: rms has a weight, layer has a weight and a bias, none has neither.
        layer_norms: Number of norms of the residual stream in each layer.
        query_key_norm: Whether queries and keys are normalized, per head or all together.
        attention_bias: The attention layers with a bias.
        score_bytes: Memory per attention score that transformers keeps for the backward pass [B]; 0 with a
            fused kernel, which keeps none.
        position_rows: Rows of a learned position embedding.
        embedding_width: Width of the word embedding if it is narrower than the model.
        experts: Experts of each sparse layer, with inner width ``expert_width``; a token uses
            ``active_experts`` of them.
        shared_width: Inner width of the expert that every token uses.
        dense_layers: Dense layers at the start of a model with experts.
        query_rank, key_value_rank, rotary_width: Sizes of latent attention.
        parameters: Number of parameters, computed from the shape when the row was written.
    """

    hub_name: str
    aliases: tuple[str, ...]
    family: str
    layers: int
    width: int
    heads: int
    key_value_heads: int
    head_width: int
    forward_width: int
    activation: Literal["swiglu", "clamped_swiglu", "geglu", "gegelu", "gelu", "gelu_new", "relu"]
    vocabulary: int
    context: int
    tied: bool
    norm: Literal["rms", "layer", "none"]
    layer_norms: int
    query_key_norm: Literal["none", "head", "all"]
    attention_bias: Literal["none", "qkv", "output", "all"]
    forward_bias: bool
    head_bias: bool
    rotary: bool
    score_bytes: int
    position_rows: int
    embedding_width: int
    experts: int
    active_experts: int
    expert_width: int
    shared_width: int
    dense_layers: int
    query_rank: int
    key_value_rank: int
    rotary_width: int
    parameters: int
    source: str
    licence: str
    note: str | None

    @property
    def gated(self) -> bool:
        """Whether its feed-forward networks have a gate."""
        return self.activation in {"swiglu", "clamped_swiglu", "geglu", "gegelu"}

    @property
    def query_width(self) -> int:
        """Width of a token's queries over all heads."""
        return self.heads * (self.head_width + self.rotary_width)

    @property
    def key_width(self) -> int:
        """Width of a token's keys over all heads."""
        heads = self.heads if self.key_value_rank else self.key_value_heads
        return heads * (self.head_width + self.rotary_width)

    @property
    def value_width(self) -> int:
        """Width of a token's values over all heads."""
        return (self.heads if self.key_value_rank else self.key_value_heads) * self.head_width

    @property
    def attention(self) -> tuple[Linear, ...]:
        """The linear layers of attention: queries first, output last."""
        width, all_heads = self.width, self.heads * self.head_width
        if not self.key_value_rank:
            inputs = [(width, self.query_width), (width, self.key_width), (width, self.value_width)]
        else:
            queries = [(width, self.query_rank), (self.query_rank, self.query_width)]
            latent = self.key_value_rank, self.heads * 2 * self.head_width
            keys = [(width, self.key_value_rank + self.rotary_width), latent]
            inputs = [*(queries if self.query_rank else [(width, self.query_width)]), *keys]
        return tuple(Linear(inputs=i, outputs=o) for i, o in (*inputs, (all_heads, width)))

    def network(self, width: int) -> tuple[Linear, ...]:
        """Return the linear layers of a feed-forward network of this width, the output layer last."""
        first, last = Linear(inputs=self.width, outputs=width), Linear(inputs=width, outputs=self.width)
        return (first, first, last) if self.gated else (first, last)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm of the residual stream."""
        return {"none": 0, "rms": 1, "layer": 2}[self.norm] * self.width

    @property
    def dense_layer_parameters(self) -> int:
        """Parameters of a dense layer."""
        return self._attention_parameters + self._network_parameters(self.forward_width)

    @property
    def sparse_layer_parameters(self) -> int:
        """Parameters of a layer with experts, including its router."""
        shared = self._network_parameters(self.shared_width) if self.shared_width else 0
        experts = self.experts * (self._network_parameters(self.expert_width) + self.width)
        return self._attention_parameters + experts + shared

    @property
    def sparse_layers(self) -> int:
        """Number of layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the word embedding."""
        return self.vocabulary * (self.embedding_width or self.width)

    @property
    def outside_parameters(self) -> int:
        """Parameters outside the layers: embeddings, last norm, head."""
        head = 0 if self.tied else self.embedding_parameters
        bias = self.vocabulary if self.head_bias else 0
        projections = 2 * self.embedding_width * self.width
        positions = self.position_rows * self.width
        return self.embedding_parameters + head + bias + projections + positions + self.norm_parameters

    @property
    def counted_parameters(self) -> int:
        """Number of parameters computed from the shape."""
        dense = (self.layers - self.sparse_layers) * self.dense_layer_parameters
        return dense + self.sparse_layers * self.sparse_layer_parameters + self.outside_parameters

    @property
    def _attention_parameters(self) -> int:
        queries, keys = self.query_width, self.key_width
        inputs = queries + keys + self.value_width
        bias = {"none": 0, "qkv": inputs, "output": self.width, "all": inputs + self.width}
        query_key_norm = {"none": 0, "head": 2 * self.head_width, "all": queries + keys}
        weights = sum(layer.weights for layer in self.attention) + self.query_rank + self.key_value_rank
        norms = self.layer_norms * self.norm_parameters
        return weights + bias[self.attention_bias] + query_key_norm[self.query_key_norm] + norms

    def _network_parameters(self, width: int) -> int:
        layers = self.network(width)
        bias = sum(layer.outputs for layer in layers) if self.forward_bias else 0
        return sum(layer.weights for layer in layers) + bias


@cache
def load_decoders() -> tuple[Decoder, ...]:
    """Return every decoder of the table, in its order.

    Raises:
        MisuseError: If a cell of the table does not parse; the message names its line and column.
    """
    return tuple(data_table("decoders.csv", Decoder))


def find_decoder(reference: str) -> Decoder | None:
    """Return the decoder for a name: its hub name, with or without ``hf:``, or a common name.

    A name with a slash that is also the path of a folder or file means the user's model instead.

    >>> [found.hub_name for name in ("hf:Qwen/Qwen2.5-7B", "Llama 3.1 8B") if (found := find_decoder(name))]
    ['Qwen/Qwen2.5-7B', 'meta-llama/Meta-Llama-3.1-8B']
    >>> find_decoder("resnet50") is None
    True
    """
    name = reference.removeprefix(_HUGGING_FACE)
    found = _by_name().get(_squeezed(name))
    return None if found is not None and "/" in name and Path(name).exists() else found


def described_decoder(fields: Mapping[str, Any]) -> Decoder | None:
    """Return the decoder that a Hugging Face config describes.

    None if the family is unknown, a size is missing or larger than in every published decoder, or the config
    has a field or a value that this function does not know.
    """
    kind = fields["model_type"]
    stated = {key for key, value in fields.items() if value is not None and value is not False}
    if fields.get("use_sliding_window") is False:
        stated.discard("sliding_window")
    tied = fields.get("tie_word_embeddings", False)
    is_known = kind in _SAME_DESIGN and stated <= _KNOWN_FIELDS and fields.get("hidden_act") == "silu"
    is_causal = fields.get("architectures") == [f"{kind.capitalize()}ForCausalLM"]
    if not (is_known and is_causal and isinstance(tied, bool)):
        return None
    sizes = {name: fields.get(key) for name, key in _SIZES.items()}
    if sizes["head_width"] is None and kind != "qwen3":  # Qwen3 must state it
        sizes["head_width"] = _head_width(sizes["width"], sizes["heads"])
    if any(type(size) is not int or not 0 < size <= _largest(name) for name, size in sizes.items()):
        return None
    published = _by_name()[_squeezed(_SAME_DESIGN[kind])]
    return msgspec.structs.replace(published, hub_name=kind, family=kind, tied=tied, **sizes)


def _head_width(width: Any, heads: Any) -> int | None:
    is_whole = type(width) is int and type(heads) is int and heads > 0 and width % heads == 0
    return width // heads if is_whole else None


@cache
def _largest(size: str) -> int:
    return max(int(getattr(decoder, size)) for decoder in load_decoders())


def decoder_names() -> tuple[str, ...]:
    """Return every common name in the table, without hub names."""
    return tuple(alias for decoder in load_decoders() for alias in decoder.aliases)


@cache
def _by_name() -> Mapping[str, Decoder]:
    known = {
        _squeezed(name): decoder
        for decoder in load_decoders()
        for name in (*decoder.aliases, decoder.hub_name, decoder.hub_name.partition("/")[2])
    }
    tuned = {_TUNED.sub("", name): decoder for name, decoder in known.items()}
    return {**tuned, **known}  # a base model of that name takes precedence


def _squeezed(name: str) -> str:
    return _BREAKS.sub("", name.casefold())
