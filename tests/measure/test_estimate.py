"""What a plan is said to take, from FLOPs, operators and limits; no device is touched."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.measure import estimate
from gpubench.measure.budget import DEFAULT, QUICK, budget_of
from gpubench.measure.estimate import case_s, estimate_s, least_case_s, most_case_s, pace, start_s
from gpubench.measure.plan import PlannedCase, plan
from gpubench.measure.request import RunRequest
from gpubench.models import DeviceProfile, Execution, Precision, TaskKind
from gpubench.profile import load_profiles

PROFILES = load_profiles()
TWO_CORES = DeviceProfile(backend="cpu", name="Some CPU", core_count=2, tensor_core_precisions=("bf16",))


@pytest.fixture
def planned(make_case):
    def make(flops: float | None = 1e9, operators: int | None = 0, **changes) -> PlannedCase:
        case = make_case(**({"batch_size": 100} | changes))
        return PlannedCase(reference="x", case=case, flops_per_sample=flops, operators=operators)

    return make


def test_a_step_is_as_long_as_its_flops_take_at_a_share_of_the_peak(planned, h100):
    """100 samples of 1 TFLOP: at 0.8 of 66.9 TFLOP/s 1.87 s, at 0.3 of 989 TFLOP/s 0.34 s."""
    strict, amp = (pace(planned(1e12, precision=p), h100) for p in (Precision.FP32, Precision.AMP_BF16))
    assert strict.step_s == strict.eager_s == pytest.approx(100e12 / (0.8 * 66.9e12), rel=0.02)
    assert amp.step_s == pytest.approx(100e12 / (0.3 * 989e12), rel=0.02)
    assert not strict.host_bound


def test_a_small_step_is_as_long_as_its_operators_take_on_the_host_and_less_in_a_graph(planned, h100):
    eager = pace(planned(1e6, 400), h100)
    assert eager.host_bound
    assert eager.step_s == pytest.approx(1.5e-3 + 400 * 25e-6)
    graph = pace(planned(1e6, 400, execution=Execution.GRAPH), h100)
    assert graph.step_s == pytest.approx(400 * 3e-6)
    assert graph.eager_s == eager.step_s
    assert not graph.host_bound


def test_what_is_not_known_of_work_or_device_takes_no_time_or_that_of_a_middling_one(planned, h100):
    unknown = pace(planned(None, None), h100)
    assert unknown.step_s == estimate.HOST_STEP_S
    nameless = msgspec.structs.replace(h100, gpu_key=None)
    assert pace(planned(1e12), nameless).step_s == pytest.approx(100e12 / 5e12)
    assert pace(planned(1e12), TWO_CORES).step_s == pytest.approx(100e12 / (2 * 30e9))


def test_a_cpu_whose_steps_take_long_is_announced_with_them():
    """VGG16 at batch 8: 741 GFLOP, 12 s on two cores. By the budget alone it would take 26 s at most."""
    asked = RunRequest(workloads=("vgg16",), precisions=("fp32",), batch_size=8)
    made = plan(asked, TWO_CORES, PROFILES)
    (unit,) = made.units()
    assert pace(unit.planned, TWO_CORES).step_s == pytest.approx(12.4, rel=0.05)
    expected_s, most_s = estimate_s(made, TWO_CORES)
    assert 60 < expected_s < 120
    assert 150 < most_s < 400


def test_the_classic_three_on_two_cores(cpu):
    """Read on such a machine beside other work: 141 s for the six cases of --quick."""
    expected_s, most_s = estimate_s(plan(RunRequest(), TWO_CORES, PROFILES), TWO_CORES)
    assert expected_s < 141 < most_s
    assert estimate_s(plan(RunRequest(), cpu, PROFILES), cpu)[0] < expected_s * 1.5


def test_a_host_bound_row_takes_until_it_is_given_up(planned, h100):
    """Twice the least timed part, against once for a row that the GPU paces."""
    host, gpu = planned(1e6, 100), planned(1e10, 0)
    assert pace(gpu, h100).step_s < 0.05
    longer = case_s(host, DEFAULT, h100) - case_s(gpu, DEFAULT, h100)
    assert longer == pytest.approx(DEFAULT.timed_least_s, abs=2)


def test_the_most_goes_to_every_limit_and_a_step_beyond(planned, h100):
    most = most_case_s(planned(), DEFAULT, h100)
    assert DEFAULT.warmup_most_s + DEFAULT.timed_s < most < DEFAULT.warmup_most_s + DEFAULT.timed_s + 10
    slow = planned(1e14)  # steps of 187 s
    assert most_case_s(slow, QUICK, h100) > case_s(slow, QUICK, h100) > 5 * 187


def test_compiling_building_and_single_passes_are_counted(planned, h100):
    eager, compiled = (
        case_s(planned(execution=e), DEFAULT, h100) for e in (Execution.EAGER, Execution.COMPILE)
    )
    assert compiled - eager == pytest.approx(Execution.COMPILE.facts.prepared_s, abs=1)
    large = msgspec.structs.replace(planned(), parameter_count=138_000_000)
    built = case_s(large, DEFAULT, h100) - case_s(large, DEFAULT, h100, new_task=False)
    assert built == pytest.approx(1.38)
    single = planned(1e6, 1000, task=TaskKind.INFER, batch_size=1)
    assert case_s(single, DEFAULT, h100) - case_s(planned(1e6, 1000), DEFAULT, h100) > 300 * 0.026 - 1


def test_processes_and_micro_benchmarks_are_counted_once_each(h100):
    made = plan(RunRequest(budget="quick", micro="none"), h100, PROFILES)
    assert start_s(made) == estimate.PROCESS_START_S  # strict fp32 shares it in haste
    with_micro = msgspec.structs.replace(made, micro="also")
    assert 5 < start_s(with_micro) - start_s(made) < 12
    alone = start_s(plan(RunRequest(budget="quick", micro="only"), h100, {}))
    assert alone == start_s(with_micro) + estimate.PROCESS_START_S
    assert start_s(msgspec.structs.replace(made, budget=DEFAULT)) == 6 * estimate.PROCESS_START_S


def test_the_least_that_a_figure_takes_counts_what_is_around_it_and_less_than_is_expected(planned, h100):
    heavy = planned(1e12)
    assert 0 < least_case_s(heavy, DEFAULT, h100) < case_s(heavy, DEFAULT, h100)


def test_the_estimate_never_passes_the_time_limit(h100):
    made = plan(RunRequest(time_limit_s=20.0), h100, PROFILES)
    assert estimate_s(made, h100) == (20.0, 20.0)
    typical, most = estimate_s(plan(RunRequest(), h100, PROFILES), h100)
    assert 60 < typical < most


def test_several_gpus_and_a_cpu_are_not_looked_at_a_second_time(planned, h100):
    one, four = (case_s(planned(1e12, gpu_count=n), DEFAULT, h100) for n in (1, 4))
    assert one - four > 10 * pace(planned(1e12), h100).step_s
    quick = budget_of("quick", on_cpu=True)
    assert case_s(planned(1e6), quick, TWO_CORES) == pytest.approx(0.3 + 2.1 + 3.0, abs=0.1)
