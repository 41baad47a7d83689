"""Torch's compiler in a process that compiles nothing."""

import json
import subprocess
import sys

import pytest

from gpubench.profile import profile_of

torch = pytest.importorskip("torch")

HAS_STANCE = hasattr(torch.compiler, "set_stance")

STEP = """
import json, os, sys
from gpubench.compiler import import_compiler_late, uncompiled
import_compiler_late()
import sympy, torch, torch.distributed.fsdp  # half of the compiler's import is these, which every fork would repeat
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
with uncompiled():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
assert [hidden([1, 2]) for hidden in (torch.compiler.disable(len), torch._dynamo.disable()(len))] == [2, 2]

def is_late():
    return "torch._dynamo.eval_frame" not in sys.modules

def refuse(*_):
    raise AssertionError("compiled")

was_late, uses = is_late(), json.loads(sys.argv[1])
while uses:
    use = uses.pop(0)
    if os.fork():
        if os.waitstatus_to_exitcode(os.wait()[1]) == 3:
            uses.pop(0)
        continue
    first, _, last = use.rpartition("\\n")
    exec(first)
    both = is_late() and last in uses  # the first line does not import it, so the last one is also that use
    exec(last)
    found = [was_late, not is_late(), compiled(torch.ones(1)).item()]
    for each in (use, last) if both else (use,):
        print(json.dumps([each, found]), flush=True)
    os._exit(3 * both)  # to delete all of torch's modules takes half a second
os._exit(0)
"""
COMPILE = "compiled = torch.compile(lambda x: x + 1, backend=refuse)"
USES = {
    "a submodule": (
        "import torch._dynamo.utils as utils; assert utils is torch._dynamo.utils is sys.modules[utils.__name__]; "
        "assert utils.counters is torch._dynamo.convert_frame.counters; assert utils.__spec__.origin\n"
        "compiled = torch._dynamo.optimize(refuse)(lambda x: x + 1)"
    ),
    "another part of torch": f"from torch.nn.attention import flex_attention\n{COMPILE}",
    "torch.compile": COMPILE,
}


@pytest.fixture(scope="module")
def uses():
    """Run each use in a fork of one process that has trained, since importing torch takes most of the time."""
    command = [sys.executable, "-c", STEP, json.dumps([*USES.values()])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr


@pytest.mark.skipif(not HAS_STANCE, reason="torch before 2.6 cannot be told to compile nothing")
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_the_compiler_is_imported_at_its_first_use_and_compiles_nothing(uses, use):
    found, errors = uses
    assert found.get(use) == [True, True, 2.0], errors


def test_the_process_that_traces_a_users_model_imports_neither_compiler_nor_distributed_tensors(tmp_path):
    source = tmp_path / "mine.py"
    seen = tmp_path / "seen"
    source.write_text(
        "import sys\nfrom torch import nn, randn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        slow = {'torch._dynamo.eval_frame', 'torch.distributed.tensor._api'} & {*sys.modules}\n"
        f"        print(slow or 'neither', file=open({str(seen)!r}, 'a'))\n"
        "        return self.layer(x)\n"
        "def loss(out, y):\n"
        "    if out.device.type == 'cpu' and not hasattr(out, 'fake_mode'):  # the last pass, on real values\n"
        "        from torch.distributed.tensor import Replicate, DTensor\n"
        "        assert Replicate().is_replicate() and hasattr(DTensor, 'from_local')\n"
        "    return nn.functional.mse_loss(out, y)\n"
        "def build(batch_size):\n"
        "    x = randn(batch_size, 4)\n"
        "    return Net(), x, x[:, :2], loss\n"
    )
    assert profile_of(str(source)).memory
    assert {*seen.read_text().splitlines()} == {"neither"}


def test_a_process_without_torch_continues():
    code = "import sys; sys.modules['torch'] = None\n"
    code += "from gpubench.compiler import import_compiler_late; import_compiler_late(); print('on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "on\n"), done.stderr
