"""Any model described by a Hugging Face ``config.json``: its shapes, with random weights."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual alias

from gpubench.errors import MisuseError
from gpubench.foreign_code import one_line
from gpubench.models import Recipe, TaskKind, Trainable, WeightType
from gpubench.names import nearest
from gpubench.profile.blocks import checkpoint_blocks, repeated_blocks
from gpubench.units import plain
from gpubench.user_model import CONTEXT_NAMES, check_context, no_transformers, read_config
from gpubench.workload import IMAGE_LABELS, Task, Workload, image_batches, seeded
from gpubench_workloads._decoder_blocks import LoraLinear, chunked_cross_entropy
from gpubench_workloads._llama import ADAPTER_RANK, REFERENCE_TOKENS, dtype_of, given_loss, scored_batches

USUAL_CONTEXT = 2048
MOST_LAYERS = 2000
MOST_PARTS = 100_000
"""Maximum number of experts, heads or labels."""
_IGNORED = frozenset({
    "attn_implementation", "auto_map", "dtype", "experts_implementation", "quantization_config",
    "torch_dtype", "trust_remote_code",
})  # fmt: skip
"""Config fields to ignore at any depth, besides those with a leading underscore: external code and kernels,
and types of weights that are not loaded. Before 5.3, transformers loads the code that they name."""
_REPEATED = (
    (
        re.compile(r"^(?:num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers)$"),
        1,
        MOST_LAYERS,
    ),
    (re.compile(r"(?:^|_)(?:layer|block|depth|stage)s?$"), 0, MOST_LAYERS),
    (re.compile(r"^(?:n|num)_.*(?:expert|head|label)"), 0, MOST_PARTS),
)
"""Names of config fields that count parts, with the least and the most that are built: every part takes time
and memory."""


class Kind(StrEnum):
    """The training task of a model; each value is the transformers class that builds a model for it."""

    CAUSAL = "AutoModelForCausalLM"
    MASKED = "AutoModelForMaskedLM"
    PAIRS = "AutoModelForSeq2SeqLM"
    IMAGE = "AutoModelForImageClassification"


_ENDS = {
    "ForCausalLM": Kind.CAUSAL,
    "LMHeadModel": Kind.CAUSAL,
    "ForMaskedLM": Kind.MASKED,
    "ForConditionalGeneration": Kind.PAIRS,
    "ForImageClassification": Kind.IMAGE,
}


@dataclass(frozen=True)
class Described:
    """The content of a config that a build needs.

    Attributes:
        fields: Fields of the config, without the ignored ones.
        context: Context length of the model; None if not stated.
        layers: Number of layers of the text model; None for the number in the config.
    """

    name: str
    fields: Mapping[str, Any]
    kind: Kind
    context: int | None
    layers: int | None = None

    def config(self) -> Any:
        """Return a new config object without dropout, so equal seeds give equal losses on any device."""
        made = _types()[self.fields["model_type"]].from_dict(dict(self.fields))
        parts = (made, *(getattr(made, name, None) for name in getattr(made, "sub_configs", {})))
        for part in (part for part in parts if part is not None):
            for name, value in vars(part).items():
                if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
                    setattr(part, name, 0.0)
            if hasattr(part, "use_cache"):
                part.use_cache = False
        if self.layers is not None:
            text = _of_text(made)
            for name in _lists_by_layer(text):
                setattr(text, name, getattr(text, name)[: self.layers])
            text.num_hidden_layers = self.layers
        return made


def load(path: Path, name: str, version: int) -> Workload:
    """Make a workload from a config.

    Args:
        path: Path of the ``config.json``.
        name: The model's name in the records.
        version: Version of the content of the file.

    Raises:
        MisuseError: In one line, if transformers is missing or the file describes nothing trainable.
    """
    described = describe(path, name)
    whole, shorter = _workload(described, version), _shorter(described)
    if shorter is None:
        return whole
    *fewer, times = shorter
    one, two = (_workload(replace(described, layers=layers), version) for layers in fewer)
    return replace(whole, shorter=(one, two, times))


def _workload(described: Described, version: int) -> Workload:
    shape = _sample_shape(described)
    is_image = described.kind is Kind.IMAGE
    return Workload(
        name=described.name,
        summary=f"{plain(described.fields['model_type'], 40)}, by its Hugging Face config",
        version=version,
        sample_unit="image" if is_image else "sequence",
        sample_shape=shape,
        batches=(8, 32, 128) if is_image else (1, 2, 4),
        is_image=is_image,
        source="a user's Hugging Face config",
        build=partial(build, described=described, recipe=_USUAL, usual=shape),
        check=partial(_check, described),
        tasks=(TaskKind.TRAIN, TaskKind.INFER) if is_image else (TaskKind.TRAIN,),
        recipe=_USUAL,
        settings=_SETTINGS if not is_image else tuple(s for s in _SETTINGS if s not in _OF_TOKENS),
        precisions=("bf16",),
        also_at=("amp",),
        is_classic=False,
    )


MOST_PERIOD = 16
"""Maximum number of layers in a repeating group."""


def _shorter(described: Described) -> tuple[int, int, int] | None:
    """Return two numbers of layers, one period apart, from which the model's trace can be extrapolated.

    The third number is how many more periods the model has than the first. None if its layers do not repeat,
    or are too few for two shorter models.
    """
    kinds = _layer_kinds(described)
    layers = len(kinds)
    for long in range(3, layers // 2 + 1):
        for period in range(1, min(long // 2, MOST_PERIOD) + 1):
            short = long - period
            repeats = kinds[short:] == kinds[short - period : layers - period]
            if short < 2 or not repeats or (layers - short) % period:
                continue
            fewer = (_layer_kinds(replace(described, layers=count)) for count in (short, long))
            if [*fewer] == [kinds[:short], kinds[:long]]:
                return short, long, (layers - short) // period
    return None


def _layer_kinds(described: Described) -> list[Any]:
    """Return all properties that distinguish layers of the model; empty if its layers cannot be counted."""
    try:
        with torch.device("meta"):
            model = _model(described, torch.bfloat16)
        text = _of_text(model.config)
        layers, blocks = text.num_hidden_layers, repeated_blocks(model)
    except Exception:  # noqa: BLE001 - the library may raise anything; tracing the whole model reports it
        return []
    if len(blocks) != layers:
        return []
    lists = [getattr(text, name) for name in _lists_by_layer(text)]
    return [[_properties_of(block), [each[place] for each in lists]] for place, block in enumerate(blocks)]


def _properties_of(block: nn.Module) -> list[Any]:
    return [
        (
            name,
            type(module).__name__,
            {key: value for key, value in vars(module).items() if _is_property(key, value)},
            {key: tensor.shape for key, tensor in module.named_parameters(recurse=False)},
        )
        for name, module in block.named_modules()
    ]


def _is_property(name: str, value: Any) -> bool:
    return isinstance(value, bool | int | float | str) and "idx" not in name and "index" not in name


def _of_text(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _lists_by_layer(text: Any) -> list[str]:
    # Return the names of the config fields that have one item per layer.
    layers = getattr(text, "num_hidden_layers", None)
    return [name for name, value in vars(text).items() if isinstance(value, list) and len(value) == layers]


def _check(described: Described, recipe: Recipe) -> None:
    check_context(described.name, recipe.context_tokens, described.context)


_USUAL = Recipe(weight_type=WeightType.BFLOAT16)  # an unchunked loss, as in common trainers
_OF_TOKENS = ("loss_chunks", "context_tokens")
_SETTINGS = ("weight_type", "checkpointing", "trainable", *_OF_TOKENS)


def describe(path: Path, name: str) -> Described:
    """Read a config and find what it describes. Errors as in ``load``."""
    fields = read_config(path, name)
    types = _types()
    known = plain(fields["model_type"], 60)
    if fields["model_type"] not in types:
        close = nearest(known, tuple(types))
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise MisuseError(f'{name}: this version of transformers knows no architecture "{known}"{hint}')
    kept: Any = _kept(fields, name)
    made = Described(name, kept, Kind.CAUSAL, None)
    try:
        config = made.config()
        text = _of_text(config)
        contexts = [getattr(text, key, None) for key in CONTEXT_NAMES]
        kind = _kind(name, config)
    except MisuseError:
        raise
    except Exception as error:  # the library checks config values itself
        raise MisuseError(f"{name}: {one_line(error)}") from error
    context = next((value for value in contexts if isinstance(value, int) and value > 0), None)
    return Described(name, kept, kind, context)


def _kept(value: Any, name: str, key: str = "") -> Any:
    """Return the fields of a config that describe shapes, at any depth; refuse absurd sizes."""
    if isinstance(value, dict):
        return {
            each: _kept(inner, name, each)
            for each, inner in value.items()
            if each not in _IGNORED and not each.startswith("_")
        }
    if isinstance(value, list):
        return [_kept(inner, name, key) for inner in value]
    for words, least, most in _REPEATED:
        if isinstance(value, int) and words.search(key) and not least <= value <= most:
            shown = f"{plain(key, 40)} {plain(str(value), 20)}"
            raise MisuseError(f"{name}: {shown} must be from {least} to {most:,}")
    return value


def build(
    batch_size: int, seed: int, *, described: Described, recipe: Recipe, usual: tuple[int, ...]
) -> Task:
    """Build the model with random weights, and four batches.

    Shapes:
        inputs: tokens and targets, (N, length) int64 each, for a model that returns its loss; or images.

    Args:
        batch_size: N.
        seed: Fixes weights and batches.
        described: The model.
        recipe: Type of the weights, checkpointing, adapters, chunks of the loss, tokens of a sequence.
        usual: Shape of one sample unless the recipe sets another.

    Raises:
        MisuseError: If no layer can have adapters, or the loss cannot be computed in chunks.
    """
    length = recipe.context_tokens or usual[0]
    with seeded(seed):
        model = _model(described, dtype_of(recipe))
        if recipe.trainable is not Trainable.FULL:
            _adapt(described.name, model)
        checkpoint_blocks([model], recipe.checkpointing)
        if described.kind is Kind.IMAGE:
            classes = model.config.num_labels
            return Task(
                model=Scores(model),
                batches=image_batches(batch_size, usual, range(min(len(IMAGE_LABELS), classes))),
                loss=F.cross_entropy,
                optimizer=_OPTIMIZER,
            )
        if recipe.loss_chunks > 1 and _product_head(model, described.kind) is None:
            raise MisuseError(
                f"{described.name}: its loss cannot be computed in {recipe.loss_chunks} chunks: its scores "
                "are not one product with the last hidden state; leave out --recipe loss-chunks"
            )
        vocabulary = model.get_input_embeddings().num_embeddings
        batches = scored_batches(batch_size, length, vocabulary)
    return Task(
        model=Losses(model, described.kind, recipe.loss_chunks),
        batches=batches,
        loss=given_loss,
        optimizer=_OPTIMIZER,
        reference_tokens=REFERENCE_TOKENS,
    )


_OPTIMIZER = partial(torch.optim.AdamW, lr=1e-4)


class Scores(nn.Module):
    """The logits of an image classifier, (N, classes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Score each image."""
        scores: Tensor = self.model(pixel_values=images).logits
        return scores


class Losses(nn.Module):
    """The mean loss over all tokens of a language model, with logits for one chunk of tokens at a time.

    Chunks require a head that is one product with the last hidden state; other models keep all logits.
    """

    def __init__(self, model: nn.Module, kind: Kind, chunks: int) -> None:
        super().__init__()
        self.model, self.kind, self.chunks = model, kind, chunks

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Score each token against its target."""
        head = _product_head(self.model, self.kind)
        if head is None:
            also = {"decoder_input_ids": tokens} if self.kind is Kind.PAIRS else {}
            scores = self.model(input_ids=tokens, **also).logits
            return F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())
        hidden = self.model.base_model(input_ids=tokens).last_hidden_state  # type: ignore[operator]
        return chunked_cross_entropy(hidden, head, targets, self.chunks)


def _product_head(model: nn.Module, kind: Kind) -> nn.Linear | None:
    """Return the head of a model if its logits are one product with the last hidden state, else None."""
    head = model.get_output_embeddings() if kind is Kind.CAUSAL else None  # type: ignore[operator]
    return head if isinstance(head, nn.Linear) else None


def _model(described: Described, dtype: torch.dtype) -> Any:
    """Build the model with random weights, and with fused attention if it is available."""
    import transformers

    _never_packed()
    made = getattr(transformers, described.kind)
    try:
        return made.from_config(described.config(), dtype=dtype, attn_implementation="sdpa")
    except ValueError as error:
        if "attention" not in str(error):
            raise
    return made.from_config(described.config(), dtype=dtype, attn_implementation="eager")


def _never_packed() -> None:
    """Make transformers assume that no row contains several sequences.

    Otherwise it reads values to find out, which a trace lacks; in a captured graph it builds a mask that
    fused attention does not take.
    """
    try:
        from transformers import masking_utils
    except ImportError:  # it does not exist before 4.53
        return
    if hasattr(masking_utils, "find_packed_sequence_indices"):
        masking_utils.find_packed_sequence_indices = _no_packing


def _no_packing(position_ids: Tensor) -> None:
    del position_ids


def _adapt(name: str, model: nn.Module) -> None:
    """Freeze a model, and add adapters to the linear layers of its attention, else of its blocks."""
    model.requires_grad_(requires_grad=False)
    attention = [m for m in model.modules() if "attention" in type(m).__name__.lower()]
    for places in (attention, repeated_blocks(model)):
        found = {
            id(layer): (parent, attribute, layer)
            for place in places
            for parent in place.modules()
            for attribute, layer in parent.named_children()
            if type(layer) is nn.Linear or type(layer).__name__ == "Conv1D"
        }
        for parent, attribute, layer in found.values():
            setattr(parent, attribute, _adapted(layer))
        if found:
            return
    raise MisuseError(f"{name}: has no linear layer in attention or repeated blocks that could take adapters")


def _adapted(layer: nn.Module) -> LoraLinear:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    outputs, inputs = weight.shape if isinstance(layer, nn.Linear) else reversed(weight.shape)
    return LoraLinear(layer, inputs, outputs, ADAPTER_RANK, weight.dtype)


def _sample_shape(described: Described) -> tuple[int, ...]:
    if described.kind is not Kind.IMAGE:
        return (min(USUAL_CONTEXT, described.context or USUAL_CONTEXT),)
    config = described.config()
    size = getattr(config, "image_size", 224)
    high, wide = size if isinstance(size, list | tuple) else (size, size)
    return (getattr(config, "num_channels", 3), high, wide)


def _kind(name: str, config: Any) -> Kind:
    """Return the task that the config's architecture names, else the first that transformers supports."""
    import transformers

    named = [
        kind for end, kind in _ENDS.items() for each in config.architectures or () if str(each).endswith(end)
    ]
    usual = (Kind.PAIRS if config.is_encoder_decoder else Kind.MASKED, Kind.CAUSAL, Kind.IMAGE)
    for kind in (*named, *usual):
        if type(config) in getattr(transformers, kind)._model_mapping:  # noqa: SLF001 - no public API has it
            return kind
    raise MisuseError(
        f"{name}: transformers has no language model or image classifier for the architecture "
        f'"{plain(config.model_type, 60)}"'
    )


@cache
def _types() -> Mapping[str, Callable[..., Any]]:
    """Return the config classes of transformers by type, in offline mode."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        raise no_transformers() from None
    if not transformers.utils.is_torch_available():
        raise MisuseError(
            f"transformers {transformers.__version__} does not work with torch {torch.__version__}: "
            "install a newer torch"
        )
    found: Mapping[str, Callable[..., Any]] = CONFIG_MAPPING
    return found
