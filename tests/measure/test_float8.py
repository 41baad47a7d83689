"""FP8 matrix products, for real on the CPU, where torch supports them too: their errors, and whether they train."""

from __future__ import annotations

import sys

import pytest
import torch
from builders import case_of
from torch import nn

from gpubench.discovery import load_workload
from gpubench.measure import quantize
from gpubench.measure.capability import NotHereError, why_no_precision
from gpubench.measure.step import move
from gpubench.models import Checkpointing, DeviceProfile, Precision, WeightType
from gpubench.profile import load_profiles, profile_of

CPU = torch.device("cpu")
ERROR = Precision.FP8.facts.product_error

pytestmark = pytest.mark.skipif(
    quantize.why_no_products("FP8", CPU) is not None, reason="torch has no FP8 products here"
)


@pytest.fixture
def torchao():
    """Skip a test that computes FP8 layers where torchao is missing."""
    return pytest.importorskip("torchao", exc_type=ImportError)


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def narrow_layer(inputs=64, outputs=48, *, bias=False) -> nn.Linear:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(inputs, outputs, bias=bias), nn.ReLU()) for _ in range(2))
    model = nn.ModuleList([Block(blocks[0]), Block(blocks[1])]).to(torch.bfloat16)
    quantize.compute_in_fp8(model, "mine", CPU)
    layer = model[0].inner[0]
    assert isinstance(layer, nn.Linear)
    return layer


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


@pytest.mark.parametrize("rows", [32, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_fp8_layer_and_gradients_have_exactly_the_tabulated_rounding_errors(torchao, rows, bias):
    torch.manual_seed(0)
    layer = narrow_layer(bias=bias)
    x = torch.randn(2, rows, 64, dtype=torch.bfloat16, requires_grad=True)
    above = torch.randn(2, rows, 48, dtype=torch.bfloat16)
    layer(x).backward(above)
    exact_x = x.detach().double().requires_grad_()
    exact = nn.Linear(64, 48, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    exact_out = exact(exact_x)
    exact_out.backward(above.double())
    errors = {
        "out": relative(layer(x).detach(), exact_out.detach()),
        "of x": relative(x.grad, exact_x.grad),
        "of weight": relative(layer.weight.grad, exact.weight.grad),
    }
    assert max(errors.values()) < ERROR, errors
    assert errors["out"] > 1e-2, "the rounding of 8 bits is in the result"
    if bias:
        assert relative(layer.bias.grad, exact.bias.grad) < 1e-2


def test_large_and_small_numbers_are_scaled_into_range(torchao):
    torch.manual_seed(0)
    layer = narrow_layer()
    for size in (1e-6, 1.0, 1e6):
        x = size * torch.randn(16, 64, dtype=torch.bfloat16)
        exact = x.double() @ layer.weight.detach().double().t()
        assert relative(layer(x).detach(), exact) < ERROR
    assert torch.equal(
        layer(torch.zeros(16, 64, dtype=torch.bfloat16)), torch.zeros(16, 48, dtype=torch.bfloat16)
    )


@pytest.mark.parametrize("checkpointing", [Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL])
def test_a_small_language_model_learns_in_fp8_as_in_bf16(torchao, checkpointing):
    losses = {p: trained(p, checkpointing) for p in (Precision.BF16, Precision.FP8)}
    first = {p: each[0] for p, each in losses.items()}
    assert first[Precision.FP8] == pytest.approx(first[Precision.BF16], rel=Precision.FP8.facts.loss_error)
    assert first[Precision.FP8] != first[Precision.BF16]
    falls = {p: each[0] - each[-1] for p, each in losses.items()}
    assert falls[Precision.FP8] == pytest.approx(falls[Precision.BF16], rel=0.2)
    assert falls[Precision.BF16] > 0.05


def trained(precision: Precision, checkpointing: Checkpointing, steps: int = 12) -> list[float]:
    torch.manual_seed(0)
    build = load_workload("llama_1b").tiny
    profile = profile_of("llama_1b")
    changes = {"checkpointing": checkpointing, "loss_chunks": 1}
    case = case_of(
        "llama_1b", precision=precision, batch_size=2, **profile.recipe.at(precision).fields | changes
    )
    task = build(2, 0, recipe=case.recipe)
    work = move(task, case, CPU)
    return [float(work.step(0)) for _ in range(steps)]


def test_without_torchao_the_case_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(NotHereError, match=r"fp8 need torchao.*pip install 'torchao>="):
        narrow_layer()


def test_a_model_without_blocks_is_refused_when_planned_and_when_built():
    with pytest.raises(NotHereError, match="repeated blocks"):
        quantize.compute_in_fp8(nn.Linear(64, 64), "mine", CPU)
    assert "repeated blocks" in load_profiles()["cnn"].why_not_at(Precision.FP8)
    assert load_profiles()["llama_1b"].why_not_at(Precision.FP8) is None
    assert "4 bits" in load_profiles()["llama_8b_qlora"].why_not_at(Precision.FP8)


@pytest.mark.parametrize(
    ("capability", "has"),
    [((7, 5), False), ((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True), ((12, 0), True)],
)
def test_fp8_is_supported_from_ada_on(capability, has):
    card = DeviceProfile(backend="cuda", compute_capability=capability)
    assert (why_no_precision(Precision.FP8, card) is None) is has


def test_weights_stay_in_bfloat16():
    recipe = profile_of("llama_1b").recipe.at(Precision.FP8)
    assert recipe.weight_type is WeightType.BFLOAT16
