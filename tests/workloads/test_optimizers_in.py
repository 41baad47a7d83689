"""The optimizers that a user's optimizer wraps, and their states."""

import torch
from torch import nn

from gpubench.profile.operators import optimizers_in, states_of


class Outer(torch.optim.Optimizer):
    """Wraps another optimizer, which refers back to it."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(parameters, momentum=0.9)
        self.inner.outer = self

    def step(self):
        self.inner.step()


class Slots:
    """An optimizer with slots, and thus without a ``__dict__``."""

    __slots__ = ("rate",)


def test_optimizers_that_refer_to_each_other_are_each_found_once():
    weight = nn.Parameter(torch.zeros(3))
    outer = Outer([weight])
    weight.grad = torch.ones(3)
    outer.step()
    assert {id(each) for each in optimizers_in(outer)} == {id(outer), id(outer.inner)}
    assert len([*optimizers_in(outer)]) == 2
    momentum = outer.inner.state[weight]["momentum_buffer"]
    assert [each is momentum for each in states_of(outer) if each is not weight] == [True]


def test_an_optimizer_with_slots_has_no_visible_state():
    assert len([*optimizers_in(Slots())]) == 1
    assert states_of(Slots()) == []
