"""Cached fake tensors, compared with torch's own fake mode, which computes everything each time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from gpubench.discovery import load_workload
from gpubench.profile.cuda_rules import cuda_rules
from gpubench.profile.liveness import StepTrace, step_trace, with_state
from gpubench.profile.quick_fakes import QuickFakeMode, gpu_without_values


@pytest.mark.parametrize("name", ["bert_base", "resnet50", "lstm"])
def test_fast_fake_trace_matches_the_standard_one_byte_for_byte(name: str) -> None:
    tiny = load_workload(name).tiny
    assert tiny is not None

    def trace(mode: FakeTensorMode) -> StepTrace:
        with cuda_rules(), mode:
            task = tiny(4, 0)
            optimizer = with_state(task, {"foreach": True})
            step_trace(task, optimizer, is_amp=True)  # so that the second comes from the cache
            return step_trace(task, optimizer, is_amp=True)

    slow, quick = (trace(mode(allow_non_fake_inputs=True)) for mode in (FakeTensorMode, QuickFakeMode))
    assert list(quick.timeline) == list(slow.timeline)
    assert quick == slow


def test_a_model_can_be_copied_inside_the_block() -> None:
    """Torch copies the mode of each fake tensor too, and Python crashes when it reads the copy."""
    with gpu_without_values() as mode:
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        net[0].weight.requires_grad_(False)
        other = copy.deepcopy(net)
        assert other(torch.randn(2, 4)).shape == (2, 4)
    assert {each.fake_mode for each in (*other.parameters(), *other.buffers())} == {mode}
    trained = {name: each.requires_grad for name, each in net.named_parameters()}
    assert {name: each.requires_grad for name, each in other.named_parameters()} == trained
    pairs = zip(
        net.state_dict(keep_vars=True).values(), other.state_dict(keep_vars=True).values(), strict=True
    )
    assert all(one is not two for one, two in pairs)


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "views of a window": lambda x: x[1:, 2:].t().unsqueeze(0).expand(3, -1, -1),
    "several windows": lambda x: torch.unbind(x[1:]),
    "a window by its place": lambda x: (x.as_strided((2, 2), (2, 1), 3), x.as_strided((2, 2), (2, 1))),
    "other bytes": lambda x: x[:, 2:].view(torch.int16),
    "in place": lambda x: x.clone()[1:].add_(1),
    "turned in place": lambda x: x.clone().t_(),
    "another size in place": lambda x: x.clone().resize_(3, 3),
    "another storage in place": lambda x: torch.empty(2, 2).set_(x.clone()),
    "several results": lambda x: torch.max(x, dim=1),
    "lists": lambda x: torch._foreach_add([x, x.double()], 1),
    "types": lambda x: (x.to(torch.bfloat16), x + 1, x.int() + 1, x.int() + 1.0, x.int() + True),
    "complex": lambda x: torch.fft.fft(x).conj().real,
    "no storage of its own": lambda x: torch.ops.aten._unsafe_view(x, (-1,)),
    "a constant": lambda x: x * torch.tensor(2.0).item(),
}


def _seen(value: Any, of: FakeTensor) -> Any:
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        shares = storage._cdata == of.untyped_storage()._cdata
        place = value.shape, value.stride(), value.storage_offset(), storage.nbytes()
        return type(value), *place, value.dtype, value.device, value.is_conj(), shares
    return [_seen(part, of) for part in value]


@pytest.mark.parametrize("name", CALLS)
def test_cached_results_equal_those_of_torch(name: str) -> None:
    """Each call runs three times at one place in the storage, so that two results are cached, and once at another.

    The windows at both places have the same shape.
    """
    seen = []
    for mode in (FakeTensorMode(), QuickFakeMode()):
        with mode:
            whole = torch.randn(6, 8)
            seen.append([_seen(CALLS[name](x), x) for x in (whole[1:5], whole[2:], whole[1:5], whole[1:5])])
    assert seen[0] == seen[1]


def test_torch_is_asked_once_for_windows_that_differ_only_in_their_place() -> None:
    """A loop over time steps selects another window in each."""
    with QuickFakeMode(known={}) as mode:
        asked: list[Any] = []
        ask = mode._ask

        def noted(func: Any, *others: Any) -> Any:
            asked.append(func)
            return ask(func, *others)

        mode._ask = noted  # type: ignore[method-assign]
        weight, *steps = torch.randn(7, 4, 4)
        asked.clear()
        for step in steps:
            (step.t() @ weight).relu().sum(0)
    assert len(asked) == 4


def test_each_call_has_its_own_storage_that_is_freed_with_it() -> None:
    with QuickFakeMode():
        x = torch.randn(4)
        one, two = x + 1, x + 1
        assert one.untyped_storage()._cdata != two.untyped_storage()._cdata
        assert x.relu_() is x
        assert x.relu_() is x


def test_cached_results_follow_gradients_and_settings() -> None:
    with QuickFakeMode():
        weight = torch.nn.Parameter(torch.randn(4, 4))
        for _ in range(2):
            (weight @ weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.shape == (4, 4)
        counts = torch.arange(3)
        before = torch.get_default_dtype()
        try:
            kinds = []
            for dtype in (torch.float32, torch.float64):
                torch.set_default_dtype(dtype)
                kinds.append((counts / 2).dtype)
        finally:
            torch.set_default_dtype(before)
        assert kinds == [torch.float32, torch.float64]
        with pytest.raises(DataDependentOutputException):
            weight.sum().item()
