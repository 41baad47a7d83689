"""Four workloads as Keras models, with the layers, batches and optimizers of the modules of the same names.

Keras's defaults initialize the weights. A Keras LSTM has one bias where torch's has two. Keras is imported
when a model is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpubench.workload import BATCH_COUNT, IMAGE_LABELS, TOKEN_LABELS, KerasTask

VGG_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def cnn(
    batch_size: int,
    seed: int,
    *,
    widths: tuple[int, int, int] = (32, 64, 64),
    hidden: int = 64,
    classes: int = 10,
) -> KerasTask:
    """Build the digit network.

    Shapes:
        inputs: (N, 28, 28, 1) float32; targets: (N,) int32 in [0, 4); logits: (N, classes).
    """
    import keras
    from keras import layers

    first, second, third = widths
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(first, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(second, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(third, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(hidden, activation="relu"),
            layers.Dense(classes),
        ]
    )
    return _task(model, keras.optimizers.Adam(1e-4), _images(batch_size, (28, 28, 1), seed))


def lstm(
    batch_size: int, seed: int, *, vocabulary: int = 1000, width: int = 128, length: int = 20
) -> KerasTask:
    """Build the text LSTM.

    Shapes:
        inputs: (N, length) int32; targets: (N,) int32 in [1, 5); logits: (N, vocabulary).
    """
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            layers.Embedding(vocabulary, width),
            layers.LSTM(width),
            layers.Dense(vocabulary),
        ]
    )
    draw = np.random.default_rng(seed)
    batches = tuple(
        (
            draw.integers(vocabulary, size=(batch_size, length), dtype=np.int32),
            draw.choice(TOKEN_LABELS, batch_size).astype(np.int32),
        )
        for _ in range(BATCH_COUNT)
    )
    return _task(model, keras.optimizers.Adam(1e-4), batches)


def vgg16(
    batch_size: int,
    seed: int,
    *,
    blocks: Sequence[Sequence[int]] = VGG_BLOCKS,
    image_size: int = 224,
    hidden: int = 4096,
    classes: int = 1000,
) -> KerasTask:
    """Build VGG16.

    Shapes:
        inputs: (N, S, S, 3) float32; targets: (N,) int32 in [0, 4); logits: (N, classes).
    """
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((image_size, image_size, 3)),
            *_features(blocks),
            layers.Flatten(),
            layers.Dense(hidden, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(hidden, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(classes),
        ]
    )
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    return _task(model, optimizer, _images(batch_size, (image_size, image_size, 3), seed))


def vgg16_transfer(
    batch_size: int,
    seed: int,
    *,
    blocks: Sequence[Sequence[int]] = VGG_BLOCKS,
    image_size: int = 224,
    hidden: int = 256,
    classes: int = 10,
) -> KerasTask:
    """Build the frozen convolutions of VGG16 with a new head.

    Shapes:
        inputs: (N, S, S, 3) float32; targets: (N,) int32 in [0, 4); logits: (N, classes).
    """
    import keras
    from keras import layers

    shape = (image_size, image_size, 3)
    base = keras.Sequential([keras.Input(shape), *_features(blocks)])
    base.trainable = False
    head = [layers.Flatten(), layers.Dense(hidden, activation="relu"), layers.Dense(classes)]
    model = keras.Sequential([keras.Input(shape), base, *head])
    return _task(model, keras.optimizers.Adam(1e-4), _images(batch_size, shape, seed))


def _features(blocks: Sequence[Sequence[int]]) -> list[Any]:
    from keras import layers

    found: list[Any] = []
    for block in blocks:
        found += [layers.Conv2D(width, 3, padding="same", activation="relu") for width in block]
        found.append(layers.MaxPooling2D(2))
    return found


def _images(batch_size: int, shape: tuple[int, ...], seed: int) -> tuple[tuple[Any, Any], ...]:
    draw = np.random.default_rng(seed)
    return tuple(
        (
            draw.standard_normal((batch_size, *shape), dtype=np.float32),
            draw.choice(IMAGE_LABELS, batch_size).astype(np.int32),
        )
        for _ in range(BATCH_COUNT)
    )


def _task(model: Any, optimizer: Any, batches: tuple[tuple[Any, Any], ...]) -> KerasTask:
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return KerasTask(model=model, batches=batches, loss=loss, optimizer=optimizer)


_TINY_BLOCKS = ((8, 8), (16, 16), (32, 32, 32))
MODELS: dict[str, Callable[..., KerasTask]] = {
    "cnn": cnn,
    "lstm": lstm,
    "vgg16": vgg16,
    "vgg16_transfer": vgg16_transfer,
}
FEWER_PARAMETERS = {"lstm": 4 * 128}
"""Parameters that only the torch workload has: the second bias of each LSTM gate."""
TINY: dict[str, dict[str, Any]] = {
    "cnn": {"widths": (4, 8, 8), "hidden": 8},
    "lstm": {"vocabulary": 32, "width": 16, "length": 6},
    "vgg16": {"blocks": _TINY_BLOCKS, "image_size": 32, "hidden": 32, "classes": 10},
    "vgg16_transfer": {"blocks": _TINY_BLOCKS, "image_size": 32, "hidden": 32},
}
"""The same models, small enough for a test."""
