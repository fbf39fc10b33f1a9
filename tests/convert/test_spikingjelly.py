"""SpikingJelly's neurons become fused ones with the same spikes, membranes and gradients."""

import copy
import functools
import pickle
from collections.abc import Callable

import pytest
import torch
from spikingjelly.activation_based import neuron, surrogate
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


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    """Every neuron of SpikingJelly's own models: same outputs, same gradient of every parameter, in both step modes."""
    torch.manual_seed(1)
    model = MODELS[name](detach_reset=name == "sew_resnet18").double()
    converted = copy.deepcopy(model)
    report = convert_neurons(converted, backend="reference")
    assert not report.left
    assert all(isinstance(m, FusedLIF) for m in converted.modules() if isinstance(m, neuron.BaseNode))
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


def test_a_shared_neuron_stays_shared():
    node = neuron.IFNode()
    net = nn.Sequential(nn.Linear(4, 4), node, nn.Sequential(nn.Linear(4, 4), node))
    report = convert_neurons(net)
    assert [entry.name for entry in report.swapped] == ["1", "2.1"]
    assert net[1] is net[2][1] is node
    assert isinstance(net[1], FusedLIF)


class Leaking(neuron.LIFNode):
    """Fires earlier and earlier: dynamics of its own."""

    def single_step_forward(self, x: Tensor) -> Tensor:
        self.v_threshold *= 0.9
        return super().single_step_forward(x)


class Labelled(neuron.LIFNode):
    """Other defaults, and an attribute and a method more: the same dynamics."""

    def __init__(self, label: str = "") -> None:
        super().__init__(tau=3.0, v_reset=None, detach_reset=True, surrogate_function=surrogate.ATan())
        self.label = label

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, label={self.label}"

    def shout(self) -> str:
        return self.label.upper()


def test_a_class_with_other_defaults_is_made_fused_and_stays_what_it_is():
    net = nn.Sequential(Labelled("a"), neuron.IFNode())
    plain = copy.deepcopy(net)
    assert not convert_neurons(net, backend="reference").left
    for node in (net[0], copy.deepcopy(net[0]), pickle.loads(pickle.dumps(net[0]))):
        assert isinstance(node, Labelled)
        assert isinstance(node, FusedLIF)
        assert node.shout() == "A"
        assert "label=a" in repr(node)
        assert_same(plain[0], node, sequence())


def patched() -> neuron.LIFNode:
    node = neuron.LIFNode()
    node.single_step_forward = lambda x: x
    return node


def with_attribute(name: str) -> Callable[[], neuron.LIFNode]:
    def make() -> neuron.LIFNode:
        node = neuron.LIFNode()
        setattr(node, name, 0.5)
        return node

    return make


def learned_threshold() -> neuron.IFNode:
    node = neuron.IFNode()
    node.v_threshold = torch.ones(())
    return node


def of_low_precision() -> neuron.LIFNode:
    node = neuron.LIFNode()
    node._neuron_precision = (torch.float16, "fp16", "fp16")
    return node


class OwnSurrogate(nn.Module):
    alpha = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


LEFT = {
    "Leaking has a single_step_forward of its own": Leaking,
    "it has a single_step_forward of its own on the object": patched,
    "it has a decay of its own on the object": with_attribute("decay"),
    "it has a rest of its own on the object": with_attribute("rest"),
    "LeakyKReLU": lambda: neuron.LIFNode(surrogate_function=surrogate.LeakyKReLU()),
    "PiecewiseLeakyReLU": lambda: neuron.LIFNode(surrogate_function=surrogate.PiecewiseLeakyReLU(c=0.01)),
    "OwnSurrogate is not one of SpikingJelly's": lambda: neuron.LIFNode(surrogate_function=OwnSurrogate()),
    "primitive": lambda: neuron.LIFNode(surrogate_function=surrogate.Sigmoid(spiking=False)),
    "alpha": lambda: neuron.LIFNode(surrogate_function=surrogate.Sigmoid(alpha=torch.ones(()))),
    "not above": lambda: neuron.LIFNode(v_threshold=1.0, v_reset=1.0),
    "v_threshold is tensor": learned_threshold,
    "precision": of_low_precision,
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_no_fused_function_is_left_alone(reason):
    node = LEFT[reason]()
    net = nn.Sequential(neuron.LIFNode(), node)
    kind = type(node)
    report = convert_neurons(net)
    assert net[1] is node
    assert type(node) is kind
    assert [entry.name for entry in report.left] == ["1"]
    assert reason in report.left[0].reason
    assert "1 of 2 neuron layers are fused now:" in str(report)
    assert f"left alone: {report.left[0].reason}" in str(report)


OTHER_NODES = {
    "QIFNode": {}, "EIFNode": {}, "IzhikevichNode": {}, "RAFNode": {}, "KLIFNode": {}, "ComplementaryLIFNode": {},
    "CUBALIFNode": {}, "ILIFNode": {}, "TernaryLIFNode": {}, "HalfThresholdIFNode": {}, "OTTTLIFNode": {},
    "SLTTLIFNode": {}, "NonSpikingLIFNode": {}, "GatedLIFNode": {"T": 4}, "PSN": {"T": 4}, "SlidingPSN": {"k": 2},
    "LIAFNode": {"act": torch.relu, "threshold_related": False}, "SimpleLIFNode": {"tau": 2.0, "decay_input": True},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_NODES)
def test_neurons_with_other_dynamics_are_named(name):
    node = getattr(neuron, name)(**OTHER_NODES[name])
    report = convert_neurons(nn.ModuleDict({"its": node}))
    assert [(entry.name, entry.was) for entry in report.left] == [("its", name)]
    assert f"{name} has dynamics of its own; fused are LIFNode, IFNode, ParametricLIFNode" in str(report)


def test_strict_names_what_is_left_and_changes_nothing():
    net = nn.Sequential(neuron.LIFNode(), Leaking(), neuron.QIFNode())
    with pytest.raises(NotConvertible, match=r"1 \(Leaking\) has .*; nor have 2 \(QIFNode\)\. Build .*docs/"):
        convert_neurons(net, strict=True)
    assert [type(node) for node in net] == [neuron.LIFNode, Leaking, neuron.QIFNode]


def test_a_neuron_alone():
    node = neuron.LIFNode()
    assert [entry.name for entry in convert_neurons(node).swapped] == [""]
    assert isinstance(node, FusedLIF)
    with pytest.raises(NotConvertible, match=r"the model \(QIFNode\) has no fused equal"):
        convert_neurons(neuron.QIFNode(), strict=True)


def test_a_model_without_neurons_is_left_as_it_is():
    report = convert_neurons(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    assert str(report) == (
        "0 of 0 neuron layers are fused now: no neuron of SpikingJelly or snnTorch is among its layers, which are "
        "Linear, ReLU."
    )
    assert str(convert_neurons(nn.Sequential())) == "0 of 0 neuron layers are fused now."


def test_converting_twice_changes_nothing():
    net = nn.Sequential(neuron.LIFNode())
    convert_neurons(net)
    kind, attributes = type(net[0]), dict(vars(net[0]))
    assert convert_neurons(net, strict=True).swapped == ()
    assert type(net[0]) is kind
    assert vars(net[0]) == attributes


def test_training_mode_and_backend_are_kept():
    net = nn.Sequential(neuron.LIFNode()).eval()
    convert_neurons(net, backend="reference")
    assert not net[0].training
    assert net[0].backend == "reference"
    plain = nn.Sequential(neuron.LIFNode())
    with pytest.raises(ValueError, match="no_such"):
        convert_neurons(plain, backend="no_such")
    assert type(plain[0]) is neuron.LIFNode


def test_a_fused_twin_leaves_the_neuron_as_it_is():
    node = neuron.LIFNode()
    node.register_forward_hook(lambda *_: torch.zeros(()))
    x = sequence(torch.float32)
    node(x[0])
    twin = fused_like(node)
    assert type(node) is neuron.LIFNode
    assert not twin._forward_hooks
    assert torch.equal(twin.v, node.v)
    twin(x[1])
    assert not torch.equal(twin.v, node.v)
