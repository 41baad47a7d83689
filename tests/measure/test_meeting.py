"""Where the processes of a job meet: who listens, at which address alone, and what machines tell each other."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from gpubench.errors import MisuseError, NoDeviceError
from gpubench.measure import meeting, ranks
from gpubench.measure.meeting import Meeting, alone, meet
from gpubench.models import Status

ELSEWHERE = "192.0.2.1"
"""An address of documentation (RFC 5737): no machine has it."""


@pytest.mark.parametrize("wrong", ["", "host", "host:", "host:0", "host:65536", "a b:1", "1:2:3", "host:-1"])
def test_an_endpoint_that_is_none_is_refused(wrong):
    with pytest.raises(MisuseError, match="HOST:PORT"):
        meet(wrong, 2)


@pytest.mark.parametrize("every", ["0.0.0.0:29500", "[::]:29500"])
def test_an_endpoint_that_is_every_address_is_refused(every):
    with pytest.raises(MisuseError, match="every address"):
        meet(every, 2)


def test_the_machine_that_has_the_address_listens_there_and_nowhere_else():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first = meet(f"localhost:{port}", 2)
    assert first.is_first
    assert first.listener.getsockname() == ("127.0.0.1", port)
    assert first.answers()
    with pytest.raises(MisuseError, match=f"port {port} is taken"):
        meet(f"127.0.0.1:{port}", 2)
    first.close()
    assert not first.answers()


def test_any_other_machine_comes_to_it(monkeypatch):
    monkeypatch.setattr(meeting, "KNOCK_S", 0.1)
    other = meet(f"{ELSEWHERE}:29500", 3)
    assert not other.is_first
    assert (other.host, other.port, other.machines) == (ELSEWHERE, 29500, 3)
    assert not other.answers()
    with pytest.raises(NoDeviceError, match=r"nobody\.invalid is"):
        meet("nobody.invalid:29500", 2)


def test_a_job_on_one_machine_listens_on_loopback_and_its_traffic_stays_there():
    here = alone()
    assert here.listener.getsockname()[0] == "127.0.0.1"
    names = here.variables({})
    assert names.keys() == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    assert dict(socket.if_nameindex())[1] == names["GLOO_SOCKET_IFNAME"]  # the kernel's first is its loopback
    assert here.variables({"NCCL_SOCKET_IFNAME": "ib0"}) == {}
    here.close()


class Watch:
    """What a door tells of its progress, and the pulse that it starts."""

    def __init__(self, place: Meeting) -> None:
        self._place = place
        self.come = 1
        self.phases: list[str] = []
        self.pulse: ranks.Pulse | None = None

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def listen_to(self, place: int) -> None:
        self.pulse = ranks.Pulse(self._place, place)


@pytest.fixture
def two_doors(monkeypatch):
    """Doors of the first machine and of a second one, with the watches that they report to."""
    monkeypatch.setattr(ranks, "PULSE_S", 0.05)
    monkeypatch.setattr(ranks, "LOOK_EVERY_S", 0.02)
    open_ = alone(silence_s=0.6)
    first = Meeting(open_.host, open_.port, 2, open_.listener, 0.6)
    second = Meeting(open_.host, open_.port, 2, None, 0.6)

    def make(gpus: tuple[int, int] = (2, 2)):
        watches = Watch(first), Watch(second)
        return [ranks.Door(m, n, w) for m, n, w in zip((first, second), gpus, watches, strict=True)], watches

    yield make
    open_.close()


def wait_for(condition, limit_s: float = 20.0):
    until_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return found


def test_the_machine_that_listens_is_the_first_and_the_end_that_it_tells_is_heard(two_doors):
    doors, watches = two_doors()
    came: list[object] = []
    other = threading.Thread(target=lambda: came.append(doors[1].next_rendezvous()))
    other.start()
    first = doors[0].next_rendezvous()
    other.join(20)
    assert (first.rank, first.world_size, came[0].rank) == (0, 2, 1)
    assert watches[0].phases[-1] == watches[1].phases[-1] == meeting.BEGUN
    wait_for(lambda: watches[1].pulse.all_here)
    assert watches[0].pulse.silence() is watches[1].pulse.silence() is None
    watches[0].pulse.say_farewell(ranks.Told(status=Status.OK, reason="done"))
    assert wait_for(lambda: watches[1].pulse.told) == ranks.Told(status=Status.OK, reason="done")
    # A machine that has gone is silent, and that is noticed:
    assert wait_for(watches[0].pulse.silence).reason.endswith(" 600 ms")


def test_a_machine_told_otherwise_is_sent_away_and_the_first_one_hears_why(two_doors):
    doors, watches = two_doors(gpus=(2, 4))
    waiting = threading.Thread(target=doors[0].next_rendezvous, daemon=True)
    waiting.start()
    with pytest.raises(ranks.JoinError, match="has --gpus 4"):
        doors[1].next_rendezvous()
    assert wait_for(lambda: watches[0].pulse and watches[0].pulse.told).status is Status.FAILED
