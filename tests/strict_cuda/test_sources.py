"""Every rule of the strict fake names its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
RULES = ("machine", "memory", "graphs", "tensors", "compiler", "profiler", "install")
"""The modules of the fake that replace torch and CUDA; the others install them, or test them."""

OWN = {
    "machine": {
        "Cost", "Seen", "Capture", "Capture.holds", "Capture.join", "Machine", "Machine.__post_init__", "Stream",
        "Stream.holds", "Stream.see", "Event._passed", "Machine.spend",
    },
    "memory": {"MIB", "Memory", "Memory.__post_init__", "Pool.insert", "Pool.remove"},
    "graphs": {
        "_handles", "_SEVERAL", "Before", "Recorder.__init__", "Recorder.holds", "Recorder.created", "Recorder.forget",
        "Recorder.before", "Recorder.record", "Recorder._places", "graph_class", "graph_class.CUDAGraph.__init__",
        "_built", "_leaves", "_whole", "_replay.tensor",
    },
    "tensors": {
        "CUDA", "CPU", "Kind", "Functions._plain", "_storage", "_kinds", "kind_of", "_learn", "Block", "Device", "Device.__init__", "Device._note",
        "_PLAIN", "_SEVERAL", "_made", "_gather", "Device._creates_here", "_operands", "Device.holds", "Device.holds_any", "Device.recorder",
        "Device._compute", "Device._mark", "Device.here", "Device.adopt.gone", "computed", "Kernels", "Functions",
        "Kernels.__init__", "Kernels.__torch_dispatch__", "Functions.__init__", "Functions.__torch_function__",
        "Functions._property", "Functions._to_host", "_chosen", "_tensors", "_mapped", "_reduced_format", "_rounded",
        "_single", "_in_backward", "_unwatched", "_REDUCED",
    },
    "compiler": {
        "compiler", "compiler.OptimizedModule.__init__", "compiler.compiled",
    },
    "profiler": {"profiler", "profiler.profile.__init__", "profiler.profile.__enter__"},
    "install": {
        "installed", "replacements", "_autocast.autocast", "_autocast.autocast.__init__", "_grouped.grouped",
        "_told.told", "_told.told.of", "_type", "_on_the_device.method", "_without_nccl.init",
    },
}  # fmt: skip
"""Names that are not rules of CUDA: how the fake stores, names and finds things."""

FILE = re.compile(r"\b(?:c10|aten|torch|docs)/[\w/.-]+\.(?:cpp|cuh?|h|py|rst|md)\b")
NVIDIA = re.compile(r"CUDA C\+\+ Programming Guide|CUDA runtime|cuDNN|none that NVIDIA documents")


def named(module: str) -> Iterator[tuple[str, str]]:
    """Yield the name of every constant, class and function of a module, with its docstring."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                name = prefix + node.name
                yield name, ast.get_docstring(node) or ""
                yield from inside(node.body, f"{name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and not prefix:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                yield ast.unparse(target), str(after.value.value) if said else ""

    yield from inside(ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8")).body, "")


def sources(text: str) -> str:
    return text.partition("Source:")[2]


@pytest.mark.parametrize("module", RULES)
def test_every_rule_names_its_source(module):
    found = dict(named(module))
    own = OWN.get(module, set())
    unsaid = {name for name, text in found.items() if "Source:" not in text and name not in own}
    assert not unsaid
    assert not {name for name in own if "Source:" in found.get(name, "Source:")}, (
        "the module has no object of this name, or it names a source"
    )


@pytest.mark.parametrize("module", RULES)
def test_a_source_is_a_file_of_torch_or_a_text_of_nvidia(module):
    for name, text in named(module):
        if "Source:" in text:
            assert FILE.search(sources(text)) or NVIDIA.search(sources(text)), name


@pytest.mark.parametrize("module", RULES)
def test_the_named_python_files_exist_in_torch(module):
    torch_folder = Path(torch.__file__).parent
    for name, text in named(module):
        for file in FILE.findall(sources(text)):
            path = torch_folder.parent / file
            there = path.parent.is_dir()  # torch 2.4 has no torch/accelerator
            if there and file.startswith("torch/") and file.endswith(".py"):
                assert path.is_file(), f"{name}: {file}"
