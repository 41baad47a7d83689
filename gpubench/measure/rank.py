"""One process of a job on this machine, as torchrun starts it, until the first one needs it no more."""

from __future__ import annotations

import os
import sys
import traceback

import msgspec

from gpubench.measure.messages import Setup
from gpubench.measure.place import Place
from gpubench.parent import ParentChannel, die_with_parent


def main() -> None:
    """Take the pipes from where torchrun leaves them, work, and leave word of an error to torchrun.

    Never returns: what a model has left in this process could keep it from ending.
    """
    die_with_parent(int(sys.argv[1]))
    pipes = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    from torch.distributed.elastic.multiprocessing.errors import record

    from gpubench.measure import team, worker

    place = Place.here()
    try:
        if place.rank == 0:
            line = ParentChannel(pipes)
            setup = msgspec.json.decode(line.first_line(), type=Setup)
            record(worker.serve_parent)(line, setup, place)
        else:
            for pipe in pipes:  # they are the first one's alone
                os.close(pipe)
            team.follow(place)
    except BaseException:  # noqa: BLE001 - it is in torch's file by now
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
