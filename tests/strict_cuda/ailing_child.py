"""A measuring process that dies or hangs at the requests named in AILING: ``{"clock": "die"}``.

The values are ``die``, ``hang``, and ``hang timed``, which hangs during the timed rounds.
"""

from __future__ import annotations

import json
import os
import signal
import time

from gpubench.measure import messages, worker

_serve = worker.serve


def serve(command, context, line) -> None:
    end = json.loads(os.environ["AILING"]).get(_name(command))
    if end == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if end in {"hang", "hang timed"}:
        line.send(messages.Phase(name="second look" if end == "hang" else "timed"))
        time.sleep(600)
    _serve(command, context, line)


def _name(command) -> str:
    return command.what if isinstance(command, messages.Prove) else command.case.label


if __name__ == "__main__":
    worker.serve = serve
    worker.main()
