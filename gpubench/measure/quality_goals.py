"""What ``--to-quality`` trains, on what, and to which quality. No torch here: a plan is made of it.

The digits are the 1,797 of 8 x 8 of the UCI repository (Alpaydin and Kaynak 1998, doi 10.24432/C50P49, CC BY
4.0), the set that scikit-learn has as ``load_digits``. The text is drawn from a chain of 100 words, each
followed by four others with probabilities 0.7, 0.1, 0.1 and 0.1: no model can reach a loss below 0.94 nats.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from gpubench.files import TABLE_BYTES, read_bytes
from gpubench.folders import package_path
from gpubench.models.run import Metric

SEEDS = 5
EVALUATE_EVERY = 10
"""Steps between two looks at the held-out samples: as fine as the steps can be told."""
HELD_OUT = 5
"""Every fifth sample is never trained on."""
WORDS, TEXT_TOKENS, TEXT_SEED = 100, 20_000, 0
CONTEXT_TOKENS = 20

Arrays = tuple[Any, Any]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Data for a workload, and a quality on held-out samples: accuracy at least, loss at most ``target``."""

    metric: Metric
    target: float
    learning_rate: float
    samples: Callable[[], Arrays]
    data_sha256: str
    batch_size: int = 64
    most_steps: int = 1000

    def is_met_by(self, quality: float) -> bool:
        """Whether this is good enough; what is no number never is."""
        return quality >= self.target if self.metric == "accuracy" else quality <= self.target


@cache
def digits() -> Arrays:
    """Return the digits as images and labels.

    Shapes:
        images: (1797, 8, 8) uint8, 0 to 16; labels: (1797,) uint8.
    """
    import numpy as np

    table = gzip.decompress(read_bytes(package_path("data/digits.csv.gz"), TABLE_BYTES)).decode("ascii")
    rows = np.array([line.split(",") for line in table.split()], dtype=np.uint8)
    return np.ascontiguousarray(rows[:, :-1].reshape(-1, 8, 8)), np.ascontiguousarray(rows[:, -1])


@cache
def text() -> Arrays:
    """Return windows of the text and the word after each.

    Shapes:
        windows: (n, 20) uint8; words: (n,) uint8.
    """
    import numpy as np

    draw = random.Random(TEXT_SEED)  # noqa: S311 - a text, no secret; random() is the same in every Python
    follows = [[int(draw.random() * WORDS) for _ in range(4)] for _ in range(WORDS)]
    words = [0]
    for _ in range(TEXT_TOKENS - 1):
        rest = max(0, int(draw.random() * 10) - 6)  # 0 in seven of ten
        words.append(follows[words[-1]][rest])
    tokens = np.array(words, dtype=np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, CONTEXT_TOKENS + 1)
    return np.array(windows[:, :-1]), np.array(windows[:, -1])


GOALS = {
    "cnn": Goal(
        metric="accuracy",
        target=0.95,
        learning_rate=1e-3,
        samples=digits,
        data_sha256="87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826",
    ),
    "lstm": Goal(
        metric="loss",
        target=1.2,
        learning_rate=5e-3,
        samples=text,
        data_sha256="19d62ff2c9a6137baaa56c0ff1888f9b781b3b1ed85bff46698a21db3c22aa31",
    ),
}
