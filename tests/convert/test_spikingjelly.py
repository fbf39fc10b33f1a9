"""SpikingJelly's neurons become fused ones with the same spikes, membranes and gradients."""

import copy
import functools
import pickle

import pytest
import torch
from spikingjelly.activation_based import base, functional, layer, neuron, surrogate
from torch import Tensor, nn

from stdl_engine import FusedLIF, FusedPLIF
from stdl_engine.convert import convert_neurons, fused_like
from stdl_engine.neurons.foreign import NotConvertible

from .nets import MODELS, run

STEPS = 6


def sequence(dtype=torch.float64, shape=(3, 7)) -> Tensor:
    return (torch.randn(STEPS, *shape, dtype=dtype) * 1.5 + 0.4).requires_grad_()


def through(node: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Spikes, last membrane and the gradients of input and parameters, for random ones of spikes and membrane."""
    node.reset()
    spikes = node(x) if node.step_mode == "m" else torch.stack([node(frame) for frame in x])
    torch.manual_seed(3)
    grads = torch.randn_like(spikes), torch.randn_like(node.v)
    gradients = torch.autograd.grad([spikes, node.v], [x, *node.parameters()], grads)
    return spikes.detach(), node.v.detach(), *gradients


def assert_same(node: nn.Module, fused: nn.Module, x: Tensor, tolerance: float = 1e-12) -> None:
    (spikes, *others), (own_spikes, *own_others) = through(node, x), through(fused, x)
    assert 0 < spikes.mean() < 1  # some fire and some do not
    assert torch.equal(own_spikes, spikes)
    for own, theirs in zip(own_others, others, strict=True):
        torch.testing.assert_close(own, theirs, rtol=tolerance, atol=tolerance)


RESETS = {"soft": None, "to 0": 0.0, "above": 0.3, "below": -0.5}
NODES = {
    "LIF": lambda **options: neuron.LIFNode(tau=2.7, decay_input=True, **options),
    "LIF, input not decayed": lambda **options: neuron.LIFNode(tau=1.6, decay_input=False, **options),
    "IF": neuron.IFNode,
    "PLIF": lambda **options: neuron.ParametricLIFNode(init_tau=2.7, decay_input=True, **options).double(),
    "PLIF, input not decayed": lambda **options: neuron.ParametricLIFNode(1.6, False, **options).double(),
}


@pytest.mark.parametrize("detach_reset", [True, False])
@pytest.mark.parametrize("v_reset", RESETS.values(), ids=RESETS)
@pytest.mark.parametrize("make", NODES.values(), ids=NODES)
def test_dynamics(make, v_reset, detach_reset):
    node = make(v_threshold=1.2, v_reset=v_reset, detach_reset=detach_reset)
    fused = fused_like(node, backend="reference")
    assert isinstance(fused, FusedPLIF if isinstance(node, neuron.ParametricLIFNode) else FusedLIF)
    assert_same(node, fused, sequence())


SURROGATES = [
    surrogate.Sigmoid(3.0),
    surrogate.ATan(2.5),
    surrogate.PiecewiseQuadratic(0.7),
    surrogate.PiecewiseExp(1.3),
    surrogate.SoftSign(1.7),
    surrogate.SuperSpike(0.8),
    surrogate.Erf(1.4),
    surrogate.Rect(0.6),
    surrogate.PiecewiseLeakyReLU(w=0.8, c=0),
]


@pytest.mark.parametrize("function", SURROGATES, ids=lambda f: type(f).__name__)
def test_surrogates(function):
    node = neuron.LIFNode(surrogate_function=function, v_reset=None)
    assert_same(node, fused_like(node, backend="reference"), sequence())


def test_float32_on_the_fused_kernel():
    node = neuron.LIFNode(tau=2.0, v_reset=-0.5)
    assert_same(node, FusedLIF.from_spikingjelly(node), sequence(torch.float32), 2e-6)


def test_the_decay_s_parameter_is_the_node_s_own():
    node = neuron.ParametricLIFNode(init_tau=4.0)
    fused = fused_like(node, backend="reference")
    assert fused.w is node.w
    assert fused.decay == pytest.approx(0.75)
    assert list(fused.state_dict()) == list(node.state_dict()) == ["w"]
    fused.load_state_dict(neuron.ParametricLIFNode(init_tau=2.0).state_dict())
    assert fused.decay == pytest.approx(0.5)
    x = sequence(torch.float32)
    assert_same(node, fused, x, 1e-5)
    assert fused.w is node.w  # and not what the last step made of it


@pytest.mark.parametrize("step_mode", ["s", "m"])
def test_membranes_are_stored(step_mode):
    node = neuron.LIFNode(v_reset=0.2, step_mode=step_mode, store_v_seq=True)
    fused = fused_like(node, backend="reference")
    x = sequence()
    for _ in range(2):  # a second call without a reset: "s" goes on storing, "m" begins anew
        for layer_ in (node, fused):
            layer_(x) if step_mode == "m" else [layer_(frame) for frame in x]
    assert len(node.v_seq) == (STEPS if step_mode == "m" else 2 * STEPS)
    torch.testing.assert_close(fused.v_seq, node.v_seq, rtol=1e-12, atol=1e-12)
    fused.detach()
    assert not fused.v_seq.requires_grad
    fused.reset()
    assert fused.v_seq is None
    assert fused.v == 0.2


def test_attributes_of_the_node_can_be_read_and_not_set():
    fused = fused_like(neuron.LIFNode(v_threshold=1.5, v_reset=-0.5))
    assert (fused.v_threshold, fused.v_reset, fused.v) == (1.5, -0.5, -0.5)
    for name in ("v_threshold", "v_reset", "v"):
        with pytest.raises(AttributeError):
            setattr(fused, name, 1.0)


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    """Every neuron of SpikingJelly's own models: same outputs, same gradient of every parameter, in both step modes."""
    torch.manual_seed(1)
    model = MODELS[name](detach_reset=name == "sew_resnet18").double()
    converted = copy.deepcopy(model)
    report = convert_neurons(converted, backend="reference")
    assert not report.left
    assert not any(isinstance(module, neuron.BaseNode) for module in converted.modules())
    assert list(converted.state_dict()) == list(model.state_dict())
    x, grad = torch.randn(2, 2, 3, 32, 32).double(), torch.randn(2, 2, 10).double()
    for mode in ("s", "m"):
        expected, gradients = run(model, x, mode, grad)
        outputs, own_gradients = run(converted, x, mode, grad)
        assert expected.std() > 0.01
        torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-9)
        for key, gradient in gradients.items():
            message = functools.partial("{}: {}".format, key)
            torch.testing.assert_close(own_gradients[key], gradient, rtol=1e-8, atol=1e-9, msg=message)


def test_a_model_on_the_fused_kernel():
    """In float32, where a spike in a million may differ: here none does."""
    torch.manual_seed(1)
    model = MODELS["spiking_vgg11_bn"]()
    converted = copy.deepcopy(model)
    convert_neurons(converted)
    x, grad = torch.randn(2, 2, 3, 32, 32), torch.randn(2, 2, 10)
    expected, gradients = run(model, x, "s", grad)
    outputs, own_gradients = run(converted, x, "s", grad)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for key, gradient in gradients.items():
        assert (own_gradients[key] - gradient).abs().max() < 1e-5 * largest, key


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("step_mode", ["s", "m"])
def test_on_a_gpu(step_mode):
    for make in (neuron.LIFNode, neuron.ParametricLIFNode):
        node = make(v_reset=-0.5, step_mode=step_mode).cuda()
        x = sequence(torch.float32).detach().cuda().requires_grad_()
        assert_same(node, fused_like(node), x, 1e-5)


class Caught(list):
    """SpikingJelly's warnings while it looks at modules."""

    def warning(self, *message) -> None:
        self.append(message)


def test_spikingjelly_handles_fused_neurons_as_its_own(monkeypatch):
    from spikingjelly.activation_based.functional import net_config

    warnings = Caught()
    monkeypatch.setattr(net_config, "logger", warnings)
    net = nn.Sequential(nn.Linear(5, 4), neuron.LIFNode(), nn.Linear(4, 3), neuron.IFNode())
    functional.reset_net(net)  # which remembers what to reset
    kept = [net[1], net[3]]
    convert_neurons(net, backend="reference")
    functional.set_step_mode(net, "m")
    assert [net[1].step_mode, net[3].step_mode] == ["m", "m"]
    with pytest.raises(ValueError, match="step_mode"):
        functional.set_step_mode(net, "x")
    net(torch.randn(2, 6, 5)).sum().backward()
    functional.detach_net(net)
    assert net[1].membrane is not None
    assert not net[1].membrane.requires_grad
    assert len(base.extract_memories(net)) == 2
    functional.reset_net(net)
    assert net[1].membrane is None
    assert net[3].membrane is None
    assert kept[0] is not net[1]
    assert warnings == []


def test_states_are_memories_to_spikingjelly():
    """What its checkpointing needs: states taken out, put back, and the forward as a function of them."""
    net = nn.Sequential(layer.Linear(5, 4), neuron.LIFNode())
    convert_neurons(net)
    step, x = base.to_functional_forward(net), torch.randn(3, 2, 5)
    states: tuple = (None,)
    outputs = []
    for frame in x:
        (spikes,), states = step((frame,), states)
        outputs.append(spikes)
    assert net[1].membrane is None  # nothing was left behind
    assert torch.equal(torch.stack(outputs), torch.stack([net(frame) for frame in x]))


def test_copies_pickles_and_moves_take_the_state_along():
    fused = fused_like(neuron.LIFNode(v_reset=None))
    x = torch.randn(4).requires_grad_()
    fused(x)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        assert torch.equal(other.membrane, fused.membrane)
        assert not other.membrane.requires_grad
        other.reset()
        assert fused.membrane is not None
    assert fused.half().membrane.dtype == torch.float32
    assert fused.double().membrane.dtype == torch.float64


def test_a_shared_neuron_stays_shared():
    node = neuron.IFNode()
    net = nn.Sequential(nn.Linear(4, 4), node, nn.Sequential(nn.Linear(4, 4), node))
    report = convert_neurons(net)
    assert [entry.name for entry in report.swapped] == ["1", "2.1"]
    assert net[1] is net[2][1]
    assert isinstance(net[1], FusedLIF)


class Leaking(neuron.LIFNode):
    pass


def hooked() -> neuron.LIFNode:
    node = neuron.LIFNode()
    node.register_forward_hook(lambda *_: None)
    return node


def running() -> neuron.LIFNode:
    node = neuron.LIFNode()
    node(torch.zeros(3))
    return node


def started_elsewhere() -> neuron.IFNode:
    node = neuron.IFNode()
    node.set_reset_value("v", 0.5)
    return node


def learned_threshold() -> neuron.IFNode:
    node = neuron.IFNode()
    node.v_threshold = torch.ones(())
    return node


LEFT = {
    "dynamics of its own": Leaking,
    "QIFNode": neuron.QIFNode,
    "LeakyKReLU": lambda: neuron.LIFNode(surrogate_function=surrogate.LeakyKReLU()),
    "PiecewiseLeakyReLU": lambda: neuron.LIFNode(surrogate_function=surrogate.PiecewiseLeakyReLU(c=0.01)),
    "primitive": lambda: neuron.LIFNode(surrogate_function=surrogate.Sigmoid(spiking=False)),
    "alpha": lambda: neuron.LIFNode(surrogate_function=surrogate.Sigmoid(alpha=torch.ones(()))),
    "not above": lambda: neuron.LIFNode(v_threshold=1.0, v_reset=1.0),
    "hooks": hooked,
    "middle of a sequence": running,
    "starts at 0.5": started_elsewhere,
    "v_threshold is tensor": learned_threshold,
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_no_fused_function_is_left_alone(reason):
    node = LEFT[reason]()
    net = nn.Sequential(neuron.LIFNode(), node)
    report = convert_neurons(net)
    assert net[1] is node
    assert [entry.name for entry in report.left] == ["1"]
    assert reason in report.left[0].reason
    assert "1 of 2 neuron layers are fused now:" in str(report)
    assert f"left alone: {report.left[0].reason}" in str(report)


def test_strict_changes_nothing():
    net = nn.Sequential(neuron.LIFNode(), Leaking())
    with pytest.raises(NotConvertible, match=r"1 \(Leaking\) has no fused equal: .*docs/convert\.md"):
        convert_neurons(net, strict=True)
    assert type(net[0]) is neuron.LIFNode


def test_a_bare_neuron_is_no_model():
    with pytest.raises(TypeError, match="fused_like"):
        convert_neurons(neuron.LIFNode())


def test_a_model_without_neurons_is_left_as_it_is():
    report = convert_neurons(nn.Sequential(nn.Linear(2, 2)))
    assert str(report) == "0 of 0 neuron layers are fused now."


def test_converting_twice_changes_nothing():
    net = nn.Sequential(neuron.LIFNode())
    convert_neurons(net)
    fused = net[0]
    assert convert_neurons(net).swapped == ()
    assert net[0] is fused


def test_training_mode_and_backend_are_kept():
    net = nn.Sequential(neuron.LIFNode()).eval()
    convert_neurons(net, backend="reference")
    assert not net[0].training
    assert net[0].backend == "reference"
    with pytest.raises(ValueError, match="no_such"):
        convert_neurons(nn.Sequential(neuron.LIFNode()), backend="no_such")
