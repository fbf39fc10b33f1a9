"""Neurons of libraries that none is converted from are named, and those of old versions of SpikingJelly are known.

The libraries are not installed here: classes with the names and attributes of theirs stand in for them.
"""

import copy
import pickle
import sys
import types

import pytest
import torch
from spikingjelly.activation_based import layer, neuron, surrogate
from torch import Tensor, nn

from stdl_engine import FusedLIF
from stdl_engine.convert import convert_neurons, units_from
from stdl_engine.convert.models import name_of
from stdl_engine.neurons.foreign import NotConvertible
from stdl_engine.neurons.foreign.others import NEURONS
from stdl_engine.neurons.foreign.swap import LIBRARIES

MODULES = {
    "norse": "norse.torch.module.snn",
    "sinabs": "sinabs.layers.stateful_layer",
    "bindsnet": "bindsnet.network.nodes",
    "rockpool": "rockpool.nn.modules.torch.lif_torch",
    "lava": "lava.lib.dl.slayer.neuron.base",
}


def stand_in(library: str, base_name: str, name: str) -> type[nn.Module]:
    """A neuron's class, derived from the one that all neurons of a library derive from."""
    parent = type(base_name, (nn.Module,), {"__module__": MODULES[library]})
    return type(name, (parent,), {"__module__": MODULES[library], "forward": lambda self, x: x})


def test_every_library_is_known():
    assert NEURONS.keys() == MODULES.keys() == {name for name, file in LIBRARIES.items() if file == ".others"}


@pytest.mark.parametrize(
    ("library", "base_name"), [(lib, name) for lib, names in NEURONS.items() for name in sorted(names)]
)
def test_neurons_of_other_libraries_are_named(library, base_name, monkeypatch):
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    cell = stand_in(library, base_name, "SomeCell")
    net = nn.Sequential(nn.Linear(2, 2), cell(), nn.Linear(2, 2), neuron.LIFNode(), cell(), nn.Linear(2, 2))
    report = convert_neurons(copy.deepcopy(net))
    assert str(report).startswith("1 of 3 neuron layers are fused now:")
    assert [(entry.name, entry.was) for entry in report.left] == [("1", "SomeCell"), ("4", "SomeCell")]
    message = rf"1 \(SomeCell\) has no fused equal: it is a neuron of {library}; .* nor have 4 \(SomeCell\)\. Build the"
    for refuse in (lambda: convert_neurons(net, strict=True), lambda: units_from(net)):
        with pytest.raises(NotConvertible, match=message):
            refuse()
        assert type(net[3]) is neuron.LIFNode


def test_layers_of_other_libraries_that_are_no_neurons_are_not_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sinabs", types.ModuleType("sinabs"))
    pool = type("SumPool2d", (nn.LPPool2d,), {"__module__": "sinabs.layers.pool2d"})
    assert convert_neurons(nn.Sequential(pool(1, 2), neuron.LIFNode()), strict=True).left == ()


class OldBaseNode(nn.Module):
    """The layout of 0.0.0.0.12: threshold and reset are memories, there is no step mode, and no name but `forward`."""

    def __init__(self, v_threshold=1.0, v_reset=0.0, surrogate_function=None, detach_reset=False) -> None:
        super().__init__()
        self._memories, self._memories_rv = {}, {}
        self.register_memory("v", 0.0 if v_reset is None else v_reset)
        self.register_memory("v_threshold", v_threshold)
        self.register_memory("v_reset", v_reset)
        self.detach_reset = detach_reset
        self.surrogate_function = surrogate_function or surrogate.Sigmoid()

    def register_memory(self, name: str, value) -> None:
        self._memories[name] = self._memories_rv[name] = value

    def named_memories(self):
        return self._memories.items()

    def __getattr__(self, name: str):
        memories = vars(self).get("_memories", {})
        return memories[name] if name in memories else super().__getattr__(name)

    def __setattr__(self, name: str, value) -> None:
        if name in vars(self).get("_memories", {}):
            self._memories[name] = value
        else:
            super().__setattr__(name, value)

    def reset(self) -> None:
        self._memories.update(copy.deepcopy(self._memories_rv))

    def forward(self, x: Tensor) -> Tensor:
        spike = self.charge_and_fire(x)
        fired = spike.detach() if self.detach_reset else spike
        soft = self.v_reset is None
        self.v = self.v - fired * self.v_threshold if soft else (1 - fired) * self.v + fired * self.v_reset
        return spike

    def charge_and_fire(self, x: Tensor) -> Tensor:
        rest = 0.0 if self.v_reset is None else self.v_reset
        self.v = self.v + (x - (self.v - rest)) / self.tau
        return self.surrogate_function(self.v - self.v_threshold)

    def extra_repr(self) -> str:
        return f"tau={self.tau}"


def old_classes() -> tuple[type[OldBaseNode], type[OldBaseNode]]:
    """`LIFNode` and `MultiStepLIFNode` of `spikingjelly.clock_driven.neuron`."""

    def init(self, tau=2.0, decay_input=True, **options) -> None:
        OldBaseNode.__init__(self, **options)
        self.tau, self.decay_input = tau, decay_input

    def multi_init(self, *args, backend="torch", **options) -> None:
        init(self, *args, **options)
        self.register_memory("v_seq", None)
        self.backend = backend

    def forward(self, x_seq: Tensor) -> Tensor:
        return torch.stack([single.forward(self, x) for x in x_seq])

    where = {"__module__": "spikingjelly.clock_driven.neuron"}
    single = type("LIFNode", (OldBaseNode,), where | {"__init__": init})
    return single, type("MultiStepLIFNode", (single,), where | {"__init__": multi_init, "forward": forward})


OldLIFNode, OldMultiStepLIFNode = old_classes()


@pytest.fixture
def old_module(monkeypatch):
    """Where pickles find the classes."""
    module = types.ModuleType("spikingjelly.clock_driven.neuron")
    module.LIFNode, module.MultiStepLIFNode = OldLIFNode, OldMultiStepLIFNode
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("kind", [OldLIFNode, OldMultiStepLIFNode])
@pytest.mark.parametrize("v_reset", [None, 0.0, -0.3])
def test_neurons_of_clock_driven_days(kind, v_reset, old_module):
    node = kind(tau=1.7, v_threshold=0.8, v_reset=v_reset)
    fused = copy.deepcopy(node)
    convert_neurons(fused, backend="reference", strict=True)
    assert isinstance(fused, FusedLIF)
    assert isinstance(fused, kind)
    assert dict(fused.named_memories()) == dict(node.named_memories())
    x = (torch.randn(5, 3, 7).double() + 0.5).requires_grad_()
    for twin in (fused, pickle.loads(pickle.dumps(fused))):
        node.reset()
        outputs = [
            one(x) if kind is OldMultiStepLIFNode else torch.stack([one(frame) for frame in x]) for one in (node, twin)
        ]
        assert torch.equal(*outputs)
        assert 0 < outputs[0].mean() < 1
        torch.testing.assert_close(twin.v, node.v, rtol=1e-12, atol=1e-12)
        torch.manual_seed(2)
        grad = torch.randn_like(x)
        found = [torch.autograd.grad(output, x, grad, retain_graph=True)[0] for output in outputs]
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_a_threshold_of_those_days_is_reset_with_the_rest():
    fused = OldLIFNode(v_threshold=0.8)
    convert_neurons(fused)
    fused.v_threshold = 2.0
    assert fused.threshold == 2.0
    fused.reset()
    assert fused.v_threshold == fused.threshold == 0.8


def test_units_ask_for_the_single_step_neuron():
    net = nn.Sequential(nn.Linear(3, 4), OldMultiStepLIFNode(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"1 \(MultiStepLIFNode\) .* put LIFNode in its place"):
        units_from(net)
    net[1] = OldLIFNode()
    assert [unit.label for unit in units_from(net)] == ["4L", "2FC"]


def test_models_of_clock_driven_days_are_known():
    """Their classes have the layers of today's, in another package."""
    model = type("SEWResNet", (nn.Module,), {"__module__": "spikingjelly.clock_driven.model.sew_resnet"})()
    assert name_of(model) == "sew_resnet.SEWResNet"
    assert name_of(nn.Linear(2, 2)) == ""


class OldDropout(layer.Dropout):
    """Before version 2.0 `create_mask` kept the mask and returned nothing."""

    def create_mask(self, x: Tensor) -> None:
        self.mask = super().create_mask(x)


def test_dropout_of_those_days():
    model = nn.Sequential(nn.Linear(4, 50), neuron.IFNode(), OldDropout(0.5), nn.Linear(50, 2))
    dropout = units_from(model)[0].layers[2]
    first = dropout(torch.ones(2, 50))
    assert 0 < first.mean() < 2
    assert torch.equal(dropout(torch.ones(2, 50)), first)
    dropout.reset()
    assert not torch.equal(dropout(torch.ones(2, 50)), first)


def test_fixed_point_is_left_alone():
    report = convert_neurons(nn.Sequential(OldMultiStepLIFNode(backend="lava")))
    assert "lava" in report.left[0].reason
