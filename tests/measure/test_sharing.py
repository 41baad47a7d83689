"""Processes that share one model learn exactly what one process learns from all samples."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import forked_child
import pytest
import torch
import two_ranks
from torch import nn

from gpubench.measure.capability import NotHereError
from gpubench.measure.team import place_model
from gpubench.models import ParallelMode
from gpubench.profile.blocks import repeated_blocks

TOLERANCE = {"sgd": 1e-5, "adamw": 1e-3}
SHARDS = pytest.mark.skipif(not two_ranks.SHARDS_ON_A_CPU, reason="this torch shards only over CUDA devices")
MODES = [pytest.param(mode, marks=SHARDS if mode is ParallelMode.FSDP else ()) for mode in two_ranks.MODES]


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> list[dict[str, list[list[float]]]]:
    """The parameters of each of two processes after ten steps, by mode and optimizer."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(two_ranks.__file__)
    ranks = [forked_child.popen([sys.executable, script, f"{rank}", f"{port}", folder]) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("optimizer", two_ranks.OPTIMIZERS)
@pytest.mark.parametrize("mode", MODES)
def test_ten_steps_of_two_processes_equal_those_of_one_on_the_combined_batch(together, mode, optimizer):
    alone = two_ranks.trained(0, 1, ParallelMode.SINGLE, optimizer)
    untrained = [p.flatten().tolist() for p in two_ranks.net(seed=0).parameters()]
    assert max(map(_distance, alone, untrained)) > 10 * TOLERANCE[optimizer]
    for found in together:
        assert max(map(_distance, found[f"{mode} {optimizer}"], alone)) < TOLERANCE[optimizer]


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_train_in_fp8_like_one_up_to_rounding(together, mode):
    """Each process scales its half of the batch, so the last digits of the sums differ from those of one process."""
    pytest.importorskip("torchao", exc_type=ImportError)
    alone = two_ranks.trained(0, 1, ParallelMode.SINGLE, two_ranks.EIGHT_BITS)
    untrained = two_ranks.net(seed=0)
    moved = max(map(_distance, alone, (p.flatten().tolist() for p in untrained.parameters())))
    first, second = (found[f"{mode} {two_ranks.EIGHT_BITS}"] for found in together)
    assert first == second
    assert max(map(_distance, first, alone)) < 0.1 * moved


def _distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def test_the_blocks_of_a_model_are_its_repeated_parts_and_not_single_layers():
    from torch.nn import TransformerEncoder, TransformerEncoderLayer

    encoder = TransformerEncoder(TransformerEncoderLayer(8, 2, 8), num_layers=3, enable_nested_tensor=False)
    assert repeated_blocks(encoder) == tuple(encoder.layers)
    nested = nn.Sequential(nn.ModuleList([two_ranks.Block(), two_ranks.Block()]), nn.Linear(2, 2))
    assert repeated_blocks(nested) == tuple(nested[0])
    assert repeated_blocks(nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(4)))) == ()
    assert repeated_blocks(nn.LSTM(8, 8, num_layers=2)) == ()


def test_a_model_without_blocks_is_not_sharded_and_says_so(make_case):
    case = make_case(workload="plain", gpu_count=2, parallel_mode=ParallelMode.FSDP)
    with pytest.raises(NotHereError, match=r"plain .* --jobs ddp"):
        place_model(nn.Sequential(nn.Linear(2, 2)), case, torch.device("cpu"))
