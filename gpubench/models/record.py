"""What every recorded type is: frozen, keyword-only, read and written by msgspec."""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1
PROTOCOL = "gpubench/1"


class Record(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Base of every recorded type; ``dict`` only holds cached derived values, never state."""
