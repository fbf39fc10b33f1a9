"""No rule ever calls PyTorch's kernels for a 1 × 1 convolution with a stride: they corrupt memory on some CPUs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stdl_engine import FusedLIF
from stdl_engine.convert import units_from
from stdl_engine.memory.strided import PixelsFirst, taking_pixels_first
from stdl_engine.models import build_model
from stdl_engine.rules import RULES

from .nets import batch, make, sgd

MEMORY = ("paper", "lean")


class Convolutions(TorchDispatchMode):
    """Notes kernel size and stride of every convolution that runs, and of those gone back through."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        places = {torch.ops.aten.convolution.default: (1, 3), torch.ops.aten.convolution_backward.default: (2, 4)}
        if function in places:
            weight, stride = (args[place] for place in places[function])
            self.seen.add((str(function), tuple(weight.shape[2:]), tuple(stride)))
        return function(*args, **(kwargs or {}))

    @property
    def strided(self) -> list[tuple]:
        return [(name, kernel, stride) for name, kernel, stride in self.seen if kernel == (1, 1) and max(stride) > 1]


class Plain(nn.Module):
    """A model nobody here wrote: plain convolutions, one of them 1 × 1 with a stride and few channels."""

    def __new__(cls) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), FusedLIF(decay=0.5),
            nn.Conv2d(4, 8, 1, stride=2), nn.BatchNorm2d(8), FusedLIF(decay=0.5),
            nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), FusedLIF(decay=0.5),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
        )  # fmt: skip


@pytest.mark.parametrize(("name", "memory"), [*itertools.product(RULES, MEMORY)])
def test_narrow_networks(name, memory):
    x, y = batch(count=2)
    x = x.contiguous(memory_format=torch.channels_last)
    model = build_model("resnet18", width=0.0625).to(memory_format=torch.channels_last)
    rule = make(name, model, x, memory=memory)
    with Convolutions() as convolutions:
        rule.step(x, y, 1)
        rule.predict(x, 1)
    assert convolutions.strided == []
    assert {(1, 1), (3, 3)} <= {kernel for _, kernel, _ in convolutions.seen}
    assert any(stride == (2, 2) for _, _, stride in convolutions.seen)  # the mode sees strides where there are some


@pytest.mark.parametrize(("name", "memory"), [*itertools.product(("bptt", "stdl"), MEMORY)])
def test_convolutions_of_someone_else(name, memory):
    x, y = batch(count=3)
    x = x.contiguous(memory_format=torch.channels_last)
    model = Plain().to(memory_format=torch.channels_last)
    kinds = [type(module) for module in model.modules()]
    options = {"budget": 0.9} if name == "stdl" else {}
    rule = RULES[name](units_from(model), sgd, x, memory=memory, **options)
    before = model[3].weight.clone()
    with Convolutions() as convolutions:
        rule.step(x, y, 2)
    assert convolutions.strided == []
    assert not torch.equal(model[3].weight, before)
    assert [type(module) for module in model.modules()] == kinds
    with Convolutions() as convolutions:
        model(x)
    assert len(convolutions.strided) == 1  # outside a rule it is what it was


class Scaled(nn.Conv2d):
    """A convolution with a way of its own to its weight."""

    def forward(self, x):
        return 2 * self._conv_forward(x, self.weight * 3, self.bias)


@pytest.mark.parametrize("kind", [nn.Conv2d, Scaled])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("stride", "groups", "padding"), [(2, 1, 0), ((3, 1), 2, 0), (2, 4, 0), (3, 1, "valid")])
def test_same_output_and_gradients(kind, layout, stride, groups, padding):
    torch.manual_seed(4)
    conv = kind(4, 8, 1, stride, padding, groups=groups).double().to(memory_format=layout)
    x = torch.randn(2, 4, 7, 5, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()

    def results():
        conv.zero_grad()
        output = conv(x)
        (grad,) = torch.autograd.grad(output, x, torch.ones_like(output).cumsum(3), retain_graph=True)
        output.backward(torch.ones_like(output).cumsum(2))
        return output, grad, conv.weight.grad.clone(), conv.bias.grad.clone()

    expected = results()
    with taking_pixels_first([conv]), Convolutions() as convolutions:
        assert isinstance(conv, PixelsFirst)
        assert isinstance(conv, kind)
        found = results()
    assert type(conv) is kind
    assert convolutions.strided == []
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_given_back_after_an_error_too():
    conv, other = nn.Conv2d(4, 8, 1, 2), nn.Conv2d(4, 8, 3, 2)
    kinds = []

    def fail() -> None:
        with taking_pixels_first([conv, other, nn.ReLU(), conv]):
            kinds.extend(type(layer) for layer in (conv, other))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert kinds == [PixelsFirst, nn.Conv2d]
    assert type(conv) is nn.Conv2d
