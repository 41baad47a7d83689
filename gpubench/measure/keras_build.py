"""What builds a Keras model, and whether its output fits its loss. Keras is imported here.

A model of the user's own is a file whose ``build(batch_size)`` returns a ``keras.Model``. It may return a
compiled model alone, whose inputs are drawn by its own shapes, or ``(model, inputs, targets, loss)`` and an
optimizer as a fifth, with numpy arrays. Trusted code, but code of others: it is imported in a child process
only, that of a measurement or, before there is a plan, one that runs this file.

A backend may compute something of what does not fit a loss: it stretches the smaller of two shapes. That is
refused here, before a step is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import keras
import msgspec
import numpy as np
from keras.src.losses.losses import (
    LossFunctionWrapper,  # what compile makes of a loss by its name or of a function
)

from gpubench.discovery import keras_models
from gpubench.errors import MisuseError
from gpubench.folders import traceback_of
from gpubench.foreign_code import import_foreign
from gpubench.measure.capability import KERAS
from gpubench.models import Framework, WorkloadProfile
from gpubench.parent import ParentChannel
from gpubench.profile.cache import Answer
from gpubench.user_build import DEFAULT_BATCHES, takes_seed
from gpubench.user_model import import_own, is_own, own_name, version_of
from gpubench.workload import BATCH_COUNT, KerasTask

PROFILED_BATCH = 2

Build = Callable[[int, int], KerasTask]


def check_backend(framework: Framework) -> None:
    """Make sure that this process runs the backend that was asked for, and that no code chose another.

    Raises:
        MisuseError: Naming both.
    """
    wanted = KERAS[framework].backend
    backends = keras.backend.backend(), os.environ.get("KERAS_BACKEND", wanted)
    other = next((name for name in backends if name != wanted), None)
    if other is not None:
        raise MisuseError(
            f"{framework} was asked for, and the model's code sets Keras's backend to {other}: a process has "
            f"one backend; ask for --framework keras-{other}, or leave KERAS_BACKEND to gpubench"
        )


@cache
def build_of(reference: str, framework: Framework) -> Build:
    """Return what builds a workload with Keras: one of the standard ones, or a file of the user's own.

    Raises:
        MisuseError: One line that names the model and what is wrong with it.
    """
    if not is_own(reference):
        standard: Build = keras_models().MODELS[reference]
        return standard
    found, _ = import_own(reference)
    check_backend(framework)
    name = own_name(reference)
    if not callable(found):
        raise MisuseError(f"{name}: is a {type(found).__name__}; for Keras it must be build(batch_size)")
    with_seed = takes_seed(name, found)

    def build(batch_size: int, seed: int) -> KerasTask:
        made = import_foreign(name, lambda: found(batch_size, seed) if with_seed else found(batch_size))
        check_backend(framework)
        return _task(name, made, batch_size, seed)

    return build


def _task(name: str, made: Any, batch_size: int, seed: int) -> KerasTask:
    parts = made if isinstance(made, tuple | list) else (made,)
    model = parts[0] if parts else None
    if not isinstance(model, keras.Model):
        raise MisuseError(f"{name}: build returned a {type(model).__name__} where a keras.Model was expected")
    if len(parts) == 1:
        return _compiled(name, model, batch_size, seed)
    if len(parts) not in {4, 5}:
        raise MisuseError(
            f"{name}: build returned {len(parts)} values; it must return a compiled keras.Model, or model, "
            "inputs, targets, loss"
        )
    inputs, targets = (np.asarray(part) for part in parts[1:3])
    if not inputs.ndim or len(inputs) != batch_size:
        raise MisuseError(
            f"{name}: build({batch_size}) gave inputs of shape {inputs.shape}; the first dimension must be "
            "the batch"
        )
    return KerasTask(
        model=model,
        batches=((inputs, targets),),
        loss=loss_of(parts[3]),
        optimizer=keras.optimizers.get(parts[4]) if len(parts) == 5 else keras.optimizers.Adam(1e-4),
    )


def _compiled(name: str, model: Any, batch_size: int, seed: int) -> KerasTask:
    """Draw batches for a compiled model, by the shapes that it tells."""
    if not getattr(model, "compiled", False) or model.loss is None:
        raise MisuseError(
            f"{name}: the model has no loss: call compile(optimizer=..., loss=...), or return model, inputs, "
            "targets, loss"
        )
    specs: Any = model.inputs or ()
    outputs: Any = model.outputs or ()
    if len(specs) != 1 or len(outputs) != 1 or None in specs[0].shape[1:]:
        raise MisuseError(
            f"{name}: batches are drawn for one input and one output of known shape: return model, inputs, "
            "targets, loss"
        )
    loss = loss_of(model.loss)
    draw = np.random.default_rng(seed)
    shape, output_shape = (batch_size, *specs[0].shape[1:]), tuple(outputs[0].shape)[1:]
    tables = [each for each in model._flatten_layers() if isinstance(each, keras.layers.Embedding)]  # noqa: SLF001

    def batch() -> tuple[Any, Any]:  # tokens of the first embedding where there is one, else N(0, 1)
        if tables:
            inputs: Any = draw.integers(tables[0].input_dim, size=shape, dtype=np.int32)
        else:
            inputs = draw.standard_normal(shape, dtype=np.float32)
        return inputs, draw_targets(loss, output_shape, batch_size, draw)

    return KerasTask(
        model=model,
        batches=tuple(batch() for _ in range(BATCH_COUNT)),
        loss=loss,
        optimizer=type(model.optimizer).from_config(model.optimizer.get_config()),
    )


def profile_of_own(reference: str, framework: Framework, return_home: Callable[[], None]) -> WorkloadProfile:
    """Read of a model of the user's own what can be known without a trace: parameters and shapes.

    Args:
        reference: The file, or module, and what it names.
        framework: Keras on one of its backends.
        return_home: Goes back to the folder that the reference is a path from: a model may have left it.

    Raises:
        MisuseError: Where it is no such model, or its output does not fit its loss.
    """
    task = build_of(reference, framework)(PROFILED_BATCH, 0)
    outputs = import_foreign(own_name(reference), lambda: task.model(task.batches[0][0], training=False))
    check_fit(own_name(reference), task.loss, task.batches[0][1], outputs)
    return_home()
    shape = tuple(int(n) for n in task.batches[0][0].shape[1:])
    is_image = len(shape) == 3
    profile = WorkloadProfile(
        name=own_name(reference),
        version=1,
        sample_unit="image" if is_image else "sample",
        sample_shape=shape,
        is_image=is_image,
        source="the user's own Keras model",
        optimizer=type(task.optimizer).__name__,
        parameters=int(task.model.count_params()),
        trainable_parameters=sum(int(np.prod(v.shape)) for v in task.model.trainable_variables),
        batches=DEFAULT_BATCHES,
        forward_flops_per_sample=0.0,
        train_flops_per_sample=0.0,
        saved_bytes_per_sample=0.0,
        optimizer_bytes_per_parameter=0.0,
        train=(),
        infer=(),
        memory_untraced="a Keras model is not traced",
    )
    return msgspec.structs.replace(profile, version=version_of(reference, profile))


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


def check_fit(name: str, loss: keras.losses.Loss, targets: Any, outputs: Any) -> None:
    """Refuse a model whose output does not fit its loss.

    Args:
        name: Of the model.
        loss: Of the model.
        targets: Of a batch.
        outputs: Of the model for it.

    Raises:
        MisuseError: With both shapes.
    """
    if not hasattr(outputs, "shape"):
        raise MisuseError(
            f"{name}: a model with one output is measured, and this one returns a {type(outputs).__name__}"
        )
    shape, function = tuple(outputs.shape), getattr(loss, "fn", None)
    given = tuple(targets.shape)
    shapes = f"an output of shape {shape} and targets of shape {given}"
    is_of_keras = getattr(function, "__module__", "").startswith("keras.")
    # A last dimension of 1 is added or taken away by Keras.
    differ = shape not in {given, (*given, 1)} and given != (*shape, 1)
    if is_of_keras and function not in _OTHER_SHAPES and differ:
        raise MisuseError(f"{name}: {_MISFIT}: {loss.name} needs both of one shape, and has {shapes}")
    try:
        value = keras.ops.convert_to_numpy(loss(keras.ops.convert_to_tensor(targets), outputs))
    except Exception as error:  # a loss of the user's own may raise anything; the cause is kept
        raise MisuseError(f"{name}: {_MISFIT}: {shapes} ({type(error).__name__})") from error
    if value.ndim:
        raise MisuseError(
            f"{name}: the loss is not a single number: its shape is {value.shape}, from {shapes}"
        )


def main() -> None:
    """Read a model of the user's own and answer; this process has one backend."""
    parent = ParentChannel()
    reference, framework = parent.arguments
    try:
        profile = profile_of_own(reference, Framework(framework), parent.return_home)
        sound = msgspec.convert(msgspec.to_builtins(profile), WorkloadProfile)  # its fields are of others too
        answer = Answer(profile=sound)
    except MisuseError as error:
        answer = Answer(error=str(error), traceback=traceback_of(error) if error.__cause__ else None)
    parent.send(answer)


if __name__ == "__main__":
    main()
