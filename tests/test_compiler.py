"""Torch's compiler in a process that compiles nothing."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

STEP = """
import json, sys
from gpubench.compiler import import_compiler_late, uncompiled
import_compiler_late()
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
with uncompiled():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
assert [hidden([1, 2]) for hidden in (torch.compiler.disable(len), torch._dynamo.disable()(len))] == [2, 2]
is_late = "torch._dynamo.eval_frame" not in sys.modules
"""
USES = {
    "torch.compile": "compiled = torch.compile(lambda x: x + 1, backend=refuse)",
    "a submodule": (
        "import torch._dynamo.utils as utils; assert utils is torch._dynamo.utils is sys.modules[utils.__name__]\n"
        "compiled = torch._dynamo.optimize(refuse)(lambda x: x + 1)"
    ),
    "another part of torch": (
        "from torch.nn.attention import flex_attention\ncompiled = torch.compile(lambda x: x + 1, backend=refuse)"
    ),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_the_compiler_is_imported_at_its_first_use_and_compiles_nothing(use):
    code = f"{STEP}\ndef refuse(*_):\n    raise AssertionError('compiled')\n{use}\n"
    code += "print(json.dumps([is_late, 'torch._dynamo.eval_frame' in sys.modules, compiled(torch.ones(1)).item()]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, True, 2.0]


def test_a_process_without_torch_continues():
    code = "import sys; sys.modules['torch'] = None\n"
    code += "from gpubench.compiler import import_compiler_late; import_compiler_late(); print('on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "on\n"), done.stderr
