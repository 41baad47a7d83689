"""Finds private text that a stored run must not contain: paths, addresses, names, device and process ids."""

from __future__ import annotations

import getpass
import ipaddress
import platform
import re

from gpubench.units import plain

_QUOTED_PATH = re.compile(r"""(['"])(?:[A-Za-z]:)?[/\\][^'"]*[/\\]([^'"/\\]+)\1""")
"""In quotes, the names of folders may contain spaces."""
_PATH = re.compile(r"(?:(?<!\w)[A-Za-z]:)?(?:[/\\][\w.+@~-]+)+[/\\]([\w.+@~-]+)|(?<![\w/])/[\w.+@~-]+")
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
    r"|(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9a-f]{0,4})(?:%\w+)?(?![\w:])",
    re.IGNORECASE,
)
"""Possible IPv4 or IPv6 addresses; ``_mask_address`` rules out versions, times and bus ids."""
_MAC = re.compile(r"(?<![\w:-])[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4,6}[0-9a-f]{2}(?![\w:-])", re.IGNORECASE)
"""Addresses of network cards, of 6 to 8 bytes: aa:bb:cc:dd:ee:ff or aa-bb-cc-dd-ee-ff."""
_PIDS = re.compile(r"\b(PIDs?|process) \d+(?:, \d+)*", re.IGNORECASE)
"""Process ids as gpubench prints them, and as torch lists them when a device is out of memory."""
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>[\w<>.]+)')
# Only frames in these packages are kept.
_SHOWN_PACKAGES = frozenset({"torch", "gpubench", "gpubench_workloads", "workloads"})
_MOST_LINES = 40
_SHORTEST_NAME = 3
"""A shorter host or user name would match ordinary words."""


def scrub(text: str, limit: int = 400) -> str:
    """Remove control characters, paths (except their last part), host, user, addresses, UUIDs and PIDs.

    >>> scrub("File /home/ann/my_model.py, line 3: no answer of 10.0.0.7")
    'File my_model.py, line 3: no answer of <address>'
    """
    clean = _UUID.sub("<uuid>", " ".join(text.split()))
    clean = _PIDS.sub(r"\1 <pid>", _ADDRESS.sub(_mask_address, _MAC.sub("<address>", clean)))
    clean = _PATH.sub(lambda match: match.group(1) or "<path>", _QUOTED_PATH.sub(r"\1\2\1", clean))
    host = platform.node()
    short, _, domain = host.partition(".")
    for name in (host, short, domain if "." in domain else ""):  # a domain of one label is an ordinary word
        clean = _mask_name(clean, name, "<host>", re.IGNORECASE)
    return plain(_mask_name(clean, _user(), "<user>"), limit)


def private_part(text: str) -> str | None:
    """Return the first path, UUID or address in a text, from any machine; None if there is none.

    >>> private_part("no answer of 10.0.0.7"), private_part("as in images/s")
    ('10.0.0.7', None)
    """
    for pattern in (_UUID, _PATH, _MAC, _ADDRESS):
        for found in pattern.finditer(text):
            if pattern is not _ADDRESS or _mask_address(found) != found[0]:
                return found[0]
    return None


def scrub_traceback(text: str) -> tuple[str, ...]:
    r"""Reduce a traceback to its error messages and its torch and gpubench frames, without folders.

    >>> scrub_traceback('  File "/home/ann/torch/nn/conv.py", line 7, in forward\n    x\nValueError: no')
    ('conv.py line 7 in forward', 'ValueError: no')
    """
    kept = []
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            path = re.split(r"[/\\]", frame["path"])
            if _SHOWN_PACKAGES.intersection(path):
                kept.append(f"{path[-1]} line {frame['line']} in {frame['function']}")
        elif line and not line[0].isspace() and not line.startswith("Traceback"):
            kept.append(scrub(line))
    return tuple(kept[-_MOST_LINES:])


def _mask_name(text: str, name: str, mark: str, flags: re.RegexFlag = re.NOFLAG) -> str:
    # Replace the name with the mark wherever it is a whole word.
    if len(name) < _SHORTEST_NAME:
        return text
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", mark, text, flags=flags)


def _mask_address(match: re.Match[str]) -> str:
    try:
        ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    return "<address>" if match[0].strip(":") else match[0]  # "::" alone separates names in C++


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no entry for this user id, as in many containers
        return ""
    return "" if user == "root" else user  # root is an ordinary word, not a person's name
