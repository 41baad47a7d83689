"""The user's own model: a file or module that defines a ``WORKLOAD``, or just ``build(batch_size)``.

What ``build`` may return: ``(model, inputs, targets, loss)``, the same with an optimizer factory as a fifth,
a dict with these keys, or a ``Task``. The optimizer defaults to Adam with a learning rate of 1e-4. A file may
also say ``BATCHES = (8, 32, 128)``, ``SAMPLE_UNIT = "image"`` and ``SOURCE = "..."``.

This is trusted code, but code of others: it is imported in a child process only.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gpubench.errors import MisuseError
from gpubench.workload import BATCH_COUNT, Batch, Task, Workload, import_foreign, seeded

DEFAULT_BATCHES = (8, 32, 128)
DEFAULT_LEARNING_RATE = 1e-4
SLOW_BUILD_S = 30.0
"""A build that takes longer (it loads weights) is not asked for further batches: each would take as long."""
SEED_STEP = 1_000_003
_FIELDS = ("model", "inputs", "targets", "loss", "optimizer")
_REFERENCE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>\w+))?|(?P<module>\w+(?:\.\w+)*):(?P<attribute>\w+)")


def load_own(reference: str) -> Workload:
    """Import ``./file.py[:NAME]`` or ``package.module:NAME`` and make a ``Workload`` of it.

    Its name is the reference without folders (``my_model.py``), which no installed workload can bear. The
    version of a model in a file is a checksum of that file: once edited it is never taken for the model
    measured before.

    Raises:
        MisuseError: One line; what the user's code raised is chained as the cause.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise MisuseError(
            f'"{reference}" is no model of your own: give ./file.py, ./file.py:NAME or module:NAME'
        )
    if match["file"] is None:
        module = _import_module(match["module"])
        found, name, version = _named(module, match["attribute"], reference), reference, None
    else:
        path = Path(match["file"])
        module, version = _import_file(path)
        name = path.name if match["name"] is None else f"{path.name}:{match['name']}"
        found = _named(module, match["name"], name) if match["name"] else _default(module, name)
    if isinstance(found, Workload):
        return replace(found, name=name, version=version or found.version)
    if not callable(found):
        raise MisuseError(
            f"{name}: is a {type(found).__name__}; it must be a Workload or a function build(batch_size)"
        )
    return _from_build(name, found, module, version or _checksum(inspect.getsource(module).encode()))


def _import_file(path: Path) -> tuple[ModuleType, int]:
    """Import a file as a script would be: what lies beside it can be imported too."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"cannot read {path}: {error.strerror}; give a Python file that defines build(batch_size)"
        ) from error
    spec = importlib.util.spec_from_file_location(f"gpubench_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MisuseError(f"cannot import {path}: not a Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader = spec.loader
    import_foreign(path.name, lambda: loader.exec_module(module))
    return module, _checksum(source)


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    module: ModuleType = import_foreign(name, lambda: importlib.import_module(name))
    return module


def _checksum(source: bytes) -> int:
    return zlib.crc32(source)


def _named(module: ModuleType, attribute: str, name: str) -> Any:
    if not hasattr(module, attribute):
        raise MisuseError(f"{name}: there is no {attribute} in it")
    return getattr(module, attribute)


def _default(module: ModuleType, name: str) -> Any:
    for attribute in ("WORKLOAD", "build"):
        if hasattr(module, attribute):
            return getattr(module, attribute)
    raise MisuseError(
        f"{name}: defines neither build(batch_size) nor WORKLOAD; `gpubench new-workload NAME` writes a start"
    )


def _from_build(name: str, build: Callable[..., Any], module: ModuleType, version: int) -> Workload:
    """Wrap a plain ``build``; shape and kind of a sample are read from a batch of two.

    A build gives one batch, and a single one is learnt by heart: it is called with further seeds for the
    batches of the rotation, of which only the inputs and targets are kept.
    """
    _check_signature(name, build)
    takes_seed = _binds(build, 2, 0)

    def once(batch_size: int, seed: int) -> Any:
        with seeded(seed):
            return import_foreign(name, lambda: build(batch_size, seed) if takes_seed else build(batch_size))

    def checked(made: Any, batch_size: int) -> Task:
        task = _task(name, made, batch_size)
        _check_form(name, task)
        return task

    def full_build(batch_size: int, seed: int) -> Task:
        start_s = time.monotonic()
        made = once(batch_size, seed)
        task = checked(made, batch_size)
        if isinstance(made, Task) or time.monotonic() - start_s > SLOW_BUILD_S:
            return task
        more = (checked(once(batch_size, s), batch_size).batches[0] for s in _other_seeds(seed))
        first = task.batches[0]
        return replace(task, batches=(first, *(batch for batch in more if _may_rotate(first, batch))))

    shape, is_image = _sample(checked(once(2, 0), 2))
    return Workload(
        name=name,
        version=version,
        sample_unit=str(getattr(module, "SAMPLE_UNIT", "image" if is_image else "sample")),
        sample_shape=shape,
        batches=tuple(getattr(module, "BATCHES", DEFAULT_BATCHES)),
        is_image=is_image,
        source=str(getattr(module, "SOURCE", "the user's own model")),
        build=full_build,
    )


def _other_seeds(seed: int) -> tuple[int, ...]:
    """Seeds of the batches after the first, far from those that somebody would choose next."""
    return tuple(seed + SEED_STEP * place for place in range(1, BATCH_COUNT))


def _may_rotate(first: Batch, other: Batch) -> bool:
    """Whether a batch is another one of the same form: a build that fixes its own seed gives the same."""
    import torch

    forms, tensors = [], []
    for inputs, targets in (first, other):
        parts = inputs if isinstance(inputs, tuple) else (inputs,)
        whole = (*parts, targets) if isinstance(targets, torch.Tensor) else parts
        forms.append([(tensor.shape, tensor.dtype) for tensor in whole])
        tensors.append(parts)
    if forms[0] != forms[1]:
        return False
    return any(a.is_meta or not torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def _check_signature(name: str, build: Callable[..., Any]) -> None:
    if not (_binds(build, 2) or _binds(build, 2, 0)):
        raise MisuseError(
            f"{name}: build must take one argument, build(batch_size), or two, build(batch_size, seed)"
        )


def _binds(build: Callable[..., Any], *arguments: int) -> bool:
    try:
        inspect.signature(build).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def _task(name: str, made: Any, batch_size: int) -> Task:
    """Turn what ``build`` returned into a task, or say in one line what is wrong with it."""
    import torch

    if isinstance(made, Task):
        return made
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
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    optimizer = parts.get("optimizer") or functools.partial(torch.optim.Adam, lr=DEFAULT_LEARNING_RATE)
    return Task(model=model, batches=((inputs, targets),), loss=loss, optimizer=optimizer)


def _check_inputs(name: str, inputs: Any, batch_size: int) -> None:
    import torch

    for tensor in inputs if isinstance(inputs, tuple | list) else (inputs,):
        if not isinstance(tensor, torch.Tensor):
            raise MisuseError(f"{name}: the inputs hold a {type(tensor).__name__}; they must be tensors")
        if tensor.ndim == 0 or tensor.shape[0] != batch_size:
            raise MisuseError(
                f"{name}: build({batch_size}) gave inputs of shape {tuple(tensor.shape)}; "
                "the first dimension must be the batch"
            )


def _check_form(name: str, task: Task) -> None:
    """Refuse what would be measured as something else: another device, another precision."""
    import torch

    inputs = task.batches[0][0]
    tensors = [*task.model.parameters(), *(inputs if isinstance(inputs, tuple) else (inputs,))]
    for tensor in tensors:
        if tensor.device.type not in {"cpu", "meta"}:
            raise MisuseError(
                f"{name}: built on {tensor.device}; build on the CPU, gpubench moves the model itself"
            )
        if tensor.is_floating_point() and tensor.dtype is not torch.float32:
            raise MisuseError(f"{name}: built in {tensor.dtype}; build model and inputs in torch.float32")


def _describe(made: Any) -> str:
    return f"{len(made)} values" if isinstance(made, tuple | list) else f"a {type(made).__name__}"


def _sample(task: Task) -> tuple[tuple[int, ...], bool]:
    """Shape of one sample, and whether it is an image: three dimensions of floats, few channels."""
    inputs = task.batches[0][0]
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    shape = tuple(first.shape[1:])
    return shape, len(shape) == 3 and first.is_floating_point()
