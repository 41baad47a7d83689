"""Runs pytest repeatedly, each time in a fork of this process, which has imported torch but nothing tested.

It reads the arguments of one run per line from standard input, as JSON, and answers each line with the status
and the output of pytest. A fork is as fresh as a separate process and starts in a tenth of the time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import BinaryIO


def main() -> None:
    """Answer every line until the input ends."""
    import pandas as pd  # noqa: F401 - what every test would import again
    import plotly.graph_objects  # noqa: F401
    import pytest  # noqa: F401
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.profiler  # noqa: F401

    for line in sys.stdin:
        with tempfile.TemporaryFile() as said:
            process = os.fork()
            if process == 0:
                _be_a_run(json.loads(line), said)
            _, ended = os.waitpid(process, 0)
            said.seek(0)
            answer = (os.waitstatus_to_exitcode(ended), said.read().decode(errors="replace"))
        print(json.dumps(answer), flush=True)


def _be_a_run(arguments: list[str], said: BinaryIO) -> None:
    """Run pytest and exit with its status; never returns."""
    import pytest

    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    status = 70
    try:
        status = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
