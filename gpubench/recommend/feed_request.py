"""What the input pipeline is asked: one field an option of ``gpubench feed``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gpubench.options import Option
from gpubench.shared_options import Device, Results


class FeedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs to feed, and with what."""

    gpus: Annotated[
        tuple[str, ...],
        Option("GPU to feed: key or name.", name="gpu", commas=True, default="the one here, else examples"),
    ] = ()
    workers: Annotated[
        int | None, Option("DataLoader workers.", least=1, metavar="N", default="one per CPU")
    ] = None
    clips: Annotated[
        bool,
        Option(
            "Prepare video clips of 16 frames, with one random augmentation a clip, instead of photographs."
        ),
    ] = False
    device: Device = "auto"
    results: Results = None
