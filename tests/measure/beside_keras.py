"""Compares the harness with a hand-written Keras loop, paired in one process per backend; the limit is 3 %.

``PAIRS=24 python tests/measure/beside_keras.py keras-jax`` (or ``keras-torch``, ``keras-tensorflow``) on a
quiet machine prints the ratio of the harness's step time to the loop's, with its 95 % interval, and the ratio
of the CPU times, which other programs disturb less. Exit code 0: the ratio of wall times is within 3 %; 1: it
is not; 6: undecided. The loop is the one in Keras's guide for the backend; it shares no code with the harness
and trains its own model. It tracks the mean of its loss, as Keras's own step does in the harness and in
``fit``; ``MEAN=0`` leaves that out, to show its cost. ``BLOCK_S`` is the length of a block, ``WARM_S`` the
length of each side's warm-up.

``python tests/measure/beside_keras.py cost`` prints the CPU time of a step of ``cnn`` in torch and in each
backend, as gpubench measures it on one core, excluding other programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from paired import EXIT_CODES, WARM_S, median_interval, ratio_of, verdict_of, warm_count, words_of

if TYPE_CHECKING:
    from gpubench.measure.keras_case import Steps
    from gpubench.measure.loop import Loop
    from gpubench.models import Execution, Framework

LIMIT = 0.03
PAIRS = int(os.environ.get("PAIRS", "24"))
BLOCK_S = float(os.environ.get("BLOCK_S", "1"))
"""Duration of a block [s]: at least twenty steps of 0.05 s, so one delayed step weighs little."""
BATCHES = 4
"""Batches that each side rotates through: a memorized batch leads to tiny numbers, which are slow."""
KEEPS_MEAN = os.environ.get("MEAN", "1") != "0"
BATCH = 64
COST_BLOCKS = 20


def main() -> None:
    """Compare in a new process with the named backend, or print the costs of a step."""
    from gpubench.measure.capability import variables_of
    from gpubench.models import DeviceProfile, Framework

    if sys.argv[1] == "cost":
        for each in Framework if len(sys.argv) == 2 else ():
            variables = variables_of(each, DeviceProfile(backend="cpu"))
            command = [sys.executable, "-W", "ignore", __file__, "cost", each.value]
            subprocess.run(command, env={**os.environ, **variables}, check=True)
        for each in sys.argv[2:]:
            cost(Framework(each))
        return
    framework = Framework(sys.argv[1])
    if sys.argv[2:] != ["here"]:
        variables = variables_of(framework, DeviceProfile(backend="cpu"))
        command = [sys.executable, "-W", "ignore", __file__, framework.value, "here"]
        sys.exit(subprocess.run(command, env={**os.environ, **variables}, check=False).returncode)
    sys.exit(compare(framework.value))


def cost(framework: Framework) -> None:
    """Print the CPU time of a step in each default execution, with this process pinned to one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from gpubench.measure.capability import KERAS
    from gpubench.models import Execution, Framework

    if framework is Framework.TORCH:
        show_cost(framework, Execution.EAGER, torch_step())
        return
    for execution in KERAS[framework].usual:
        steps = keras_steps_of(framework)
        advance = steps.advance(execution)
        show_cost(framework, execution, lambda index, run=advance, at=steps: at.edge_loss(run(index), index))


def show_cost(framework: Framework, execution: Execution, step: Callable[[int], object]) -> None:
    """Time blocks of ten steps, each of which copies its loss to the host, and print the median."""
    for index in range(10):
        step(index)
    blocks: list[float] = []
    for _ in range(COST_BLOCKS):
        began_s = time.process_time()
        for index in range(10):
            step(index)
        blocks.append((time.process_time() - began_s) / 10)
    each_s, low, high = median_interval(blocks)
    print(
        f"{framework} {execution}: {1e3 * each_s:.1f} ({1e3 * low:.1f} to {1e3 * high:.1f}) ms of CPU a step"
    )


def torch_step() -> Callable[[int], object]:
    """Return a function that takes one eager fp32 step of the torch workload and copies its loss to the host."""
    import torch
    from builders import case_of

    from gpubench.discovery import load_workload
    from gpubench.measure.step import move

    case = case_of("cnn", memory_format="contiguous", batch_size=BATCH)
    work = move(load_workload("cnn").build(BATCH, 0), case, torch.device("cpu"))
    return lambda index: work.edge_loss(work.step(index), index)


def keras_steps_of(framework: Framework) -> Steps:
    """Return the steps of the Keras digit network, as gpubench measures them."""
    from gpubench.discovery import keras_models
    from gpubench.measure.keras_case import Steps, policy_of, seed_all
    from gpubench.models import Precision

    with policy_of(Precision.FP32):
        seed_all(0)
        return Steps("cnn", keras_models().MODELS["cnn"](BATCH, 0), framework)


def compare(name: str) -> int:
    """Time blocks of the two sides in the order ABBA; print the results, and return the exit code."""
    bare = BY_HAND[name.removeprefix("keras-")]()
    loop = harness_of(name)
    warm_count(lambda steps: loop.round(steps).wall_s, BLOCK_S, BATCHES, WARM_S)
    count = warm_count(bare, BLOCK_S, BATCHES, WARM_S)

    def harness() -> tuple[float, float]:
        began_s = time.process_time()
        wall_s = loop.round(count).wall_s
        return wall_s / count, (time.process_time() - began_s) / count

    def by_hand() -> tuple[float, float]:
        began_s = time.process_time()
        wall_s = bare(count)
        return wall_s / count, (time.process_time() - began_s) / count

    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for _ in range(PAIRS // 2):
        first, second, third, fourth = harness(), by_hand(), by_hand(), harness()
        pairs += [(first, second), (fourth, third)]
    wall, cpu = (ratio_of([above[n] / below[n] for above, below in pairs]) for n in range(2))
    verdict = verdict_of(wall, LIMIT)
    above_s, below_s = (count * median(pair[side][0] for pair in pairs) for side in range(2))
    print(
        f"{name}, wall time of the harness over a hand-written loop: {words_of(wall)}: {verdict} {LIMIT:.0%}"
    )
    print(f"{name}, CPU time: {words_of(cpu)}")
    print(
        f"{len(pairs)} pairs of {count} steps, blocks of {above_s:.2f} s and {below_s:.2f} s; "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    )
    return EXIT_CODES[verdict]


def harness_of(name: str) -> Loop:
    """Return the loop that measures the digit network in a backend's default execution."""
    from gpubench.measure.loop import Loop
    from gpubench.models import Execution, Framework

    framework = Framework(name)
    steps = keras_steps_of(framework)
    execution = Execution.EAGER if framework is Framework.KERAS_TORCH else Execution.COMPILE
    return Loop(
        advance=steps.advance(execution),
        edge_loss=steps.edge_loss,
        clock=steps.clock(),
        batches=len(steps.batches),
    )


def _model() -> tuple[Any, list[tuple[Any, Any]], Any, Any]:
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
    batches = [
        (
            draw.standard_normal((BATCH, 28, 28, 1), dtype=np.float32),
            draw.integers(4, size=BATCH).astype(np.int32),
        )
        for _ in range(BATCHES)
    ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, batches, loss, keras.optimizers.Adam(1e-4)


def by_hand_in_jax() -> Callable[[int], float]:
    """Return the stateless loop from Keras's guide to training in jax."""
    import jax
    import keras

    model, batches, loss_of, optimizer = _model()
    batches = [(jax.device_put(images), jax.device_put(labels)) for images, labels in batches]
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
    value, state = step(state, *batches[0])

    def bare(count: int) -> float:
        nonlocal state, value
        began_s = time.perf_counter()
        for index in range(count):
            value, state = step(state, *batches[index % BATCHES])
        jax.block_until_ready((value, state))
        return time.perf_counter() - began_s

    return bare


def by_hand_in_tensorflow() -> Callable[[int], float]:
    """Return the GradientTape loop from Keras's guide to training in TensorFlow, compiled."""
    import keras
    import tensorflow as tf

    model, batches, loss_of, optimizer = _model()
    batches = [(tf.constant(images), tf.constant(labels)) for images, labels in batches]
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

    value = step(*batches[0])

    def bare(count: int) -> float:
        nonlocal value
        began_s = time.perf_counter()
        for index in range(count):
            value = step(*batches[index % BATCHES])
        float(value.numpy())
        return time.perf_counter() - began_s

    return bare


def by_hand_in_torch() -> Callable[[int], float]:
    """Return the loop from Keras's guide to training in torch, with Keras's optimizer."""
    import keras
    import torch

    model, batches, loss_of, optimizer = _model()
    batches = [(torch.tensor(images), torch.tensor(labels)) for images, labels in batches]
    optimizer.build(model.trainable_variables)
    mean = keras.metrics.Mean()

    def step(images, labels):
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
        for index in range(count):
            value = step(*batches[index % BATCHES])
        float(value.detach())
        return time.perf_counter() - began_s

    step(*batches[0])
    return bare


BY_HAND = {"jax": by_hand_in_jax, "tensorflow": by_hand_in_tensorflow, "torch": by_hand_in_torch}


if __name__ == "__main__":
    main()
