"""The user's own model: a file or module that defines a ``WORKLOAD``, or just ``build(batch_size)``.

``hf:PATH`` is one too: a Hugging Face ``config.json``, or the folder that holds it; no code of others is run.

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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gpubench.errors import MisuseError
from gpubench.files import is_there, read_bytes
from gpubench.models import Framework, Recipe, WeightType, WorkloadProfile
from gpubench.own_files import (
    MOST_SOURCE_BYTES,
    OWN_PREFIX,
    check_context,
    imported_below,
    read_config,
    root_of,
    source_checksum,
    stated_context,
)
from gpubench.units import plain
from gpubench.workload import (
    BATCH_COUNT,
    HUGGING_FACE,
    TOO_LARGE,
    Batch,
    Task,
    Workload,
    import_foreign,
    lacks_memory,
    seeded,
)

DEFAULT_BATCHES = (8, 32, 128)
DEFAULT_LEARNING_RATE = 1e-4
SLOW_BUILD_S = 30.0
"""A build that takes longer (it loads weights) is not asked for further batches: each would take as long."""
SEED_STEP = 1_000_003
"""Of the batches after the first: far from what somebody would choose next."""
_FIELDS = ("model", "inputs", "targets", "loss", "optimizer")
CONFIG_NAME = "config.json"
_MOST_NAME = 80
_REFERENCE = re.compile(
    r"hf:(?P<config>.+)|(?P<file>.+\.py)(?::(?P<name>\w+))?|(?P<module>\w+(?:\.\w+)*):(?P<attribute>\w+)"
)


def load_own(reference: str) -> Workload:
    """Import ``./file.py[:NAME]`` or ``package.module:NAME`` and make a ``Workload`` of it.

    Its name is the reference without folders (``my_model.py``), which no installed workload can bear. Its
    version is a checksum of its sources, whatever a ``WORKLOAD`` of its own says.

    Raises:
        MisuseError: One line; what the user's code raised is chained as the cause.
    """
    match, name = _match(reference), own_name(reference)
    if match["config"] is not None:
        check_own(reference, {})
        return _by_config(_config(match), name, _sources(match, None))
    file = _file(match)  # before their code can go to another folder
    found, module = import_own(reference)
    if isinstance(found, Workload):
        workload = replace(found, name=name, build=_checked(name, found.build))
    elif callable(found):
        workload = _from_build(name, found, module)
    else:
        raise MisuseError(
            f"{name}: is a {type(found).__name__}; it must be a Workload or a function build(batch_size)"
        )
    return replace(workload, version=_sources(match, file))


def check_own(reference: str, asked: Mapping[str, Any]) -> None:
    """Look at what can be known of a model at once, before anything of it is imported or built.

    Args:
        reference: The model.
        asked: What its recipe is to be, by field.

    Raises:
        MisuseError: If it is described by a config that cannot be, or not together with what is asked for.
    """
    match, name = _match(reference), own_name(reference)
    if match["config"] is not None:
        context = stated_context(read_config(_config(match), name))
        check_context(name, asked.get("context_tokens", 0), context)


def import_own(reference: str) -> tuple[Any, ModuleType]:
    """Import a file or module and return what it names: a ``Workload`` or a function, and the module.

    Raises:
        MisuseError: As ``load_own``.
    """
    match, name = _match(reference), own_name(reference)
    if match["file"] is None:
        module = _import_module(match["module"])
        return _named(module, match["attribute"], name), module
    module = _import_file(Path(match["file"]))
    return (_named(module, match["name"], name) if match["name"] else _default(module, name)), module


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


def own_name(reference: str) -> str:
    """Return the name that a model of the user's own bears in the records; nothing is imported.

    >>> own_name("./models/net.py:small"), own_name("package.module:NET"), own_name("hf:/m/Llama/config.json")
    ('net.py:small', 'package.module:NET', 'hf:Llama')

    Raises:
        MisuseError: If the reference has neither form.
    """
    match = _match(reference)
    if match["config"] is not None:
        path = _config(match)
        name = path.parent.name if path.name == CONFIG_NAME else path.stem
        return f"{HUGGING_FACE}{plain(name, _MOST_NAME)}"
    if match["file"] is None:
        return reference
    name = Path(match["file"]).name
    return name if match["name"] is None else f"{name}:{match['name']}"


def refuse_namesakes(references: Sequence[str]) -> None:
    """Refuse two models of the user's own that the records could not tell apart.

    Raises:
        MisuseError: Naming both.
    """
    known: dict[str, str] = {}
    for reference in references:
        name = own_name(reference)
        if name in known:
            raise MisuseError(
                f"{known[name]} and {reference} are both called {name} in the records: rename one of them, "
                "or name it once"
            )
        known[name] = reference


def version_of(reference: str, profile: WorkloadProfile) -> int:
    """Return the version of a model that has been loaded and traced in this process.

    A checksum of its sources, those imported while it ran among them, and of what the trace says that it is:
    parameters, input, optimizer, floating-point work. A setting read from a file, or a library that builds
    another network, thus makes another model. Bytes and single operators are left out: they vary with torch's
    version, and what was measured on one machine is looked up on another.
    """
    facts = (
        profile.parameters,
        profile.trainable_parameters,
        profile.sample_shape,
        profile.optimizer,
        round(profile.forward_flops_per_sample),
    )
    match = _match(reference)
    return zlib.crc32(repr(facts).encode(), _sources(match, _file(match)))


def files_of(reference: str) -> tuple[Path, tuple[Path, ...]]:
    """Return what a model that was loaded in this process is made of: a folder, and its files below that.

    Laid out alike in another folder, they are found there under the same reference: a file by its name, a
    module from the folder that Python is started in.
    """
    match = _match(reference)
    if match["config"] is not None:
        path = _config(match)
        return path.parent.parent, (path,)  # with its folder, from which it has its name
    if match["file"] is not None:
        path = Path(match["file"]).resolve()
        return path.parent, tuple(sorted(imported_below(path.parent, path)))
    root = root_of(match["module"])
    is_package = hasattr(sys.modules[match["module"].partition(".")[0]], "__path__")
    base = root.parent if is_package or root.is_file() else root
    return base, tuple(sorted(imported_below(root, None)))


def _match(reference: str) -> re.Match[str]:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise MisuseError(
            f'"{reference}" is not a model of your own: give ./file.py, ./file.py:NAME, module:NAME or '
            "hf:PATH/config.json"
        )
    return match


def _file(match: re.Match[str]) -> Path | None:
    """Where a model's file lies; None of an installed module."""
    return None if match["file"] is None else Path(match["file"]).resolve()


def _sources(match: re.Match[str], file: Path | None) -> int:
    if match["config"] is not None:
        return zlib.crc32(read_bytes(_config(match), MOST_SOURCE_BYTES, follow_links=True))
    return source_checksum(root_of(match["module"])) if file is None else source_checksum(file.parent, file)


def _config(match: re.Match[str]) -> Path:
    path = Path(match["config"]).resolve()
    return path / CONFIG_NAME if path.is_dir() else path


def _by_config(path: Path, name: str, version: int) -> Workload:
    module = importlib.import_module("gpubench_workloads._hugging_face")
    made: Workload = module.load(path, name, version)
    return made


def _import_file(path: Path) -> ModuleType:
    """Import a file as a script would be: what lies beside it can be imported too."""
    if not is_there(path):
        raise MisuseError(
            f"cannot read {path}: there is no such file; give a Python file that defines build(batch_size)"
        )
    read_bytes(path, MOST_SOURCE_BYTES, follow_links=True)  # Python would read a pipe, or any size
    spec = importlib.util.spec_from_file_location(f"{OWN_PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MisuseError(f"cannot import {path}: not a Python file")
    _look_in(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader = spec.loader
    import_foreign(path.name, lambda: loader.exec_module(module))
    return module


def _import_module(name: str) -> ModuleType:
    _look_in(Path.cwd())
    module: ModuleType = import_foreign(name, lambda: importlib.import_module(name))
    return module


def _look_in(folder: Path) -> None:
    """Let modules be found in a folder, after all others: a neighbor called random.py is not Python's."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


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


def _checked(name: str, build: Callable[..., Any]) -> Callable[..., Task]:
    """Wrap the ``build`` of a ``Workload``, which returns nothing but a ``Task``.

    What a recipe changes comes by name, where the workload has ``settings``.
    """

    def checked(batch_size: int, seed: int, **changed: Any) -> Task:
        made = import_foreign(name, lambda: build(batch_size, seed, **changed))
        if not isinstance(made, Task):
            raise MisuseError(
                f"{name}: the build of its Workload returned {_describe(made)}; it must return a Task "
                "(a function build(batch_size) may return model, inputs, targets, loss)"
            )
        _check_form(name, made)
        return made

    return checked


def _from_build(name: str, build: Callable[..., Any], module: ModuleType) -> Workload:
    """Wrap a plain ``build``; shape and kind of a sample are read from a batch of two.

    A build gives one batch, and a single one is learned by heart: it is called with further seeds for the
    batches of the rotation, of which only the inputs and targets are kept.
    """
    with_seed = takes_seed(name, build)

    def once(batch_size: int, seed: int) -> Any:
        with seeded(seed):
            return import_foreign(name, lambda: build(batch_size, seed) if with_seed else build(batch_size))

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
        seeds = (seed + SEED_STEP * place for place in range(1, BATCH_COUNT))
        more = (checked(once(batch_size, other), batch_size).batches[0] for other in seeds)
        first = task.batches[0]
        return replace(task, batches=(first, *(batch for batch in more if _may_rotate(first, batch))))

    small = _small_task(lambda batch_size, seed: checked(once(batch_size, seed), batch_size))
    shape, unit = _sample(small)
    recipe = Recipe(weight_type=_weight_type(small))
    batches = getattr(module, "BATCHES", DEFAULT_BATCHES)
    return Workload(
        name=name,
        version=1,
        sample_unit=str(getattr(module, "SAMPLE_UNIT", unit)),
        sample_shape=shape,
        batches=tuple(batches) if isinstance(batches, list) else batches,
        is_image=unit == "image",
        source=str(getattr(module, "SOURCE", "the user's own model")),
        build=full_build,
        recipe=recipe,
        precisions=("bf16",) if recipe.weight_type is WeightType.BFLOAT16 else (),
    )


def _small_task(build: Callable[[int, int], Task]) -> Task:
    """Build a batch of two on the meta device, where a layer of any size takes no memory.

    What the user's code cannot do there it is asked to do on the CPU.
    """
    import torch

    try:
        with torch.device("meta"):
            return build(2, 0)
    except MisuseError as error:
        if error.__cause__ is None:  # not theirs to raise, but ours: the CPU would say the same
            raise
        on_meta = error
    try:
        return build(2, 0)
    except MisuseError as error:
        if not lacks_memory(error):
            raise
    raise MisuseError(f"{on_meta} {TOO_LARGE}") from on_meta.__cause__


def _may_rotate(first: Batch, other: Batch) -> bool:
    """Whether a batch is another one of the same form: a build that fixes its own seed gives the same."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    forms, tensors = [], []
    for inputs, targets in (first, other):
        parts = inputs if isinstance(inputs, tuple) else (inputs,)
        whole = (*parts, targets) if isinstance(targets, torch.Tensor) else parts
        forms.append([(tensor.shape, tensor.dtype) for tensor in whole])
        tensors.append(parts)
    if forms[0] != forms[1]:
        return False
    # What has no values to compare, on the meta device or faked for a trace, counts as other.
    pairs = zip(*tensors, strict=True)
    return any(a.is_meta or isinstance(a, FakeTensor) or not torch.equal(a, b) for a, b in pairs)


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
    """Refuse what cannot be moved, or would be measured as something else."""
    import torch

    if not callable(task.optimizer):
        raise MisuseError(
            f"{name}: the optimizer is a {type(task.optimizer).__name__} object; return a factory, which "
            "gpubench calls with the parameters, such as functools.partial(torch.optim.SGD, lr=0.1)"
        )
    inputs = task.batches[0][0]
    tensors = [*task.model.parameters(), *(inputs if isinstance(inputs, tuple) else (inputs,))]
    for tensor in tensors:
        if tensor.device.type not in {"cpu", "meta"}:
            raise MisuseError(
                f"{name}: built on {tensor.device}; build on the CPU, gpubench moves the model itself"
            )
        if tensor.is_floating_point() and tensor.dtype not in {torch.float32, torch.bfloat16}:
            raise MisuseError(
                f"{name}: built in {tensor.dtype}; build model and inputs in torch.float32 or torch.bfloat16"
            )


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
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    shape = tuple(first.shape[1:])
    if len(shape) == 1 and first.dtype in {torch.int32, torch.int64}:
        return shape, "sequence"
    return shape, "image" if len(shape) == 3 and first.is_floating_point() else "sample"


def _weight_type(task: Task) -> WeightType:
    """The type that most of the weights lie in."""
    counts: Counter[str] = Counter()
    for parameter in task.model.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return WeightType.BFLOAT16 if counts["bfloat16"] > counts.total() / 2 else WeightType.FLOAT32
