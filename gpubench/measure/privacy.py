"""What must not enter a stored run: paths of this machine, its name, its user, device identifiers."""

from __future__ import annotations

import getpass
import platform
import re

from gpubench.units import plain

_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+)+[/\\]([\w.+@~-]+)|(?<![\w/])/[\w.+@~-]+")
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_SHORTEST_NAME = 3
"""A host or user name of one or two letters would be found inside ordinary words."""


def scrub(text: str, limit: int = 400) -> str:
    """Strip control characters, paths (their last part stays), host and user name, and UUIDs.

    >>> scrub("File /home/ann/my_model.py, line 3")
    'File my_model.py, line 3'
    """
    clean = _UUID.sub("<uuid>", " ".join(text.split()))
    clean = _PATH.sub(lambda match: match.group(1) or "<path>", clean)
    for name, mark in ((platform.node(), "<host>"), (_user(), "<user>")):
        if len(name) >= _SHORTEST_NAME:
            clean = re.sub(rf"\b{re.escape(name)}\b", mark, clean)
    return plain(clean, limit)


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no entry for this user id, as in many containers
        return ""
    return "" if user == "root" else user  # an ordinary word, and nobody's name
