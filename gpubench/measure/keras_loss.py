"""Losses of Keras: which targets one takes, and whether a model's output fits it. Keras is imported here.

A backend may compute something of what does not fit: it stretches the smaller of two shapes, and takes a
label that is no class for one whose loss is 0. That is refused here, before a step is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras.src.losses.losses import (
    LossFunctionWrapper,  # what compile makes of a loss by its name or of a function
)

from gpubench.errors import MisuseError

LABELS = 4
"""Targets that are drawn, where the model has as many classes: few enough to be learned."""


def _named(*names: str) -> frozenset[Any]:
    return frozenset(getattr(keras.losses, name) for name in names if hasattr(keras.losses, name))


_SPARSE = _named("sparse_categorical_crossentropy")
_ONE_HOT = _named(
    "categorical_crossentropy", "categorical_focal_crossentropy", "categorical_generalized_cross_entropy"
)
_OTHER_SHAPES = _SPARSE | _named("ctc", "circle")
"""Functions of Keras whose targets are of another shape than the output."""

_MISFIT = "the output does not fit the loss"


def loss_of(found: Any) -> keras.losses.Loss:
    """Return a loss by its name, as a function or as an object of Keras."""
    loss = keras.losses.get(found)
    if isinstance(loss, keras.losses.Loss):
        return loss
    return LossFunctionWrapper(loss, name=getattr(loss, "__name__", "loss"))


def draw_targets(
    loss: keras.losses.Loss, output_shape: Sequence[int], batch_size: int, draw: np.random.Generator
) -> Any:
    """Draw targets that fit a loss over outputs of this shape, without the batch."""
    shape, function = (batch_size, *output_shape), getattr(loss, "fn", None)
    if function in _SPARSE | _ONE_HOT:
        labels = draw.integers(min(LABELS, shape[-1]), size=shape[:-1], dtype=np.int32)
        return labels if function in _SPARSE else np.eye(shape[-1], dtype=np.float32)[labels]
    return draw.integers(2, size=shape).astype(np.float32)


def check_fit(name: str, loss: keras.losses.Loss, targets: Sequence[Any], outputs: Any) -> None:
    """Refuse a model whose output does not fit its loss.

    Args:
        name: Of the model.
        loss: Of the model.
        targets: Of every batch, on the host.
        outputs: Of the model, for the first batch.

    Raises:
        MisuseError: With both shapes, or the labels.
    """
    if not hasattr(outputs, "shape"):
        raise MisuseError(
            f"{name}: a model with one output is measured, and this one returns a {type(outputs).__name__}"
        )
    shape, function = tuple(outputs.shape), getattr(loss, "fn", None)
    shapes = f"an output of shape {shape} and targets of shape {tuple(targets[0].shape)}"
    if function in _SPARSE | _ONE_HOT:
        _check_classes(name, loss, targets, shape, shapes)
    if _is_of_keras(function) and function not in _OTHER_SHAPES and _differ(targets[0].shape, shape):
        raise MisuseError(f"{name}: {_MISFIT}: {loss.name} needs both of one shape, and has {shapes}")
    try:
        value = keras.ops.convert_to_numpy(loss(keras.ops.convert_to_tensor(targets[0]), outputs))
    except Exception as error:  # a loss of the user's own may raise anything; the cause is kept
        raise MisuseError(f"{name}: {_MISFIT}: {shapes} ({type(error).__name__})") from error
    if value.ndim:
        raise MisuseError(f"{name}: the loss is no single number but of shape {value.shape}, from {shapes}")


def _is_of_keras(function: Any) -> bool:
    return getattr(function, "__module__", "").startswith("keras.")


def _differ(targets: Sequence[int], outputs: Sequence[int]) -> bool:
    """Whether two shapes differ in more than a last dimension of 1, which Keras adds or takes away."""
    first, second = tuple(targets), tuple(outputs)
    return second not in {first, (*first, 1)} and first != (*second, 1)


def _check_classes(
    name: str, loss: keras.losses.Loss, targets: Sequence[Any], shape: tuple[int, ...], shapes: str
) -> None:
    axis = getattr(loss, "_fn_kwargs", {}).get("axis", -1)
    classes = shape[axis] if shape else 0
    if classes < 2:
        raise MisuseError(
            f"{name}: {_MISFIT}: {loss.name} over one class is 0 whatever the weights, and it has {shapes}; "
            "binary_crossentropy takes one output"
        )
    if loss.fn not in _SPARSE:
        return
    labels = [each[each != getattr(loss, "ignore_class", None)] for each in map(np.asarray, targets)]
    least = min((each.min() for each in labels if each.size), default=0)
    most = max((each.max() for each in labels if each.size), default=0)
    if least < 0 or most >= classes:
        raise MisuseError(f"{name}: {_MISFIT}: {classes} outputs for labels from {least} to {most}; {shapes}")
