"""A Keras model and its training step on one backend: eager, traced, compiled. Keras is imported here.

The step is Keras's own ``train_step``, which ``fit`` runs too, on batches that lie on the device:
what feeding costs is another question. Its loss is the mean since it was last read, as Keras keeps it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import keras
import numpy as np

from gpubench.foreign_code import import_foreign, one_line
from gpubench.measure.budget import REFERENCE_SAMPLES
from gpubench.measure.capability import KERAS, NotHereError
from gpubench.measure.keras_build import check_fit
from gpubench.models import Case, DeviceProfile, Execution, Finding, Framework, Precision, Switches
from gpubench.precisions import PROOF_CHANNELS, PROOF_IMAGE, PROOF_SIZE
from gpubench.probe.identity import check_same_device
from gpubench.workload import KerasTask

Values = list[Any]
"""Copies of every variable on the host, in the model's order."""


@contextmanager
def policy_of(precision: Precision) -> Iterator[None]:
    """Build and run under the types of a precision that Keras has, and leave its policy as it was."""
    before = keras.config.dtype_policy()
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy(precision.facts.keras_policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextmanager
def switches_of(framework: Framework, precision: Precision) -> Iterator[Switches]:
    """Set what a backend does with fp32 products, give it as read back, and restore what was found."""
    on = precision.facts.tf32
    match framework:
        case Framework.KERAS_TENSORFLOW:
            import tensorflow as tf

            config = tf.config.experimental
            before = config.tensor_float_32_execution_enabled()
            config.enable_tensor_float_32_execution(on)
            try:
                yield _switches(is_on=bool(config.tensor_float_32_execution_enabled()))
            finally:
                config.enable_tensor_float_32_execution(before)
        case Framework.KERAS_JAX:
            import jax

            with jax.default_matmul_precision("tensorfloat32" if on else "highest"):
                set_to = jax.config.values["jax_default_matmul_precision"]
                yield _switches(is_on=set_to != "highest")
        case _:
            from gpubench.measure.precision import switches_for

            with switches_for(precision) as found:
                yield found


def _switches(*, is_on: bool) -> Switches:
    """The one switch of a backend, which stands for products and convolutions alike."""
    return Switches(
        cudnn_allow_tf32=is_on,
        matmul_allow_tf32=is_on,
        conv_fp32_precision=None,
        rnn_fp32_precision=None,
        matmul_fp32_precision=None,
    )


def product_errors() -> dict[str, float | None]:
    """Return the relative error of a matrix product and a convolution in float32 against float64.

    The proof of TF32 off, of the backend as it stands.
    """
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((PROOF_SIZE, PROOF_SIZE)).astype(np.float32) for _ in range(2))
    image = draw.standard_normal((1, PROOF_IMAGE, PROOF_IMAGE, PROOF_CHANNELS)).astype(np.float32)
    kernel = draw.standard_normal((3, 3, PROOF_CHANNELS, PROOF_CHANNELS)).astype(np.float32)
    wide, weights = image.astype(np.float64), kernel.astype(np.float64)
    side, places = PROOF_IMAGE - 2, product(range(3), repeat=2)
    exact = sum(wide[:, y : y + side, x : x + side] @ weights[y, x] for y, x in places)
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
    """A built model on its device, and what a step of it needs: batches, optimizer and metrics.

    On jax the model's state is handed from step to step and lives here; the other backends keep it in the
    model. Whatever the execution, a step goes on from where the last one left the weights.
    """

    def __init__(self, name: str, task: KerasTask, framework: Framework) -> None:
        self.framework = framework
        self.model = task.model
        self.batches = [tuple(map(keras.ops.convert_to_tensor, batch)) for batch in task.batches]
        import_foreign(name, lambda: self._compile(name, task))
        self._state: tuple[list[Any], ...] | None = None
        if framework is Framework.KERAS_JAX:
            self._state = tuple([v.value for v in group] for group in self._groups())
        self._no_metrics = [_host(v) for v in self.model.metrics_variables]

    def _compile(self, name: str, task: KerasTask) -> None:
        """Compile and build all that a step creates when it is first taken."""
        inputs, targets = self.batches[0]
        outputs = self.model(inputs, training=False)
        check_fit(name, task.loss, targets, outputs)
        self.model.compile(optimizer=task.optimizer, loss=task.loss, jit_compile=False)
        self.model._symbolic_build(data_batch=(inputs, targets))  # noqa: SLF001 - what fit does before its first step
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)

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
            NotHereError: Naming a layer that XLA does not compile and Keras would run without it, as cuDNN's
                LSTM in TensorFlow.
        """
        step: Any = self.model.train_step
        layers = self.model._flatten_layers() if execution is Execution.COMPILE else ()  # noqa: SLF001 - Keras's own way
        for layer in layers:
            if not layer.supports_jit:
                kind = type(layer).__name__
                raise NotHereError(f"Keras does not compile its layer {layer.name} ({kind}) here")
        match self.framework:
            case Framework.KERAS_JAX:
                if execution is not Execution.EAGER:
                    import jax

                    step = jax.jit(step, donate_argnums=0)

                def advance(index: int) -> Any:
                    logs, self._state = step(self._state, self.batches[index % len(self.batches)])
                    return logs["loss"]

                return advance
            case Framework.KERAS_TENSORFLOW if execution is not Execution.EAGER:
                import tensorflow as tf

                is_compiled = execution is Execution.COMPILE
                step = tf.function(step, jit_compile=is_compiled, reduce_retracing=True)
            case Framework.KERAS_TORCH if execution is not Execution.EAGER:
                import torch

                step = torch.compile(step)
            case _:
                pass
        return lambda index: step(self.batches[index % len(self.batches)])["loss"]

    def edge_loss(self, result: Any, index: int) -> float:
        """Copy a loss to the host, and begin a new mean."""
        del index
        loss = float(_host(result))
        if self._state is None:
            self.model.reset_metrics()
        else:
            fresh = [keras.ops.convert_to_tensor(value) for value in self._no_metrics]
            self._state = (*self._state[:3], fresh)
        return loss

    def values(self) -> Values:
        """Copy every variable to the host."""
        if self._state is not None:
            return [_copy(value) for group in self._state for value in group]
        return [_copy(variable.value) for group in self._groups() for variable in group]

    def restore(self, values: Values) -> None:
        """Write copied values back."""
        left = iter(values)
        if self._state is not None:
            to_device = keras.ops.convert_to_tensor
            self._state = tuple([to_device(next(left)) for _ in group] for group in self._state)
            return
        for group in self._groups():
            for variable in group:
                variable.assign(next(left))

    def fingerprint(self) -> Values:
        """Copy the start of every trained variable."""
        trained = self._state[0] if self._state is not None else [v.value for v in self._groups()[0]]
        return [_copy(keras.ops.reshape(value, (-1,))[:1024]) for value in trained]


def first_loss(task: KerasTask) -> float:
    """Return the loss of the first samples with dropout off, before any step."""
    inputs, targets = (keras.ops.convert_to_tensor(part[:REFERENCE_SAMPLES]) for part in task.batches[0])
    return float(_host(task.loss(targets, task.model(inputs, training=False))))


def _copy(value: Any) -> Any:
    return np.array(_host(value))


def seed_all(seed: int) -> None:
    """Fix every generator that Keras draws the seeds of weights and of dropout from.

    ``keras.utils.set_random_seed`` would load TensorFlow, wherever it is installed, into a process of jax.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the one that Keras and models of others draw from


def on_device(framework: Framework, *, is_cpu: bool) -> Any:
    """Return the context in which a backend places what it makes on the device that is measured.

    Raises:
        NotHereError: If the backend sees no GPU where one is to be measured.
    """
    if is_cpu:
        return keras.device("cpu:0" if framework is not Framework.KERAS_TORCH else "cpu")
    if (why := why_no_gpu(framework)) is not None:
        raise NotHereError(why)
    return keras.device("gpu:0" if framework is not Framework.KERAS_TORCH else "cuda:0")


def why_no_gpu(framework: Framework) -> str | None:
    """Say why a backend sees no GPU; None where it sees one."""
    facts = KERAS[framework]
    no_gpu = f"this build of {facts.module} sees no GPU: {facts.on_cuda}"
    match framework:
        case Framework.KERAS_TENSORFLOW:
            import tensorflow as tf

            return None if tf.config.list_physical_devices("GPU") else no_gpu
        case Framework.KERAS_JAX:
            import jax

            try:
                return None if jax.devices()[0].platform == "gpu" else no_gpu
            except RuntimeError as error:  # of a build for GPUs, where the driver is absent or too old
                return f"jax cannot open the GPU: {one_line(error)}"
        case _:
            import torch

            return None if torch.cuda.is_available() else no_gpu


def check_gpu(profile: DeviceProfile, framework: Framework) -> tuple[Finding, ...]:
    """Make sure that a backend has opened the GPU that was probed, by what it tells of it.

    Raises:
        NoDeviceError: If it is another one: telemetry would be of a neighbor.
    """
    if profile.is_cpu or why_no_gpu(framework) is not None:
        return ()
    match framework:
        case Framework.KERAS_TENSORFLOW:
            import tensorflow as tf

            gpu = tf.config.list_physical_devices("GPU")[0]
            name = tf.config.experimental.get_device_details(gpu).get("device_name")
        case Framework.KERAS_JAX:
            import jax

            name = jax.devices()[0].device_kind
        case _:
            from gpubench.measure.hardware import check_device

            return check_device(profile)
    return check_same_device(profile, name=name, uuid=None, sm_count=None, pci_bus_id=None)


def release(framework: Framework) -> None:
    """Let go of what Keras keeps of earlier models, and hand cached memory back."""
    keras.utils.clear_session(free_memory=True)
    if framework is Framework.KERAS_TORCH:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def built(
    build: Callable[[int, int], KerasTask], case: Case, seed: int, precision: Precision | None = None
) -> KerasTask:
    """Build a task from a seed, under the policy of a precision."""
    with policy_of(case.precision if precision is None else precision):
        seed_all(seed)
        return build(case.batch_size, seed)
