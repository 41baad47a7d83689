"""The table of the reference figures, measured by child processes that answer from a script."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from gpubench.cli import check
from gpubench.cli.app import app
from gpubench.errors import GpuBenchError, NoDeviceError
from gpubench.measure import by_hand, events
from gpubench.measure.budget import QUICK
from gpubench.measure.launcher import Launcher
from gpubench.models import DeviceProfile, Finding, FindingKind, Status
from gpubench.record import reference_check, session, store
from gpubench.record.reference_check import (
    FAILURES,
    check_reference,
    judge,
    plan_of,
    planned_of,
    reference_figures,
)

pytestmark = pytest.mark.timeout(120)

H200 = DeviceProfile(
    backend="cuda", name="NVIDIA H200", gpu_key="nvidia-h200", compute_capability=(9, 0), uuid="GPU-1"
)
T4 = DeviceProfile(
    backend="cuda", name="Tesla T4", gpu_key="nvidia-t4", compute_capability=(7, 5), uuid="GPU-2"
)
SCRIPTED = functools.partial(Launcher, module="scripted_child")


def micro_of(figure, factor=1.0):
    name, _, rest = figure.name.partition(" ")
    fields = {"precision": figure.precision or None, "low": None, "high": None, "unit": figure.unit, "n": 20}
    if name == "gemm":
        fields |= {"name": "gemm", "size": rest.split()[1]}
    elif figure.unit == "s":
        fields |= {"name": figure.name, "size": "1"}
    else:
        label, size, unit = figure.name.rsplit(" ", 2)
        fields |= {"name": label, "size": f"{size} {unit}"}
    return fields | {"value": figure.value * factor}


@pytest.fixture
def script(monkeypatch):
    """What an H200 in good health answers; ``changes`` replace parts of it."""

    def write(micro=lambda figure: 1.0, slower=1.0, **changes) -> None:
        figures = reference_figures()
        steps = {p.case.label: 0.02 for p in plan_of(figures, 1).cases}
        for figure in figures:
            if figure.kind in {"step_time", "throughput"}:
                case = planned_of(figure).case
                value = figure.value if figure.kind == "step_time" else case.batch_size / figure.value
                steps[case.label] = value * slower
        script = {
            "step_s": steps,
            "micro": [micro_of(f, micro(f)) for f in figures if f.kind == "micro"],
            "by_hand": {planned_of(f).case.label: 1.001 for f in figures if f.kind == "fidelity"}
            | {f"{planned_of(f).case.label} sampler": 1.0005 for f in figures if f.kind == "sampler"},
        }
        monkeypatch.setenv("GPUBENCH_SCRIPT", json.dumps(script | changes))

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(session, "Launcher", SCRIPTED)
    monkeypatch.setattr(reference_check, "Launcher", SCRIPTED)
    monkeypatch.setattr(reference_check, "preflight", lambda device, *, allow_shared: ())
    monkeypatch.setattr(reference_check, "start_state", lambda device: None)
    monkeypatch.setattr("gpubench.measure.preflight.newcomers", lambda device: ())
    monkeypatch.setattr(reference_check, "newcomers", lambda device: ())
    return write


def verdicts(found):
    return {row.figure.name: row.verdict for row in found.rows}


def test_a_card_that_agrees_passes_and_leaves_one_run_with_everything(script, tmp_path):
    script()
    found = check_reference(H200, tmp_path, quick_run=lambda: None)
    wrong = {name: v for name, v in verdicts(found).items() if v not in {"pass", "shown"}}
    assert wrong == {}
    assert not found.failed
    (stored,) = store.read_runs(tmp_path).runs
    assert stored.run_id == found.run.run_id
    cases = {
        planned_of(f).case for f in reference_figures() if f.kind in {"step_time", "throughput", "spread"}
    }
    launches = {m.case: len(m.launches) for m in stored.measurements}
    assert set(launches) == cases
    assert sorted(set(launches.values())) == [1, reference_check.SPREAD_LAUNCHES]
    assert len(stored.micro) == sum(f.kind == "micro" for f in reference_figures())


def test_too_fast_is_suspicious_and_too_slow_fails_launches_included(script, tmp_path):
    script(
        micro=lambda f: {"gemm fp32 4096": 1.5, "launch device": 3.0, "launch wall": 0.5}.get(f.name, 1.0),
        fail={"vgg16 amp-bf16 compile batch 128": "RuntimeError: no compiler"},
    )
    found = check_reference(H200, tmp_path)
    seen = verdicts(found)
    assert seen["gemm fp32 4096"] == seen["launch wall"] == "suspicious"
    assert seen["launch device"] == "fail"
    assert seen["vgg16 compiled"] == "failed to measure"
    assert found.failed
    reasons = {row.figure.name: row.reason for row in found.rows}
    assert "missing synchronise" in reasons["gemm fp32 4096"]
    assert reasons["vgg16 compiled"] == "failed: RuntimeError: no compiler"
    assert "quick run of cnn lstm vgg16" not in seen


def test_another_card_never_fails_and_says_what_it_has_not(script, tmp_path):
    script(micro=lambda figure: 0.1, slower=20.0)
    found = check_reference(T4, tmp_path, quick_run=lambda: None)
    seen = verdicts(found)
    assert set(seen.values()) == {"shown", "not on this card"}
    lacking = {name for name, verdict in seen.items() if verdict == "not on this card"}
    assert "gemm bf16 4096" in lacking
    assert "gemm tf32 8192" in lacking
    assert "lstm graph step" in lacking  # at amp-bf16
    assert "gemm fp16 4096" not in lacking
    assert not found.failed
    assert judge(reference_figures()[0], None, same_card=False) == "not measured"
    assert {"fail", "failed to measure", "suspicious"} == FAILURES


def test_a_quick_run_that_fails_keeps_the_table(script, tmp_path):
    def quick_run():
        raise NoDeviceError("the GPU is in use")

    script()
    found = check_reference(H200, tmp_path, quick_run=quick_run)
    last = found.rows[-1]
    assert (last.verdict, last.reason) == ("failed to measure", "the GPU is in use")
    assert verdicts(found)["gemm fp32 4096"] == "pass"
    assert found.failed


def test_the_device_is_looked_at_first_and_what_is_seen_is_kept(script, tmp_path, monkeypatch):
    script()
    capped = Finding(kind=FindingKind.POWER_CAPPED, value=0.5)
    monkeypatch.setattr(reference_check, "preflight", lambda device, *, allow_shared: (capped,))
    assert capped in check_reference(H200, tmp_path).run.findings

    def refuse(device, *, allow_shared):
        assert allow_shared is False
        raise NoDeviceError("something else computes on it")

    monkeypatch.setattr(reference_check, "preflight", refuse)
    seen = []
    with pytest.raises(NoDeviceError):
        check_reference(H200, tmp_path / "other", seen.append)
    assert seen == []


def test_whoever_comes_during_the_last_part_is_found_too_and_the_run_wants_its_micro_benchmarks(
    script, tmp_path, monkeypatch
):
    shared = Finding(kind=FindingKind.SHARED_GPU, value="1 process")
    order = []
    monkeypatch.setattr(reference_check, "_by_hand", lambda *_: order.append("by hand"))
    monkeypatch.setattr(reference_check, "newcomers", lambda device: order.append("newcomers") or (shared,))
    script()
    found = check_reference(H200, tmp_path)
    assert order == ["by hand", "newcomers"]
    (stored,) = store.read_runs(tmp_path).runs
    assert shared in stored.findings
    assert stored == found.run
    assert stored.settings.micro == "also"


def test_a_loop_by_hand_gives_its_ratio_or_the_reason_why_not(script):
    script(die=["cnn fp32 eager batch 4,096"])
    figures = {f.name: f for f in reference_figures()}
    seen = []
    launcher = SCRIPTED(plan_of([], 1), H200, seen.append)
    try:
        ratio = launcher.ratio_by_hand(planned_of(figures["vgg16 fp32 over the bare loop"]), sampler=False)
        assert ratio == 1.001
        ratio = launcher.ratio_by_hand(planned_of(figures["vgg16 cost of telemetry"]), sampler=True)
        assert ratio == 1.0005
        with pytest.raises(GpuBenchError, match="too noisy"):
            launcher.ratio_by_hand(planned_of(figures["cnn graph step"]), sampler=False)
        with pytest.raises(GpuBenchError, match="status 3; it last wrote: MemoryError: no room for cnn"):
            launcher.ratio_by_hand(planned_of(figures["cnn fp32 over the bare loop"]), sampler=False)
    finally:
        launcher.close()
    assert events.PhaseBegan(name="timed") in seen


@pytest.mark.parametrize("sampler", [False, True])
def test_the_harness_is_held_against_the_loop_by_hand_for_real(monkeypatch, sampler):
    """On the CPU, in blocks of a few milliseconds: the ratio is one of real steps, near 1."""
    pytest.importorskip("torch")
    from gpubench.measure.case import Desk, compare_by_hand
    from gpubench.measure.hardware import open_hardware
    from gpubench.measure.messages import ByHand
    from gpubench.probe.telemetry import open_telemetry

    monkeypatch.setattr(by_hand, "BLOCK_S", 0.02)
    monkeypatch.setattr(by_hand, "WARM_STEPS", 4)
    cpu = DeviceProfile(backend="cpu", name="Some CPU")
    figure = next(f for f in reference_figures() if f.name == "cnn fp32 over the bare loop")
    case = msgspec.structs.replace(planned_of(figure).case, batch_size=8)
    with open_telemetry(cpu) as telemetry:
        desk = Desk(
            hardware=open_hardware(cpu),
            budget=QUICK,
            seed=0,
            telemetry=telemetry,
            profile=cpu,
            phase=lambda name: None,
            report=lambda timed, done, width: None,
            stopped=lambda: False,
        )
        done = compare_by_hand(ByHand(reference="cnn", case=case, sampler=sampler), desk)
    assert done.low <= done.ratio <= done.high
    assert 0.3 < done.ratio < 3


# --- the verb ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", [(H200, 1.0, 0), (H200, 0.9, 1), (T4, 0.9, 0)])
def test_the_verb_ends_with_1_only_where_the_card_disagrees(script, tmp_path, monkeypatch, card):
    device, gemm, code = card
    script(micro=lambda figure: gemm, slower=1.0 if device is H200 else 20.0)
    monkeypatch.setattr("gpubench.probe.select.select_device", lambda name: (device, None))
    monkeypatch.setattr("gpubench.record.session.run", lambda request: None)
    done = CliRunner().invoke(app, ["check", "--reference", "--json", "--results", str(tmp_path)])
    assert done.exit_code == code, done.output
    document = json.loads(done.stdout)
    assert document["gpu_key"] == device.gpu_key
    assert len(document["rows"]) == len(reference_figures())
    (stored,) = store.read_runs(tmp_path).runs
    assert document["run_id"] == stored.run_id
    assert f"stored in {tmp_path}" in done.stderr
    assert all(m.status is Status.OK for m in stored.measurements)


def test_a_cpu_has_no_reference(monkeypatch, tmp_path):
    cpu = DeviceProfile(backend="cpu")
    monkeypatch.setattr("gpubench.probe.select.select_device", lambda name: (cpu, None))
    done = CliRunner().invoke(app, ["check", "--reference", "--results", str(tmp_path)])
    assert done.exit_code != 0
    assert "compares GPUs" in str(done.exception)


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("launch device", "3.87 µs", "at most 3.95 µs"),
        ("cnn graph step", "358 µs", "at most 380 µs"),
        ("quick run of cnn lstm vgg16", "—", "at most 2 min 0 s"),
        ("gemm fp32 4096", "51.37 TFLOP/s", "at least 98 % of it"),
        ("vgg16 compiled", "4,846 images/s", "at least 4,700 images/s"),
        ("vgg16 eager fp32", "655.0 images/s", ""),
        ("vgg16 fp32 over the bare loop", "1.000", "±1.0 %"),
        ("vgg16 graph spread of 5 launches", "0.30 %", "at most 0.50 %"),
        ("vgg16 cost of telemetry", "1.000", "at most 1.002"),
    ],
)
def test_a_limit_has_the_unit_of_its_figure(name, value, limit):
    (figure,) = (f for f in reference_figures() if f.name == name)
    assert (check._quantity(figure.value, figure), check._limit(figure)) == (value, limit)
