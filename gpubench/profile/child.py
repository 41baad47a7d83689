"""Import and trace a model in a child process: ``python -m gpubench.profile.child REFERENCE ANSWER``."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import msgspec

from gpubench.errors import MisuseError
from gpubench.profile.cache import Answer
from gpubench.profile.trace import profile_workload
from gpubench.workload import load_workload


def main(reference: str, answer_file: Path) -> None:
    """Trace the model and leave the answer in a file: its own output may be anything."""
    answer_file.write_bytes(msgspec.json.encode(_answer(reference)))


def _answer(reference: str) -> Answer:
    try:
        return Answer(profile=profile_workload(load_workload(reference)))
    except MisuseError as error:
        theirs = None if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
        return Answer(error=str(error), traceback=theirs)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
