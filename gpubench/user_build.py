"""What the user's own ``build`` returns, made a workload.

It may be ``(model, inputs, targets, loss)``, the same with an optimizer factory as a fifth, a dict with these
keys, or a ``Task``. The optimizer defaults to Adam with a learning rate of 1e-4. A file may also say
``BATCHES = (8, 32, 128)``, ``SAMPLE_UNIT = "image"`` and ``SOURCE = "..."``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpubench.errors import MisuseError
from gpubench.foreign_code import TOO_LARGE, import_foreign, lacks_memory
from gpubench.models import Framework, Recipe, WeightType
from gpubench.workload import BATCH_COUNT, Batch, Task, Workload, forward, seeded

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_BATCHES = (8, 32, 128)
DEFAULT_LEARNING_RATE = 1e-4
SLOW_BUILD_S = 30.0
"""A build that takes longer (it loads weights) is not asked for further batches: each would take as long."""
SEED_STEP = 1_000_003
"""Of the batches after the first: far from what somebody would choose next."""
MOST_CHARACTERS = 200
"""Of the unit and of the source that a module states: they stand in tables and in every file of a run."""
SMALL_BATCH = 2
"""Of the build that a sample is read from."""
_FIELDS = ("model", "inputs", "targets", "loss", "optimizer")


def workload_of(name: str, found: Any, module: ModuleType) -> Workload:
    """Make a workload of what a module of the user's own defines, its builds checked.

    Args:
        name: That it bears in the records.
        found: A ``Workload``, or a function ``build(batch_size)`` or ``build(batch_size, seed)``.
        module: It may say more beside a function.

    Raises:
        MisuseError: If it is neither, or what a function builds cannot be measured.
    """
    if isinstance(found, Workload):
        return replace(found, name=name, build=_checked(name, found.build))
    if not callable(found):
        raise MisuseError(
            f"{name}: is a {type(found).__name__}; it must be a Workload or a function build(batch_size)"
        )
    return _from_build(name, found, module)


def _checked(name: str, build: Callable[..., Any]) -> Callable[..., Task]:
    """Wrap the ``build`` of a ``Workload``, which returns nothing but a ``Task``.

    What a recipe changes comes by name, where the workload has ``settings``.
    """

    def checked(batch_size: int, seed: int, **changed: Any) -> Task:
        made = _called(name, lambda: build(batch_size, seed, **changed))
        if not isinstance(made, Task):
            raise MisuseError(
                f"{name}: the build of its Workload returned {_describe(made)}; it must return a Task "
                "(a function build(batch_size) may return model, inputs, targets, loss)"
            )
        return _sound(name, made)

    return checked


def _called(name: str, build: Callable[[], Any]) -> Any:
    from gpubench.tensors import OffGpu

    with OffGpu():
        return import_foreign(name, build)


def _from_build(name: str, build: Callable[..., Any], module: ModuleType) -> Workload:
    """Wrap a plain ``build``; shape and kind of a sample are read from a batch of two.

    A build gives one batch, and a single one is learned by heart: it is called with further seeds for the
    batches of the rotation, of which only the inputs and targets are kept.
    """
    with_seed = takes_seed(name, build)

    def once(batch_size: int, seed: int) -> Any:
        with seeded(seed):
            return _called(name, lambda: build(batch_size, seed) if with_seed else build(batch_size))

    def checked(made: Any, batch_size: int) -> Task:
        return _sound(name, _task(name, made, batch_size))

    def full_build(batch_size: int, seed: int) -> Task:
        start_s = time.monotonic()
        made = once(batch_size, seed)
        task = checked(made, batch_size)
        if time.monotonic() - start_s > SLOW_BUILD_S:
            return task
        task = replace(task, again=lambda: checked(once(batch_size, seed), batch_size))
        if isinstance(made, Task):
            return task
        seeds = (seed + SEED_STEP * place for place in range(1, BATCH_COUNT))
        more = (checked(once(batch_size, other), batch_size).batches[0] for other in seeds)
        first = task.batches[0]
        return replace(task, batches=(first, *(batch for batch in more if _may_rotate(first, batch))))

    small = _small_task(lambda batch_size, seed: checked(once(batch_size, seed), batch_size))
    _refuse_loose_tensor(name, small)
    shape, unit = _sample(small)
    recipe = Recipe(weight_type=_weight_type(small))
    batches = getattr(module, "BATCHES", DEFAULT_BATCHES)
    return Workload(
        name=name,
        version=1,
        sample_unit=_words(name, module, "SAMPLE_UNIT", unit),
        sample_shape=shape,
        batches=tuple(batches) if isinstance(batches, list) else batches,
        is_image=unit == "image",
        source=_words(name, module, "SOURCE", "the user's own model"),
        build=full_build,
        recipe=recipe,
        precisions=("bf16",) if recipe.weight_type is WeightType.BFLOAT16 else (),
    )


def _words(file: str, module: ModuleType, name: str, default: str) -> str:
    """Return a text that a module may define; it stands in tables and in every file of a run."""
    text = str(getattr(module, name, default))
    if len(text) > MOST_CHARACTERS:
        raise MisuseError(f"{file}: {name} has {len(text):,} characters; give at most {MOST_CHARACTERS}")
    return text


def _small_task(build: Callable[[int, int], Task]) -> Task:
    """Build a batch of two on the meta device, where a layer of any size takes no memory.

    What the user's code cannot do there it is asked to do on the CPU.
    """
    import torch

    try:
        with torch.device("meta"):
            return build(SMALL_BATCH, 0)
    except MisuseError as error:
        if error.__cause__ is None:  # not theirs to raise, but ours: the CPU would say the same
            raise
        on_meta = error
    try:
        return build(SMALL_BATCH, 0)
    except MisuseError as error:
        if not lacks_memory(error):
            raise
    raise MisuseError(f"{on_meta} {TOO_LARGE}") from on_meta.__cause__


def _may_rotate(first: Batch, other: Batch) -> bool:
    """Whether a batch is another one of the same form: a build that fixes its own seed gives the same."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    forms = [
        [
            (tensor.shape, tensor.dtype)
            for tensor in _tensors(parts if torch.is_tensor(parts[1]) else parts[0])
        ]
        for parts in (first, other)
    ]
    if forms[0] != forms[1]:
        return False
    # What has no values to compare, on the meta device or faked for a trace, counts as other.
    pairs = zip(_tensors(first[0]), _tensors(other[0]), strict=True)
    return any(
        a.is_meta or isinstance(a, FakeTensor) or a.is_sparse or not torch.equal(a, b) for a, b in pairs
    )


def _tensors(value: Any) -> list[Tensor]:
    from gpubench.tensors import tensors_of  # which imports torch

    return tensors_of(value)


def takes_seed(name: str, build: Callable[..., Any]) -> bool:
    """Whether a build takes a seed beside the batch size.

    Raises:
        MisuseError: If it takes neither one argument nor two.
    """
    with_seed = _binds(build, 2, 0)
    if not with_seed and not _binds(build, 2):
        raise MisuseError(
            f"{name}: build must take one argument, build(batch_size), or two, build(batch_size, seed)"
        )
    return with_seed


def _binds(function: Callable[..., Any], *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _task(name: str, made: Any, batch_size: int) -> Task:
    """Turn what ``build`` returned into a task, or say in one line what is wrong with it."""
    import torch

    if isinstance(made, Task):
        return made
    if _is_of_keras(made):
        others = ", ".join(each for each in Framework if each is not Framework.TORCH)
        raise MisuseError(
            f"{name}: build returned a model of Keras: choose how it runs with --framework {others}"
        )
    if isinstance(made, dict):
        parts = made
    elif isinstance(made, tuple | list) and len(made) in {4, 5}:
        parts = dict(zip(_FIELDS, made, strict=False))
    else:
        raise MisuseError(
            f"{name}: build returned {_describe(made)}; it must return model, inputs, targets, loss"
        )
    missing = [field for field in _FIELDS[:4] if field not in parts]
    if missing:
        raise MisuseError(f"{name}: build returned no {' and no '.join(missing)}")
    model, inputs, targets, loss = (parts[field] for field in _FIELDS[:4])
    if not isinstance(model, torch.nn.Module):
        raise MisuseError(f"{name}: the model is a {type(model).__name__}, not a torch.nn.Module")
    if not callable(loss):
        raise MisuseError(f"{name}: the loss is a {type(loss).__name__}, not loss(outputs, targets)")
    _check_inputs(name, inputs, batch_size)
    whole = isinstance(inputs, list) and all(_is_batch(part, batch_size) for part in inputs)
    if whole and _binds(model.forward, *inputs):
        inputs = tuple(inputs)  # its arguments; else it is one, such as images of several sizes
    optimizer = parts.get("optimizer") or functools.partial(torch.optim.Adam, lr=DEFAULT_LEARNING_RATE)
    return Task(model=model, batches=((inputs, targets),), loss=loss, optimizer=optimizer)


def _check_inputs(name: str, inputs: Any, batch_size: int) -> None:
    """Find the batch among the inputs: beside it may stand a mask, or the edges of a graph."""
    tensors = _tensors(inputs)
    if not tensors:
        raise MisuseError(f"{name}: the inputs hold no tensor, but {_describe(inputs)}")
    by_sample = isinstance(inputs, list) and len(inputs) == batch_size
    if not (by_sample or any(_is_batch(tensor, batch_size) for tensor in tensors)):
        raise MisuseError(
            f"{name}: build({batch_size}) gave inputs of shape {tuple(tensors[0].shape)}; "
            "the first dimension must be the batch"
        )


def _is_batch(part: Any, batch_size: int) -> bool:
    return getattr(part, "shape", ())[:1] == (batch_size,)


def _sound(name: str, task: Task) -> Task:
    """Return the task with its loss beside its model where that has tensors of its own.

    Raises:
        MisuseError: If something cannot be moved, or would be measured as something else.
    """
    import torch

    from gpubench.user_loss import joined

    _give_shapes(task)
    for module in task.model.modules():
        if isinstance(module, torch.nn.DataParallel):
            module.device_ids = []  # then it calls its module alone: a case has the GPUs that it names
    model, loss = joined(task.model, task.loss)
    task = replace(task, model=model, loss=loss)
    if not callable(task.optimizer):
        raise MisuseError(
            f"{name}: the optimizer is a {type(task.optimizer).__name__} object; return a factory, which "
            "gpubench calls with the parameters, such as functools.partial(torch.optim.SGD, lr=0.1)"
        )
    for tensor in (*task.model.parameters(), *_tensors(task.batches[0][0])):
        if tensor.device.type not in {"cpu", "meta"}:
            raise MisuseError(
                f"{name}: built on {tensor.device}; build on the CPU, gpubench moves the model itself"
            )
        if tensor.is_floating_point() and tensor.dtype not in {torch.float32, torch.bfloat16}:
            raise MisuseError(
                f"{name}: built in {tensor.dtype}; build model and inputs in torch.float32 or torch.bfloat16"
            )
    return task


def _refuse_loose_tensor(name: str, task: Task) -> None:
    from gpubench.user_loss import loose_tensor

    is_on_meta = any(parameter.is_meta for parameter in task.model.parameters())  # else a step takes time
    if is_on_meta and (loose := loose_tensor(task)):
        raise MisuseError(
            f"{name}: the loss holds a tensor that gpubench can neither move nor train ({loose}); return the "
            "loss as an nn.Module that registers it, by self.register_buffer, as nn.Parameter or a submodule"
        )


def _give_shapes(task: Task) -> None:
    """Let a model with lazy layers see its batch once: until then these have no weights."""
    import torch

    if any(map(torch.nn.parameter.is_lazy, task.model.parameters())):
        is_training = task.model.training
        with torch.no_grad():
            forward(task.model.eval(), task.batches[0][0])
        task.model.train(is_training)


def _is_of_keras(made: Any) -> bool:
    """Whether a build returned a model of Keras, alone or as one that torch cannot run; imports no Keras."""
    import torch

    keras = sys.modules.get("keras")
    if keras is None or not isinstance(made, tuple | list):
        return keras is not None and isinstance(made, keras.Model)
    return bool(made) and isinstance(made[0], keras.Model) and not isinstance(made[0], torch.nn.Module)


def _describe(made: Any) -> str:
    return f"{len(made)} values" if isinstance(made, tuple | list) else f"a {type(made).__name__}"


def _sample(task: Task) -> tuple[tuple[int, ...], str]:
    """Shape of one sample, and what it is: floats in three dimensions an image, whole numbers tokens."""
    import torch

    inputs = task.batches[0][0]
    tensors = _tensors(inputs)
    whole = [tensor for tensor in tensors if _is_batch(tensor, SMALL_BATCH)]
    first = whole[0] if whole else tensors[0]
    shape = tuple(first.shape[1:] if whole else first.shape)
    if len(shape) == 1 and first.dtype in {torch.int32, torch.int64}:
        return shape, "sequence"
    return shape, "image" if len(shape) == 3 and first.is_floating_point() else "sample"


def _weight_type(task: Task) -> WeightType:
    """The type that most of the weights lie in."""
    counts: Counter[str] = Counter()
    for parameter in task.model.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return WeightType.BFLOAT16 if counts["bfloat16"] > counts.total() / 2 else WeightType.FLOAT32
