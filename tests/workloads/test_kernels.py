"""FLOPs and bytes compared with counts made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gpubench.models import Operator, OperatorKind, WorkloadProfile
from gpubench.profile.trace import trace_operators
from gpubench.workload import Task, Workload


def profile(model: Any, shape: tuple[int, ...], *, input_gradient: bool = False) -> WorkloadProfile:
    """Profile a module on a batch of this sample shape, with the mean of its output as the loss."""

    def build(batch_size: int, _seed: int) -> Task:
        made = model()
        inputs = torch.randn(batch_size, *shape, requires_grad=input_gradient)
        return Task(
            model=made,
            batches=((inputs, torch.zeros(batch_size)),),
            loss=lambda out, _: (out[0] if isinstance(out, tuple) else out).mean(),
            optimizer=torch.optim.SGD,
        )

    return trace_operators(
        Workload(
            name="own", version=1, sample_unit="sample", sample_shape=shape, batches=(2,), is_image=False,
            source="test", build=build,
        )
    ).profile  # fmt: skip


def of_kind(found: tuple[Operator, ...], kind: OperatorKind) -> list[Operator]:
    return [o for o in found if o.kind is kind]


def test_a_depthwise_convolution_is_counted_from_shapes() -> None:
    found = profile(lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), (64, 56, 56), input_gradient=True)
    assert found.forward_flops_per_sample == 3_612_672
    assert found.train_flops_per_sample == 10_838_016
    assert {o.kind for o in found.train if o.flops_per_sample} == {OperatorKind.DEPTHWISE}


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"kernel_size": 3, "padding": 1}, OperatorKind.CONV3X3),
        ({"kernel_size": 3, "stride": 2}, OperatorKind.CONV),
        ({"kernel_size": 3, "dilation": 2}, OperatorKind.CONV),
        ({"kernel_size": 1}, OperatorKind.CONV),
        ({"kernel_size": 3, "groups": 8}, OperatorKind.DEPTHWISE),
        ({"kernel_size": 3, "groups": 4}, OperatorKind.CONV3X3),
    ],
)
def test_kinds_of_convolutions_are_distinguished(options: dict[str, int], kind: OperatorKind) -> None:
    found = profile(lambda: nn.Conv2d(32, 32, **options), (32, 8, 8))
    assert {o.kind for o in found.train if o.flops_per_sample} == {kind}


def test_the_first_layer_has_no_data_gradient() -> None:
    one = profile(lambda: nn.Conv2d(3, 8, 3), (3, 8, 8))
    two = profile(lambda: nn.Conv2d(3, 8, 3), (3, 8, 8), input_gradient=True)
    assert one.train_flops_per_sample == 2 * one.forward_flops_per_sample
    assert two.train_flops_per_sample == 3 * one.forward_flops_per_sample


def test_a_transposed_convolution_counts_its_inputs() -> None:
    found = profile(lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 5, 5))
    assert found.forward_flops_per_sample == 2 * 4 * 5 * 5 * 6 * 2 * 2


def test_a_linear_layer_reads_its_weights_once_a_pass_and_writes_their_gradient() -> None:
    found = profile(lambda: nn.Linear(100, 50, bias=False), (100,), input_gradient=True)
    products = of_kind(found.train, OperatorKind.MATMUL)
    assert sum(o.count for o in products) == 3
    assert sum(o.count * o.flops_per_sample for o in products) == 3 * 2 * 100 * 50
    assert sum(o.count * o.bytes_fixed for o in products) == 3 * 4 * 100 * 50
    assert sum(o.count * o.bytes_per_sample for o in products) == 3 * 4 * (100 + 50)


def test_fused_lstm_is_profiled_as_its_matrix_products() -> None:
    found = profile(lambda: nn.LSTM(128, 128, batch_first=True), (20, 128), input_gradient=True)
    assert found.forward_flops_per_sample == 5_242_880
    assert found.train_flops_per_sample == 15_597_568
    recurrent = [o for o in of_kind(found.infer, OperatorKind.MATMUL) if o.count == 20]
    assert [o.bytes_fixed for o in recurrent] == [4 * 4 * 128 * 128]  # the weights, read again every step
    products = sum(o.count for o in of_kind(found.train, OperatorKind.MATMUL))
    assert products == 3 + 20 + 19 + 1  # input products, recurrent ones both ways, recurrent weights


@pytest.mark.parametrize("module", [nn.GRU, nn.RNN])
def test_other_fused_cells_have_their_own_gates(module: type[nn.RNNBase]) -> None:
    gates = 3 if module is nn.GRU else 1
    found = profile(
        lambda: module(16, 32, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True), (5, 16)
    )
    first = gates * 32 * (16 + 32) * 2 * 5 * 2
    second = gates * 32 * (64 + 32) * 2 * 5 * 2
    assert found.forward_flops_per_sample == first + second


def test_attention_keeps_no_matrix_of_scores() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * self.scale
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    found = profile(Attention, (8, 256, 64))
    assert found.forward_flops_per_sample == 2 * 2 * 8 * 256 * 256 * 64
    assert found.train_flops_per_sample == 3 * found.forward_flops_per_sample
    assert found.saved_bytes_per_sample < 4 * 8 * 256 * 256


def test_attention_inside_of_torchs_own_module_keeps_no_matrix_of_scores_either() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attend(x, x, x, need_weights=False)[0]

    length = 512
    found = profile(Attention, (length, 32))
    assert found.forward_flops_per_sample == 2 * length * 32 * (4 * 32 + 2 * length)
    scores = 4 * 4 * length * length
    assert max(o.bytes_per_sample for o in found.train) < scores
    assert found.saved_bytes_per_sample < scores


def test_batch_norm_reads_its_input_twice_when_training() -> None:
    found = profile(lambda: nn.BatchNorm2d(8), (8, 4, 4))
    elements = 8 * 4 * 4
    train = max(o.bytes_per_sample for o in found.train)
    infer = max(o.bytes_per_sample for o in found.infer)
    assert train >= 3 * 4 * elements
    assert infer == 2 * 4 * elements


def test_views_and_empty_tensors_move_nothing() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.scale).view(-1, 4, 4).transpose(1, 2)[:, 0].unsqueeze(1).expand(-1, 3, -1)

    found = profile(Views, (16,))
    assert [(o.kind, o.count) for o in found.infer] == [(OperatorKind.MEMORY, 1)]


@pytest.mark.parametrize(
    ("optimizer", "state_bytes", "moved_bytes"),
    [
        (torch.optim.SGD, 0.0, 12),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 4.0, 20),
        (torch.optim.Adam, 8.0, 28),
    ],
)
def test_the_optimizer_passes_over_parameters_and_state(
    optimizer: Any, state_bytes: float, moved_bytes: float
) -> None:
    def build(batch_size: int, _seed: int) -> Task:
        batch = (torch.randn(batch_size, 10), torch.zeros(batch_size))
        return Task(
            model=nn.Linear(10, 10, bias=False),
            batches=(batch,),
            loss=lambda o, _: o.mean(),
            optimizer=optimizer,
        )

    found = trace_operators(
        Workload(
            name="own", version=1, sample_unit="sample", sample_shape=(10,), batches=(2,), is_image=False,
            source="test", build=build,
        )
    ).profile  # fmt: skip
    assert found.optimizer_bytes_per_parameter == state_bytes
    assert [o.bytes_fixed for o in of_kind(found.train, OperatorKind.OPTIMIZER)] == [100 * moved_bytes]


def test_model_with_data_dependent_control_flow_is_traced_on_the_cpu() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x)
            return out if out.sum().item() < 1e9 else -out

    assert profile(Looks, (4,)).forward_flops_per_sample == 32


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_is_one_kernel_in_training_and_none_in_inference(inplace: bool) -> None:
    with_it = profile(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1, inplace=inplace)), (8,))
    without = profile(lambda: nn.Sequential(nn.Linear(8, 8), nn.Identity()), (8,))
    assert with_it.infer == without.infer
    assert 3 * 4 * 8 in {o.bytes_per_sample for o in with_it.train}  # input, output and mask
