"""Neurons among PyTorch's own tools: torch.func, forward mode, checkpoint, export, sharding."""

import io
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF, reset_states
from tests.kernels.every_neuron import LIF, NEURONS, every_neuron, random

LAYERS = {"lif": FusedLIF, "plif": FusedPLIF, "alif": FusedALIF}
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
fused_or_not = pytest.mark.parametrize("backend", ["cpu", "reference"])


def functions(neuron):
    """A step and a sequence, with the number of time steps that they take."""
    return ((neuron.step, 0), (neuron.sequence, 3))


@every_neuron
@fused_or_not
def test_torch_func_grad_is_autograds(neuron, backend):
    """Of every argument, from all outputs."""
    for function, steps in functions(neuron):
        given = random(neuron, (3, 5), steps=steps)
        upstream = given.grad_spikes, *given.grad_states

        def loss(*arguments, function=function, upstream=upstream):
            outputs = function(*arguments, backend=backend, **neuron.options)
            return sum((g * out).sum() for g, out in zip(upstream, outputs, strict=True))

        arguments = given.x, *given.states, *given.learned
        found = grad(loss, argnums=tuple(range(len(arguments))))(*arguments)
        leaves = [t.clone().requires_grad_() for t in arguments]
        right = torch.autograd.grad(loss(*leaves), leaves)
        for mine, theirs in zip(found, right, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@every_neuron
@fused_or_not
def test_gradients_of_each_sample(neuron, backend):
    """vmap of grad over the batch, the decay shared, against one sample after the other."""
    for function, steps in functions(neuron):
        samples = [random(neuron, (7,), steps=steps) for _ in range(4)]

        def loss(x, upstream, *states, w=None, function=function):
            learned = () if w is None else (w,)
            return (upstream * function(x, *states, *learned, backend=backend, **neuron.options)[0]).sum()

        if neuron.learned:
            w = samples[0].learned[0]
            one = grad(lambda w, x, g, *states: loss(x, g, *states, w=w))
            each = vmap(one, in_dims=(None, *(0,) * (2 + neuron.states)))
            one, each = partial(one, w), partial(each, w)
        else:
            one = grad(loss)
            each = vmap(one)
        stacked = [torch.stack(t) for t in zip(*((s.x, s.grad_spikes, *s.states) for s in samples), strict=True)]
        found = each(*stacked)
        right = torch.stack([one(s.x, s.grad_spikes, *s.states) for s in samples])
        torch.testing.assert_close(found, right, rtol=0, atol=0)


def test_gradients_of_each_sample_through_a_network():
    """The usual recipe: functional_call in a vmap of grad, for a network of every neuron."""
    net = nn.Sequential(nn.Linear(6, 8), FusedLIF(), nn.Linear(8, 8), FusedPLIF(), nn.Linear(8, 3), FusedALIF())
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    xs, upstream = torch.randn(5, 2, 6) * 3, torch.randn(5, 2, 3)

    def loss(parameters, x, g):
        reset_states(net)
        return sum((functional_call(net, parameters, x_t) * g_t).sum() for x_t, g_t in zip(x, g, strict=True))

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, xs, upstream)
    for place, (x, g) in enumerate(zip(xs, upstream, strict=True)):
        net.zero_grad()
        reset_states(net)
        sum((net(x_t) * g_t).sum() for x_t, g_t in zip(x, g, strict=True)).backward()
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(found[name][place], parameter.grad, rtol=1e-5, atol=1e-6)


@every_neuron
def test_steps_over_the_state_are_refused_under_a_transform(neuron):
    given = random(neuron, (5,))
    for function, steps in ((neuron.step_, 0), (neuron.sequence_, 2)):
        x = random(neuron, (5,), steps=steps).x
        with pytest.raises(RuntimeError, match=r"torch\.func cannot follow: make the layer with online=False"):
            grad(lambda x, f=function: f(x, *given.states, *given.learned).sum())(x)


@every_neuron
def test_forward_mode_is_refused_by_the_fused_step(neuron):
    """It used to be 0, silently."""
    for function, steps in functions(neuron):
        given = random(neuron, (5,), steps=steps)

        def step(x, function=function, given=given):
            return function(x, *given.states, *given.learned)[0]

        message = r"has no forward-mode derivative: pass backend=\"reference\""
        with pytest.raises(NotImplementedError, match=message):
            jvp(step, (given.x,), (torch.ones_like(given.x),))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(given.x, torch.ones_like(given.x))
            with pytest.raises(NotImplementedError, match=message):
                step(dual)
            with pytest.raises(NotImplementedError, match=message):
                (neuron.sequence_ if steps else neuron.step_)(dual, *given.states, *given.learned)


@every_neuron
def test_forward_mode_of_the_reference_is_its_backward(neuron):
    """⟨v, J u⟩ = ⟨Jᵀ v, u⟩, in float64."""
    for function, steps in functions(neuron):
        given = random(neuron, (5,), torch.float64, steps=steps)
        arguments = given.x, *given.states, *given.learned
        tangents = tuple(torch.randn_like(t) for t in arguments)

        def step(*arguments, function=function):
            return function(*arguments, backend="reference", **neuron.options)

        _, pushed = jvp(step, arguments, tangents)
        leaves = [t.clone().requires_grad_() for t in arguments]
        upstream = given.grad_spikes, *given.grad_states
        pulled = torch.autograd.grad(step(*leaves), leaves, upstream)
        forward = sum((v * t).sum() for v, t in zip(upstream, pushed, strict=True))
        backward = sum((u * t).sum() for u, t in zip(tangents, pulled, strict=True))
        torch.testing.assert_close(forward, backward)


@every_layer
@pytest.mark.parametrize("form", [None, "paper"], ids=["", "paper"])
def test_second_backward_without_reset_gets_our_sentence(layer, form):
    neuron, x = layer(), torch.randn(4, 5) + 1
    neuron.memory_form = form
    for _ in range(2):
        x = x.detach().requires_grad_()
        spikes = neuron(x)
        if _ == 0:
            spikes.backward(torch.randn(4, 5))
    with pytest.raises(RuntimeError, match=r"earlier backward has gone through and freed: .*reset_states\(model\)"):
        spikes.backward(torch.randn(4, 5))


@every_layer
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["", "reentrant"])
@pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
@pytest.mark.parametrize("step_mode", ["s", "m"])
def test_checkpoint_on_an_advanced_state_is_refused(layer, step_mode, online, use_reentrant):
    neuron, x = layer(online=online, step_mode=step_mode), (torch.randn(3, 4, 5) + 1).requires_grad_()
    spikes = checkpoint(neuron, x[0] if step_mode == "s" else x, use_reentrant=use_reentrant)
    if step_mode == "s" and online and not use_reentrant and layer is not FusedPLIF:
        return  # nothing is saved but the state, and so no forward runs again: see the test below
    with pytest.raises(RuntimeError, match=r"runs a forward of Fused.* again, on a state that has advanced since"):
        spikes.sum().backward()


@pytest.mark.parametrize("layer", [FusedLIF, FusedALIF])
def test_checkpoint_of_an_online_step_alone_is_right(layer):
    x, upstream, grads = torch.randn(4, 5) + 1, torch.randn(4, 5), []
    for again in (False, True):
        neuron, leaf = layer(online=True), x.clone().requires_grad_()
        spikes = checkpoint(neuron, leaf, use_reentrant=False) if again else neuron(leaf)
        spikes.backward(upstream)
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@every_layer
def test_checkpoint_of_a_whole_sequence_from_a_reset_state_is_right(layer):
    """Reset before backward, the second forward begins where the first did."""
    xs, upstream = torch.randn(3, 4, 5) + 1, torch.randn(3, 4, 5)
    neuron, grads = layer(step_mode="m"), []
    for again in (False, True):
        x = xs.clone().requires_grad_()
        reset_states(neuron)
        spikes = checkpoint(neuron, x, use_reentrant=False) if again else neuron(x)
        reset_states(neuron)
        spikes.backward(upstream)
        grads.append(x.grad)
    torch.testing.assert_close(*grads, rtol=0, atol=0)


def test_a_state_that_the_backward_itself_puts_back_is_gone_on_from():
    """What recomputes with care sets the state itself, and is let through."""
    neuron, x = FusedLIF(), (torch.randn(4, 5) + 1).requires_grad_()
    neuron(x)
    first = neuron.set_aside()
    found = []

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            neuron.take_back(first)
            found.append(neuron(x.detach()))
            found.append(neuron(x.detach()))
            return grad

    Again.apply(x).sum().backward()
    assert len(found) == 2


@every_layer
@pytest.mark.parametrize("trace", ["export", "strict export", "jit.trace"])
def test_tracing_a_single_step_is_refused(layer, trace):
    x = torch.randn(4, 5)
    with pytest.raises(Exception, match=r"would lose the state of Fused.* from one call to the next: set step_mode"):
        traced(layer(), x, trace)
    advanced = layer(step_mode="m")
    advanced(x[None])
    with pytest.raises(Exception, match=r"would lose the state of Fused.* from one call to the next: set step_mode"):
        traced(advanced, x[None], trace)


def traced(module, x, how):
    if how == "jit.trace":
        return torch.jit.trace(module, (x,), check_trace=False)
    return torch.export.export(module, (x,), strict=how == "strict export").module()


@every_layer
@pytest.mark.parametrize("how", ["export", "jit.trace"])
@pytest.mark.filterwarnings("ignore")  # the tracer's, of sizes that become constants
def test_a_whole_sequence_is_traced_from_its_beginning(layer, how):
    neuron, x = layer(step_mode="m"), torch.randn(3, 4, 5) + 1
    with torch.no_grad():
        program = traced(neuron, x, how)
        other = torch.randn(3, 4, 5) + 1
        assert neuron.membrane is None
        for _ in range(2):
            reset_states(neuron)
            torch.testing.assert_close(program(other), neuron(other), rtol=0, atol=0)


def test_decay_has_one_dimension():
    """As fully_shard needs it: its parameters are split along the first."""
    plif = FusedPLIF(decay=0.5)
    assert plif.w.shape == (1,)
    assert plif.decay == 0.5
    plif(torch.randn(3)).sum().backward()
    assert plif.w.grad.shape == (1,)


def test_checkpoints_in_which_the_decay_has_no_dimension_are_loaded():
    net, old = nn.Sequential(nn.Linear(2, 2), FusedPLIF(decay=0.5)), io.BytesIO()
    torch.save({"0.weight": torch.ones(2, 2), "0.bias": torch.zeros(2), "1.w": torch.tensor(0.75)}, old)
    old.seek(0)
    assert not any(net.load_state_dict(torch.load(old)))
    assert net[1].w.tolist() == [0.75]
    with pytest.raises(RuntimeError, match=r"size mismatch for 1\.w"):
        net.load_state_dict(net.state_dict() | {"1.w": torch.zeros(2)})


def test_a_network_with_a_learned_decay_is_sharded(tmp_path):
    """One process is a mesh, too."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        net = nn.Sequential(nn.Linear(4, 4), FusedPLIF(), nn.Linear(4, 2))
        x = torch.randn(3, 4) * 3
        right = torch.autograd.grad(net(x).sum(), [*net.parameters()])
        reset_states(net)
        fsdp.fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
        net(x).sum().backward()
        for parameter, mine in zip(net.parameters(), right, strict=True):
            torch.testing.assert_close(parameter.grad.full_tensor(), mine)
    finally:
        distributed.destroy_process_group()


def test_the_table_of_neurons_is_whole():
    assert [neuron.name for neuron in NEURONS] == list(LAYERS)
    assert LIF.states == 1
