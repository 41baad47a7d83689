"""The harness against a Keras loop written by hand, in one process of each backend, paired.

``PAIRS=40 python tests/measure/beside_keras.py keras-jax`` (or ``keras-torch``, ``keras-tensorflow``) on a quiet machine
prints the ratio of the time of a step in the harness to that of the loop, with its 95 % interval, and that of the CPU
time, which other programs disturb less. The loop is what the documentation of each backend shows; it shares no code with
the harness, is not taken as a slope, and trains a model of its own. It keeps the mean of its loss, as Keras's own step
does in the harness and in ``fit``; ``MEAN=0`` leaves that out of it, and shows what it costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

PAIRS = int(os.environ.get("PAIRS", "40"))
BLOCK_S = 3.0
"""Of a block: some twenty steps of 0.1 s, so that one held up in a block weighs little."""
KEEPS_MEAN = os.environ.get("MEAN", "1") != "0"
BATCH = 64
EXTRA_STEPS = 2
"""Of a round of the harness: one of the shorter call, and one more of the longer."""


def main() -> None:
    """Start a process of the backend that is named, and show what it prints."""
    from gpubench.measure.frameworks import variables_of
    from gpubench.models import DeviceProfile, Framework

    framework = Framework(sys.argv[1])
    if sys.argv[2:] != ["here"]:
        variables = variables_of(framework, DeviceProfile(backend="cpu"))
        command = [sys.executable, "-W", "ignore", __file__, framework.value, "here"]
        sys.exit(subprocess.run(command, env={**os.environ, **variables}, check=False).returncode)
    compare(framework.value)


def compare(name: str) -> None:
    """Time blocks of both in the order one, two, two, one."""
    from gpubench.discovery import keras_models
    from gpubench.measure.by_hand import median_interval
    from gpubench.measure.clock import Clock
    from gpubench.measure.keras_steps import Steps, policy_of, seed_all
    from gpubench.measure.loop import CallLoop
    from gpubench.models import Execution, Framework, Precision

    framework = Framework(name)
    execution = Execution.EAGER if framework is Framework.KERAS_TORCH else Execution.COMPILE
    with policy_of(Precision.FP32):
        seed_all(0)
        steps = Steps("cnn", keras_models().MODELS["cnn"](BATCH, 0), framework)
    loop = CallLoop(
        advance=steps.advance(execution),
        edge_loss=steps.edge_loss,
        clock=Clock(),
        batches=len(steps.batches),
    )
    by_hand = {"jax": by_hand_in_jax, "tensorflow": by_hand_in_tensorflow, "torch": by_hand_in_torch}
    bare = by_hand[name.removeprefix("keras-")]()
    loop.round(4)
    once_s = bare(8) / 8
    count = max(4, round(BLOCK_S / once_s / 4) * 4)
    wall: list[float] = []
    cpu: list[float] = []

    def harness() -> tuple[float, float]:
        began_s = time.process_time()
        wall_s = loop.round(count).wall_s
        return wall_s / count, (time.process_time() - began_s) / (count + EXTRA_STEPS)

    def loop_by_hand() -> tuple[float, float]:
        began_s = time.process_time()
        wall_s = bare(count)
        return wall_s / count, (time.process_time() - began_s) / count

    for _ in range(PAIRS // 2):
        first, second, third, fourth = harness(), loop_by_hand(), loop_by_hand(), harness()
        for above, below in ((first, second), (fourth, third)):
            wall.append(above[0] / below[0])
            cpu.append(above[1] / below[1])
    for what, ratios in (("wall time", wall), ("CPU time", cpu)):
        ratio, low, high = median_interval(ratios)
        print(f"{name}, {what}: {ratio:.3f} ({low:.3f} to {high:.3f}), {len(ratios)} pairs of {count} steps")


def _model():
    import keras
    import numpy as np
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    draw = np.random.default_rng(0)
    images = draw.standard_normal((BATCH, 28, 28, 1), dtype=np.float32)
    labels = draw.integers(4, size=BATCH).astype(np.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, images, labels, loss, keras.optimizers.Adam(1e-4)


def by_hand_in_jax() -> Callable[[int], float]:
    """The stateless loop of Keras's guide to training in jax."""
    import jax
    import keras

    model, images, labels, loss_of, optimizer = _model()
    images, labels = jax.device_put(images), jax.device_put(labels)
    optimizer.build(model.trainable_variables)
    mean = keras.metrics.Mean()

    def loss(trained, fixed, x, y):
        outputs, fixed = model.stateless_call(trained, fixed, x, training=True)
        return loss_of(y, outputs), fixed

    gradient = jax.value_and_grad(loss, has_aux=True)

    @jax.jit
    def step(state, x, y):
        trained, fixed, moments, kept = state
        (value, fixed), grads = gradient(trained, fixed, x, y)
        trained, moments = optimizer.stateless_apply(moments, grads, trained)
        if KEEPS_MEAN:
            kept = mean.stateless_update_state(kept, value, sample_weight=BATCH)
        return value, (trained, fixed, moments, kept)

    state = (
        [v.value for v in model.trainable_variables],
        [v.value for v in model.non_trainable_variables],
        [v.value for v in optimizer.variables],
        [v.value for v in mean.variables],
    )
    value, state = step(state, images, labels)

    def bare(count: int) -> float:
        nonlocal state, value
        began_s = time.perf_counter()
        for _ in range(count):
            value, state = step(state, images, labels)
        jax.block_until_ready((value, state))
        return time.perf_counter() - began_s

    return bare


def by_hand_in_tensorflow() -> Callable[[int], float]:
    """The GradientTape loop of Keras's guide to training in TensorFlow, compiled."""
    import keras
    import tensorflow as tf

    model, images, labels, loss_of, optimizer = _model()
    images, labels = tf.constant(images), tf.constant(labels)
    optimizer.build(model.trainable_variables)
    mean = keras.metrics.Mean()

    @tf.function(jit_compile=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss_of(y, model(x, training=True))
        grads = tape.gradient(value, model.trainable_weights)
        optimizer.apply(grads, model.trainable_weights)
        if KEEPS_MEAN:
            mean.update_state(value, sample_weight=BATCH)
        return value

    value = step(images, labels)

    def bare(count: int) -> float:
        nonlocal value
        began_s = time.perf_counter()
        for _ in range(count):
            value = step(images, labels)
        float(value.numpy())
        return time.perf_counter() - began_s

    return bare


def by_hand_in_torch() -> Callable[[int], float]:
    """The loop of Keras's guide to training in torch, with the optimizer of Keras."""
    import keras
    import torch

    model, images, labels, loss_of, optimizer = _model()
    images, labels = torch.tensor(images), torch.tensor(labels)
    optimizer.build(model.trainable_variables)
    mean = keras.metrics.Mean()

    def step():
        value = loss_of(labels, model(images, training=True))
        model.zero_grad()
        value.backward()
        trained = list(model.trainable_weights)
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in trained], trained)
            if KEEPS_MEAN:
                mean.update_state(value, sample_weight=BATCH)
        return value

    def bare(count: int) -> float:
        value = None
        began_s = time.perf_counter()
        for _ in range(count):
            value = step()
        float(value.detach())
        return time.perf_counter() - began_s

    step()
    return bare


if __name__ == "__main__":
    main()
