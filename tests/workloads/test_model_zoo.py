"""Many kinds of user models: each is traced, and its work matches a count by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpubench.profile.trace import trace_workload
from gpubench.workload import Task, Workload

Made = tuple[nn.Module, Any, Any, Callable[[Any, Any], torch.Tensor]]


class Calls(nn.Module):
    """A module of named parts whose forward pass is a given function."""

    def __init__(self, call: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.call(self, *inputs)


def encoder(n: int) -> Made:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(640, 5))
    return model, torch.randn(n, 10, 64), torch.zeros(n).long(), functional.cross_entropy


def multihead(n: int) -> Made:
    model = Calls(
        lambda m, x: m.a(x, x, x, need_weights=False)[0], a=nn.MultiheadAttention(64, 4, batch_first=True)
    )
    return model, torch.randn(n, 10, 64), torch.zeros(n, 10, 64), functional.mse_loss


def packed(n: int) -> Made:
    def call(m: Any, x: torch.Tensor) -> Any:
        lengths = [x.shape[1]] * len(x)
        out, _ = m.l(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]

    model = Calls(call, l=nn.LSTM(8, 8, batch_first=True))
    return model, torch.randn(n, 5, 8), torch.zeros(n, 5, 8), functional.mse_loss


def time_first(n: int) -> Made:
    model = Calls(lambda m, x: m.l(x.transpose(0, 1))[0], l=nn.LSTM(8, 8))
    return model, torch.randn(n, 5, 8), torch.zeros(5, n, 8), functional.mse_loss


def conv1d(n: int) -> Made:
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.GELU())
    return model, torch.randn(n, 4, 20), torch.zeros(n, 8, 18), functional.mse_loss


def conv3d(n: int) -> Made:
    model = nn.Sequential(nn.Conv3d(1, 8, 3), nn.GroupNorm(2, 8), nn.SiLU())
    return model, torch.randn(n, 1, 8, 8, 8), torch.zeros(n, 8, 6, 6, 6), functional.mse_loss


def checkpointed(n: int) -> Made:
    model = Calls(
        lambda m, x: checkpoint(m.l, x, use_reentrant=False),
        l=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
    )
    return model, torch.randn(n, 8), torch.zeros(n, 8), functional.mse_loss


def dict_targets(n: int) -> Made:
    model = Calls(lambda m, x: {"a": m.l(x)}, l=nn.Linear(8, 8))
    return (
        model,
        torch.randn(n, 8),
        {"y": torch.zeros(n, 8)},
        lambda o, t: functional.mse_loss(o["a"], t["y"]),
    )


def ctc(n: int) -> Made:
    model = nn.Sequential(nn.Linear(8, 10), nn.LogSoftmax(-1))

    def loss(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        lengths = torch.full((len(out),), 20), torch.full((len(out),), 5)
        return functional.ctc_loss(out.transpose(0, 1), targets, *lengths)

    return model, torch.randn(n, 20, 8), torch.randint(1, 10, (n, 5)), loss


def bags(n: int) -> Made:
    model = nn.Sequential(nn.EmbeddingBag(100, 8), nn.Linear(8, 2))
    return model, torch.randint(100, (n, 5)), torch.zeros(n).long(), functional.cross_entropy


LSTM_FLOPS = 2 * 5 * (32 * 8 + 32 * 8)
ZOO: dict[str, tuple[Callable[[int], Made], float, float]] = {
    # forward FLOPs, and how many times as many a training step has
    "encoder": (encoder, 2 * (10 * 65_536 + 25_600) + 6_400, 3_859_200 / 1_368_320),
    "multihead": (multihead, 10 * 2 * 4 * 64 * 64 + 25_600, 814_080 / 353_280),
    "packed": (packed, LSTM_FLOPS, 2.4),  # the tracer does not fuse it, but the work is the same
    "time first": (time_first, LSTM_FLOPS, 2.4),  # no gradient of the input or of the first state
    "conv1d": (conv1d, 2 * 18 * 8 * 12, 2),
    "conv3d": (conv3d, 2 * 6**3 * 8 * 27, 2),
    "checkpointed": (checkpointed, 256, 3),  # no input gradient, but the first layer is recomputed
    "dict targets": (dict_targets, 128, 2),
    "ctc": (ctc, 20 * 2 * 80, 2),
    "bags": (bags, 32, 3),
}


@pytest.mark.parametrize("name", ZOO)
def test_common_architectures_are_traced_and_counted(name: str) -> None:
    make, forward, ratio = ZOO[name]

    def build(batch_size: int, _seed: int) -> Task:
        model, inputs, targets, loss = make(batch_size)
        return Task(model=model, batches=((inputs, targets),), loss=loss, optimizer=torch.optim.Adam)

    workload = Workload(
        name=name, version=1, sample_unit="sample", sample_shape=(1,), batches=(2,), is_image=False,
        source="test", build=build,
    )  # fmt: skip
    found = trace_workload(workload, variants_s=0).profile
    assert found.forward_flops_per_sample == forward
    assert found.train_flops_per_sample == pytest.approx(ratio * forward)
    assert found.saved_bytes_per_sample > 0
    assert found.optimizer_bytes_per_parameter == 8
