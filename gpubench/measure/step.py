"""Runs the training step and the forward pass in torch, at the precision of a case."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpubench.discovery import load_workload
from gpubench.errors import GpuBenchError, MisuseError, NoDeviceError
from gpubench.foreign_code import lacks_memory
from gpubench.measure.loop import Clock, StepState
from gpubench.measure.quantize import QUANTIZED, compute_in_fp8, compute_in_int8, place_in_nf4, quantize
from gpubench.models import (
    Case,
    DeviceProfile,
    Execution,
    Finding,
    Identity,
    MemoryFormat,
    Precision,
    Switches,
    TaskKind,
    WeightType,
)
from gpubench.precisions import PROOF_CHANNELS, PROOF_IMAGE, PROOF_SIZE, RECURRENT
from gpubench.probe.backend import check_same_device, in_torch, matched_by
from gpubench.tensors import has_sparse_gradients, tensors_of, with_tensors
from gpubench.user_model import weight_type_of
from gpubench.workload import Task, copy_of, forward, set_mode

# --- calls that depend on the device: waiting, memory, the allocator --------------------------------------


@dataclass(frozen=True)
class Hardware:
    """A torch device, with the calls that depend on its type.

    A measuring process sees only the GPUs that its parent lists in CUDA_VISIBLE_DEVICES: one, or in a job one
    for each process, which then uses the GPU of its rank.
    """

    device: torch.device

    @property
    def is_cuda(self) -> bool:
        """Whether graphs and device events are available."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU, which also computes the references."""
        return self.device.type == "cpu"

    def clock(self) -> Clock:
        """Return a clock that waits for this device; a CPU needs no waiting.

        Raises:
            NoDeviceError: If this torch cannot wait for the device, so only issuing the steps would be timed.
        """
        if self.is_cpu:
            return Clock()
        synchronize = self._function("synchronize")
        if synchronize is None:
            kind = self.device.type
            raise NoDeviceError(
                f"torch {torch.__version__} has no torch.{kind}.synchronize: {kind} cannot be timed"
            )
        return Clock(synchronize=synchronize)

    def _function(self, name: str) -> Callable[..., Any] | None:
        """Return the function of this name in ``torch.cuda``, ``torch.mps`` ...; None if there is none.

        A backend in another package also registers its module in ``torch``. ``torch.get_device_module`` looks
        in the same place, but some versions of torch lack it.
        """
        function: Callable[..., Any] | None = getattr(getattr(torch, self.device.type, None), name, None)
        return function

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the function of this name in ``torch.cuda``, ``torch.mps`` ...; None if there is none."""
        function = self._function(name)
        return None if function is None else function(*arguments)

    def step_state(self, scale: float | None = None) -> StepState:
        """Return the state that must settle before a step is steady: allocator figures and gradient scale."""
        figures = self.call("memory_stats") or {}
        return StepState(
            segments=figures.get("segment.all.current"), retries=figures.get("num_alloc_retries"), scale=scale
        )

    def memory_bytes(self) -> int | None:
        """Return the device memory that torch sees [B]; None if the device has no memory of its own."""
        return getattr(self.call("get_device_properties", self.device), "total_memory", None)

    def release(self) -> None:
        """Release all memory, so the next case starts from the same state.

        The garbage collector runs first, because a model, its gradients and its graphs refer to each other.

        Raises:
            RuntimeError: From torch, when the device or its allocator is unusable.
        """
        gc.collect()
        self.drop_workspaces()
        self.drop_cache()

    def drop_workspaces(self) -> None:
        """Free the workspace that cuBLAS keeps for each stream it has used; earlier graphs become invalid.

        A workspace counts as allocated, 66 MiB per stream on an H200. torch up to 2.13 has no public function
        for this.
        """
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # noqa: SLF001
        if self.is_cuda and clear is not None:
            clear()

    def drop_cache(self) -> None:
        """Return cached blocks to the driver."""
        self.call("empty_cache")


def open_hardware(profile: DeviceProfile, rank: int = 0) -> Hardware:
    """Open a profile's device in torch, create its context, and return the device.

    Args:
        profile: The device as probed.
        rank: Its index among the GPUs that this process sees.

    Raises:
        NoDeviceError: If this torch cannot wait for this type of device.
        RuntimeError: From torch, if the device cannot be used.
    """
    cuda = profile.is_torch_cuda
    hardware = Hardware(device=torch.device(f"cuda:{rank}" if cuda else profile.torch_type))
    if cuda:
        torch.cuda.init()
        torch.cuda.set_device(rank)
        torch.backends.cudnn.benchmark = True  # recorded in the environment; worth 3 to 16 % on an H200
    clock = hardware.clock()
    torch.zeros(1, device=hardware.device)
    clock.synchronize()
    return hardware


def check_device(profile: DeviceProfile, rank: int = 0) -> tuple[Finding, ...]:
    """Check that torch opened the probed device, because telemetry would otherwise come from another device.

    An AMD GPU is identified only by its bus id: torch and AMD's library may name it differently, and ROCm
    renumbers GPUs. The result has a finding if the driver's UUID is all zeros.

    Raises:
        NoDeviceError: If name, UUID, bus id or SM count differ.
    """
    if not profile.is_torch_cuda:
        return ()
    seen = in_torch(torch.cuda.get_device_properties(rank))
    if not profile.is_nvidia:
        seen = DeviceProfile(backend=profile.backend, pci_bus_id=seen.pci_bus_id)
    return check_same_device(profile, seen)


def identity_of(profile: DeviceProfile) -> Identity | None:
    """Return how an NVIDIA GPU that passed ``check_device`` was identified; None for other devices."""
    if not profile.is_nvidia:
        return None
    return matched_by(profile, in_torch(torch.cuda.get_device_properties(0)))


# --- the fp32 switches of torch, and the proof that they took effect --------------------------------------


# Number of images of a convolution to compare with float64; comparing all of them may take over 1 s.
COMPARED_IMAGES = 4
# Length of the sequences and width of the layer in the recurrent proof.
PROOF_TOKENS = 16
PROOF_WIDTH = 128
# Scales of the convolution, tried until one shows TF32: an H100 computes the smallest in fp32 anyway.
CONTROL_SCALES = (1, 4, 8)
_NEW_SWITCHES = ("conv_fp32_precision", "rnn_fp32_precision", "matmul_fp32_precision")


class SwitchesRefusedError(GpuBenchError):
    """The switches do not have the values that were set."""


@contextmanager
def switches_for(precision: Precision) -> Iterator[Switches]:
    """Set the switches of a precision, yield them as read back, and restore the earlier values.

    Raises:
        SwitchesRefusedError: If they are not read back as set.
    """
    before = read_switches()
    try:
        _set(Switches.wanted(precision))
        found = read_switches()
        if wrong := found.unexpected(precision):
            values = ", ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(found).items())
            raise SwitchesRefusedError(
                f"{precision} was set, but {wrong} was read back ({values}): "
                "this version of torch cannot be trusted to set precisions; please report it"
            )
        yield found
    finally:
        _set(before)


def read_switches() -> Switches:
    """Read all five switches; None for those that this torch does not have (before 2.9)."""
    new = _new_switches()
    return Switches(
        cudnn_allow_tf32=torch.backends.cudnn.allow_tf32,
        matmul_allow_tf32=torch.backends.cuda.matmul.allow_tf32,
        **{name: str(new[name].fp32_precision) if name in new else None for name in _NEW_SWITCHES},
    )


def probe_errors(
    device: torch.device, dtype: torch.dtype = torch.float32, *, scale: int = 1
) -> dict[str, float]:
    """Return the relative error of a float32 matmul and convolution against float64.

    Inputs are normally distributed, with a fixed seed. The error is over the whole result, ``|x - y| / |y|``.

    Args:
        device: Where to compute them.
        dtype: The required type of the results, which differs under autocast; any other type gives NaN.
        scale: Multiplies the channels and images of the smallest convolution.
    """
    sizes = (PROOF_SIZE, scale * PROOF_CHANNELS, PROOF_IMAGE, scale * COMPARED_IMAGES)
    with torch.no_grad():
        (a, b, image, kernel), exact = _proof(*sizes)
        found = {
            "matmul": (a.to(device) @ b.to(device)).cpu(),
            "conv": _convolve(image.to(device), kernel.to(device))[:COMPARED_IMAGES].cpu(),
        }
        return {
            name: relative_error(result, exact[name]) if result.dtype is dtype else math.nan
            for name, result in found.items()
        }


@lru_cache(maxsize=3)
def _proof(
    edge: int, channels: int, image_edge: int, images: int
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Return the operands and their float64 results, computed once per process because this takes long."""
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (edge, edge),
        (edge, edge),
        (images, channels, image_edge, image_edge),
        (channels, channels, 3, 3),
    )
    operands = tuple(torch.randn(*shape, generator=generator) for shape in shapes)
    a, b, image, kernel = (operand.double() for operand in operands)
    return operands, {"matmul": a @ b, "conv": _convolve(image[:COMPARED_IMAGES], kernel)}


def _convolve(image: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(image, kernel, padding=1)


@dataclass(frozen=True)
class Control:
    """The positive control of the fp32 proof, which shows that the proof can fail on this device.

    Attributes:
        errors: Errors of the proof's operators under TF32; empty if the device has no TF32.
        scale: Scale of the convolution that shows TF32: cuDNN computes small ones in fp32 anyway.
    """

    errors: dict[str, float] = field(default_factory=dict)
    scale: int = CONTROL_SCALES[0]


def control_on(device: torch.device) -> Control:
    """Compute the operators of the proof under TF32, with the smallest convolution that reveals TF32.

    If none reveals it, the largest one is returned, with an error within the limit of fp32.
    """
    limit = Precision.FP32.facts.error_limit("conv")
    with switches_for(Precision.TF32):
        recurrent = {RECURRENT: recurrent_error(device)}
        for scale in CONTROL_SCALES:
            control = Control(probe_errors(device, scale=scale) | recurrent, scale)
            if control.errors["conv"] > limit:
                break
    return control


def errors_on(
    device: torch.device, precision: Precision, *, recurrent: bool, scale: int = CONTROL_SCALES[0]
) -> dict[str, float]:
    """Return the errors that prove a precision, under the autocast that its steps use."""
    dtype = AUTOCAST_TYPES.get(precision)
    with torch.autocast(device.type, dtype=dtype) if dtype is not None else nullcontext():
        errors = probe_errors(device, dtype or torch.float32, scale=scale)
        return errors | {RECURRENT: recurrent_error(device)} if recurrent else errors


def recurrent_error(device: torch.device) -> float:
    """Return the relative error of a float32 LSTM layer against float64, on the inputs of the proof."""
    layer, inputs, exact = _recurrent_proof()
    with torch.no_grad():
        return relative_error(copy.deepcopy(layer).to(device)(inputs.to(device))[0].cpu(), exact)


@lru_cache(maxsize=1)
def _recurrent_proof() -> tuple[nn.LSTM, torch.Tensor, torch.Tensor]:
    """Return the layer, its inputs, and its float64 outputs, computed once per process.

    Weights are scaled to keep the gates unsaturated, because a saturated layer hides any error.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):  # drawing initial weights would change the case's random state
        layer = nn.LSTM(PROOF_WIDTH, PROOF_WIDTH)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(*weight.shape, generator=generator) / math.sqrt(PROOF_WIDTH))
        inputs = torch.randn(PROOF_TOKENS, PROOF_IMAGE, PROOF_WIDTH, generator=generator)
        return layer, inputs, copy.deepcopy(layer).double()(inputs.double())[0]


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative error of a result, ``|x - y| / |y|``."""
    return float((found.double() - exact).norm() / exact.norm())


def _set(wanted: Switches) -> None:
    torch.backends.cudnn.allow_tf32 = wanted.cudnn_allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted.matmul_allow_tf32
    for name, switch in _new_switches().items():
        value = getattr(wanted, name)
        if value is not None:
            switch.fp32_precision = value


def _new_switches() -> dict[str, Any]:
    """Return the switches that torch has had since 2.9, by field of ``Switches``; empty in an older torch."""
    cudnn = torch.backends.cudnn
    found = (getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None), torch.backends.cuda.matmul)
    return dict(zip(_NEW_SWITCHES, found, strict=True)) if all(map(_is_new_switch, found)) else {}


def _is_new_switch(switch: Any) -> bool:
    try:
        return isinstance(switch.fp32_precision, str)
    except (AttributeError, RuntimeError):  # an older torch raises either
        return False


AUTOCAST_TYPES: dict[Precision, torch.dtype] = {
    precision: getattr(torch, name) for precision in Precision if (name := precision.facts.autocast)
}
# Weight types to which the entire model and its inputs are cast.
HALF_TYPES = {WeightType.BFLOAT16: torch.bfloat16, WeightType.FLOAT16: torch.float16}
# Optimizers with fused kernels that run on sharded parameters; other optimizers' fused kernels fail.
FUSED_WHERE_SHARDED = frozenset({torch.optim.Adam, torch.optim.AdamW})


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task on its device, ready to run.

    Attributes:
        cast: The half-precision type to which a float32 model and its inputs were cast, if any.
        scaler: The gradient scaler of amp-fp16, part of the timed step; None in inference and at other
            precisions.
        cache_enabled: Whether autocast caches the weights that it casts; False in a graph.
        grad_modes: Autograd modes for inference, the fastest first; modes that the model rejects are removed.
        new_tokens: Tokens that a step generates after its prompts; 0 means one forward pass.
        tokens_at_s: Time from a generation's submission until each token is on the host [s].
    """

    case: Case
    device: torch.device
    model: nn.Module
    batches: tuple[tuple[Any, Any], ...]
    loss: Callable[[Any, Any], Tensor]
    optimizer: Optimizer | None
    cast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    cache_enabled: bool = True
    new_tokens: int = 0
    tokens_at_s: list[tuple[float, ...]] = field(default_factory=list)
    grad_modes: list[Callable[[], AbstractContextManager[Any]]] = field(
        default_factory=lambda: [torch.inference_mode, torch.no_grad, torch.enable_grad]
    )

    def batch(self, index: int) -> tuple[Any, Any]:
        """Return the prebuilt batch of a step; batches rotate, because a single one would be memorized."""
        return self.batches[index % len(self.batches)]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the case's precision; without autocast, it does nothing."""
        dtype = AUTOCAST_TYPES.get(self.case.precision)
        if dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtype, cache_enabled=self.cache_enabled)

    def step(self, index: int) -> Tensor:
        """Run one step of the case's task; return the loss for train, the outputs for infer."""
        inputs, targets = self.batch(index)
        if self.new_tokens:
            return generate(self, Generation(self), index)
        if self.optimizer is None:
            return infer(self, inputs)
        return train(self, self.optimizer, inputs, targets)

    def edge_loss(self, result: Tensor, index: int) -> float:
        """Return the loss of a finished step, copied to the host; call this after a round, never within one.

        If the loss function does not accept the model's inference outputs, the result is their ``checksum``.
        """
        if self.optimizer is not None:
            return float(result)
        with self.grad_modes[0](), self.autocast():
            try:
                return float(torch.as_tensor(self.loss(result, self.batch(index)[1])).detach())
            except Exception:  # noqa: BLE001 - the user's code, with an unexpected input
                return checksum(result)


def train(work: Work, optimizer: Optimizer, inputs: Any, targets: Any) -> Tensor:
    """Run one training step: zero the gradients, forward and loss under autocast, backward, update."""
    optimizer.zero_grad()
    with work.autocast():
        loss = work.loss(forward(work.model, inputs), targets)
    if work.scaler is None:
        loss.backward()
        optimizer.step()
    else:
        work.scaler.scale(loss).backward()
        work.scaler.step(optimizer)
        work.scaler.update()
    return loss.detach()


def checksum(outputs: Any) -> float:
    """Return the sum of the first floating-point tensor in a model's outputs; 0 if there is none."""
    return next((float(t.detach().float().sum()) for t in tensors_of(outputs) if t.is_floating_point()), 0.0)


def infer(work: Work, inputs: Any) -> Tensor:
    """Run one forward pass with as little autograd as the model allows."""
    try:
        with work.grad_modes[0](), work.autocast():
            outputs: Tensor = forward(work.model, inputs)
    except RuntimeError as error:  # a model may need derivatives, as physics models do
        if len(work.grad_modes) == 1 or "grad" not in str(error):
            raise
        del work.grad_modes[0]
        return infer(work, inputs)
    return outputs


class Generation:
    """The tokens that follow a batch of prompts: the latest ids and scores, and how to continue.

    A CUDA graph replays ``start`` and ``go_on`` on the same memory, so the ids and their position stay on the
    device and are updated in place.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.prompt_tokens = work.batches[0][0].shape[1]
        self.ids = torch.zeros(len(work.batches[0][0]), dtype=torch.int64, device=work.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=work.device)
        self.scores: Tensor | None = None

    def start(self, index: int) -> None:
        """Process the prompts and compute the first new token of each."""
        self._take(infer(self.work, self.work.batch(index)[0]))
        self.position.fill_(self.prompt_tokens)

    def go_on(self) -> None:
        """Add a token to every sequence."""
        with torch.inference_mode(), self.work.autocast():
            self._take(self.work.model.next(self.ids, self.position))  # type: ignore[operator]
        self.position.add_(1)

    def _take(self, scores: Tensor) -> None:
        # Choose the most likely token: greedy, without sampling.
        self.ids.copy_(scores.argmax(-1))
        if self.scores is None:
            self.scores = torch.empty_like(scores)
        self.scores.copy_(scores)


def generate(
    work: Work,
    generation: Generation,
    index: int,
    start: Callable[[int], None] | None = None,
    go_on: Callable[[], None] | None = None,
) -> Tensor:
    """Generate all new tokens of one batch, and copy each id to the host before the next step starts.

    Args:
        work: Its ``tokens_at_s`` receives the times.
        generation: Holds the latest ids and scores.
        index: Number of the step, which selects the batch.
        start: Replaces the generation's own ``start``, for example with the replay of its graph.
        go_on: Replaces the generation's own ``go_on``.

    Returns:
        The scores of the last token, (N, vocabulary).
    """
    began_s = time.perf_counter()
    (start or generation.start)(index)
    generation.ids.tolist()
    at_s = [time.perf_counter() - began_s]
    for _ in range(work.new_tokens - 1):
        (go_on or generation.go_on)()
        generation.ids.tolist()
        at_s.append(time.perf_counter() - began_s)
    work.tokens_at_s.append(tuple(at_s))
    assert generation.scores is not None
    return generation.scores


def built(reference: str, case: Case, seed: int) -> Task:
    """Build the task of a case on the CPU, with the case's recipe."""
    return load_workload(reference).at(case.recipe).build(case.batch_size, seed)


def seed_all(seed: int) -> None:
    """Seed the random generators that a model may use: torch's, Python's and NumPy's."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - models draw from the global generator


def copied(task: Task, build_again: Callable[[], Task] | None = None) -> Task:
    """Return a copy of the task with its own model; a loss that is or uses a module is copied too.

    Args:
        task: The task, which stays unchanged.
        build_again: Builds the same task if the model cannot be copied, or if the copy cannot be trained, as
            with a scripted module.
    """
    if task.again is not None:
        made = task.again()
        pairs = list(zip(made.model.parameters(), task.model.parameters(), strict=False))
        if all(new is not old for new, old in pairs):  # a file may return the same model each time
            with torch.no_grad():
                for new, old in pairs:  # the parameters differ if the model has its own random generator
                    new.copy_(old)
            return replace(made, batches=task.batches)
    try:
        made = copy_of(task)
    except Exception as error:  # the user's code: old weight norms, locks and generators cannot be copied
        if build_again is None or lacks_memory(error):
            raise
        return build_again()
    is_trainable = all(p.is_leaf for p in made.model.parameters())
    return made if is_trainable or build_again is None else build_again()


def move(
    task: Task,
    case: Case,
    device: torch.device,
    place: Callable[[nn.Module, Case, torch.device], nn.Module] | None = None,
) -> Work:
    """Move a task to the device, in the case's memory format and weight type.

    Args:
        task: The task on the CPU. Its model is moved, not copied; pass a copy to keep it. If the case has
            weights in half precision, a float32 model and its inputs are cast. A model that already has most
            of its weights in that type keeps the others as they are, such as adapters or norms in float32.
        case: The case to measure.
        device: The target.
        place: Puts the model on the device; each process of a job may take a part. None moves the whole
            model.
    """
    trains = case.task is TaskKind.TRAIN
    cast = None if weight_type_of(task.model) is case.weight_type else HALF_TYPES.get(case.weight_type)
    model = task.model if cast is None else task.model.to(cast)
    if case.weight_type is WeightType.NF4:
        place_in_nf4(model, case, device)
    if case.precision.facts.in_blocks:
        compute_in_fp8(model, case.workload, device)
    model = set_mode(model.to(device) if place is None else place(model, case, device), train=trains)
    if case.weight_type in QUANTIZED:
        quantize(model, case.weight_type)
    if case.precision is Precision.INT8:
        compute_in_int8(model, case.workload, device)
    if case.memory_format is MemoryFormat.CHANNELS_LAST:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = tuple((to_device(x, device, case, cast), to_device(y, device)) for x, y in task.batches)
    return Work(
        case=case,
        device=device,
        model=model,
        batches=batches,
        loss=task.loss,
        optimizer=make_optimizer(task.optimizer, model, case) if trains else None,
        cast=cast,
        scaler=torch.amp.GradScaler(device.type)
        if trains and case.precision.facts.scales_gradients
        else None,
        cache_enabled=case.execution.facts.caches_weights,
        new_tokens=task.new_tokens,
    )


def to_device(
    value: Any, device: torch.device, case: Case | None = None, cast: torch.dtype | None = None
) -> Any:
    """Move every tensor in a value; inputs take the case's memory format, and floats the type ``cast``.

    An object with its own ``to`` moves itself; one without tensors stays unchanged.
    """

    def move_one(tensor: Tensor) -> Tensor:
        moved = tensor.to(device)
        if cast is not None and moved.is_floating_point():
            moved = moved.to(cast)
        if case is not None and case.memory_format is MemoryFormat.CHANNELS_LAST and moved.dim() == 4:
            return moved.contiguous(memory_format=torch.channels_last)
        return moved

    return with_tensors(
        value,
        move_one,
        lambda part: copy.copy(part).to(device) if callable(getattr(part, "to", None)) else None,
    )


def make_optimizer(factory: Callable[..., Optimizer], model: nn.Module, case: Case) -> Optimizer:
    """Make the optimizer, fused if possible, and capturable if the case runs in a graph.

    Fused Adam and SGD apply the gradient scale themselves; unfused ones make GradScaler wait for the device
    at every step, which is impossible in a graph.

    Raises:
        MisuseError: If the optimizer trains parameters that the model does not have.
    """
    can_fuse = "fused" in _keywords(factory) and "fused" not in getattr(factory, "keywords", {})
    parameters = [p for p in model.parameters() if p.requires_grad]
    if any(hasattr(p, "to_local") for p in parameters):  # sharded
        can_fuse &= getattr(factory, "func", factory) in FUSED_WHERE_SHARDED
    # torch refuses a fused update of these parameters at the first step, not when the optimizer is created.
    can_fuse &= not (has_sparse_gradients(model) or any(p.is_complex() for p in parameters))
    try:
        made = factory(parameters, **({"fused": True} if can_fuse else {}))
    except RuntimeError:  # "fused=True requires ...": types or devices without a fused kernel
        made = factory(parameters)
    of_model = set(map(id, model.parameters()))
    for group in getattr(made, "param_groups", ()):
        if not of_model.issuperset(map(id, group["params"])):
            raise MisuseError(
                "the optimizer trains parameters that the model does not have: make it from the parameters "
                "that its factory receives"
            )
        if "capturable" in group and case.execution is Execution.GRAPH:
            group["capturable"] = True
    return made


def is_fused(optimizer: Optimizer | None) -> bool | None:
    """Return whether every parameter group is updated by a fused kernel; None without an optimizer."""
    groups = getattr(optimizer, "param_groups", None)  # an optimizer need not be torch's
    return None if groups is None else all(group.get("fused") is True for group in groups)


def _keywords(factory: Callable[..., Optimizer]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # a callable in C has no signature
        return frozenset()
