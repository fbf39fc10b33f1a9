"""`optimize(model, recompute=True)`: the same numbers bit for bit, with convolutions' outputs computed again."""

import copy

import pytest
import torch
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn

from stdl_engine import FusedLIF, optimize, reset_states, restore
from stdl_engine.convert import lean_layers
from stdl_engine.kernels.spike_conv import spike_conv
from stdl_engine.memory.computed_again import Computed

from .nets import MODELS, run
from .test_optimize import CHANNELS_LAST, frames, held, outputs_and_gradients, small_net
from .test_untouched import snapshot


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def again(monkeypatch) -> list[torch.Size]:
    """The shapes of the inputs of convolutions of bits that were computed again."""
    shapes = []

    def counted(bits, weight, shape, *given):
        shapes.append(shape)
        return spike_conv(bits, weight, shape, *given)

    monkeypatch.setattr(lean_layers, "spike_conv", counted)
    return shapes


def both_ways(model: nn.Module) -> list[nn.Module]:
    """Optimised copies of a model: one keeps the outputs of convolutions, the other computes them again."""
    models = [copy.deepcopy(model) for _ in range(2)]
    optimize(models[0])
    optimize(models[1], recompute=True)
    return models


def assert_equal(first, second) -> None:
    (y, grads), (other_y, other_grads) = first, second
    assert torch.equal(y, other_y)
    pairs = (list(g.values()) if isinstance(g, dict) else g for g in (grads, other_grads))
    for grad, other in zip(*pairs, strict=True):
        assert torch.equal(grad, other)
        assert grad.isfinite().all()
    assert any(grad.abs().max() > 0 for grad in (grads.values() if isinstance(grads, dict) else grads))


@pytest.mark.parametrize("order", [torch.contiguous_format, CHANNELS_LAST])
@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize("name", MODELS)
def test_bit_for_bit(name, mode, order, again):
    models = both_ways(MODELS[name]().to(memory_format=order))
    x, grad = frames(4, 2, 3, 32, 32), torch.randn(4, 2, 10)
    x = x if order is CHANNELS_LAST else x.contiguous()
    results = [run(model, x, mode, grad) for model in models]
    assert_equal(*results)
    for one, other in zip(*(model.buffers() for model in models), strict=True):
        assert torch.equal(one, other)
    assert bool(again) == (order is CHANNELS_LAST)  # dense convolutions are computed again by another function


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_a_bias_and_constant_statistics(bias, training, again):
    models = both_ways(small_net(bias=bias).to(memory_format=CHANNELS_LAST).train(training))
    x, grad = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 10)
    assert_equal(*(outputs_and_gradients(model, x, grad) for model in models))
    assert again == [(6, 16, 16, 16)]


CONVOLUTIONS = {
    "groups": lambda: nn.Conv2d(16, 32, 3, groups=2, bias=False),
    "dilated": lambda: nn.Conv2d(16, 32, 3, dilation=2),
    "same": lambda: nn.Conv2d(16, 32, 3, padding="same"),
    "pixels": lambda: nn.Conv2d(16, 32, 1, stride=2),
    "narrow": lambda: nn.Conv2d(16, 8, 3, bias=False),
}


@pytest.mark.parametrize("order", [torch.contiguous_format, CHANNELS_LAST])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_that_do_not_read_bits(name, order, monkeypatch):
    conv = CONVOLUTIONS[name]()
    norm = nn.BatchNorm2d(conv.out_channels)
    models = [nn.Sequential(FusedLIF(), conv, norm, nn.Flatten()).to(memory_format=order)]
    optimize(models[0], recompute=True)
    models += [copy.deepcopy(models[0])]
    models[0][1].recompute = False  # on the object, for the comparison
    x = (2 * torch.randn(2, 16, 9, 9)).to(memory_format=order).requires_grad_()
    runs = []
    dense = lean_layers.LeanConv2d._dense
    monkeypatch.setattr(lean_layers.LeanConv2d, "_dense", lambda *given: runs.append(0) or dense(*given))
    y = models[0](x)
    grad = torch.randn_like(y)
    before = y, torch.autograd.grad(y, [x, *models[0].parameters()], grad)
    runs.clear()
    y = models[1](x)
    assert len(runs) == 1
    assert_equal(before, (y, torch.autograd.grad(y, [x, *models[1].parameters()], grad)))
    assert len(runs) == 2


@pytest.mark.parametrize(("name", "share"), [("sew_resnet18", 0.33), ("spiking_resnet18", 0.27)])
def test_a_third_of_the_bytes(name, share):
    models = [MODELS[name]().to(memory_format=CHANNELS_LAST) for _ in range(2)]
    optimize(models[1], recompute=True)
    sizes = []
    for model in models:
        functional.set_step_mode(model, "m")
        sizes.append(held(model, frames(4, 2, 3, 64, 64)))
    assert sizes[1] < share * sizes[0]


def test_the_output_of_a_convolution_is_not_kept():
    models = both_ways(small_net().to(memory_format=CHANNELS_LAST))
    x = frames(3, 2, 3, 16, 16)
    sizes = [held(model, x) for model in models]
    assert sizes[0] - sizes[1] == 4 * 6 * 32 * 8 * 8


class Twice(nn.Module):
    """A convolution's output that two operations save, one of them in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.neuron, self.conv = FusedLIF(step_mode="m"), nn.Conv2d(16, 16, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.neuron(x).flatten(0, 1))
        return y.sin().unflatten(0, x.shape[:2]) + y.unflatten(0, x.shape[:2]) ** 2


def test_an_output_that_is_saved_twice_is_computed_once(again):
    models = both_ways(Twice().to(memory_format=CHANNELS_LAST))
    x = frames(3, 2, 16, 8, 8).requires_grad_()
    grad, results = torch.randn(3, 2, 16, 6, 6), []
    for model in models:
        y = model(x)
        results += [(y, torch.autograd.grad(y, [x, model.conv.weight], grad, retain_graph=True)) for _ in range(2)]
        assert len(again) == (0 if model is models[0] else 2)  # once in each backward
    for other in results[1:]:
        assert_equal(results[0], other)


class Changing(nn.Module):
    """Changes a convolution's output in place after the first reader saved it."""

    def __init__(self) -> None:
        super().__init__()
        self.neuron, self.conv = FusedLIF(), nn.Conv2d(16, 16, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.neuron(x)).mul_(0.5)
        return y.sin()


def test_an_output_that_is_changed_in_place_is_kept_as_it_is(again):
    models = both_ways(Changing().to(memory_format=CHANNELS_LAST))
    x, grad = torch.randn(2, 16, 8, 8).to(memory_format=CHANNELS_LAST), torch.randn(2, 16, 6, 6)
    assert_equal(*(outputs_and_gradients(model, x, grad) for model in models))
    assert again == []


def test_weights_that_change_before_backward_are_an_error():
    model = small_net().to(memory_format=CHANNELS_LAST)
    optimize(model, recompute=True)
    y = model(frames(3, 2, 3, 16, 16))
    with torch.no_grad():
        model[3].weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"weights of shape \(32, 16, 3, 3\) were changed in place between forward"):
        y.sum().backward()


def test_nothing_else_changes_in_backward():
    """No random number is drawn, and no second graph is made."""
    model = small_net().to(memory_format=CHANNELS_LAST)
    optimize(model, recompute=True)
    y = model(frames(3, 2, 3, 16, 16))
    state, statistics = torch.get_rng_state(), [b.clone() for b in model.buffers()]
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), state)
    for before, after in zip(statistics, model.buffers(), strict=True):
        assert torch.equal(before, after)


def test_parameters_given_for_one_call(again):
    models = both_ways(small_net().to(memory_format=CHANNELS_LAST))
    given = {name: torch.randn_like(p).requires_grad_() for name, p in models[0].named_parameters()}
    x, grad, results = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 10), []
    for model in models:
        y = torch.func.functional_call(model, given, (x,))
        results.append((y.detach(), torch.autograd.grad(y, list(given.values()), grad)))
        reset_states(model)
    assert_equal(*results)
    assert again


def test_without_gradients(again):
    models = both_ways(small_net().to(memory_format=CHANNELS_LAST))
    x = frames(3, 2, 3, 16, 16)
    for evaluate in (torch.no_grad, torch.inference_mode):
        results = []
        for model in models:
            reset_states(model)
            with evaluate():
                results.append(model(x))
        assert torch.equal(*results)
    assert again == []


def test_autocast(again, monkeypatch):
    """Backward, which runs outside of it, computes again what autocast computed."""
    compute, dtypes = Computed._computed, []
    monkeypatch.setattr(Computed, "_computed", lambda self: dtypes.append(self._dtype) or compute(self))
    models = both_ways(small_net().to(memory_format=CHANNELS_LAST))
    x, grad, results = frames(3, 2, 3, 16, 16), torch.randn(3, 2, 10).bfloat16(), []
    for model in models:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        results.append((y.detach(), torch.autograd.grad(y, list(model.parameters()), grad)))
    assert_equal(*results)
    assert dtypes == [torch.bfloat16]
    assert again == []


def test_restore_and_report():
    model = nn.Sequential(
        layer.Conv2d(16, 32, 3, bias=False), neuron.LIFNode(), layer.Conv2d(32, 32, 3, groups=2),
        nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"),
    )  # fmt: skip
    before = snapshot(model)
    report = optimize(model, recompute=True)
    said = {entry.name: entry.how for entry in report.changed}
    assert said["0"] == "reads spikes as bits, and its outputs for spikes are computed again in backward"
    assert said["2"] == "its outputs for spikes are computed again in backward"
    assert [entry.name for entry in report.left] == ["3"]
    other = copy.deepcopy(model)
    assert other[0].recompute
    restore(model)
    for first, then in zip(before, snapshot(model), strict=True):
        assert first[:3] == then[:3]
        assert first[3].keys() == then[3].keys()
