"""The file format: every recorded type survives JSON, and unknown stays null."""

from __future__ import annotations

import msgspec
import pytest

from gpubench import models
from gpubench.models import (
    Case,
    DeviceProfile,
    Environment,
    Execution,
    Launch,
    Measurement,
    Precision,
    Round,
    Run,
    Status,
    TaskKind,
    TelemetrySample,
)


def make_case(**changes) -> Case:
    fields = {
        "workload": "cnn",
        "workload_version": 1,
        "task": TaskKind.TRAIN,
        "precision": Precision.FP32,
        "execution": Execution.EAGER,
        "memory_format": None,
        "batch_size": 64,
        "sample_unit": "image",
    }
    return Case(**(fields | changes))


def make_measurement(
    walls: tuple[tuple[float, ...], ...] = ((1.0, 1.1, 0.9),), steps: int = 10
) -> Measurement:
    launches = tuple(
        Launch(index=i, rounds=tuple(Round(steps=steps, wall_s=w) for w in launch))
        for i, launch in enumerate(walls)
    )
    return Measurement(case=make_case(), status=Status.OK, launches=launches, flops_per_sample=1e6)


def test_a_run_survives_json_and_unknown_stays_null():
    run = Run(
        run_id="20261120T000000Z-abc",
        started_at="2026-11-20T00:00:00Z",
        budget="quick",
        seed=0,
        device=DeviceProfile(backend="cpu", unavailable={"power_limit_w": "not reported"}),
        environment=Environment(gpubench="0", python="3.11", os="linux"),
        measurements=(make_measurement(),),
    )
    data = msgspec.json.encode(run)
    assert msgspec.json.decode(data, type=Run) == run
    assert msgspec.json.decode(data)["device"]["power_limit_w"] is None


def test_throughput_times_step_time_is_the_batch():
    m = make_measurement()
    assert m.samples_per_s * m.step_time_s == pytest.approx(m.case.batch_size)
    assert m.samples_per_s_low < m.samples_per_s < m.samples_per_s_high


@pytest.mark.parametrize(("slow_s", "has_high"), [(1.2, True), (3.0, False)])
def test_a_throughput_has_no_upper_end_where_its_step_time_may_be_next_to_nothing(slow_s, has_high):
    """A card read "220,000 (110,000 to 44,000,000) images/s": at least 110,000 was all that was sure."""
    m = make_measurement(walls=((1.0, slow_s, 1.0, slow_s, 1.0, slow_s),))
    assert 0 < m.relative_half_width < 1
    assert (m.samples_per_s_low is not None, m.samples_per_s_high is not None) == (True, has_high)


def test_several_gpus_are_held_against_the_peak_of_all_of_them():
    """One step a second of batch 2 on each of 4 GPUs: 8 samples of 10 FLOP, against 4 times 100 FLOP/s."""
    launch = Launch(index=0, rounds=(Round(steps=1, wall_s=1.0),))
    m = Measurement(
        case=make_case(batch_size=2, gpu_count=4),
        status=Status.OK,
        launches=(launch,),
        flops_per_sample=10.0,
        peak_flops_per_s=100.0,
        gemm_flops_per_s=50.0,
    )
    assert (m.samples_per_s, m.mfu, m.mfu_of_gemm) == (8.0, 0.2, 0.4)


def test_tokens_per_second_are_those_of_a_sample_times_the_throughput():
    """Eight sequences of 2,048 tokens in half a second: 32,768 tokens a second; unknown stays unknown."""
    launch = Launch(index=0, rounds=(Round(steps=1, wall_s=0.5),))
    m = Measurement(
        case=make_case(batch_size=8), status=Status.OK, launches=(launch,), tokens_per_sample=2048
    )
    assert m.tokens_per_s == 32_768
    assert msgspec.structs.replace(m, tokens_per_sample=None).tokens_per_s is None
    assert msgspec.structs.replace(m, launches=()).tokens_per_s is None


def test_hfu_counts_what_a_step_computes_again_and_mfu_does_not():
    """The same, where each sample takes 13 FLOP of which the model's own are 10."""
    launch = Launch(index=0, rounds=(Round(steps=1, wall_s=1.0),))
    m = Measurement(
        case=make_case(batch_size=8),
        status=Status.OK,
        launches=(launch,),
        flops_per_sample=10.0,
        hardware_flops_per_sample=13.0,
        peak_flops_per_s=400.0,
    )
    assert (m.mfu, m.hfu) == (0.2, pytest.approx(0.26))
    assert msgspec.structs.replace(m, hardware_flops_per_sample=None).hfu is None
    assert msgspec.structs.replace(m, peak_flops_per_s=None).hfu is None
    generation = make_case(batch_size=8, task=TaskKind.INFER, prompt_tokens=16, new_tokens=1000)
    generated = msgspec.structs.replace(m, case=generation)
    assert generated.samples_per_s == 8.0
    assert (generated.achieved_flops_per_s, generated.mfu, generated.hfu) == (None, None, None)


def test_the_wider_of_the_two_intervals_counts():
    """Two launches at 0.10 and 0.12 s a step, no spread inside: t(0.975, 1) x 0.01 over the mean 0.11."""
    m = make_measurement(((1.0, 1.0, 1.0), (1.2, 1.2, 1.2)))
    assert m.relative_half_width == pytest.approx(12.7062 * 0.01 / 0.11, rel=1e-5)


def test_an_interval_of_one_launch_is_one_within_a_process():
    one, two = ((1.0, 1.0, 1.0),), ((1.0, 1.0, 1.0), (1.2, 1.2, 1.2))
    assert make_measurement(one).within_one_process
    assert not make_measurement(two).within_one_process
    assert not Measurement(case=make_case(), status=Status.FAILED, reason="x").within_one_process


def test_a_round_that_was_left_out_is_kept_and_does_not_count():
    launch = Launch(
        index=0, rounds=(Round(steps=1, wall_s=9.0, left_out="drift"), Round(steps=1, wall_s=1.0))
    )
    m = Measurement(case=make_case(batch_size=2), status=Status.OK, launches=(launch,))
    assert m.samples_per_s == 2.0
    assert len(m.launches[0].rounds) == 2


def test_without_rounds_nothing_is_claimed():
    m = Measurement(case=make_case(), status=Status.FAILED, reason="x")
    assert (m.samples_per_s, m.samples_per_s_low, m.joules_per_sample, m.mfu) == (None,) * 4


def test_what_a_sample_or_round_does_not_know_is_left_out_of_the_file_and_is_none_again():
    sample = TelemetrySample(t_s=1.5, power_w=650.0)
    assert msgspec.json.encode(sample) == b'{"power_w":650.0,"t_s":1.5}'
    assert msgspec.json.decode(b'{"t_s":1.5}', type=TelemetrySample).power_w is None
    assert msgspec.json.encode(Round(steps=1, wall_s=2.0)) == b'{"steps":1,"wall_s":2.0}'


def test_cases_are_hashable_and_equal_by_value():
    assert len({make_case(), make_case(), make_case(batch_size=1)}) == 2


def test_every_record_is_frozen():
    for name in models.__all__:
        kind = getattr(models, name)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert kind.__struct_config__.frozen, name


@pytest.mark.parametrize(
    ("backend", "torch_type"),
    [("cuda", "cuda"), ("rocm", "cuda"), ("mps", "mps"), ("cpu", "cpu"), ("xpu", "xpu")],
)
def test_a_device_is_known_by_the_name_of_torch(backend, torch_type):
    device = DeviceProfile(backend=backend)
    assert (device.torch_type, device.is_nvidia) == (torch_type, backend == "cuda")
    assert device.is_torch_cuda == (backend in {"cuda", "rocm"})
