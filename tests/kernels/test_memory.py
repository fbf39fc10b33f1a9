"""What autograd keeps between a step and its backward, and what happens when the state moves on before it."""

import gc

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine.kernels.lif import lif_step, lif_step_

from .compare import Case

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


@pytest.mark.parametrize("steps", [1, 3, 6])
@pytest.mark.parametrize("first_wants_gradient", [False, True])
def test_bptt_keeps_one_map_a_step(target, steps, first_wants_gradient):
    n = 1000
    m = torch.zeros(n, device=target.device, requires_grad=first_wants_gradient)
    with Saved() as saved:
        for _ in range(steps):
            _, m = lif_step(torch.randn(n, device=target.device, requires_grad=True), m, backend=target.backend)
    assert set(saved.storages.values()) == {4 * n}
    assert len(saved.storages) == steps + first_wants_gradient  # and the state before the first step, if it is wanted


def test_bptt_keeps_neither_input_nor_spikes(target):
    leaf = torch.randn(1000, device=target.device, requires_grad=True)
    x = leaf + 1
    spikes, m = lif_step(x, torch.zeros_like(leaf), backend=target.backend)
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)]
    del x, spikes
    gc.collect()
    assert all(ref.expired() for ref in dead)
    m.backward(torch.ones_like(m))


def test_online_saves_nothing(target):
    leaf, m = torch.randn(1000, device=target.device, requires_grad=True), torch.zeros(1000, device=target.device)
    with Saved() as saved:
        spikes = lif_step_(leaf, m, backend=target.backend)
    assert not saved.storages
    node = spikes.grad_fn
    assert not [name for name in dir(node) if name.startswith("_saved_")]
    assert node.saved_tensors == ()


def test_online_keeps_neither_input_nor_spikes(target):
    leaf, m = torch.randn(1000, device=target.device, requires_grad=True), torch.zeros(1000, device=target.device)
    x = leaf + 1
    spikes = lif_step_(x, m, backend=target.backend)
    upstream = torch.randn(1000, device=target.device)
    expected = torch.autograd.grad(spikes, leaf, upstream, retain_graph=True)[0]
    consumed = spikes + 1  # a sum saves nothing either
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)]
    del x, spikes
    gc.collect()
    assert all(ref.expired() for ref in dead)
    assert torch.equal(torch.autograd.grad(consumed, leaf, upstream)[0], expected)


def test_online_graph_dies_with_the_spikes():
    """No cycle of references waits for the garbage collector."""
    leaf, m = torch.randn(10, requires_grad=True), torch.zeros(10)
    x = leaf + 1
    spikes = lif_step_(x, m)
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)]
    gc.disable()
    try:
        del x, spikes
        assert all(ref.expired() for ref in dead)
    finally:
        gc.enable()


def advance(m, backend):
    lif_step_(torch.full_like(m, 3.0), m, backend=backend)


def advance_without_gradient(m, backend):
    with torch.no_grad():
        advance(m, backend)


def advance_in_inference_mode(m, backend):
    with torch.inference_mode():
        advance(m, backend)


def advance_with_gradient(m, backend):
    lif_step_(torch.full_like(m, 3.0).requires_grad_(), m, backend=backend)


def advance_a_view(m, backend):
    lif_step_(torch.full((5,), 3.0, device=m.device), m[:5], backend=backend)


def change(m, backend):
    m.zero_()


@pytest.mark.parametrize(
    "move_on",
    [
        advance,
        advance_without_gradient,
        advance_in_inference_mode,
        advance_with_gradient,
        advance_a_view,
        change,
    ],
)
def test_backward_after_the_state_moved_on_raises(target, move_on):
    case = Case.random((37,), torch.float32, target.device)
    m = case.m_prev
    spikes = lif_step_(case.x.requires_grad_(), m, backend=target.backend)
    move_on(m, target.backend)
    with pytest.raises(RuntimeError, match=ADVANCED):
        spikes.backward(case.grad_spikes)


def test_backward_step_by_step(target):
    m = torch.zeros(37, device=target.device)
    for _ in range(3):
        case = Case.random((37,), torch.float32, target.device)
        lif_step_(case.x.requires_grad_(), m, backend=target.backend).backward(case.grad_spikes)
        assert case.x.grad.abs().sum() > 0


def test_backward_twice_before_the_state_moves_on(target):
    case = Case.random((37,), torch.float32, target.device)
    spikes = lif_step_(case.x.requires_grad_(), case.m_prev, backend=target.backend)
    once, twice = (torch.autograd.grad(spikes, case.x, case.grad_spikes, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, twice)


@pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
def test_second_derivative_is_refused(target, online):
    case = Case.random((5,), torch.float32, target.device)
    x = case.x.requires_grad_()
    upstream = case.grad_spikes.requires_grad_()
    if online:
        spikes = lif_step_(x, case.m_prev, backend=target.backend)
    else:
        spikes, _ = lif_step(x, case.m_prev, backend=target.backend)
    (first,) = torch.autograd.grad(spikes, x, upstream, create_graph=True)
    with pytest.raises(RuntimeError, match='no second derivative: pass backend="reference" to differentiate twice'):
        torch.autograd.grad(first, upstream, torch.ones_like(first))


def test_reference_differentiates_twice():
    x = torch.tensor([0.75], requires_grad=True)
    spikes, _ = lif_step(x, torch.zeros(1), surrogate="atan", backend="reference")
    (first,) = torch.autograd.grad(spikes, x, torch.ones(1), create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    d, slope = -0.25, torch.pi  # the derivative of 1 / (1 + (π·d)²)
    assert second.item() == pytest.approx(-2 * slope**2 * d / (1 + (slope * d) ** 2) ** 2)
