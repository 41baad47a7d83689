"""Where the processes of one job meet, and where each of them stands. No torch here.

They meet at an address that the first machine listens on. The process that measures holds the listening
socket from before the first job to after the last and hands it to each job in turn. So a port that is taken
is noticed before anything is measured, a machine that comes early waits at a door that is there, and one that
finds the door gone knows that the run is over.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import psutil

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.units import Seconds, plain

LOOPBACK = "127.0.0.1"
MOST_PORT = 65535
SILENCE_S: Seconds = 20.0
"""A machine of the job that gives no sign of life for so long is lost; each gives one a second."""
BEGUN = "begun"
"""The phase in which the processes of a job start, once all machines have come."""
KNOCK_S: Seconds = 5.0
"""For one attempt to reach the first machine."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_WAITING = 1024


@dataclass(frozen=True)
class Meeting:
    """The address, and on the first machine the socket that listens there.

    Attributes:
        machines: How many take part.
        silence_s: After so long without a sign of life a machine is lost [s].
    """

    host: str
    port: int
    machines: int = 1
    listener: socket.socket | None = None
    silence_s: Seconds = SILENCE_S

    @property
    def is_first(self) -> bool:
        """Whether this machine decides, times and stores."""
        return self.listener is not None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a child must inherit."""
        return () if self.listener is None else (self.listener.fileno(),)

    def arguments(self) -> tuple[str, ...]:
        """Return the words from which a child makes the same meeting again."""
        listener = -1 if self.listener is None else self.listener.fileno()
        return (self.host, str(self.port), str(self.machines), str(listener), str(self.silence_s))

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Meeting:
        """Make a meeting of the words that a parent gave."""
        host, port, machines, descriptor, silence_s = arguments
        listener = None if descriptor == "-1" else socket.socket(fileno=int(descriptor))
        return cls(host, int(port), int(machines), listener, float(silence_s))

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Name the network interface that the job's traffic takes, unless the user has.

        Gloo and NCCL would look for one of their own: on one machine that may be one that others can reach,
        on several one that they cannot.
        """
        if any(name in inherited for name in INTERFACE_VARIABLES):
            return {}
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        own = None
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((self.host, self.port))  # nothing is sent: it tells from which address it would be
            own = probe.getsockname()[0]
        interfaces = psutil.net_if_addrs().items()
        names = [name for name, known in interfaces if any(each.address == own for each in known)]
        if own == LOOPBACK and "lo" in names and sys.platform == "linux":
            names = ["lo"]
        return dict.fromkeys(INTERFACE_VARIABLES, names[0]) if names else {}

    def answers(self) -> bool:
        """Whether the first machine still listens: it does for as long as its run goes on."""
        try:
            socket.create_connection((self.host, self.port), timeout=KNOCK_S).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Stop listening; jobs that have begun are not touched."""
        if self.listener is not None:
            self.listener.close()


def alone(silence_s: Seconds = SILENCE_S) -> Meeting:
    """Return a meeting on this machine alone: it listens on the loopback interface and nowhere else."""
    listener = socket.create_server((LOOPBACK, 0), backlog=_WAITING)
    return Meeting(LOOPBACK, listener.getsockname()[1], listener=listener, silence_s=silence_s)


def meet(endpoint: str, machines: int) -> Meeting:
    """Return the meeting at an address; the machine that has the address listens there.

    Raises:
        MisuseError: If the address is none, or its port is taken.
        NoDeviceError: If the name of the host is known to nobody.
    """
    host, port = parse_endpoint(endpoint)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise NoDeviceError(f"--rdzv-endpoint {endpoint}: no address of {host} is known ({error})") from None
    meeting = Meeting(str(address[0]), port, machines)
    if ipaddress.ip_address(meeting.host).is_unspecified:
        raise MisuseError(
            f"--rdzv-endpoint {endpoint} is every address of a machine: give the one by which the "
            "others reach the first"
        )
    try:
        # Listening at this address and no other: a job is nobody's business who cannot reach it.
        listener = socket.create_server(address[:2], family=family, backlog=_WAITING)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return meeting
        taken = error.errno == errno.EADDRINUSE
        why = "is taken" if taken else f"cannot be opened ({os.strerror(error.errno or 0)})"
        raise MisuseError(
            f"--rdzv-endpoint {endpoint}: port {port} {why} on this machine: give another on all machines"
        ) from None
    return replace(meeting, listener=listener)


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; an IPv6 address stands in brackets.

    >>> parse_endpoint("10.0.0.1:29500"), parse_endpoint("[fd00::1]:29500")
    (('10.0.0.1', 29500), ('fd00::1', 29500))

    Raises:
        MisuseError: If it is neither.
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})", endpoint.strip())
    if found is None or not 1 <= int(found[3]) <= MOST_PORT:
        raise MisuseError(
            f"--rdzv-endpoint {plain(endpoint)!r} is not an address: give HOST:PORT of the first machine, "
            "as in 10.0.0.1:29500"
        )
    return found[1] or found[2], int(found[3])


@dataclass(frozen=True)
class Place:
    """Where a process stands, as torch's launcher tells it.

    Attributes:
        rank, size: Among all processes of the job.
        local_rank, local_size: Among those of this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int

    @property
    def spans_machines(self) -> bool:
        """Whether the job has processes on other machines."""
        return self.size > self.local_size

    @classmethod
    def here(cls) -> Place:
        """Read the place of this process."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
        rank, size, local_rank, local_size, port = (int(os.environ[name]) for name in names)
        return cls(rank, size, local_rank, local_size, os.environ["MASTER_ADDR"], port)


def is_echo(error: BaseException) -> bool:
    """Whether an error only tells that another process was lost: the exchange with it has failed."""
    from torch import distributed

    broken = getattr(distributed, "DistError", None)
    words = f"{error}"
    return isinstance(error, RuntimeError) and (
        (broken is not None and isinstance(error, broken)) or "gloo" in words or "Connection closed" in words
    )
