"""Many kinds of user models on the strict fake: a model that trains in a plain loop can be measured."""

from __future__ import annotations

import sys

import pytest
import torch
from own_kinds import (
    ARGUMENTS,
    CARRIES,
    HEAD,
    HOST_LENGTHS,
    KINDS,
    NAMES_ITSELF,
    NESTED,
    ONE_MODEL_BY_PART,
    OPTIMIZERS,
    OTHERWISE_IN_INFERENCE,
    PLACES,
    RANDOM,
    WITH_A_LOSS,
    pair,
)

from gpubench.discovery import load_workload
from gpubench.measure.case import measure_case
from gpubench.measure.messages import MeasureCase
from gpubench.models import Execution, FindingKind, MemoryFormat, Precision, Status, TaskKind
from strict_cuda.conftest import Gpu

pytestmark = pytest.mark.usefixtures("in_little")
BATCH = 8
AUTOGRAD = ("derivative", "complex weights", "lazy")
CHECKED = KINDS.keys() - RANDOM.keys()


@pytest.fixture(autouse=True)
def _paths_of_before(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def measured(gpu: Gpu, tmp_path):
    """``measured(source, **changes)``: the record of a case of a file, as the child measures it."""

    def measure(source, **changes):
        path = tmp_path / "mine.py"
        path.write_text(HEAD + source, encoding="utf-8")
        task = load_workload(str(path)).build(BATCH, 0)
        return gpu.measure("mine.py", task, batch_size=BATCH, **{"precision": Precision.TF32} | changes)

    return measure


@pytest.mark.parametrize("execution", [Execution.EAGER, Execution.GRAPH])
@pytest.mark.parametrize(
    "kind", [*NESTED, *OTHERWISE_IN_INFERENCE, *WITH_A_LOSS, *AUTOGRAD, "own rate", "noise"]
)
def test_each_kind_of_user_model_trains(measured, kind, execution):
    if kind == "lazy" and not hasattr(torch.nn, "Buffer"):
        pytest.skip("the fake cannot read the class that an uninitialized buffer has before torch 2.5")
    done = measured(KINDS[kind], execution=execution)
    if kind == "not cut" and execution is Execution.GRAPH:  # its loss makes a tensor from a list in each step
        assert done.status is Status.UNSUPPORTED
        return
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    launch = done.launch
    assert launch.parameters_moved
    if kind in CHECKED:
        assert launch.reference_error <= Precision.TF32.facts.loss_error
    if execution is Execution.GRAPH:
        assert launch.graph_error == 0.0


@pytest.mark.parametrize(
    "kind",
    [
        *NAMES_ITSELF,
        *ARGUMENTS,
        *HOST_LENGTHS,
        *OPTIMIZERS,
        *PLACES,
        "one model",
        "frozen",
        "inner loop",
        "sparse gradients",
        "sparse buffer",
    ],
)
def test_each_kind_of_user_model_trains_as_in_a_plain_loop(measured, kind):
    done = measured(KINDS[kind])
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    assert done.launch.parameters_moved
    assert done.launch.reference_error <= Precision.TF32.facts.loss_error


@pytest.mark.parametrize("kind", ["carried", *CARRIES])
def test_graph_is_refused_if_the_model_keeps_state_in_new_tensors(measured, kind):
    assert measured(KINDS[kind]).status is Status.OK
    done = measured(KINDS[kind], execution=Execution.GRAPH)
    assert done.status is Status.UNSUPPORTED
    assert "carries tensors from step to step" in done.reason


# One schedules its learning rate on the host; the other contains an Adam that counts its steps on the host.
NOT_CAPTURED = {"hooks", "two in one"}


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS.keys() - NOT_CAPTURED))
def test_every_optimizer_that_torch_can_capture_is_captured(measured, kind):
    done = measured(KINDS[kind], execution=Execution.GRAPH)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    assert done.launch.graph_error == 0.0


def test_an_optimizer_with_parameters_that_the_model_does_not_have_is_refused(measured):
    done = measured(
        pair(optimizer="lambda given: torch.optim.SGD([*given, nn.Parameter(torch.ones(1))], lr=0.1)")
    )
    assert done.status is Status.FAILED
    assert "make it from the parameters that its factory receives" in done.reason


def test_an_optimizer_that_names_a_model_copied_for_each_case_trains_the_copy(measured):
    done = measured(ONE_MODEL_BY_PART)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback


def test_a_carried_state_is_detected_even_if_it_hardly_changes_the_loss(measured):
    """After twenty steps an LSTM has almost forgotten its initial state."""
    source = KINDS["carried"]
    long = source.replace("torch.randn(n, 5, 8)", "torch.randn(n, 40, 8)")
    assert long != source
    done = measured(long, execution=Execution.GRAPH)
    assert done.status is Status.UNSUPPORTED
    assert "carries tensors from step to step" in done.reason


def test_model_that_calls_cuda_itself_is_measured_with_a_cpu_reference(measured):
    done = measured(pair(body="return self.second(self.first(x * torch.ones(8).cuda()).relu())"))
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    assert done.launch.reference_error <= Precision.TF32.facts.loss_error


def test_an_operator_banned_by_cuda_autocast_fails_only_at_amp_with_the_reason(measured):
    bce = pair(body="return self.second(self.first(x).relu()).sigmoid()", loss="nn.BCELoss()").replace(
        "torch.randint(4, (n,))", "torch.rand(n, 4)"
    )
    assert measured(bce).status is Status.OK
    done = measured(bce, precision=Precision.AMP_BF16)
    assert done.status is Status.FAILED
    assert "BCELoss are unsafe to autocast" in done.reason


@pytest.mark.parametrize("kind", RANDOM)
def test_a_model_with_random_numbers_in_its_forward_pass_has_no_reference_and_says_so(measured, kind):
    launch = measured(KINDS[kind], precision=Precision.AMP_BF16).launch
    assert launch.reference_error is None
    assert [f.kind for f in launch.findings if f.kind is FindingKind.NO_REFERENCE] == [
        FindingKind.NO_REFERENCE
    ]


@pytest.mark.parametrize("kind", ["derivative", "scripted"])
def test_inference_uses_only_as_much_autograd_as_the_model_needs(measured, kind):
    done = measured(KINDS[kind], task=TaskKind.INFER)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    assert done.launch.reference_error <= Precision.TF32.facts.loss_error


@pytest.mark.parametrize("kind", [*OTHERWISE_IN_INFERENCE, "centers", "dict"])
@pytest.mark.parametrize("execution", [Execution.EAGER, Execution.GRAPH])
def test_each_kind_of_user_model_can_infer(measured, kind, execution):
    done = measured(KINDS[kind], execution=execution, task=TaskKind.INFER)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    launch = done.launch
    told = FindingKind.NO_REFERENCE in {finding.kind for finding in launch.findings}
    assert told is (launch.reference_error is None and launch.output_error is None)
    assert told is (kind == "by mode"), "a list of dicts has no one form"


def test_the_parameters_of_a_loss_are_trained_on_the_device(gpu, tmp_path, monkeypatch):
    from gpubench.measure import step

    made = []
    make = step.make_optimizer
    monkeypatch.setattr(step, "make_optimizer", lambda *a: made.append(make(*a)) or made[0])
    path = tmp_path / "mine.py"
    path.write_text(HEAD + KINDS["centers"], encoding="utf-8")
    task = load_workload(str(path)).build(BATCH, 0)
    before = task.loss.centers.detach().clone()
    assert gpu.measure("mine.py", task, batch_size=BATCH).status is Status.OK
    sizes = [p.shape for group in made[0].param_groups for p in group["params"]]
    assert before.shape in sizes
    assert task.loss.centers.equal(before), "the case worked on a copy"


def test_images_are_contiguous_if_a_view_requires_it_and_the_row_says_so(gpu, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + KINDS["view"], encoding="utf-8")
    workload = load_workload(str(path))
    for layout in (MemoryFormat.CHANNELS_LAST, MemoryFormat.CONTIGUOUS):
        built = gpu.case("mine.py", workload.build(BATCH, 0), batch_size=BATCH, precision=Precision.AMP_BF16)
        case = type(built)(
            **{f: getattr(built, f) for f in built.__struct_fields__} | {"memory_format": layout}
        )
        done = measure_case(MeasureCase(reference="mine.py", case=case, launch=0), gpu.desk)
        fails = layout is MemoryFormat.CHANNELS_LAST
        assert done.status is (Status.FAILED if fails else Status.OK), done.reason
        assert (FindingKind.CONTIGUOUS in {f.kind for f in done.launch.findings}) is not fails
