"""Layouts: any strides give the right numbers, and operands that share a dense layout are used where they are."""

import itertools

import pytest
import torch

from stdl_engine.kernels import layout, steps

from .compare import assert_equal
from .every_neuron import LIF, WAYS, assert_same, every_neuron, random, run

SHAPE = (2, 6, 5, 4)

LAYOUTS = {
    "contiguous": torch.clone,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "permuted": lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "sliced": lambda t: torch.stack([t, t + 1], dim=-1)[..., 0],
    "offset": lambda t: torch.cat([t.flatten()[:3], t.flatten()])[3:].view(t.shape),
}


@pytest.fixture
def copies(monkeypatch) -> list[bool]:
    """For each operand a kernel took, whether it was copied."""
    seen = []

    def spy(t, pattern):
        found = layout.like(t, pattern)
        seen.append(found is not t)
        return found

    monkeypatch.setattr(steps, "like", spy)
    return seen


@pytest.mark.parametrize("of_state", LAYOUTS)
@pytest.mark.parametrize("of_input", LAYOUTS)
@every_neuron
def test_any_strides(target, neuron, of_input, of_state):
    plain = random(neuron, SHAPE, device=target.device)
    given = plain.map_neurons(LAYOUTS[of_state])
    given = given._replace(x=LAYOUTS[of_input](plain.x), grad_spikes=LAYOUTS[of_input](plain.grad_spikes))
    for way in WAYS if of_state != "sliced" else WAYS[:2]:  # a state with gaps is not written over
        assert_same(run(neuron, given, target, way), run(neuron, plain, None, way))


@every_neuron
def test_states_in_several_orders(target, neuron):
    """Each tensor in an order of its own, where the states are new; only the input's, where they are written over."""
    plain, orders = random(neuron, SHAPE, device=target.device), itertools.cycle(LAYOUTS.values())
    for _ in LAYOUTS:
        given = plain.map_neurons(lambda t: next(orders)(t))
        assert_same(run(neuron, given, target), run(neuron, plain, None))
        given = plain._replace(x=given.x, grad_spikes=given.grad_spikes)
        assert_same(run(neuron, given, target, "over"), run(neuron, plain, None, "over"))


@every_neuron
@pytest.mark.parametrize("name", ["channels_last", "permuted", "offset"])
def test_shared_layout_is_kept_without_a_copy(target, neuron, copies, name):
    given = random(neuron, SHAPE, device=target.device).map_neurons(LAYOUTS[name])
    for way in WAYS:
        for t in run(neuron, given, target, way).tensors():
            assert t.stride() == given.x.stride()
    assert len(copies) > len(WAYS)
    assert not any(copies)


def test_operands_that_could_be_copied(target, copies):
    """The operands of two forwards and two backwards of LIF, the pattern itself apart."""
    given = random(LIF, SHAPE, device=target.device)
    run(LIF, given, target)
    run(LIF, given, target, "over")
    assert len(copies) == 1 + 3 + 2 + 1


@every_neuron
def test_strides_of_single_elements_do_not_matter(target, neuron, copies):
    """A convolution may give a batch of one, or one channel, any stride there."""
    given = random(neuron, (1, 3, 1, 5), device=target.device)
    odd, right = given.map_neurons(lambda t: t.as_strided(t.shape, (999, 5, 77, 1))), run(neuron, given, None)
    assert_same(run(neuron, odd._replace(x=given.x), target), right)
    assert_same(run(neuron, given._replace(x=odd.x), target), right)
    assert not any(copies)


@every_neuron
def test_expanded_input(target, neuron):
    """Stride 0, as the gradient of a sum has it."""
    x = torch.randn(1, 5, device=target.device).expand(4, 5)
    given = random(neuron, (4, 5), device=target.device)._replace(x=x, grad_spikes=-x)
    for way in WAYS:
        assert_same(run(neuron, given, target, way), run(neuron, given, None, way))


@every_neuron
def test_online_state_is_updated_where_it_is(target, neuron):
    """A state that is a view: its memory changes, its neighbours do not."""
    given = random(neuron, (10,), device=target.device)
    right = run(neuron, given, None, "over")
    buffers = [torch.zeros(3, 10, device=target.device) for _ in given.states]
    for buffer, state in zip(buffers, given.states, strict=True):
        buffer[1] = state
    neuron.step_(given.x, *(buffer[1] for buffer in buffers), *given.learned, backend=target.backend, **neuron.options)
    for buffer, expected in zip(buffers, right.states, strict=True):
        assert_equal(buffer, torch.stack([torch.zeros_like(expected), expected, torch.zeros_like(expected)]))


@pytest.mark.parametrize("name", LAYOUTS)
def test_is_dense(name):
    t = LAYOUTS[name](torch.randn(SHAPE))
    assert layout.is_dense(t) == (name != "sliced")


@pytest.mark.parametrize(
    ("size", "stride", "dense"),
    [
        ((), (), True),
        ((0, 3), (7, 7), True),
        ((1, 4), (100, 1), True),
        ((4, 3), (1, 4), True),
        ((4, 3), (0, 1), False),
        ((4, 3), (1, 5), False),
        ((2, 2), (1, 1), False),
    ],
)
def test_is_dense_by_strides(size, stride, dense):
    assert layout.is_dense(torch.empty(100).as_strided(size, stride)) == dense
