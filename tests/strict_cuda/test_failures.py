"""The end of a case, and the start of the next, after a device error, on the strict fake."""

from __future__ import annotations

import gc

import pytest
import torch

from gpubench.discovery import load_workload
from gpubench.executions import OF_TORCH
from gpubench.measure.case import try_batch
from gpubench.measure.messages import TryBatch
from gpubench.models import Cause, Execution, Recipe, Status, TaskKind, WeightType
from strict_cuda import models
from strict_cuda.conftest import KERNEL_S
from strict_cuda.machine import INVALIDATED, NOT_PERMITTED, Fault, Machine
from strict_cuda.models import Acting, acting, recurrent

pytestmark = pytest.mark.usefixtures("in_little")
NO_MEMORY = (
    "CUDA error: out of memory",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "GET was unable to find an engine to execute this computation",
    "Unable to find a valid cuDNN algorithm to run convolution",
)


def machine(**changes) -> Machine:
    return Machine(cost=lambda name: KERNEL_S, **changes)


# --- captures that fail -------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [True, False], ids=["torch to 2.11", "torch from 2.12"])
def test_a_step_that_waits_for_the_device_is_unsupported_with_its_cause(make_gpu, old):
    gpu = make_gpu(machine(old_allocator=old))
    done = gpu.measure("own", acting(lambda out: out.sum().item()), execution=Execution.GRAPH)
    assert done.status is Status.UNSUPPORTED
    assert NOT_PERMITTED in done.reason
    assert INVALIDATED not in done.reason
    assert done.cause is Cause.REFUSED_IN_CAPTURE
    assert done.spent


def test_an_error_of_the_model_inside_a_capture_is_reported_as_the_models(gpu):
    calls = []

    def act(out):
        calls.append(1)
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("a bug of mine")

    done = gpu.measure("own", acting(act), execution=Execution.GRAPH)
    assert done.status is Status.FAILED
    assert "bug of mine" in done.reason
    assert done.cause is None


def test_the_case_after_an_unsupported_one_is_sound_in_a_new_process(make_gpu):
    first = make_gpu(machine(old_allocator=True))
    assert first.measure("own", acting(lambda out: out.sum().item()), execution=Execution.GRAPH).spent
    assert first.machine.memory.underway  # the old allocator believes that a capture continues
    assert make_gpu().measure("cnn", execution=Execution.GRAPH).status is Status.OK


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", NO_MEMORY)
@pytest.mark.parametrize("where", [{"after": 7}, {"capturing": True}], ids=["a step", "a capture"])
def test_lack_of_memory_is_distinguished_from_a_fault_or_a_refusal_in_any_wording(make_gpu, words, where):
    fault = Fault("convolution", lambda: RuntimeError(words), **where)
    done = make_gpu(machine(faults=[fault])).measure("cnn", execution=Execution.GRAPH)
    assert done.status is Status.OUT_OF_MEMORY
    assert words in done.reason


@pytest.mark.parametrize(
    ("free", "share", "status"),
    [(0, 1.0, Status.OUT_OF_MEMORY), (2**30, 0.0, Status.OUT_OF_MEMORY), (2**30, 1.0, Status.UNSUPPORTED)],
    ids=["full", "its share is full", "roomy"],
)
def test_a_capture_that_ends_silently_on_a_full_device_counts_as_out_of_memory(
    gpu, monkeypatch, free, share, status
):
    """The caching allocator may free memory inside a capture, which ends it with only "invalidated"."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, 2**36))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device=None: share)

    def act(out):
        if torch.cuda.is_current_stream_capturing():
            gpu.machine.capture.invalid = True

    done = gpu.measure("own", acting(act), execution=Execution.GRAPH)
    assert (done.status, done.cause) == (status, None), (
        "CUDA refused no call: the capture was already invalid"
    )


def test_a_captured_generation_that_ends_on_a_full_device_counts_as_out_of_memory(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (0, 2**36))
    gpu.machine.faults.append(Fault("", lambda: RuntimeError(INVALIDATED), capturing=True))
    recipe = Recipe(weight_type=WeightType.FLOAT32, prompt_tokens=12, new_tokens=3, cache_tokens=15)
    done = gpu.measure("llama_8b", task=TaskKind.INFER, execution=Execution.GRAPH, **recipe.fields)
    assert done.status is Status.OUT_OF_MEMORY
    assert "inside a graph capture" in done.reason


@pytest.mark.parametrize("execution", [Execution.EAGER, Execution.GRAPH])
def test_a_device_that_is_too_small_is_out_of_memory_in_every_phase(make_gpu, execution):
    roomy = make_gpu()
    torch.backends.cudnn.benchmark = False  # its trials would take memory, if there is some
    assert roomy.measure("vgg16", execution=execution).status is Status.OK
    most = roomy.machine.memory.most_reserved
    for share in (0.2, 0.4, 0.6, 0.8):
        small = make_gpu(machine())
        torch.backends.cudnn.benchmark = False
        small.machine.memory.fraction = share * most / small.machine.memory.total
        done = small.measure("vgg16", execution=execution)
        assert done.status is Status.OUT_OF_MEMORY, share
        assert "batch 4" in done.reason


RECIPE = Recipe(weight_type=WeightType.FLOAT32, prompt_tokens=12, new_tokens=3, cache_tokens=15)
TRAINING, INFERENCE = {"task": TaskKind.TRAIN}, {"task": TaskKind.INFER}
GENERATION = INFERENCE | RECIPE.fields
IN_PHASES = [
    ("cnn", TRAINING, Execution.EAGER, ("build", "check", "first steps", "warm-up", "timed", "second look")),
    ("cnn", TRAINING, Execution.GRAPH, ("capture", "warm-up", "timed", "second look")),
    ("cnn", TRAINING, Execution.COMPILE, ("compile", "timed")),
    ("cnn", INFERENCE, Execution.EAGER, ("build", "first steps", "timed")),
    ("cnn", INFERENCE, Execution.GRAPH, ("capture", "timed")),
    ("llama_8b", GENERATION, Execution.EAGER, ("first steps", "timed")),
    ("llama_8b", GENERATION, Execution.GRAPH, ("capture", "timed")),
]


def no_memory() -> RuntimeError:
    return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def ends_in(gpu, phase: str) -> None:
    """Let the device refuse memory at its first call in a phase."""
    tell = gpu.desk.tell_phase

    def begin(name: str) -> None:
        tell(name)
        if name == phase:
            gpu.machine.faults.append(Fault("", no_memory))

    gpu.desk.tell_phase = begin


@pytest.mark.parametrize(("name", "task", "execution", "phases"), IN_PHASES)
def test_running_out_of_memory_names_the_phase(make_gpu, name, task, execution, phases):
    """The next case, which a run puts into a new process, is sound."""
    for phase in phases:
        gpu = make_gpu()
        ends_in(gpu, phase)
        done = gpu.measure(name, execution=execution, **task)
        assert (done.status, done.spent) == (Status.OUT_OF_MEMORY, True), done.traceback
        assert done.reason.startswith(f"batch 4, {phase}: OutOfMemoryError: CUDA out of memory"), done.reason
    after = make_gpu().measure(name, execution=execution, **task)
    assert (after.status, after.reason) == (Status.OK, None), after.traceback


@pytest.mark.parametrize("execution", OF_TORCH)
@pytest.mark.parametrize("phase", ["build", "first steps", "prepared"])
def test_oversized_batch_names_its_phase_and_the_search_continues(make_gpu, execution, phase):
    """The search for the largest batch goes on in a new process."""
    name = execution.facts.preparation or "first steps" if phase == "prepared" else phase
    gpu = make_gpu()
    ends_in(gpu, name)
    done = try_batch(TryBatch(reference="cnn", case=gpu.case("cnn", execution=execution)), gpu.desk)
    assert (done.status, done.spent) == (Status.OUT_OF_MEMORY, True), done.traceback
    assert done.reason.startswith(f"batch 4, {name}: "), done.reason
    gpu = make_gpu()
    order = TryBatch(reference="cnn", case=gpu.case("cnn", execution=execution, batch_size=2))
    assert try_batch(order, gpu.desk).status is Status.OK


def test_a_host_without_memory_for_the_model_names_the_phase(gpu):
    """A model is copied on the host before it is moved to the device."""

    class Large(Acting):
        def __deepcopy__(self, memo):
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    done = gpu.measure("own", models.task(Large(lambda out: None), 8))
    assert done.status is Status.OUT_OF_MEMORY
    assert done.reason.startswith("batch 4, build: "), done.reason
    assert gpu.measure("cnn").status is Status.OK


def test_a_case_leaves_nothing_on_the_device(gpu):
    for execution in OF_TORCH:
        for task in TaskKind:
            built = load_workload("bert_base").tiny(4, 0, layers=1)
            assert gpu.measure("bert_base", built, execution=execution, task=task).status is Status.OK
            assert gpu.machine.memory.allocated == 0
            assert gpu.machine.memory.reserved == 0


@pytest.fixture
def _collected_when_asked():
    """Let the garbage collector run only when asked, not whenever many objects were created."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_collected_when_asked")
@pytest.mark.parametrize("execution", OF_TORCH)
def test_a_model_that_refers_to_itself_is_freed_after_its_case(gpu, execution):
    built = acting(lambda out: None)
    built.model.parts = [built.model]
    assert gpu.measure("own", built, execution=execution).status is Status.OK
    assert gpu.machine.memory.allocated == 0
    assert gpu.machine.memory.reserved == 0


# --- errors that stick --------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [3, 60, 200])
def test_a_sticky_error_ends_the_case_and_its_process_with_its_message(make_gpu, after):
    words = "CUDA error: device-side assert triggered"
    fault = Fault("aten::", lambda: RuntimeError(words), after=after, sticky=True)
    done = make_gpu(machine(faults=[fault])).measure("cnn")
    assert done.status is Status.FAILED
    assert words in done.reason
    assert done.spent


def test_a_process_that_cannot_release_its_memory_keeps_its_figure_and_ends(make_gpu):
    fault = Fault(
        "empty_cache",
        lambda: RuntimeError("CUDA error: unspecified launch failure"),
        after=1,  # the first empties the cache of the trials before the steps
        sticky=True,
    )
    done = make_gpu(machine(faults=[fault])).measure("cnn")
    assert done.status is Status.OK
    assert done.spent


# --- recurrent layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("execution", OF_TORCH)
@pytest.mark.parametrize("task", TaskKind)
def test_recurrent_layers_are_checked_in_training_mode(make_gpu, execution, task, dropout):
    gpu = make_gpu(machine(compiles_recurrent=True))
    done = gpu.measure("own", recurrent(dropout), execution=execution, task=task)
    assert (done.status, done.reason) == (Status.OK, None), done.traceback
    if execution is not Execution.EAGER:
        assert done.launch.graph_error <= 1e-6
