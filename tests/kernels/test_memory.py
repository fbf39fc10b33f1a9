"""What autograd keeps between a step and its backward, and what happens when the state moves on before it."""

import gc

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine.kernels.lif import lif_step

from .every_neuron import every_neuron, every_way, random

ADVANCED = r"advanced or changed before that step's backward: call backward\(\) after every time step"


class Saved:
    """The storages of all that autograd saves in this context."""

    def __init__(self):
        self.storages = {}
        self._hooks = saved_tensors_hooks(self._pack, lambda t: t)

    def _pack(self, t):
        self.storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    def __enter__(self):
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def maps(self):
        """The sizes of all that is more than one number, which is what a learned decay is."""
        return [size for size in self.storages.values() if size > 4]


@every_neuron
@pytest.mark.parametrize("steps", [1, 3, 6])
@pytest.mark.parametrize("first_wants_gradient", [False, True])
def test_bptt_keeps_one_map_a_step_and_state(target, neuron, steps, first_wants_gradient):
    n = 1000
    given = random(neuron, (n,), device=target.device).leaves(past=first_wants_gradient)
    states = given.states
    with Saved() as saved:
        for _ in range(steps):
            x = torch.randn(n, device=target.device, requires_grad=True)
            _, *states = neuron.step(x, *states, *given.learned, backend=target.backend)
    # And the states before the first step, if their gradient or that of a decay is wanted.
    assert saved.maps() == [4 * n] * neuron.states * (steps + (first_wants_gradient or neuron.learned))


@every_neuron
@every_way
def test_keeps_neither_input_nor_spikes(target, neuron, way):
    given = random(neuron, (1000,), device=target.device).leaves(past=way == "exact")
    x, options = given.x + 1, {"backend": target.backend}
    if way == "over":
        spikes = neuron.step_(x, *given.states, *given.learned, **options)
    else:
        spikes, *_ = neuron.step(x, *given.states, *given.learned, **options, online=way == "online")
    expected = torch.autograd.grad(spikes, given.x, given.grad_spikes, retain_graph=True)[0]
    consumed = spikes + 1  # a sum saves nothing either
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)]
    del x, spikes
    gc.collect()
    assert all(ref.expired() for ref in dead)
    assert torch.equal(torch.autograd.grad(consumed, given.x, given.grad_spikes)[0], expected)


@every_neuron
def test_online_saves_nothing(target, neuron):
    """Nothing but the past for the gradient of a learned decay."""
    given = random(neuron, (1000,), device=target.device).leaves(past=False)
    with Saved() as saved:
        spikes = neuron.step_(*given.operands, backend=target.backend)
    assert saved.maps() == [4000] * neuron.learned
    if neuron.learned:
        return
    assert not saved.storages
    node = spikes.grad_fn
    assert not [name for name in dir(node) if name.startswith("_saved_")]
    assert node.saved_tensors == ()


@every_neuron
def test_online_graph_dies_with_the_spikes(neuron):
    """No cycle of references waits for the garbage collector."""
    given = random(neuron, (10,)).leaves(past=False)
    x = given.x + 1
    spikes = neuron.step_(x, *given.states, *given.learned)
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)]
    gc.disable()
    try:
        del x, spikes
        assert all(ref.expired() for ref in dead)
    finally:
        gc.enable()


def advance(step, *states):
    step(torch.full_like(states[0], 3.0), *states)


def advance_without_gradient(step, *states):
    with torch.no_grad():
        advance(step, *states)


def advance_in_inference_mode(step, *states):
    with torch.inference_mode():
        advance(step, *states)


def advance_with_gradient(step, *states):
    step(torch.full_like(states[0], 3.0).requires_grad_(), *states)


def advance_a_view(step, *states):
    advance(step, *(state[:5] for state in states))


def change(step, *states):
    states[0].zero_()


def change_the_last(step, *states):
    states[-1].add_(1)


@pytest.mark.parametrize(
    "move_on",
    [
        advance,
        advance_without_gradient,
        advance_in_inference_mode,
        advance_with_gradient,
        advance_a_view,
        change,
        change_the_last,
    ],
)
@every_neuron
def test_backward_after_the_state_moved_on_raises(target, neuron, move_on):
    given = random(neuron, (37,), device=target.device).leaves(past=False)
    spikes = neuron.step_(*given.operands, backend=target.backend)
    move_on(lambda x, *states: neuron.step_(x, *states, *given.learned, backend=target.backend), *given.states)
    with pytest.raises(RuntimeError, match=f"the state of an online {neuron.name.upper()} step was {ADVANCED}"):
        spikes.backward(given.grad_spikes)


@every_neuron
def test_backward_step_by_step(target, neuron):
    states = [torch.zeros(37, device=target.device) for _ in range(neuron.states)]
    for _ in range(3):
        given = random(neuron, (37,), device=target.device).leaves(past=False)
        neuron.step_(given.x, *states, *given.learned, backend=target.backend).backward(given.grad_spikes)
        assert given.x.grad.abs().sum() > 0


@every_neuron
def test_backward_twice_before_the_state_moves_on(target, neuron):
    given = random(neuron, (37,), device=target.device).leaves(past=False)
    spikes = neuron.step_(*given.operands, backend=target.backend)
    once, twice = (torch.autograd.grad(spikes, given.x, given.grad_spikes, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, twice)


@every_neuron
@pytest.mark.parametrize("over", [False, True], ids=["exact", "over"])
def test_second_derivative_is_refused(target, neuron, over):
    given = random(neuron, (5,), device=target.device).leaves(past=False)
    upstream = given.grad_spikes.requires_grad_()
    result = (neuron.step_ if over else neuron.step)(*given.operands, backend=target.backend)
    spikes = result if over else result[0]
    (first,) = torch.autograd.grad(spikes, given.x, upstream, create_graph=True)
    with pytest.raises(RuntimeError, match='no second derivative: pass backend="reference" to differentiate twice'):
        torch.autograd.grad(first, upstream, torch.ones_like(first))


def test_reference_differentiates_twice():
    x = torch.tensor([0.75], requires_grad=True)
    spikes, _ = lif_step(x, torch.zeros(1), surrogate="atan", backend="reference")
    (first,) = torch.autograd.grad(spikes, x, torch.ones(1), create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    d, slope = -0.25, torch.pi  # the derivative of 1 / (1 + (π·d)²)
    assert second.item() == pytest.approx(-2 * slope**2 * d / (1 + (slope * d) ** 2) ** 2)
