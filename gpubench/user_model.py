"""A user's own model: a file or module that defines a ``WORKLOAD``, or only ``build(batch_size)``.

``hf:PATH`` is another form: a Hugging Face ``config.json``, or the folder that contains it. Reading a config
needs neither torch nor transformers and runs no third-party code.

A file or module is trusted third-party code; it is imported only in a child process.

``build`` may return ``(model, inputs, targets, loss)``, optionally with an optimizer factory as the fifth
item, a dict with these keys, or a ``Task``. The optimizer defaults to Adam with a learning rate of 1e-4. A
file may also define ``BATCHES = (8, 32, 128)``, ``SAMPLE_UNIT = "image"`` and ``SOURCE = "..."``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from gpubench import decoders, foreign_code, installing, names, workload
from gpubench.errors import MisuseError
from gpubench.files import NOT_JSON, is_there, read_bytes
from gpubench.models import Framework, Recipe, WeightType, WorkloadProfile
from gpubench.units import MIB, count, listing, plain

HUGGING_FACE = "hf:"
"""Prefix of the name of a model described by a Hugging Face config."""
CONFIG_NAME = "config.json"
MOST_CONFIG_BYTES = 4 * MIB
CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")
"""Config keys for the context length; the first one present is used."""
_MOST_NAME = 80
_REFERENCE = re.compile(
    r"hf:(?P<config>.+)|(?P<file>.+\.py)(?::(?P<name>\w+))?|(?P<module>\w+(?:\.\w+)*):(?P<attribute>\w+)"
)


def is_own(reference: str) -> bool:
    """Return whether a workload name refers to a user's file or module rather than a published decoder.

    >>> is_own("vgg16"), is_own("./my_model.py"), is_own("package.module:NET"), is_own("Qwen/Qwen2.5-7B")
    (False, True, True, False)
    """
    has_form = reference.endswith(".py") or any(sign in reference for sign in ("/", os.sep, ":"))
    return has_form and decoders.find_decoder(reference) is None


def load_own(reference: str) -> workload.Workload:
    """Import ``./file.py[:NAME]`` or ``package.module:NAME`` and make a ``Workload`` from it.

    The workload is named after the reference without folders (``my_model.py``), a name that no installed
    workload can have. Its version is a checksum of the sources, even if the ``WORKLOAD`` has a version.

    Raises:
        MisuseError: With one line; an error from the user's code is chained as the cause.
    """
    match, name = _match(reference), own_name(reference)
    if match["config"] is not None:
        check_own(reference, {})
        hugging_face = importlib.import_module("gpubench_workloads._hugging_face")
        described: workload.Workload = hugging_face.load(_config(match), name, _sources(match, None))
        return described
    from gpubench.tensors import off_gpu

    file = _file(match)  # before the user's code can change the folder
    with off_gpu():
        found, module = import_own(reference)
    return replace(workload_of(name, found, module), version=_sources(match, file))


def check_own(reference: str, asked: Mapping[str, Any]) -> None:
    """Check everything about a model that does not require importing or building it.

    Args:
        reference: The model.
        asked: The requested recipe, by field.

    Raises:
        MisuseError: If its config is impossible or incompatible with the requested recipe, or transformers,
            which builds it, is not installed.
    """
    match, name = _match(reference), own_name(reference)
    if match["config"] is None:
        return
    fields = _of_text(read_config(_config(match), name))
    lengths = (_number(fields, key) for key in CONTEXT_NAMES)
    context = next((tokens for tokens in lengths if tokens is not None), None)
    check_context(name, asked.get("context_tokens", 0), context)
    if importlib.util.find_spec("transformers") is None:
        raise no_transformers()


def config_of(reference: str) -> dict[str, Any] | None:
    """Return the config of a model; None for a model without a config. Errors as in ``read_config``."""
    match = _match(reference)
    return None if match["config"] is None else read_config(_config(match), own_name(reference))


def no_transformers() -> MisuseError:
    """Return the error for a Hugging Face config if transformers is not installed."""
    return MisuseError(
        "a Hugging Face config needs transformers, which is not installed: "
        f"{installing.pip_install('transformers')}"
    )


def import_own(reference: str) -> tuple[Any, ModuleType]:
    """Import a file or module and return the ``Workload`` or function that it names, and the module.

    Raises:
        MisuseError: As in ``load_own``.
    """
    match, name = _match(reference), own_name(reference)
    if match["file"] is None:
        _look_in(Path.cwd())
        module = foreign_code.import_foreign(
            match["module"], lambda: importlib.import_module(match["module"])
        )
    else:
        module = _import_file(Path(match["file"]))
    named = match["attribute"] or match["name"]
    for attribute in [named] if named else ["WORKLOAD", "build"]:
        if hasattr(module, attribute):
            return getattr(module, attribute), module
    raise MisuseError(
        f"{name}: there is no {named} in it"
        if named
        else f"{name}: defines neither build(batch_size) nor WORKLOAD; "
        "`gpubench new-workload NAME` writes a template"
    )


def own_name(reference: str) -> str:
    """Return the name of a user's model in the records, without importing anything.

    >>> own_name("./models/net.py:small"), own_name("package.module:NET"), own_name("hf:/m/Llama/config.json")
    ('net.py:small', 'package.module:NET', 'hf:Llama')

    Raises:
        MisuseError: If the reference has none of these forms.
    """
    match = _match(reference)
    if match["config"] is not None:
        path = _config(match)
        own = path.stem if path.suffix == ".json" else path.name  # a folder name may contain periods
        name = path.parent.name if path.name == CONFIG_NAME else own
        return f"{HUGGING_FACE}{plain(name, _MOST_NAME)}"
    if match["file"] is None:
        return reference
    name = Path(match["file"]).name
    return name if match["name"] is None else f"{name}:{match['name']}"


def refuse_namesakes(references: Sequence[str]) -> None:
    """Refuse two of the user's models with the same name in the records.

    Raises:
        MisuseError: Naming both.
    """
    known: dict[str, str] = {}
    for reference in references:
        name = own_name(reference)
        if name in known:
            raise MisuseError(
                f"{known[name]} and {reference} are both called {name} in the records: rename one of them, "
                "or list it once"
            )
        known[name] = reference


def version_of(reference: str, profile: WorkloadProfile) -> int:
    """Return the version of a model that this process has loaded and traced.

    The version is a checksum of the model's sources, including those imported while it ran, and of traced
    properties: parameters, input, optimizer, floating-point work. A setting read from a file, or a library
    that builds a different network, therefore gives another version. Bytes and single operators are excluded:
    they depend on torch's version, and a measurement must be found again on other machines.
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
    """Return the files of a model loaded in this process: a folder, and the paths below it.

    If they are copied to another folder with the same layout, the same reference finds them there: a file by
    its name, a module from the folder in which Python starts.
    """
    match = _match(reference)
    if match["config"] is not None:
        path = _config(match)
        return path.parent.parent, (path,)  # with the config's folder, which gives the model its name
    if match["file"] is not None:
        path = Path(match["file"]).resolve()
        return path.parent, tuple(sorted(foreign_code.imported_below(path.parent, path)))
    root = foreign_code.root_of(match["module"])
    is_package = hasattr(sys.modules[match["module"].partition(".")[0]], "__path__")
    base = root.parent if is_package or root.is_file() else root
    return base, tuple(sorted(foreign_code.imported_below(root, None)))


def _match(reference: str) -> re.Match[str]:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        near = names.nearest(reference.rpartition("/")[2], decoders.decoder_names())
        known = f"; nearest known by name: {listing(near)}" if near else ""
        raise MisuseError(
            f'"{reference}" is not a model of your own: give ./file.py, ./file.py:NAME, module:NAME or '
            f"hf:PATH/config.json{known}"
        )
    return match


def _file(match: re.Match[str]) -> Path | None:
    return None if match["file"] is None else Path(match["file"]).resolve()


def _sources(match: re.Match[str], file: Path | None) -> int:
    if match["config"] is not None:
        return zlib.crc32(read_bytes(_config(match), foreign_code.MOST_SOURCE_BYTES, follow_links=True))
    return (
        foreign_code.source_checksum(foreign_code.root_of(match["module"]))
        if file is None
        else foreign_code.source_checksum(file.parent, file)
    )


def _config(match: re.Match[str]) -> Path:
    # No shell expands a tilde after the colon
    path = Path(os.path.expanduser(match["config"])).resolve()  # noqa: PTH111 - it raises nothing for any user
    return path / CONFIG_NAME if os.path.isdir(path) else path  # noqa: PTH112 - it raises nothing for a long name


def _import_file(path: Path) -> ModuleType:
    """Import a file like a script, so it can import its neighbors."""
    if not is_there(path):
        raise MisuseError(
            f"cannot read {path}: there is no such file; give a Python file that defines build(batch_size)"
        )
    # Python itself would read a pipe, or a file of any size.
    read_bytes(path, foreign_code.MOST_SOURCE_BYTES, follow_links=True)
    spec = importlib.util.spec_from_file_location(f"{foreign_code.OWN_PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MisuseError(f"cannot import {path}: not a Python file")
    _look_in(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loader = spec.loader
    foreign_code.import_foreign(path.name, lambda: loader.exec_module(module))
    return module


def _look_in(folder: Path) -> None:
    # Append a folder to the module search path, so a neighbor random.py does not hide Python's.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# --- configs ------------------------------------------------------------------------------------


def read_config(path: Path, name: str) -> dict[str, Any]:
    """Read the config of a Hugging Face model.

    Raises:
        MisuseError: With one line, if the file does not exist, or describes no model or an impossible one.
    """
    if not is_there(path):
        where, asked = plain(str(path), 300), "" if path.suffix == ".json" else path.name
        near = names.nearest(asked, decoders.decoder_names()) if asked else ()
        known = f"; known without a file are {', '.join(near)}" if near else ""
        raise MisuseError(f"{name}: there is no {where}: give a model's config.json, or its folder{known}")
    try:
        fields = msgspec.json.decode(read_bytes(path, MOST_CONFIG_BYTES, follow_links=True))
    except NOT_JSON as error:
        reason = f"{type(error).__name__}: {error}"
        raise MisuseError(f"{name}: {plain(path.name)} is not JSON: {plain(reason, 200)}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise MisuseError(f'{name}: {plain(path.name)} has no "model_type": it is not the config of a model')
    heads, shared = (_number(_of_text(fields), f"num_{which}_heads") for which in ("attention", "key_value"))
    if heads is not None and shared is not None and heads % shared:
        raise MisuseError(f"{name}: {heads} attention heads cannot share {shared} key-value heads equally")
    return fields


def check_context(name: str, tokens: int, context: int | None) -> None:
    """Refuse sequences longer than the model's context.

    Raises:
        MisuseError: With both numbers.
    """
    if context is not None and tokens > context:
        raise MisuseError(
            f"{name}: sequences of {tokens:,} tokens exceed the model's context of {context:,} tokens; give "
            "a shorter --context"
        )


def _of_text(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    # Return the part of a config that describes the text model.
    inner = fields.get("text_config")
    return inner if isinstance(inner, dict) else fields


def _number(fields: Mapping[str, Any], key: str) -> int | None:
    # Return a positive number; None for anything else, which transformers checks.
    value = fields.get(key)
    return value if type(value) is int and value > 0 else None


if TYPE_CHECKING:
    from torch import Tensor, nn

# --- results of a build --------------------------------------------------------------------------------

DEFAULT_BATCHES = (8, 32, 128)
DEFAULT_LEARNING_RATE = 1e-4
SLOW_BUILD_S = 30.0
"""A build slower than this, probably because it loads weights, is not repeated for further batches."""
SEED_STEP = 1_000_003
"""Distance between the seeds of further batches, unlikely to coincide with a user's seeds."""
MOST_CHARACTERS = 200
"""Length limit of a module's unit and source, since tables and run files contain them."""
SMALL_BATCH = 2
"""Batch size of the build from which the shape of a sample is read."""
_FIELDS = ("model", "inputs", "targets", "loss", "optimizer")


def workload_of(name: str, found: Any, module: ModuleType) -> workload.Workload:
    """Make a workload from a user's module, with checks on every build.

    Args:
        name: Its name in the records.
        found: A ``Workload``, or a function ``build(batch_size)`` or ``build(batch_size, seed)``.
        module: The module, which may define further settings for a function.

    Raises:
        MisuseError: If it is neither, or the built model cannot be measured.
    """
    if isinstance(found, workload.Workload):
        return replace(found, name=name, build=_checked(name, found.build))
    if not callable(found):
        raise MisuseError(
            f"{name}: its type is {type(found).__name__}; it must be a Workload or a function "
            "build(batch_size)"
        )
    return _from_build(name, found, module)


def _checked(name: str, build: Callable[..., Any]) -> Callable[..., workload.Task]:
    """Wrap the ``build`` of a ``Workload`` so that it returns only a ``Task``.

    The recipe is passed by name if the workload has ``settings``.
    """

    def checked(batch_size: int, seed: int, **changed: Any) -> workload.Task:
        made = _called(name, lambda: build(batch_size, seed, **changed))
        if not isinstance(made, workload.Task):
            raise MisuseError(
                f"{name}: the build of its Workload returned {_describe(made)}; it must return a Task "
                "(a function build(batch_size) may return model, inputs, targets, loss)"
            )
        return _prepared(name, made)

    return checked


def _called(name: str, build: Callable[[], Any]) -> Any:
    from gpubench.tensors import off_gpu, plain_checks, plain_encoders

    with off_gpu(), plain_encoders(), plain_checks():
        return foreign_code.import_foreign(name, build)


def _from_build(name: str, build: Callable[..., Any], module: ModuleType) -> workload.Workload:
    """Wrap a plain ``build``; a batch of two shows the shape and kind of a sample.

    A build gives one batch, and training on a single batch would memorize it. ``build`` is therefore called
    again with other seeds, and only the inputs and targets of those calls are kept.
    """
    with_seed = takes_seed(name, build)

    def once(batch_size: int, seed: int) -> Any:
        try:
            with workload.seeded(seed):
                return _called(name, lambda: build(batch_size, seed) if with_seed else build(batch_size))
        except MisuseError as error:
            first = _parameters(build)[0]
            if "'int' object" not in str(error) or "batch" in first:  # it may expect a config
                raise
            advice = f"gpubench gives build only a batch size, here as {first}: define build(batch_size)"
            raise MisuseError(f"{error}; {advice}") from error.__cause__

    def checked(made: Any, batch_size: int) -> workload.Task:
        return _prepared(name, _task(name, made, batch_size))

    def full_build(batch_size: int, seed: int) -> workload.Task:
        start_s = time.monotonic()
        made = once(batch_size, seed)
        task = checked(made, batch_size)
        if time.monotonic() - start_s > SLOW_BUILD_S:
            return task
        task = replace(task, again=lambda: checked(once(batch_size, seed), batch_size))
        if isinstance(made, workload.Task):
            return task
        first = task.batches[0]
        if not any(map(_has_values, _tensors(first[0]))):  # further batches would be the same
            return replace(task, batches=(first,) * workload.BATCH_COUNT)
        seeds = (seed + SEED_STEP * place for place in range(1, workload.BATCH_COUNT))
        more = (checked(once(batch_size, other), batch_size).batches[0] for other in seeds)
        return replace(task, batches=(first, *(batch for batch in more if _may_rotate(first, batch))))

    small = _small_task(lambda batch_size, seed: checked(once(batch_size, seed), batch_size))
    shape, unit = _sample(small)
    recipe = Recipe(weight_type=weight_type_of(small.model))
    batches = getattr(module, "BATCHES", DEFAULT_BATCHES)
    return workload.Workload(
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
    # Return an optional text of a module; tables and run files contain it.
    text = str(getattr(module, name, default))
    if len(text) > MOST_CHARACTERS:
        raise MisuseError(f"{file}: {name} has {len(text):,} characters; give at most {MOST_CHARACTERS}")
    return text


def _small_task(build: Callable[[int, int], workload.Task]) -> workload.Task:
    """Build a batch of two on the meta device, where layers take no memory; if that fails, on the CPU."""
    import torch

    try:
        with torch.device("meta"):
            return build(SMALL_BATCH, 0)
    except MisuseError as error:
        if error.__cause__ is None:  # our own error: the CPU would give the same
            raise
        on_meta = error
    try:
        return build(SMALL_BATCH, 0)
    except MisuseError as error:
        if not foreign_code.lacks_memory(error):
            raise
    raise MisuseError(f"{on_meta} {foreign_code.TOO_LARGE}") from on_meta.__cause__


def _may_rotate(first: workload.Batch, other: workload.Batch) -> bool:
    """Return whether a batch has the same form but other values; a build with a fixed seed repeats them.

    Targets that are not a tensor, such as lists of boxes, may differ in form.
    """
    import torch

    def form(batch: workload.Batch) -> list[tuple[torch.Size, torch.dtype]]:
        compared = _tensors(batch if torch.is_tensor(batch[1]) else batch[0])
        return [(tensor.shape, tensor.dtype) for tensor in compared]

    return form(first) == form(other) and any(
        a.layout is not torch.strided or not _has_values(a) or not torch.equal(a, b)
        for a, b in zip(_tensors(first[0]), _tensors(other[0]), strict=True)
    )


def _has_values(tensor: Tensor) -> bool:
    # Whether a tensor is neither on the meta device nor faked for a trace.
    from torch._subclasses.fake_tensor import FakeTensor

    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


def _tensors(value: Any) -> list[Tensor]:
    from gpubench.tensors import tensors_of  # which imports torch

    return tensors_of(value)


def takes_seed(name: str, build: Callable[..., Any]) -> bool:
    """Return whether a build takes a seed after the batch size: a required argument, or one named ``seed``.

    Raises:
        MisuseError: If it takes neither one argument nor two, or the batch size is not the first.
    """
    takes_two, needs_two, parameters = _binds(build, 2, 0), not _binds(build, 2), _parameters(build)
    if (needs_two and not takes_two) or "batch_size" in parameters[1:]:
        raise MisuseError(
            f"{name}: build must take one argument, build(batch_size), or two, build(batch_size, seed); it "
            f"takes {listing(parameters, 5) or 'nothing'}"
        )
    return takes_two and (needs_two or parameters[1:2] == ["seed"])


def _parameters(function: Callable[..., Any]) -> list[str]:
    with suppress(TypeError, ValueError):  # some callables in C have no signature
        return [*inspect.signature(function).parameters]
    return []


def _binds(function: Callable[..., Any], *arguments: object, **named: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments, **named)
    except (TypeError, ValueError):
        return False
    return True


def _task(name: str, made: Any, batch_size: int) -> workload.Task:
    import torch

    if isinstance(made, workload.Task):
        return made
    if _is_of_keras(made):
        others = ", ".join(each for each in Framework if each is not Framework.TORCH)
        raise MisuseError(
            f"{name}: build returned a Keras model: choose how it runs with --framework {others}"
        )
    if isinstance(made, dict):
        parts = made
    elif isinstance(made, tuple | list) and len(made) in {4, 5}:
        parts = dict(zip(_FIELDS, made, strict=False))
    else:
        raise MisuseError(
            f"{name}: build returned {_describe(made)}; it must return model, inputs, targets, loss"
        )
    wrong = [f"no {field}" for field in _FIELDS[:4] if field not in parts]
    wrong += [f"an unknown {plain(str(key), 40)}" for key in parts if key not in _FIELDS]
    if wrong:
        keys = ", ".join(_FIELDS)
        raise MisuseError(f"{name}: build returned {' and '.join(wrong)}; the keys of its dict are {keys}")
    model, inputs, targets, loss = (parts[field] for field in _FIELDS[:4])
    if not isinstance(model, torch.nn.Module):
        raise MisuseError(f"{name}: the model is {plain(repr(model), 80)}, not a torch.nn.Module")
    if not callable(loss) or isinstance(loss, type):
        raise MisuseError(
            f"{name}: the loss is {plain(repr(loss), 80)}, not a function loss(outputs, targets); if the "
            "model returns its loss, give lambda outputs, _: outputs"
        )
    _check_inputs(name, inputs, targets, batch_size)
    inputs = _as_called(model, inputs, batch_size)
    optimizer = parts.get("optimizer") or functools.partial(torch.optim.Adam, lr=DEFAULT_LEARNING_RATE)
    return workload.Task(model=model, batches=((inputs, targets),), loss=loss, optimizer=optimizer)


def _as_called(model: nn.Module, inputs: Any, batch_size: int) -> Any:
    """Return the inputs in the form that ``forward`` expects: one argument, several, or named ones.

    A list of batches becomes several arguments and a mapping keyword arguments, if the model accepts them.
    """
    if isinstance(inputs, list) and all(_is_batch(part, batch_size) for part in inputs):
        return tuple(inputs) if _binds(model.forward, *inputs) else inputs  # otherwise they are one argument
    if isinstance(inputs, Mapping):
        # ``forward(**batch)`` takes any name, but a dict without a named argument may be its only argument.
        takes = inspect.signature(model.forward).parameters
        is_one = takes.keys().isdisjoint(inputs) and _binds(model.forward, inputs)
        return inputs if is_one or not _binds(model.forward, **inputs) else workload.Named(inputs)
    is_one = isinstance(inputs, tuple) and not _binds(model.forward, *inputs)
    # One argument may be a tuple itself, such as a packed sequence.
    return (inputs,) if is_one and _binds(model.forward, inputs) else inputs


def _check_inputs(name: str, inputs: Any, targets: Any, batch_size: int) -> None:
    """Check that at least one input or target has the batch as its first dimension; the others need not."""
    tensors = _tensors(inputs)
    if not tensors and not callable(getattr(inputs, "to", None)):
        fix = "; give one batch of it, next(iter(loader))" if hasattr(inputs, "__iter__") else ""
        if isinstance(inputs, list | tuple | Mapping):
            fix = "; give tensors, in a list if their sizes differ"
        elif hasattr(inputs, "dtype"):
            fix = "; give torch.from_numpy of it"
        raise MisuseError(f"{name}: the inputs contain no tensor, but {_describe(inputs)}{fix}")
    if any(tensor.is_nested for tensor in tensors):
        raise MisuseError(
            f"{name}: the inputs contain a nested tensor, which gpubench can neither split nor count; return "
            "a padded one, and make it nested in forward"
        )
    inner = inputs.values() if isinstance(inputs, Mapping) else (inputs if isinstance(inputs, tuple) else ())
    by_sample = any(isinstance(each, list) and len(each) == batch_size for each in (inputs, *inner))
    if not (by_sample or any(_is_batch(each, batch_size) for each in (*tensors, *_tensors(targets)))):
        shapes = listing(f"{tuple(tensor.shape)}" for tensor in tensors) or "no known shape"
        raise MisuseError(
            f"{name}: build({batch_size}) gave inputs of shape {shapes}; "
            "the first dimension must be the batch (forward may transpose it)"
        )


def _is_batch(part: Any, batch_size: int) -> bool:
    return getattr(part, "shape", ())[:1] == (batch_size,)


def _prepared(name: str, task: workload.Task) -> workload.Task:
    """Return the task ready to be moved, with any tensors of its loss in the model.

    Raises:
        MisuseError: If something cannot be moved, or would not be measured as written.
    """
    import torch

    from gpubench.user_loss import with_loss

    _called(name, lambda: _give_shapes(task))
    for module in task.model.modules():
        if isinstance(module, torch.nn.DataParallel):
            module.device_ids = []  # it then uses only its module; the case determines the GPUs
    model, loss = with_loss(task.model, task.loss)
    task = replace(task, model=model, loss=loss)
    if not callable(task.optimizer):
        raise MisuseError(
            f"{name}: the optimizer is of type {type(task.optimizer).__name__}; return a factory, which "
            "gpubench calls with the parameters, such as functools.partial(torch.optim.SGD, lr=0.1)"
        )
    for tensor in (*task.model.parameters(), *_tensors(task.batches[0][0])):
        if tensor.device.type not in {"cpu", "meta"}:
            raise MisuseError(f"{name}: built on {tensor.device}; {foreign_code.ON_THE_CPU}")
        if tensor.is_floating_point() and tensor.dtype not in {torch.float32, torch.bfloat16}:
            raise MisuseError(
                f"{name}: built in {tensor.dtype}; build model and inputs in torch.float32 or torch.bfloat16"
            )
    return task


def _give_shapes(task: workload.Task) -> None:
    # Run a model with lazy layers once, because they have no weights before that.
    import torch

    if any(map(torch.nn.parameter.is_lazy, task.model.parameters())):
        is_training = task.model.training
        with torch.no_grad():
            workload.forward(task.model.eval(), task.batches[0][0])
        task.model.train(is_training)


def _is_of_keras(made: Any) -> bool:
    """Return whether a build returned a Keras model, alone or in a tuple, without importing Keras."""
    import torch

    keras = sys.modules.get("keras")
    if keras is None or not isinstance(made, tuple | list):
        return keras is not None and isinstance(made, keras.Model)
    return bool(made) and isinstance(made[0], keras.Model) and not isinstance(made[0], torch.nn.Module)


def _describe(made: Any) -> str:
    return (
        count(len(made), "value")
        if isinstance(made, tuple | list)
        else f"an object of type {type(made).__name__}"
    )


def _sample(task: workload.Task) -> tuple[tuple[int, ...], str]:
    """Return shape and kind of one sample: floats in three dimensions are an image, integers are tokens."""
    import torch

    tensors = _tensors(task.batches[0][0])
    if not tensors:
        return (), "sample"  # an object that moves itself does not show its tensors
    whole = [tensor for tensor in tensors if _is_batch(tensor, SMALL_BATCH)]
    first = whole[0] if whole else tensors[0]
    shape = tuple(first.shape[1:] if whole else first.shape)
    if len(shape) == 1 and first.dtype in {torch.int32, torch.int64} and first is tensors[0]:
        return shape, "sequence"  # only the first tensor: a graph's edge list has two rows too
    return shape, "image" if whole and len(shape) == 3 and first.is_floating_point() else "sample"


def weight_type_of(model: nn.Module) -> WeightType:
    """Return bfloat16 if most weights of a model, as built, have that type; else float32."""
    in_half = sum(p.numel() for p in model.parameters() if str(p.dtype) == "torch.bfloat16")
    is_most = 2 * in_half > sum(p.numel() for p in model.parameters())
    return WeightType.BFLOAT16 if is_most else WeightType.FLOAT32
