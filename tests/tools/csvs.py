"""Write CSV files with the columns of the published measurements."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.published import COLUMNS


def write_csv(path: Path, rows: Iterable[Mapping[str, str]]) -> Path:
    rows = list(rows)
    further = sorted({name for row in rows for name in row} - set(COLUMNS))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, *further))
        writer.writeheader()
        writer.writerows(rows)
    return path
