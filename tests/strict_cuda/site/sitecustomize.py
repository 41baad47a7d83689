"""Python imports this file at startup if its folder is on PYTHONPATH, so child processes get the fake
device.

Nothing happens unless the variable GPUBENCH_STRICT_CUDA contains a JSON object (``strict_cuda.in_a_child.Scene``).
Then each module named below is changed right after it is imported, so a process that does not import torch
stays light.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder

VARIABLE = "GPUBENCH_STRICT_CUDA"
CHANGED = frozenset(
    {"torch", "pynvml", "gpubench.probe.torch_view", "gpubench.discovery", "gpubench.measure.checks"}
)


class Afterwards(MetaPathFinder):
    """Lets the other finders find a module, and changes it when it has been executed."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGED:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            from strict_cuda import in_a_child

            in_a_child.change(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, Afterwards())
