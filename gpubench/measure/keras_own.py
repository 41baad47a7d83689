"""A Keras model of the user's own: a file whose ``build(batch_size)`` returns a ``keras.Model``.

It may return a compiled model alone, whose inputs are drawn by its own shapes, or ``(model, inputs, targets,
loss)`` and an optimizer as a fifth, with numpy arrays. Trusted code, but code of others: it is imported in a
child process only.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import msgspec
import numpy as np

from gpubench.discovery import keras_models
from gpubench.errors import MisuseError
from gpubench.measure.keras_loss import check_fit, draw_targets, loss_of
from gpubench.measure.keras_steps import check_backend
from gpubench.models import Framework, WorkloadProfile
from gpubench.own_model import import_own, own_name, takes_seed, version_of
from gpubench.workload import BATCH_COUNT, KerasTask, import_foreign, is_own

DEFAULT_BATCHES = (8, 32, 128)
PROFILED_BATCH = 2

Build = Callable[[int, int], KerasTask]


def build_of(reference: str, framework: Framework) -> Build:
    """Return what builds a workload with Keras: one of the standard ones, or a file of the user's own.

    Raises:
        MisuseError: One line that names the model and what is wrong with it.
    """
    if not is_own(reference):
        standard: Build = keras_models().MODELS[reference]
        return standard
    return _own_build(reference, framework)[0]


def _own_build(reference: str, framework: Framework) -> tuple[Build, ModuleType]:
    """Return what builds a model of the user's own, and the module that it is from."""
    found, module = import_own(reference)
    check_backend(framework)
    name = own_name(reference)
    if not callable(found):
        raise MisuseError(f"{name}: is a {type(found).__name__}; for Keras it must be build(batch_size)")
    with_seed = takes_seed(name, found)

    def build(batch_size: int, seed: int) -> KerasTask:
        made = import_foreign(name, lambda: found(batch_size, seed) if with_seed else found(batch_size))
        check_backend(framework)
        return _task(name, made, batch_size, seed)

    return build, module


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
    optimizer = parts[4] if len(parts) == 5 else keras.optimizers.Adam(1e-4)
    return KerasTask(
        model=model,
        batches=((inputs, targets),),
        loss=loss_of(parts[3]),
        optimizer=keras.optimizers.get(optimizer),
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
    draw, shape = np.random.default_rng(seed), tuple(outputs[0].shape)[1:]
    batches = tuple(
        (
            _inputs(model, specs[0], batch_size, draw),
            draw_targets(loss, shape, batch_size, draw),
        )
        for _ in range(BATCH_COUNT)
    )
    optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
    return KerasTask(model=model, batches=batches, loss=loss, optimizer=optimizer)


def _inputs(model: Any, spec: Any, batch_size: int, draw: np.random.Generator) -> Any:
    """Tokens of the first embedding where there is one, else N(0, 1)."""
    shape = (batch_size, *tuple(spec.shape)[1:])
    tables = [each for each in model._flatten_layers() if isinstance(each, keras.layers.Embedding)]  # noqa: SLF001
    if tables:
        return draw.integers(tables[0].input_dim, size=shape, dtype=np.int32)
    return draw.standard_normal(shape, dtype=np.float32)


def profile_of_own(reference: str, framework: Framework, return_home: Callable[[], None]) -> WorkloadProfile:
    """Read of a model of the user's own what can be known without a trace: parameters and shapes.

    Args:
        reference: The file, or module, and what it names.
        framework: Keras on one of its backends.
        return_home: Goes back to the folder that the reference is a path from: a model may have left it.

    Raises:
        MisuseError: Where it is no such model, or its output does not fit its loss.
    """
    build, module = _own_build(reference, framework)
    task = build(PROFILED_BATCH, 0)
    outputs = import_foreign(own_name(reference), lambda: task.model(task.batches[0][0], training=False))
    check_fit(own_name(reference), task.loss, [targets for _, targets in task.batches], outputs)
    return_home()
    shape = tuple(int(n) for n in task.batches[0][0].shape[1:])
    is_image = len(shape) == 3
    profile = WorkloadProfile(
        name=own_name(reference),
        version=1,
        sample_unit=str(getattr(module, "SAMPLE_UNIT", "image" if is_image else "sample")),
        sample_shape=shape,
        is_image=is_image,
        source=str(getattr(module, "SOURCE", "the user's own Keras model")),
        optimizer=type(task.optimizer).__name__,
        parameters=int(task.model.count_params()),
        trainable_parameters=sum(int(np.prod(v.shape)) for v in task.model.trainable_variables),
        batches=tuple(getattr(module, "BATCHES", DEFAULT_BATCHES)),
        forward_flops_per_sample=0.0,
        train_flops_per_sample=0.0,
        saved_bytes_per_sample=0.0,
        optimizer_bytes_per_parameter=0.0,
        train=(),
        infer=(),
        memory_untraced="a Keras model is not traced",
    )
    return msgspec.structs.replace(profile, version=version_of(reference, profile))
