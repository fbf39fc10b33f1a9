"""snnTorch's Leaky on the fused step: same outputs, same gradients, same ways to hold the state."""

import copy
import pickle
import re

import pytest
import torch
from torch import Tensor, nn

import stdl_engine
from stdl_engine import FusedLIF
from stdl_engine.convert import convert_neurons, fused_like, units_from
from stdl_engine.kernels.surrogate import ATan

snn = pytest.importorskip("snntorch")
surrogate, utils = snn.surrogate, pytest.importorskip("snntorch.utils")

STEPS = 6


def sequence(shape=(4, 9)) -> Tensor:
    x = torch.randn(STEPS, *shape) + 0.5
    x[:, 0] *= 4  # membranes beyond twice the threshold, and below zero
    return x.requires_grad_()


def through(leaky: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Spikes and membranes of all steps and the gradient of the input, for random gradients of both."""
    mem, outputs = leaky.reset_mem(), []
    for frame in x:
        spikes, mem = leaky(frame, mem)
        outputs.append((spikes, mem))
    spikes, membranes = (torch.stack(output) for output in zip(*outputs, strict=True))
    torch.manual_seed(3)
    grads = torch.randn_like(spikes), torch.randn_like(membranes)
    (grad,) = torch.autograd.grad([spikes, membranes], x, grads)
    return spikes.detach(), membranes.detach(), grad


def assert_same(leaky: nn.Module, fused: nn.Module, x: Tensor) -> None:
    expected, found = through(leaky, x), through(fused, x)
    assert 0 < expected[0].mean() < 1
    assert torch.equal(found[0], expected[0])
    for own, theirs in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reset_delay", [True, False])
@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("beta", [0.85, 1.4])
def test_dynamics(beta, reset, reset_delay):
    """A beta above 1 is taken as 1."""
    leaky = snn.Leaky(beta, threshold=0.9, reset_mechanism=reset, reset_delay=reset_delay)
    assert_same(leaky, fused_like(leaky, backend="reference"), sequence())


SURROGATES = {
    "atan": surrogate.atan(1.5),
    "sigmoid": surrogate.sigmoid(3),
    "fast_sigmoid": surrogate.fast_sigmoid(7),
    "default": None,
}


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates(name):
    leaky = snn.Leaky(0.7, spike_grad=SURROGATES[name], reset_mechanism="zero")
    assert_same(leaky, fused_like(leaky, backend="reference"), sequence())


def test_the_fused_kernel():
    leaky = snn.Leaky(0.8)
    assert_same(leaky, fused_like(leaky), sequence())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    leaky = snn.Leaky(0.8).cuda()
    assert_same(leaky, fused_like(leaky), sequence().detach().cuda().requires_grad_())


def test_fires_above_the_threshold_and_not_at_it():
    leaky = snn.Leaky(0.5, threshold=0.7)
    fused = fused_like(leaky)
    threshold = leaky.threshold.item()
    x = torch.tensor([threshold, threshold * 1.000001])
    assert leaky(x)[0].tolist() == fused(x)[0].tolist() == [0.0, 1.0]


def network(**options) -> nn.Sequential:
    torch.manual_seed(2)
    options |= {"init_hidden": True, "spike_grad": surrogate.atan()}
    return nn.Sequential(
        nn.Linear(6, 12), snn.Leaky(0.9, **options), nn.Linear(12, 4), snn.Leaky(0.9, output=True, **options)
    )


def train(net: nn.Sequential, x: Tensor) -> list[Tensor]:
    """Spikes and membranes of the last layer, and all gradients, after snnTorch's own reset."""
    utils.reset(net)
    net.zero_grad()
    outputs = [torch.stack(output) for output in zip(*(net(frame) for frame in x), strict=True)]
    torch.manual_seed(3)
    torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    return [*(output.detach() for output in outputs), *(p.grad.clone() for p in net.parameters())]


def test_a_network_with_hidden_states():
    plain, net, x = network(), network(), torch.randn(STEPS, 5, 6)
    report = convert_neurons(net)
    assert [entry.name for entry in report.swapped] == ["1", "3"]
    assert list(net.state_dict()) == list(plain.state_dict())
    for _ in range(2):  # twice: the states are forgotten in between
        expected, found = train(plain, x), train(net, x)
        assert expected[0].any()
        for own, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-5)


def test_mem_is_not_passed_where_it_is_hidden():
    net = network()
    convert_neurons(net)
    with pytest.raises(TypeError, match="init_hidden"):
        net[1](torch.zeros(1, 12), torch.zeros(1, 12))


def test_a_loaded_beta_and_threshold_are_used():
    fused = fused_like(snn.Leaky(0.9, threshold=2.0))
    assert fused(torch.tensor([1.5]))[0].item() == 0
    fused.load_state_dict(snn.Leaky(0.3, threshold=1.0).state_dict())
    fused.reset_mem()
    _, mem = fused(torch.tensor([0.5]))
    _, mem = fused(torch.tensor([0.0]), mem)
    assert mem.item() == pytest.approx(0.15)
    assert fused(torch.tensor([1.5]), torch.zeros(1))[0].item() == 1


def test_copies_and_pickles():
    fused = fused_like(snn.Leaky(0.9, reset_mechanism="zero"))
    fused(torch.randn(3))
    for other in (copy.deepcopy(fused),):
        assert torch.equal(other.mem, fused.mem)
        assert torch.equal(other(torch.ones(3))[1], fused(torch.ones(3))[1])
    with pytest.raises(AttributeError, match="local object"):  # as snnTorch's own: its surrogates are closures
        pickle.dumps(fused)


LEFT = {
    "beta is learned": lambda: snn.Leaky(0.9, learn_beta=True),
    "threshold is learned": lambda: snn.Leaky(0.9, learn_threshold=True),
    "graded_spikes_factor is learned": lambda: snn.Leaky(0.9, learn_graded_spikes_factor=True),
    "beta is one number for each of 3": lambda: snn.Leaky(torch.rand(3)),
    "worth 2": lambda: snn.Leaky(0.9, graded_spikes_factor=2.0),
    "not a positive": lambda: snn.Leaky(0.9, threshold=0.0),
    "quantised": lambda: snn.Leaky(0.9, state_quant=torch.round),
    "none of atan, sigmoid": lambda: snn.Leaky(0.9, spike_grad=surrogate.triangular()),
    "spike_grad": lambda: snn.Leaky(0.9, spike_grad=torch.sigmoid),
    "Synaptic has dynamics of its own": lambda: snn.Synaptic(0.9, 0.8),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_the_fused_step_is_not_is_left_alone(reason):
    leaky = LEFT[reason]()
    net = nn.Sequential(leaky)
    report = convert_neurons(net)
    assert net[0] is leaky
    assert reason in report.left[0].reason


@pytest.mark.filterwarnings("ignore:Inhibition")
def test_inhibition_is_left_alone():
    report = convert_neurons(nn.Sequential(snn.Leaky(0.9, inhibition=True)))
    assert "inhibition" in report.left[0].reason


def test_the_state_goes_along():
    leaky, x = snn.Leaky(0.8), sequence()
    _, mem = leaky(x[0])
    fused = fused_like(leaky)
    assert type(leaky) is snn.Leaky
    assert_equal_step(leaky(x[1], mem), fused(x[1], mem))
    hidden = snn.Leaky(0.8, init_hidden=True, output=True)
    hidden(x[0])
    assert_equal_step(fused_like(hidden)(x[1]), hidden(x[1]))


def assert_equal_step(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for own, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(own, theirs)


def test_the_object_stays():
    net = network()
    first, handle = net[1], []
    first.register_forward_hook(lambda *_: handle.append(1))
    convert_neurons(net)
    assert net[1] is first
    assert isinstance(first, snn.Leaky)
    net(torch.randn(2, 6))
    assert handle == [1]


@pytest.mark.parametrize("reset_delay", [True, False])
@pytest.mark.parametrize("reset", ["zero", "none", "subtract"])
@pytest.mark.parametrize("name", ["atan", "fast_sigmoid"])
def test_units_say_what_to_put_in_its_place(name, reset, reset_delay):
    """The layer in the message can be pasted, and where the message says so it computes the same."""
    leaky = snn.Leaky(0.8, spike_grad=SURROGATES[name], reset_mechanism=reset, reset_delay=reset_delay)
    net = nn.Sequential(nn.Linear(9, 9), leaky, nn.Linear(9, 2))
    with pytest.raises(
        ValueError, match=r"1 \(Leaky\) cannot be cut into units: .* put FusedLIF\(.*\) in its place"
    ) as told:
        units_from(net)
    assert type(net[1]) is snn.Leaky
    layer = eval(
        re.search(r"put (FusedLIF\(.*\)) in its place", str(told.value))[1],
        {"FusedLIF": FusedLIF, "ATan": ATan, "stdl_engine": stdl_engine},
    )
    same = "computes the same" in str(told.value)
    assert same == (reset != "subtract")
    if same:
        x = sequence()
        expected, *_ = through(leaky, x)
        assert torch.equal(torch.stack([layer(frame) for frame in x]), expected)
        mem, outputs = leaky.reset_mem(), []
        for frame in x:
            spikes, mem = leaky(frame, mem)
            outputs.append(spikes)
        layer.reset()
        grads = []
        for spikes in (torch.stack(outputs), torch.stack([layer(frame) for frame in x])):
            torch.manual_seed(3)
            grads.append(torch.autograd.grad(spikes, x, torch.randn_like(spikes))[0])
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


def test_units_name_every_neuron_of_snntorch():
    for neuron in (snn.Synaptic(0.9, 0.8), snn.Leaky(0.9, learn_beta=True), snn.Leaky(0.9, inhibition=False)):
        with pytest.raises(ValueError, match=r"1 \(\w+\) .* membrane of a snnTorch neuron; put a? ?FusedLIF"):
            units_from(nn.Sequential(nn.Linear(2, 2), neuron, nn.Linear(2, 2)))
    net = network()
    convert_neurons(net)
    with pytest.raises(ValueError, match=r"1 \(FusedLeaky\) .* put FusedLIF\("):
        units_from(net)
