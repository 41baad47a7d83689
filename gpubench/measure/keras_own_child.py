"""The child that reads a Keras model of the user's own, run by ``ask_child``; it has one backend."""

from __future__ import annotations

import msgspec

from gpubench.errors import MisuseError
from gpubench.folders import traceback_of
from gpubench.models import Framework, WorkloadProfile
from gpubench.parent import ParentChannel
from gpubench.profile.cache import Answer


def main() -> None:
    """Read the model and answer."""
    parent = ParentChannel()
    reference, framework = parent.arguments
    try:
        from gpubench.measure.keras_build import profile_of_own

        profile = profile_of_own(reference, Framework(framework), parent.return_home)
        answer = Answer(profile=msgspec.convert(msgspec.to_builtins(profile), WorkloadProfile))
    except MisuseError as error:
        theirs = None if error.__cause__ is None else traceback_of(error)
        answer = Answer(error=str(error), traceback=theirs)
    parent.send(answer)


if __name__ == "__main__":
    main()
