"""Sharing a run: what a file may contain, its checks, and the count of readings next to a figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from card_spread import PUBLISHED_CARDS, card_spread
from command import here

from gpubench import predict
from gpubench.measure.privacy import private_part
from gpubench.models import DeviceProfile, Framework, Run, Status
from gpubench.models.measurement import Round
from gpubench.predict.answers import as_records
from gpubench.record.run_file import read_run
from gpubench.record.sharing import (
    Shared,
    doubts,
    place_of,
    readings_by,
    shareable,
    shared_files,
    shared_runs,
)
from gpubench.record.store import reference_runs
from gpubench.spread import CARD, PUBLISHED, Component
from gpubench.stats import Z95

H100 = "nvidia-h100-sxm-80gb"
REFERENCE = next(run for run in reference_runs() if run.run_id.endswith("7514fa86"))


@pytest.fixture
def run() -> Run:
    """A run that can be shared."""
    return shareable(REFERENCE)[0]


def test_the_shared_files_of_the_repository_contain_only_what_is_allowed() -> None:
    found = {path: read_run(path) for path in shared_files()}
    for path, run in found.items():
        others = [*reference_runs(), *(other for other in found.values() if other is not run)]
        assert not [*doubts(run, others)], path
        assert path.match(str(place_of(run, path.parent.name)))


def at_a_pace(run: Run, factor: float) -> Run:
    """Return the run as measured on a card that is faster by this factor."""

    def faster(each: Round) -> Round:
        return msgspec.structs.replace(each, wall_s=each.wall_s / factor)

    measurements = (
        msgspec.structs.replace(
            row,
            launches=tuple(
                msgspec.structs.replace(launch, rounds=tuple(map(faster, launch.rounds)))
                for launch in row.launches
            ),
        )
        for row in run.measurements
    )
    return msgspec.structs.replace(run, measurements=tuple(measurements))


def test_the_spread_between_cards_includes_the_shared_runs() -> None:
    """If a shared run changes the spread, its contributor sees the new value here."""
    assert card_spread(shared_runs()) == CARD


def test_cards_that_differ_widen_the_spread_and_cards_that_agree_narrow_it(run: Run) -> None:
    """Two cards 20 % apart each differ by half of that from their mean, and add one degree of freedom to ten."""

    def spread_of(**paces: float) -> Component:
        return card_spread([Shared(by=by, run=at_a_pace(run, pace)) for by, pace in paces.items()])

    assert spread_of(ann=1.0) == card_spread([]) == PUBLISHED
    assert PUBLISHED.half_width is not None
    apart = spread_of(ann=1.0, bob=1.2).half_width
    variance = PUBLISHED_CARDS * (PUBLISHED.half_width / Z95) ** 2 + math.log(1.2) ** 2 / 2
    assert apart == pytest.approx(Z95 * math.sqrt(variance / (PUBLISHED_CARDS + 1)))
    assert apart is not None
    assert apart > PUBLISHED.half_width
    alike = spread_of(ann=1.0, bob=1.0, cem=1.0, dee=1.0)
    narrower = math.sqrt(PUBLISHED_CARDS / (PUBLISHED_CARDS + 3))
    assert alike.half_width == pytest.approx(PUBLISHED.half_width * narrower)
    assert (alike.n, "4 cards of shared runs" in alike.source) == (4, True)
    twice = card_spread([Shared(by="ann", run=at_a_pace(run, pace)) for pace in (1.0, 1.2)])
    assert twice == PUBLISHED  # one person is one card


def test_identifiers_of_a_card_are_not_shared(run: Run) -> None:
    assert REFERENCE.device.device_id is not None
    assert run.device == msgspec.structs.replace(
        REFERENCE.device, uuid=None, device_id=None, pci_bus_id=None, index=None
    )
    assert not [*doubts(run, reference_runs())]


def test_doubtful_rows_and_rows_of_a_users_model_are_left_out() -> None:
    first = REFERENCE.measurements[1]
    own = msgspec.structs.replace(first, case=msgspec.structs.replace(first.case, workload="net.py"))
    run, left_out = shareable(msgspec.structs.replace(REFERENCE, measurements=(*REFERENCE.measurements, own)))
    assert len(run.measurements) + len(left_out) == len(REFERENCE.measurements) + 1
    assert any("net.py" in line and "a model of your own" in line for line in left_out)
    assert any("HOST_BOUND" in line or "NOT_CONVERGED" in line for line in left_out)
    assert {each.case for each in run.measurements} == {*run.planned}


def test_a_row_without_a_figure_is_not_compared_with_the_figures_of_others(run: Run) -> None:
    first = run.measurements[0]
    failed = msgspec.structs.replace(first, status=Status.OUT_OF_MEMORY, reason="out of memory", launches=())
    mine = msgspec.structs.replace(run, run_id="mine", measurements=(failed, *run.measurements[1:]))
    assert not [*doubts(mine, [run])]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cannot open /home/ann/data.bin", "/home/ann/data.bin"),
        (r"cannot open C:\Users\ann\x.py", r"C:\Users\ann\x.py"),
        ("GPU-01234567-89ab-cdef-0123-456789abcdef fell off", "GPU-01234567-89ab-cdef-0123-456789abcdef"),
        ("no answer of 10.0.0.7", "10.0.0.7"),
        ("at 3000 images/s, torch 2.11.0+cu130, 20261122t163414z-7514fa86", None),
    ],
)
def test_a_text_that_names_a_path_a_serial_number_or_an_address_is_found(
    text: str, found: str | None
) -> None:
    assert private_part(text) == found


def _spoiled(run: Run, what: str) -> Run:
    device, first = run.device, run.measurements[0]
    rounds = first.launches[0].rounds
    quick = tuple(msgspec.structs.replace(each, wall_s=each.wall_s / 2) for each in rounds)
    launch = msgspec.structs.replace(first.launches[0], rounds=quick)
    changes: dict[str, dict[str, Any]] = {
        "uuid": {"device": msgspec.structs.replace(device, uuid="GPU-01234567-89ab-cdef-0123-456789abcdef")},
        "path": {"notes": ("cannot open /home/ann/data.bin",)},
        "no GPU": {"device": DeviceProfile(backend="cpu")},
        "no figure": {"measurements": ()},
        "twice as fast": {"measurements": (msgspec.structs.replace(first, launches=(launch,)),)},
        "interrupted": {"interrupted": True},
    }
    return msgspec.structs.replace(run, **changes[what])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("uuid", "it contains the device's uuid"),
        ("path", "notes contains /home/ann/data.bin"),
        ("no GPU", "its device is not in the GPU table"),
        ("no figure", "it contains no figure"),
        ("twice as fast", "on this GPU"),
        ("interrupted", "the run was interrupted"),
    ],
)
def test_a_file_with_extra_or_impossible_content_is_refused(run: Run, what: str, words: str) -> None:
    other = msgspec.structs.replace(run, run_id="another")
    assert any(words in line for line in doubts(_spoiled(run, what), [other]))


def test_a_shared_run_is_shown_and_then_written_as_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "run.json"
    source.write_bytes(msgspec.json.encode(REFERENCE))
    place = Path("results/shared/ann") / f"{REFERENCE.run_id}.json"
    done = here("share", source, "--by", "ann")
    assert done.returncode == 0
    said = done.stdout
    assert "not included: host name, user name" in said
    assert f"Adds `{place.as_posix()}`" in said
    assert "| vgg16 amp-bf16 graph batch 64 |" in said
    assert said.index("not included") < said.index(f"{place}\n", said.index("| case"))
    written = read_run(tmp_path / place)
    assert not [*doubts(written, reference_runs())]
    assert REFERENCE.device.device_id not in (tmp_path / place).read_text()
    done = here("share", source, "--json", "-o", tmp_path / "one.json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["refused"]) == (0, [])
    assert told["place"] == f"results/shared/anonymous/{REFERENCE.run_id}.json"
    done = here("share", source, "-o", source / "one.json")
    assert done.returncode == 5
    assert f"cannot write {source / 'one.json'}" in done.stderr


def test_a_run_that_ci_would_refuse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "run.json"
    source.write_bytes(msgspec.json.encode(msgspec.structs.replace(REFERENCE, interrupted=True)))
    done = here("share", source)
    assert done.returncode == 1
    assert "not shared: the run was interrupted" in done.stderr
    assert done.stdout == "", "no text for a pull request without a file"
    assert not (tmp_path / "results").exists()
    assert here("share", source, "--by", "../ann").returncode == 2


def test_figure_states_how_many_readings_and_contributors_it_has(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = msgspec.structs.replace(run, run_id="again")
    case = next(m.case for m in run.measurements if m.status is Status.OK and m.case.workload == "vgg16")
    of_case = sum(
        (m.case.workload, m.case.precision) == (case.workload, case.precision) for m in run.measurements
    )
    by_two = [Shared(by="ann", run=run), Shared(by="bob", run=again)]
    assert readings_by(H100, case, by_two) == f"{2 * of_case} readings by 2 people"
    assert readings_by(H100, case, by_two[:1]) == f"{of_case} readings by 1 person"
    assert readings_by("nvidia-l4-24gb", case, by_two) is None
    in_keras = msgspec.structs.replace(case, framework=Framework.KERAS_JAX)
    assert readings_by(H100, in_keras, by_two) is None
    monkeypatch.setattr("gpubench.record.sharing.shared_runs", lambda: tuple(by_two))
    told = as_records(predict("vgg16", gpu="H100", precision=str(case.precision)))["estimates"][0]
    assert told["shared"] == f"{2 * of_case} readings by 2 people"
