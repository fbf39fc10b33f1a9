"""A fused node is still SpikingJelly's: found, read, assigned, reset, counted and copied as its own are."""

import copy
import functools
import gc
import pickle
import weakref

import pytest
import torch
from spikingjelly.activation_based import base, functional, layer, monitor, neuron, op_counter, surrogate
from spikingjelly.activation_based.functional import net_config
from torch import Tensor, nn

from stdl_engine import FusedLIF
from stdl_engine.convert import convert_neurons, fused_like
from stdl_engine.neurons import Neuron, borrowed

STEPS = 5
close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)

KINDS = {
    "LIF": functools.partial(neuron.LIFNode, tau=2.7, v_reset=-0.2),
    "LIF, soft": functools.partial(neuron.LIFNode, tau=2.7, v_reset=None),
    "IF": functools.partial(neuron.IFNode, v_reset=0.3),
    "PLIF": lambda **options: neuron.ParametricLIFNode(v_reset=-0.2, **options).double(),
}
both_modes = pytest.mark.parametrize("step_mode", ["s", "m"])
every_kind = pytest.mark.parametrize("kind", KINDS)


def pair(kind: str, **options) -> tuple[nn.Module, nn.Module]:
    """A node and its fused twin."""
    node = KINDS[kind](**options)
    return node, fused_like(node, backend="reference")


def frames(steps: int = STEPS, shape: tuple[int, ...] = (3, 7)) -> Tensor:
    return (torch.randn(steps, *shape, dtype=torch.float64) * 1.5 + 0.4).requires_grad_()


def through(node: nn.Module, x: Tensor) -> Tensor:
    return node(x) if node.step_mode == "m" else torch.stack([node(frame) for frame in x])


def assert_go_on_alike(node: nn.Module, fused: nn.Module, x: Tensor) -> None:
    """The same spikes, state and gradients from here on."""
    found = []
    for one in (node, fused):
        spikes = through(one, x)
        torch.manual_seed(3)
        grads = torch.randn_like(spikes), torch.randn_like(one.v)
        gradients = torch.autograd.grad([spikes, one.v], [x, *one.parameters()], grads)
        found.append((spikes.detach(), one.v.detach(), *gradients))
    assert 0 < found[0][0].mean() < 1
    assert torch.equal(found[0][0], found[1][0])
    for theirs, ours in zip(*found, strict=True):
        close(ours, theirs)


ASSIGNED = {
    "v_threshold": 0.6,
    "v_reset": 0.1,
    "tau": 1.3,
    "decay_input": False,
    "detach_reset": True,
    "surrogate_function": surrogate.ATan(3.0),
}


@both_modes
@every_kind
@pytest.mark.parametrize("name", ASSIGNED)
def test_an_assignment_takes_effect(name, kind, step_mode):
    """Before the first step and in the middle of a sequence."""
    node, fused = pair(kind, step_mode=step_mode)
    if not hasattr(node, name):
        pytest.skip(f"{kind} has no {name}")
    x = frames()
    through(node, x), through(fused, x)
    assert getattr(fused, name) is getattr(node, name)
    for one in (node, fused):
        setattr(one, name, ASSIGNED[name])
    assert getattr(fused, name) is ASSIGNED[name]
    for one in (node, fused):
        one.detach()
    assert_go_on_alike(node, fused, frames())


def test_a_surrogate_changed_in_place_takes_effect():
    node, fused = pair("LIF")
    node.surrogate_function = copy.deepcopy(node.surrogate_function)
    node.surrogate_function.alpha = fused.surrogate_function.alpha = 1.5
    assert_go_on_alike(node, fused, frames())


REFUSED = {
    "tau": (0.5, "its tau is 0.5"),
    "v_threshold": (-1.0, "its v_threshold -1.0 is not above"),
    "v_reset": (2.0, "is not above the 2.0"),
    "surrogate_function": (surrogate.LeakyKReLU(), "its surrogate LeakyKReLU has no equal"),
    "_neuron_precision": ((torch.float16, "fp16", "fp16"), "precision of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_can_take_is_an_error_at_the_next_step(name):
    fused = fused_like(neuron.LIFNode())
    value, message = REFUSED[name]
    before = getattr(fused, name)
    setattr(fused, name, value)
    with pytest.raises(ValueError, match=f"FusedLIFNode cannot take a step: .*{message}.*docs/convert.md"):
        fused(torch.ones(2))
    setattr(fused, name, before)
    assert fused(torch.ones(2)).tolist() == [0.0, 0.0]


@both_modes
@every_kind
@pytest.mark.parametrize("value", [0.2, 5.0, "tensor", "parameter"])
def test_v_is_assigned(kind, value, step_mode):
    """Also to what is above the threshold already, which is no spike of the step before."""
    node, fused = pair(kind, step_mode=step_mode)
    start = torch.linspace(-1, 4, 21, dtype=torch.float64).view(3, 7).requires_grad_()
    x = frames()
    for one in (node, fused):
        through(one, x)
        one.v = {"tensor": start, "parameter": nn.Parameter(start.detach())}.get(value, value)
    assert_go_on_alike(node, fused, frames())
    if value == "tensor":
        for one in (node, fused):
            one.v = start
        torch.manual_seed(2)
        x, grad = frames(2), torch.randn(2, 3, 7, dtype=torch.float64)
        close(*(torch.autograd.grad(through(one, x), start, grad)[0] for one in (node, fused)))
    assert not any(name == "v" for name, _ in fused.named_parameters())


@every_kind
def test_v_is_changed_in_place(kind):
    node, fused = pair(kind)
    x = frames()
    for one in (node, fused):
        with torch.no_grad():
            through(one, x)
        one.v[0] = 0.4
        one.v *= 0.5
        one.v.clamp_(-1, 1)
    assert_go_on_alike(node, fused, frames())


@every_kind
def test_v_is_the_same_tensor_until_the_next_step(kind):
    _, fused = pair(kind)
    through(fused, frames())
    v = fused.v
    assert fused.v is v
    v.retain_grad()
    fused(frames()[0]).sum().backward()
    assert v.grad.abs().sum() > 0
    assert fused.v is not v


@every_kind
def test_reading_v_changes_nothing(kind):
    _, fused = pair(kind)
    other, x = copy.deepcopy(fused), frames()
    expected = [through(other, x)]
    found = []
    for frame in x:
        found.append(fused(frame))
        assert isinstance(fused.v, Tensor)
    assert torch.equal(torch.stack(found), expected[0])


def test_the_start_is_spikingjelly_s():
    for node in (neuron.LIFNode(v_reset=None), neuron.LIFNode(v_reset=-0.5), neuron.IFNode()):
        fused = fused_like(node)
        assert fused.v == node.v
        assert dict(fused.named_memories()) == dict(node.named_memories())
        assert dict(fused._memories) == node._memories
        assert fused._memories_rv == node._memories_rv
        assert base.extract_memories(fused) == base.extract_memories(node)
        assert "v" in dir(fused)


@both_modes
@every_kind
def test_another_start_is_kept(kind, step_mode):
    node = KINDS[kind](step_mode=step_mode)
    node.set_reset_value("v", 0.25)
    node.reset()
    fused = fused_like(node, backend="reference")
    assert fused.v == fused.get_reset_value("v") == 0.25
    assert_go_on_alike(node, fused, frames())
    for one in (node, fused):
        one.set_reset_value("v", 4.0)  # above the threshold
        one.reset()
    assert fused.v == 4.0
    assert_go_on_alike(node, fused, frames())


@both_modes
@every_kind
def test_in_the_middle_of_a_sequence(kind, step_mode):
    """The state goes along, and its history."""
    node = KINDS[kind](step_mode=step_mode)
    x = frames()
    through(node, x)
    fused = copy.copy(node)
    vars(fused).update({name: copy.copy(value) for name, value in vars(node).items() if isinstance(value, dict)})
    convert_neurons(fused, backend="reference")
    torch.manual_seed(2)
    y, grad = frames(2), torch.randn(2, 3, 7, dtype=torch.float64)
    spikes = [through(one, y) for one in (node, fused)]
    assert torch.equal(*spikes)
    close(*(torch.autograd.grad(output, x, grad, retain_graph=True)[0] for output in spikes))


def test_another_shape_begins_anew():
    """A last, smaller batch without a reset, as SpikingJelly takes it."""
    node, fused = pair("LIF")
    x = frames()
    for one in (node, fused):
        through(one, x)
    assert_go_on_alike(node, fused, frames(shape=(2, 7)))


@both_modes
def test_membranes_are_stored(step_mode):
    node, fused = pair("LIF", step_mode=step_mode, store_v_seq=True)
    x = frames()
    for _ in range(2):  # a second call without a reset: "s" goes on storing, "m" begins anew
        through(node, x), through(fused, x)
    assert len(node.v_seq) == (STEPS if step_mode == "m" else 2 * STEPS)
    close(fused.v_seq, node.v_seq)
    fused.detach()
    assert not fused.v_seq.requires_grad
    assert torch.equal(copy.deepcopy(fused).v_seq, fused.v_seq)
    fused.reset()
    assert fused.v_seq is None
    fused.store_v_seq = False
    through(fused, x)
    assert fused.v_seq is None


def network(*, fused: bool, step_mode: str = "s") -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        layer.Conv2d(2, 4, 3, padding=1), neuron.LIFNode(v_reset=None), layer.Flatten(), layer.Linear(64, 6),
        neuron.ParametricLIFNode(), layer.Linear(6, 3), neuron.IFNode(),
    )  # fmt: skip
    if fused:
        convert_neurons(net, backend="reference")
    functional.set_step_mode(net, step_mode)
    return net


def images(steps: int = 3) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(steps, 2, 2, 4, 4) * 3


MONITORS = {
    "OutputMonitor": lambda net: monitor.OutputMonitor(net, neuron.LIFNode),
    "OutputMonitor of all": lambda net: monitor.OutputMonitor(net, neuron.BaseNode),
    "InputMonitor": lambda net: monitor.InputMonitor(net, neuron.IFNode),
    "AttributeMonitor": lambda net: monitor.AttributeMonitor("v", False, net, neuron.BaseNode),
    "AttributeMonitor before": lambda net: monitor.AttributeMonitor("v", True, net, neuron.ParametricLIFNode),
    "GradInputMonitor": lambda net: monitor.GradInputMonitor(net, neuron.BaseNode),
    "GradOutputMonitor": lambda net: monitor.GradOutputMonitor(net, neuron.ParametricLIFNode),
}


@pytest.mark.parametrize("name", MONITORS)
def test_monitors_find_them(name):
    records = []
    for fused in (False, True):
        net = network(fused=fused)
        with MONITORS[name](net) as watched:
            through_net = torch.stack([net(frame) for frame in images()])
            torch.manual_seed(2)
            through_net.backward(torch.randn_like(through_net))
            records.append((watched.monitored_layers, list(watched.records)))
    (names, expected), (own_names, found) = records
    assert own_names == names != []
    assert len(found) == len(expected) > 0
    for theirs, ours in zip(expected, found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Caught(list):
    """SpikingJelly's warnings while it looks at modules."""

    def warning(self, *message) -> None:
        self.append(message)


def test_functions_for_whole_models(monkeypatch):
    warnings = Caught()
    monkeypatch.setattr(net_config, "logger", warnings)
    net = network(fused=False)
    functional.reset_net(net)  # which remembers what to reset
    convert_neurons(net, backend="reference")
    functional.set_step_mode(net, "m")
    assert net[1].step_mode == net[4].step_mode == "m"
    with pytest.raises(ValueError, match="step_mode"):
        functional.set_step_mode(net, "x")
    net(images()).sum().backward()
    functional.detach_net(net)
    assert isinstance(net[1].v, Tensor)
    assert not net[1].v.requires_grad
    functional.reset_net(net)
    assert [net[1].v, net[4].v, net[6].v] == [0.0, 0.0, 0.0]
    assert warnings == []


def test_detaching_cuts_the_history():
    net = network(fused=True)
    first = images()[0].requires_grad_()
    net(first)
    functional.detach_net(net)
    net(images()[1]).sum().backward()
    assert first.grad is None


COUNTERS = [
    name for name in ("FlopCounter", "MACCounter", "ACCounter", "SynOpCounter", "MemoryAccessCounter",
                      "NeuronStateCounter") if hasattr(op_counter, name)
]  # fmt: skip


def counted(net: nn.Module, name: str) -> tuple[dict, Tensor]:
    counter = getattr(op_counter, name)()
    with op_counter.DispatchCounterMode([counter]):
        outputs = torch.stack([net(frame) for frame in images()])
        outputs.sum().backward()
    counts = {scope: sum(values.values()) for scope, values in counter.get_counts().items()}
    return counts, outputs.detach()


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_count_them_as_spikingjelly_s(name):
    """With its own operations, forward and backward, in each neuron and in all."""
    expected, outputs = counted(network(fused=False), name)
    net = network(fused=True)
    found, own_outputs = counted(net, name)
    assert expected["Global"] > 0
    assert found == expected
    assert torch.equal(own_outputs, outputs)
    assert isinstance(net[1], FusedLIF)  # and fused again afterwards, with its state
    plain = network(fused=False)
    torch.stack([plain(frame) for frame in images()])
    torch.testing.assert_close(net[1].v, plain[1].v)


@pytest.mark.parametrize("estimate", ["estimate_lemaire_energy"])
def test_energies_are_spikingjelly_s(estimate):
    reports = []
    for fused in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(layer.Linear(6, 4), neuron.LIFNode(), layer.Linear(4, 2), neuron.IFNode())
        nn.init.normal_(net[0].weight)
        nn.init.normal_(net[2].weight)
        if fused:
            convert_neurons(net)
        torch.manual_seed(1)
        with torch.no_grad():
            reports.append(getattr(op_counter, estimate)(net.eval(), torch.rand(3, 6).round()))
    assert vars(reports[0]) == vars(reports[1])


@both_modes
def test_states_are_memories(step_mode):
    """What SpikingJelly's checkpointing needs: states taken out, put back, and the forward as a function of them."""
    plain, net = network(fused=False, step_mode=step_mode), network(fused=True, step_mode=step_mode)
    results = []
    for model in (plain, net):
        step, states = base.to_functional_forward(model), tuple(base.extract_memories(model))
        outputs = []
        for frame in images().unsqueeze(1) if step_mode == "m" else images():
            (spikes,), states = step((frame,), states)
            outputs.append(spikes)
        assert base.extract_memories(model) == [0.0, 0.0, 0.0]  # nothing was left behind
        results.append((torch.stack(outputs), *states))
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    base.load_memories(net, list(states))
    assert torch.equal(net[1].v, states[0])


def test_memories_of_one_s_own():
    fused = fused_like(neuron.LIFNode())
    fused.register_memory("trace", torch.zeros(2))
    fused.trace = torch.ones(2)
    assert [name for name, _ in fused.named_memories()] == ["v", "trace"]
    with borrowed([fused], training=True, online=True, memory="lean"):
        assert torch.equal(fused.trace, torch.zeros(2))
    assert torch.equal(fused.trace, torch.ones(2))
    fused.reset()
    assert torch.equal(fused.trace, torch.zeros(2))
    with pytest.raises(TypeError, match=r"memory v .* cannot be removed"):
        del fused.v


def test_a_v_that_was_read_is_not_kept_alive():
    fused = fused_like(neuron.LIFNode())
    fused(torch.randn(3, requires_grad=True))
    v = weakref.ref(fused.v)
    fused(torch.randn(3)).sum()
    with torch.no_grad():
        fused.detach()
    gc.collect()
    assert v() is None


def test_starts_and_memories_move_with_the_module():
    fused = fused_like(neuron.LIFNode())
    fused.set_reset_value("v", torch.full((2,), 0.5))
    fused.register_memory("trace", torch.ones(2))
    fused.reset()
    fused.double()
    assert fused.v.dtype == fused.trace.dtype == fused._memories_rv["v"].dtype == torch.float64
    fused.to("meta")
    assert fused.v.is_meta
    assert fused.trace.is_meta


def test_copies_pickles_and_moves_take_the_state_along():
    for node in (neuron.LIFNode(v_reset=None), neuron.ParametricLIFNode(v_reset=-0.5)):
        fused = fused_like(node)
        fused(torch.randn(4).requires_grad_())
        for read in (False, True):
            others = [copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))]
            for other in others:
                assert type(other) is type(fused)
                assert torch.equal(other.v, fused_like_v(fused))
                assert not other.v.requires_grad
                other.reset()
            if read:
                assert isinstance(fused.v, Tensor)
        assert fused.half().v.dtype == torch.float32
        assert fused.double().v.dtype == torch.float64
        fused(torch.randn(4).double())
        assert fused.double().membrane.dtype == torch.float64


def fused_like_v(fused: nn.Module) -> Tensor:
    """v, without turning the node's own state into it."""
    return copy.deepcopy(fused).v


def test_a_rule_s_step_gives_back_what_it_found():
    fused = fused_like(neuron.LIFNode(store_v_seq=True))
    for read in (False, True):
        x = torch.randn(2, 3)
        fused(x)
        v, steps = fused.v.clone() if read else None, len(fused.v_seq)
        with borrowed([fused], training=True, online=True, memory="lean"):
            assert fused.v == 0.0
            fused(x)
        assert len(fused.v_seq) == steps
        if read:
            assert torch.equal(fused.v, v)


@pytest.mark.parametrize("memory", [None, "lean", "paper"])
@pytest.mark.parametrize("kind", ["LIF", "LIF, soft", "PLIF"])
def test_online_and_every_form_of_memory_start_from_an_assigned_v(kind, memory):
    """Nobody's tensor is written over."""
    _, exact = pair(kind)
    online = copy.deepcopy(exact)
    online.online, online.memory_form = True, memory
    start = torch.linspace(-1, 4, 21, dtype=torch.float64).view(3, 7)
    kept = start.clone()
    exact.v = online.v = start
    for frame in frames().detach():
        assert torch.equal(online(frame), exact(frame))
    assert torch.equal(start, kept)
    close(online.v, exact.v)


def test_the_parameter_is_the_node_s_own():
    node = neuron.ParametricLIFNode(init_tau=4.0)
    w = node.w
    convert_neurons(node, backend="reference")
    assert node.w is w
    assert list(node.state_dict()) == ["w"]
    assert [name for name, _ in node.named_parameters()] == ["w"]
    assert node.decay == pytest.approx(0.75)


def test_backends_of_spikingjelly_s_change_nothing():
    """As `functional.set_backend` of earlier versions assigns them."""
    fused = fused_like(neuron.LIFNode(), backend="reference")
    for name in ("torch", "cupy", "inductor"):
        fused.backend = name
        assert fused.backend == "reference"
    fused.backend = "cpu"
    assert fused.backend == "cpu"
    with pytest.raises(ValueError, match="no_such"):
        fused.backend = "no_such"


def test_steps_whatever_the_step_mode():
    for step_mode in ("s", "m"):
        node, fused = pair("LIF", step_mode=step_mode)
        x = frames()
        assert torch.equal(fused.single_step_forward(x[0]), node.single_step_forward(x[0]))
        assert torch.equal(fused.multi_step_forward(x), node.multi_step_forward(x))
        close(fused.v, node.v)


def test_compiled():
    """Converted, then compiled: one graph. Compiled, then converted: compiled anew, with assignments in effect."""
    plain, x = network(fused=False), images()
    expected = torch.stack([plain(frame) for frame in x])
    whole = torch.compile(network(fused=True), backend="eager", fullgraph=True)
    torch.testing.assert_close(torch.stack([whole(frame) for frame in x]), expected)
    later = network(fused=False)
    compiled = torch.compile(later, backend="eager")
    torch.stack([compiled(frame) for frame in x])
    functional.reset_net(later)
    assert len(convert_neurons(compiled, backend="reference").swapped) == 3
    torch.testing.assert_close(torch.stack([compiled(frame) for frame in x]), expected)
    for net in (plain, later):
        functional.reset_net(net)
        net[1].v_threshold = 0.4
    torch.testing.assert_close(torch.stack([compiled(frame) for frame in x]), torch.stack([plain(f) for f in x]))


def test_in_a_data_parallel_model():
    net = nn.DataParallel(network(fused=False))
    assert len(convert_neurons(net, backend="reference").swapped) == 3
    plain = network(fused=False)
    torch.testing.assert_close(net(images()[0]), plain(images()[0]))
    replica = net.module[4]._replicate_for_data_parallel()
    assert replica.v == 0.0
    assert isinstance(net.module[4].v, Tensor)


def test_in_half_precision_and_on_the_meta_device():
    net = network(fused=False).bfloat16()
    convert_neurons(net)
    assert net(images()[0].bfloat16()).dtype == torch.bfloat16
    assert net[1].v.dtype == torch.float32
    with torch.device("meta"):
        empty = network(fused=False)
    assert len(convert_neurons(empty).swapped) == 3
    assert empty(images()[0].to("meta")).shape == (2, 3)


class Held(nn.Module):
    """A neuron that is used through references of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.ModuleList([neuron.LIFNode()])
        self.named = nn.ModuleDict({"a": neuron.IFNode()})
        self.calls = [lambda x, node=self.listed[0]: node(x), self.named["a"].forward]
        self.plain_list = [neuron.LIFNode()]

    def forward(self, x: Tensor) -> Tensor:
        for call in self.calls:
            x = call(x)
        return x


def test_references_that_are_no_modules_see_the_fused_neuron():
    torch.manual_seed(0)
    plain, held = Held(), Held()
    report = convert_neurons(held)
    assert [entry.name for entry in report.swapped] == ["listed.0", "named.a"]
    x = torch.randn(4, 5) * 2
    assert torch.equal(held(x), plain(x))
    assert held.listed[0].membrane is not None  # it was this one that took the step
    assert isinstance(held.listed[0], Neuron)


def test_hooks_stay():
    net, seen = network(fused=False), []
    handle = net[1].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    convert_neurons(net)
    net(images()[0])
    assert seen == [(2, 4, 4, 4)]
    handle.remove()
    net(images()[0])
    assert len(seen) == 1
