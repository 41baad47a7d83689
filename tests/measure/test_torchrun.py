"""Requests, plans and runs under a user's torchrun; its processes are in tests/measure/test_nodes.py."""

from __future__ import annotations

import re

import msgspec
import pytest

from gpubench.errors import MisuseError
from gpubench.measure.budget import DEFAULT
from gpubench.measure.messages import Place, place_under_torchrun
from gpubench.measure.plan import Plan, PlannedCase
from gpubench.measure.request import RunRequest
from gpubench.session import session

TOLD = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
}
PLACE = Place(rank=5, size=8, local_rank=1, local_size=4)


@pytest.fixture
def tell(monkeypatch):
    def told(**changes: str | None) -> None:
        for name, value in (TOLD | changes).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return told


def test_the_rank_comes_from_torchrun(tell):
    tell()
    assert place_under_torchrun() == PLACE
    assert PLACE.machines == 2


def test_without_torchrun_or_as_its_only_process_a_run_is_unchanged(tell):
    tell(TORCHELASTIC_RUN_ID=None)  # other launchers also set the size of a world
    assert place_under_torchrun() is None
    tell(WORLD_SIZE="1", RANK="0", LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    assert place_under_torchrun() is None


def test_run_must_use_the_machines_given_by_torchrun():
    request = session.with_torchrun_size(RunRequest(), PLACE)
    assert (request.gpus, request.nnodes, request.gpu_count) == (4, 2, 8)
    session.check_process_count(request, PLACE)
    session.check_process_count(RunRequest(gpus=2), None)
    for wrong, place in (
        (session.with_torchrun_size(RunRequest(gpus=3), PLACE), PLACE),
        (RunRequest(gpus=4, nnodes=2), None),
        (RunRequest(gpus=4, nnodes=3), PLACE),
    ):
        start = f"torchrun --nnodes {wrong.nnodes} --nproc-per-node {wrong.gpus} "
        with pytest.raises(MisuseError, match=re.escape(start)):
            session.check_process_count(wrong, place)


def test_command_runs_the_first_launch_missing_from_any_case(make_case):
    one, other = (make_case(batch_size=size) for size in (1, 2))
    cases = tuple(PlannedCase(reference="vgg16", case=case) for case in (one, other))
    made = Plan(budget=DEFAULT, seed=0, cases=cases)

    def launches(*done) -> int:
        return session.one_launch(msgspec.structs.replace(made, done=frozenset(done))).budget.launches

    assert launches() == 1
    assert launches((one, 0)) == 1
    assert launches((one, 0), (other, 0)) == 2
    # A failed case has no further launches.
    assert launches((one, 0), *((other, index) for index in range(3))) == 2


def test_a_run_keeps_the_id_of_the_previous_attempt(monkeypatch):
    monkeypatch.setattr(session, "_run_numbers", iter((0, 1)))
    first, second = session.run_id_under_torchrun(), session.run_id_under_torchrun()
    assert re.fullmatch(r"\d{8}t\d{6}z-[0-9a-f]{8}", first)
    assert first != second
    monkeypatch.setattr(session, "_run_numbers", iter((0,)))
    assert session.run_id_under_torchrun() == first
