"""Measures a case in Keras on one backend: build the model, prove its precision, prepare and time its steps.

A user's own model is a file with a function ``build(batch_size)``. It returns either a compiled
``keras.Model``, for which inputs are drawn by its shapes, or ``(model, inputs, targets, loss)`` with numpy
arrays and optionally an optimizer as a fifth item. The code runs unsandboxed, so it is imported only in a
child process: the one that measures or, before there is a plan, one that runs this file.

The step is Keras's own ``train_step``, which ``fit`` also runs, on batches that are already on the device;
the cost of feeding them is measured elsewhere. Keras reports the mean loss since the last reading.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, product
from typing import Any

import keras
import msgspec
import numpy as np

from gpubench import children, discovery, folders, foreign_code, precisions, user_model, workload
from gpubench.errors import MisuseError
from gpubench.measure import budget, capability, launch, loop, messages
from gpubench.models import (
    Case,
    Execution,
    Framework,
    Launch,
    Precision,
    Status,
    Switches,
    WorkloadProfile,
)
from gpubench.probe.probe import open_telemetry
from gpubench.profile.cache import Answer
from gpubench.units import Seconds

# --- building a model ------------------------------------------------------------------------------------

PROFILED_BATCH = 2

Build = Callable[[int, int], workload.KerasTask]


def check_backend(framework: Framework) -> None:
    """Check that this process runs the requested backend, and that no code chose another.

    Raises:
        MisuseError: Naming both backends.
    """
    wanted = capability.KERAS[framework].backend
    backends = keras.backend.backend(), os.environ.get("KERAS_BACKEND", wanted)
    other = next((name for name in backends if name != wanted), None)
    if other is not None:
        raise MisuseError(
            f"{framework} was requested, but the model's code sets Keras's backend to {other}: a process has "
            f"one backend; ask for --framework keras-{other}, or leave KERAS_BACKEND to gpubench"
        )


@cache
def build_of(reference: str, framework: Framework) -> Build:
    """Return the function that builds a workload with Keras: a standard one, or one from a user's own file.

    Raises:
        MisuseError: With the model's name and what is wrong with it.
    """
    if not user_model.is_own(reference):
        standard: Build = discovery.keras_models().MODELS[reference]
        return standard
    found, _ = user_model.import_own(reference)
    check_backend(framework)
    name = user_model.own_name(reference)
    if not callable(found):
        raise MisuseError(
            f"{name} is of type {type(found).__name__}; for Keras, it must be a function build(batch_size)"
        )
    with_seed = user_model.takes_seed(name, found)

    def build(batch_size: int, seed: int) -> workload.KerasTask:
        made = foreign_code.import_foreign(
            name, lambda: found(batch_size, seed) if with_seed else found(batch_size)
        )
        check_backend(framework)
        return _task(name, made, batch_size, seed)

    return build


def _task(name: str, made: Any, batch_size: int, seed: int) -> workload.KerasTask:
    if isinstance(made, keras.Model):
        return _with_drawn_batches(name, made, batch_size, seed)
    if not isinstance(made, tuple | list) or len(made) not in {4, 5} or not isinstance(made[0], keras.Model):
        raise MisuseError(
            f"{name}: build returned a value of type {type(made).__name__}; it must return a compiled "
            "keras.Model, or model, inputs, targets, loss"
        )
    inputs, targets = (np.asarray(part) for part in made[1:3])
    if not inputs.ndim or len(inputs) != batch_size:
        raise MisuseError(
            f"{name}: build({batch_size}) returned inputs of shape {inputs.shape}; the first dimension must "
            "be the batch"
        )
    return workload.KerasTask(
        model=made[0],
        batches=((inputs, targets),),
        loss=made[3],
        optimizer=keras.optimizers.get(made[4]) if len(made) == 5 else keras.optimizers.Adam(1e-4),
    )


def _with_drawn_batches(name: str, model: Any, batch_size: int, seed: int) -> workload.KerasTask:
    """Return the task of a compiled model, with random batches of its shapes.

    Targets are labels for a sparse loss, and one-hot rows for any other.
    """
    specs: Any = model.inputs or ()
    outputs: Any = model.outputs or ()
    shapes = [each.shape[1:] for each in (*specs, *outputs)]
    has_one_each = len(specs) == len(outputs) == 1
    is_known = has_one_each and shapes[1] and None not in (*shapes[0], *shapes[1])
    if not is_known or not model.compiled or model.loss is None:
        raise MisuseError(
            f"{name}: batches are drawn only for a compiled model with one input and one output of known "
            "shape: call compile(optimizer=..., loss=...), or return model, inputs, targets, loss"
        )
    draw = np.random.default_rng(seed)
    shape = (batch_size, *shapes[0])
    *positions, classes = shapes[1]
    embeddings = [each for each in model._flatten_layers() if isinstance(each, keras.layers.Embedding)]  # noqa: SLF001
    loss = keras.losses.get(model.loss)
    is_sparse = "sparse" in f"{getattr(loss, 'fn', loss)}".lower()

    def batch() -> tuple[Any, Any]:  # random tokens for the first embedding if any, else N(0, 1)
        if embeddings:
            inputs: Any = draw.integers(embeddings[0].input_dim, size=shape, dtype=np.int32)
        else:
            inputs = draw.standard_normal(shape, dtype=np.float32)
        labels = draw.integers(min(LABELS, classes), size=(batch_size, *positions), dtype=np.int32)
        return inputs, labels if is_sparse else np.eye(classes, dtype=np.float32)[labels]

    return workload.KerasTask(
        model=model,
        batches=tuple(batch() for _ in range(workload.BATCH_COUNT)),
        loss=model.loss,
        optimizer=type(model.optimizer).from_config(model.optimizer.get_config()),
    )


def profile_of_own(reference: str, framework: Framework, return_home: Callable[[], None]) -> WorkloadProfile:
    """Return what can be read from a user's own model without a trace: parameters and shapes.

    Args:
        reference: The file or module, and the name in it.
        framework: Keras on one of its backends.
        return_home: Changes back to the folder that the reference is relative to, if the model has left it.

    Raises:
        MisuseError: If the reference is not a Keras model, or Keras cannot compute its loss.
    """
    task = build_of(reference, framework)(PROFILED_BATCH, 0)
    foreign_code.import_foreign(user_model.own_name(reference), lambda: first_loss(task))
    return_home()
    shape = tuple(int(n) for n in task.batches[0][0].shape[1:])
    is_image = len(shape) == 3
    profile = WorkloadProfile(
        name=user_model.own_name(reference),
        version=1,
        sample_unit="image" if is_image else "sample",
        sample_shape=shape,
        is_image=is_image,
        source="the user's own Keras model",
        optimizer=type(task.optimizer).__name__,
        parameters=int(task.model.count_params()),
        trainable_parameters=sum(int(np.prod(v.shape)) for v in task.model.trainable_variables),
        batches=user_model.DEFAULT_BATCHES,
        forward_flops_per_sample=0.0,
        train_flops_per_sample=0.0,
        saved_bytes_per_sample=0.0,
        optimizer_bytes_per_parameter=0.0,
        train=(),
        infer=(),
        memory_untraced="a Keras model is not traced",
    )
    return msgspec.structs.replace(profile, version=user_model.version_of(reference, profile))


# Targets are drawn from at most this many classes, because a few are learned quickly.
LABELS = 4


# --- measuring the steps of a model ----------------------------------------------------------------------

# Number of steps to compare with eager ones; the second loss also checks the first update.
CHECKED_STEPS = 2

# Copies of every variable on the host, in the model's order.
Values = list[Any]


@contextmanager
def policy_of(precision: Precision) -> Iterator[None]:
    """Build and run in channels_last under a precision's Keras policy, then restore the earlier policy."""
    before = keras.config.dtype_policy()
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy(precision.facts.keras_policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextmanager
def switches_of(framework: Framework, precision: Precision) -> Iterator[Switches]:
    """Allow or forbid TF32 in a backend's fp32 products, yield what is read back, and restore the setting."""
    allows_tf32 = precision.facts.tf32
    match framework:
        case Framework.KERAS_TENSORFLOW:
            import tensorflow as tf

            config = tf.config.experimental
            before = config.tensor_float_32_execution_enabled()
            config.enable_tensor_float_32_execution(allows_tf32)
            try:
                yield _switches(is_on=bool(config.tensor_float_32_execution_enabled()))
            finally:
                config.enable_tensor_float_32_execution(before)
        case Framework.KERAS_JAX:
            import jax

            with jax.default_matmul_precision("tensorfloat32" if allows_tf32 else "highest"):
                yield _switches(is_on=jax.config.values["jax_default_matmul_precision"] != "highest")
        case _:
            from gpubench.measure.step import switches_for

            with switches_for(precision) as found:
                yield found


def _switches(*, is_on: bool) -> Switches:
    return Switches(
        cudnn_allow_tf32=is_on,
        matmul_allow_tf32=is_on,
        conv_fp32_precision=None,
        rnn_fp32_precision=None,
        matmul_fp32_precision=None,
    )


def product_errors() -> dict[str, float | None]:
    """Return the relative error of a matrix product and a convolution in float32 against float64.

    This proves whether TF32 is off in the backend's current state.
    """
    draw = np.random.default_rng(0)
    a, b = (
        draw.standard_normal((precisions.PROOF_SIZE, precisions.PROOF_SIZE)).astype(np.float32)
        for _ in range(2)
    )
    image = draw.standard_normal(
        (1, precisions.PROOF_IMAGE, precisions.PROOF_IMAGE, precisions.PROOF_CHANNELS)
    ).astype(np.float32)
    kernel = draw.standard_normal((3, 3, precisions.PROOF_CHANNELS, precisions.PROOF_CHANNELS)).astype(
        np.float32
    )
    wide, weights = image.astype(np.float64), kernel.astype(np.float64)
    side, offsets = precisions.PROOF_IMAGE - 2, product(range(3), repeat=2)
    exact = sum(wide[:, y : y + side, x : x + side] @ weights[y, x] for y, x in offsets)
    ops = keras.ops
    multiplied = _host(ops.matmul(ops.convert_to_tensor(a), ops.convert_to_tensor(b)))
    convolved = _host(ops.conv(ops.convert_to_tensor(image), ops.convert_to_tensor(kernel), padding="valid"))
    return {
        "matmul": _error(multiplied, a.astype(np.float64) @ b.astype(np.float64)),
        "conv": _error(convolved, exact),
    }


def _error(found: Any, exact: Any) -> float | None:
    error = float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))
    return error if math.isfinite(error) else None


def _host(value: Any) -> Any:
    return keras.ops.convert_to_numpy(value)


class Steps:
    """A built model on its device, and what its steps need: batches, optimizer and metrics.

    In jax, the model's state is passed from step to step, and is written back into the model whenever a loss
    is read; in the other backends, it stays in the model. In every execution, a step continues from the
    weights of the previous step.
    """

    def __init__(self, name: str, task: workload.KerasTask, framework: Framework) -> None:
        self.framework = framework
        self.model = task.model
        self.batches = [tuple(map(keras.ops.convert_to_tensor, batch)) for batch in task.batches]
        self._state: tuple[list[Any], ...] = ()
        self._loss: Any = 0.0
        foreign_code.import_foreign(name, lambda: self._compile(task))

    def _compile(self, task: workload.KerasTask) -> None:
        # Compile, and build everything that a first step would create.
        self.model.compile(optimizer=task.optimizer, loss=task.loss, jit_compile=False)
        self.model._symbolic_build(data_batch=self.batches[0])  # noqa: SLF001 - what fit does before its first step
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)

    def clock(self) -> loop.Clock:
        """Return the clock that waits until the backend has finished all issued work."""
        match self.framework:
            case Framework.KERAS_TORCH:
                import torch

                return (
                    loop.Clock(synchronize=torch.cuda.synchronize)
                    if torch.cuda.is_available()
                    else loop.Clock()
                )
            case Framework.KERAS_JAX:
                import jax

                wait: Callable[[object], None] = jax.block_until_ready
                return loop.Clock(synchronize=lambda: wait(self._state))
            case _:
                return loop.Clock(synchronize=lambda: _host(self._loss))  # waits for the stream's kernels

    def _groups(self) -> tuple[Sequence[Any], ...]:
        model = self.model
        return (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )

    def advance(self, execution: Execution) -> Callable[[int], Any]:
        """Return the function that issues a step; its result is the loss on the device.

        Raises:
            NotHereError: If XLA does not compile a layer, such as cuDNN's LSTM in TensorFlow, because Keras
                would then run the step without XLA.
        """
        step: Any = self.model.train_step
        layers = self.model._flatten_layers() if execution is Execution.COMPILE else ()  # noqa: SLF001 - as Keras does
        for layer in layers:
            if not layer.supports_jit:
                raise capability.NotHereError(
                    f"Keras does not compile the layer {layer.name} ({type(layer).__name__}) here"
                )
        match self.framework:
            case Framework.KERAS_JAX:
                if execution is not Execution.EAGER:
                    import jax

                    step = jax.jit(step, donate_argnums=0)

                def advance(index: int) -> Any:
                    state = self._state or tuple([v.value for v in group] for group in self._groups())
                    logs, self._state = step(state, self.batches[index % len(self.batches)])
                    return logs["loss"]

                return advance
            case Framework.KERAS_TENSORFLOW if execution is not Execution.EAGER:
                import tensorflow as tf

                step = tf.function(step, jit_compile=execution is Execution.COMPILE, reduce_retracing=True)
            case Framework.KERAS_TORCH if execution is not Execution.EAGER:
                import torch

                step = torch.compile(step)
            case _:
                pass

        def issue(index: int) -> Any:
            self._loss = step(self.batches[index % len(self.batches)])["loss"]
            return self._loss

        return issue

    def edge_loss(self, result: Any, _index: int) -> float:
        """Copy a loss, which is a mean since the last call, to the host, and start a new mean."""
        loss = float(_host(result))
        self.restore([value for group in self._state for value in group])
        self._state = ()
        self.model.reset_metrics()
        return loss

    def values(self) -> Values:
        """Copy every variable to the host; call it only after reading a loss."""
        return [np.array(_host(variable.value)) for group in self._groups() for variable in group]

    def restore(self, values: Values) -> None:
        """Write the values back; an empty list changes nothing."""
        for variable, value in zip(chain.from_iterable(self._groups()), values, strict=False):
            variable.assign(value)

    def fingerprint(self) -> Values:
        """Copy the start of every trained variable to the host; call it only after reading a loss."""
        return [
            np.array(_host(keras.ops.reshape(v.value, (-1,))[:1024])) for v in self.model.trainable_variables
        ]


def first_loss(task: workload.KerasTask) -> float:
    """Return the loss of the first samples with dropout off, before any step."""
    inputs, targets = (
        keras.ops.convert_to_tensor(part[: budget.REFERENCE_SAMPLES]) for part in task.batches[0]
    )
    losses = keras.losses.get(task.loss)(targets, task.model(inputs, training=False))
    return float(_host(keras.ops.mean(losses)))


def seed_all(seed: int) -> None:
    """Seed every generator from which Keras draws the seeds of weights and dropout.

    ``keras.utils.set_random_seed`` would load TensorFlow, if it is installed, into a jax process.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - Keras and user models draw from it


def on_device(framework: Framework, *, is_cpu: bool) -> Any:
    """Return the context in which a backend creates its tensors on the measured device.

    Raises:
        NotHereError: If a GPU is to be measured and the backend sees none.
    """
    if is_cpu:
        # torch's name is "cpu": under "cpu:0", Keras would copy each variable, and the copy has no gradient
        return keras.device("cpu" if framework is Framework.KERAS_TORCH else "cpu:0")
    facts, why = capability.KERAS[framework], ""
    try:
        if framework is Framework.KERAS_TORCH:
            import torch

            has_gpu = torch.cuda.is_available()
        else:
            has_gpu = bool(keras.distribution.list_devices("gpu"))
    except RuntimeError as error:  # jax's, if the driver is absent or too old
        has_gpu, why = False, f" ({foreign_code.one_line(error)})"
    if not has_gpu:
        raise capability.NotHereError(
            f"this build of {facts.backend} sees no GPU{why}: install {facts.on_cuda}"
        )
    return keras.device("gpu:0")


@dataclass(kw_only=True)
class KerasBench(launch.Bench):
    """What the child of a Keras backend keeps from case to case."""

    framework: Framework

    def is_spent(self, status: Status) -> bool:
        """Release what Keras keeps of a case; return whether this process must not measure another."""
        keras.utils.clear_session(free_memory=True)
        if self.framework is Framework.KERAS_TORCH:
            import torch

            torch.cuda.empty_cache()  # does nothing if CUDA was not initialized
        return super().is_spent(status)


def measure_case(order: messages.MeasureCase, bench: KerasBench) -> messages.CaseDone:
    """Measure one case in Keras; see ``launch.conduct`` for how it may end."""
    recorder = launch.LaunchRecorder(launch=Launch(index=order.launch))
    case, framework = order.case, bench.framework

    def measure(deadline_s: Seconds) -> None:
        with (
            on_device(framework, is_cpu=bench.profile.is_cpu),
            policy_of(case.precision),
            switches_of(framework, case.precision) as switches,
        ):
            recorder.note(switches=switches)
            launch.time_job(bench, recorder, deadline_s, _job(order, bench, recorder, deadline_s))

    return launch.conduct(order, bench, recorder, measure)


def _job(
    order: messages.MeasureCase, bench: KerasBench, recorder: launch.LaunchRecorder, deadline_s: Seconds
) -> launch.Job:
    case, build = order.case, build_of(order.reference, bench.framework)
    bench.phase("build")
    with recorder.timing("build"):
        seed_all(bench.seed)
        task = build(case.batch_size, bench.seed)
        steps = Steps(case.workload, task, bench.framework)
        recorder.note(batch_count=len(steps.batches))
    launch.check_deadline(deadline_s)
    bench.phase("check")
    recorder.note(precision_errors=product_errors())
    if case.precision is Precision.FP32 and bench.profile.has_tf32:
        with switches_of(bench.framework, Precision.TF32):
            recorder.note(control_errors=product_errors())
    if not (bench.profile.is_cpu and case.precision is Precision.FP32):
        recorder.note(reference_error=_reference_error(order, bench, build, task))
    before = steps.fingerprint()

    def prove_again() -> None:  # the model's own code may have set a switch in the meantime
        recorder.note(precision_errors=launch.worse(recorder.launch.precision_errors, product_errors()))

    launch.check_deadline(deadline_s)
    return launch.Job(
        loop=partial(
            loop.Loop,
            advance=_first_steps(case, bench, recorder, steps, deadline_s),
            edge_loss=steps.edge_loss,
            clock=steps.clock(),
            batches=len(steps.batches),
            is_async=not bench.profile.is_cpu,
        ),
        prove_again=prove_again,
        has_moved=lambda: any((a != b).any() for a, b in zip(steps.fingerprint(), before, strict=True)),
    )


def _first_steps(
    case: Case, bench: KerasBench, recorder: launch.LaunchRecorder, steps: Steps, deadline_s: Seconds
) -> Callable[[int], object]:
    """Prepare the execution, compare it with eager steps, and record the losses of its first steps.

    Raises:
        NotHereError: For cuDNN's LSTM in jax, which Keras uses on a GPU, at a precision other than float32.
    """
    execution = case.execution
    bench.phase(execution.facts.preparation or "first steps")
    advance = steps.advance(execution)
    start = steps.values()
    with recorder.timing(execution.facts.preparation or "first_step"):
        try:
            _losses(steps, advance, 1)  # a backend compiles in its first step
        except ValueError as error:
            if steps.framework is Framework.KERAS_JAX and "Unknown output type" in str(error):
                raise capability.NotHereError(
                    f"jax has cuDNN's recurrent layers only in float32 ({error})"
                ) from error
            raise
    steps.restore(start)
    if execution is not Execution.EAGER:
        bench.phase("check")
        launch.check_deadline(deadline_s)
        prepared = _losses(steps, advance, CHECKED_STEPS)
        steps.restore(start)
        eager = _losses(steps, steps.advance(Execution.EAGER), CHECKED_STEPS)
        steps.restore(start)
        recorder.note(graph_error=launch.largest_difference(prepared, eager))
    bench.phase("first steps")
    launch.note_losses(lambda index: steps.edge_loss(advance(index), index), bench, recorder, deadline_s)
    return advance


def _losses(steps: Steps, advance: Callable[[int], object], count: int) -> list[float]:
    return [steps.edge_loss(advance(index), index) for index in range(count)]


def _reference_error(
    order: messages.MeasureCase, bench: KerasBench, build: Build, task: workload.KerasTask
) -> float | None:
    # Compare the first loss with the same model in float32 on the CPU, from the same weights.
    found = first_loss(task)
    weights = task.model.get_weights()
    with (
        on_device(bench.framework, is_cpu=True),
        policy_of(Precision.FP32),
        switches_of(bench.framework, Precision.FP32),
    ):
        seed_all(bench.seed)
        again = build(order.case.batch_size, bench.seed)
        again.model.set_weights(weights)
        return launch.relative_difference(found, first_loss(again))


def open_bench(setup: messages.Setup, line: children.ParentChannel, began_s: float) -> KerasBench:
    """Report the libraries that this process uses, and return what it needs to measure.

    ``began_s`` is when the import of the framework began, on ``time.perf_counter`` [s].
    """
    check_backend(setup.framework)
    telemetry = open_telemetry(setup.device)
    line.send(
        messages.Ready(
            cold_s={"import": time.perf_counter() - began_s},
            packages=capability.versions(setup.framework),
        )
    )
    return KerasBench.serving(setup, line, telemetry, framework=setup.framework)


def main() -> None:
    """Read a user's own model and report its profile; this process has one backend."""
    parent = children.ParentChannel()
    reference, framework = parent.arguments
    try:
        profile = profile_of_own(reference, Framework(framework), parent.return_home)
        # The user's code sets some fields, so their types are checked.
        answer = Answer(profile=msgspec.convert(msgspec.to_builtins(profile), WorkloadProfile))
    except MisuseError as error:
        answer = Answer(error=str(error), traceback=folders.traceback_of(error) if error.__cause__ else None)
    parent.send(answer)
    parent.finish()


if __name__ == "__main__":
    main()
