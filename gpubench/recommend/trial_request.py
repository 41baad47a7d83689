"""What a trial of the best offers is asked: one field an option of ``gpubench rank --try``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from gpubench.errors import MisuseError
from gpubench.options import AtLeastOne, Option, Positive
from gpubench.recommend.request import OUTPUT, TRY_MINUTES


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the ranked offers to measure, where the task files go, and what they install.

    Attributes:
        count: None tries none.
        minutes: Time limit of each task [min].
        wheel: None packs the running gpubench.
    """

    count: Annotated[
        AtLeastOne | None,
        Option("Write SkyPilot tasks that measure the best N; with --out.", OUTPUT, name="try"),
    ] = None
    folder: Annotated[Path | None, Option("Folder of the task files.", OUTPUT, name="out")] = None
    gpu: Annotated[
        str | None,
        Option("Measure this GPU rather than the best; the ranking stays the same.", OUTPUT, name="try_gpu"),
    ] = None
    provider: Annotated[
        str | None,
        Option("Measure at this provider; the ranking stays the same.", OUTPUT, name="try_provider"),
    ] = None
    minutes: Annotated[
        Positive,
        Option("Time limit of each task [min].", OUTPUT, name="try_minutes"),
    ] = TRY_MINUTES
    wheel: Annotated[
        Path | None, Option("Wheel of gpubench that they install.", OUTPUT, default="the running one")
    ] = None

    def check(self) -> None:
        """Say what is wrong with it.

        Raises:
            MisuseError: If one of --try and --out is missing, or what goes with them stands alone.
        """
        if (self.count is None) != (self.folder is None):
            raise MisuseError("--try N and --out DIR go together")
        if self.wheel is not None and self.count is None:
            raise MisuseError("--wheel is what the tasks of --try install: add --try N --out DIR")
        if (self.gpu or self.provider) and self.count is None:
            raise MisuseError("--try-gpu and --try-provider say what --try measures: add --try N --out DIR")
