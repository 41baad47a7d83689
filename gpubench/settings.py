"""What rarely changes from one question to the next, read from ``gpubench.toml`` or ``pyproject.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gpubench.errors import MisuseError
from gpubench.files import TABLE_BYTES, read_bytes
from gpubench.units import plain

FILES: Mapping[str, tuple[str, ...]] = {"gpubench.toml": (), "pyproject.toml": ("tool", "gpubench")}
"""Where settings stand, the first before the second, and in which table of it."""


class Settings(msgspec.Struct, frozen=True):
    """What a file sets, by the name of the option in Python, and the name of the file."""

    file: str = ""
    values: Mapping[str, Any] = {}


def read_settings(folder: Path) -> Settings:
    """Read the settings of a folder; no file above it counts.

    Raises:
        MisuseError: If a file is no TOML, or its settings are no table.
    """
    for name, keys in FILES.items():
        if (folder / name).is_file():
            table = _read(folder / name)
            for key in keys:
                table = table.get(key, {}) if isinstance(table, dict) else None
            if not isinstance(table, dict):
                raise MisuseError(f"{name}: {'.'.join(keys)} is no table of settings")
            if table or not keys:
                return Settings(name, {key.replace("-", "_"): value for key, value in table.items()})
    return Settings()


def _read(path: Path) -> Any:
    import tomllib

    try:
        return tomllib.loads(read_bytes(path, TABLE_BYTES, follow_links=True).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MisuseError(f"{path.name} is no TOML: {plain(str(error), 200)}") from None
