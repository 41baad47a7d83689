"""What must not enter a stored run: paths of this machine, its name, its user, device identifiers."""

from __future__ import annotations

import getpass
import platform
import re

from gpubench.units import plain

_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+)+[/\\]([\w.+@~-]+)|(?<![\w/])/[\w.+@~-]+")
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>[\w<>.]+)')
_KNOWN = frozenset({"torch", "gpubench", "gpubench_workloads", "workloads"})
_MOST_FRAMES = 40
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


def scrub_traceback(text: str) -> tuple[str, ...]:
    r"""Reduce a traceback to the frames of torch and gpubench, by file name, and the words of its errors.

    >>> scrub_traceback('  File "/home/ann/torch/nn/conv.py", line 7, in forward\n    x\nValueError: no')
    ('conv.py line 7 in forward', 'ValueError: no')
    """
    kept = []
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            path = re.split(r"[/\\]", frame["path"])
            if _KNOWN.intersection(path):
                kept.append(f"{path[-1]} line {frame['line']} in {frame['function']}")
        elif line and not line[0].isspace() and not line.startswith("Traceback"):
            kept.append(scrub(line))
    return tuple(kept[-_MOST_FRAMES:])


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no entry for this user id, as in many containers
        return ""
    return "" if user == "root" else user  # an ordinary word, and nobody's name
