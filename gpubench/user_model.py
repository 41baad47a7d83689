"""A model of the user's own: a file or module that defines a ``WORKLOAD``, or just ``build(batch_size)``.

``hf:PATH`` is one too: a Hugging Face ``config.json``, or the folder that holds it. It is read as it stands,
without torch and transformers; no code of others is run.

A file or module is trusted code, but code of others: it is imported in a child process only.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from gpubench.decoders import decoder_names, find_decoder
from gpubench.errors import MisuseError
from gpubench.files import NOT_JSON, is_there, read_bytes
from gpubench.foreign_code import (
    MOST_SOURCE_BYTES,
    OWN_PREFIX,
    import_foreign,
    imported_below,
    root_of,
    source_checksum,
)
from gpubench.installing import pip_install
from gpubench.models import WorkloadProfile
from gpubench.names import nearest
from gpubench.units import MIB, plain
from gpubench.user_build import workload_of
from gpubench.workload import Workload

HUGGING_FACE = "hf:"
"""Begins the name of a model that a Hugging Face config describes."""
CONFIG_NAME = "config.json"
MOST_CONFIG_BYTES = 4 * MIB
CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx")
"""Under which of them a model says for how many tokens it was made, the first that is there."""
_MOST_NAME = 80
_REFERENCE = re.compile(
    r"hf:(?P<config>.+)|(?P<file>.+\.py)(?::(?P<name>\w+))?|(?P<module>\w+(?:\.\w+)*):(?P<attribute>\w+)"
)


def is_own(reference: str) -> bool:
    """Whether a workload's name means a file or module of the user's own, and no published decoder.

    >>> is_own("vgg16"), is_own("./my_model.py"), is_own("package.module:NET"), is_own("Qwen/Qwen2.5-7B")
    (False, True, True, False)
    """
    has_form = reference.endswith(".py") or any(sign in reference for sign in ("/", os.sep, ":"))
    return has_form and find_decoder(reference) is None


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
        described = importlib.import_module("gpubench_workloads._hugging_face")
        made: Workload = described.load(_config(match), name, _sources(match, None))
        return made
    file = _file(match)  # before their code can go to another folder
    found, module = import_own(reference)
    return replace(workload_of(name, found, module), version=_sources(match, file))


def check_own(reference: str, asked: Mapping[str, Any]) -> None:
    """Look at what can be known of a model at once, before anything of it is imported or built.

    Args:
        reference: The model.
        asked: What its recipe is to be, by field.

    Raises:
        MisuseError: If it is described by a config that cannot be, or not together with what is asked for; or
            transformers, which builds it, is not installed.
    """
    match, name = _match(reference), own_name(reference)
    if match["config"] is None:
        return
    fields = _of_text(read_config(_config(match), name))
    said = (_number(fields, key) for key in CONTEXT_NAMES)
    context = next((tokens for tokens in said if tokens is not None), None)
    check_context(name, asked.get("context_tokens", 0), context)
    if importlib.util.find_spec("transformers") is None:
        raise no_transformers()


def no_transformers() -> MisuseError:
    """Say what a Hugging Face config needs."""
    line = pip_install("transformers")
    return MisuseError(f"a Hugging Face config needs transformers, which is not installed: {line}")


def import_own(reference: str) -> tuple[Any, ModuleType]:
    """Import a file or module and return what it names: a ``Workload`` or a function, and the module.

    Raises:
        MisuseError: As ``load_own``.
    """
    match, name = _match(reference), own_name(reference)
    if match["file"] is None:
        _look_in(Path.cwd())
        module = import_foreign(match["module"], lambda: importlib.import_module(match["module"]))
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
        "`gpubench new-workload NAME` writes a start"
    )


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
        own = path.stem if path.suffix == ".json" else path.name  # of a folder a point parts version and size
        name = path.parent.name if path.name == CONFIG_NAME else own
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


def _look_in(folder: Path) -> None:
    """Let modules be found in a folder, after all others: a neighbor called random.py is not Python's."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# --- what a config says ------------------------------------------------------------------------------------


def read_config(path: Path, name: str) -> dict[str, Any]:
    """Read what a config says.

    Raises:
        MisuseError: One line: there is no such file, or it describes no model, or one that cannot be.
    """
    if not path.exists():
        where, near = plain(str(path), 300), nearest(path.name, decoder_names())
        known = f"; known without a file are {', '.join(near)}" if near else ""
        raise MisuseError(f"{name}: there is no {where}: give a model's config.json, or its folder{known}")
    try:
        fields = msgspec.json.decode(read_bytes(path, MOST_CONFIG_BYTES, follow_links=True))
    except NOT_JSON as error:
        said = f"{type(error).__name__}: {error}"
        raise MisuseError(f"{name}: {plain(path.name)} is not JSON: {plain(said, 200)}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise MisuseError(f'{name}: {plain(path.name)} has no "model_type": it is not the config of a model')
    heads, shared = (_number(_of_text(fields), f"num_{which}_heads") for which in ("attention", "key_value"))
    if heads is not None and shared is not None and heads % shared:
        raise MisuseError(f"{name}: {heads} attention heads cannot share {shared} key-value heads alike")
    return fields


def check_context(name: str, tokens: int, context: int | None) -> None:
    """Refuse sequences that the model was not made for.

    Raises:
        MisuseError: With both numbers.
    """
    if context is not None and tokens > context:
        raise MisuseError(
            f"{name}: sequences of {tokens:,} tokens: the context of the model is {context:,} tokens"
        )


def _of_text(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes what reads the tokens."""
    inner = fields.get("text_config")
    return inner if isinstance(inner, dict) else fields


def _number(fields: Mapping[str, Any], key: str) -> int | None:
    """A number above 0; None of anything else, of which transformers knows more."""
    value = fields.get(key)
    return value if type(value) is int and value > 0 else None
