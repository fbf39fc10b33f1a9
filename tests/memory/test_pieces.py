"""What goes from one piece of a unit to the next."""

import pytest
import torch

from stdl_engine import FusedLIF
from stdl_engine.kernels import bits_of
from stdl_engine.memory.pieces import Carried, add_over
from stdl_engine.memory.tracker import Tracker

SHAPE = 3, 5, 4, 7


def spikes_with_history():
    x = (2 * torch.randn(SHAPE)).requires_grad_()
    neuron = FusedLIF(online=True)
    neuron.memory_form = "lean"
    return neuron(1 * x), x


def test_a_map_that_was_read_is_added_from_its_bits():
    """To the last bit as its dense form would be, and without making that."""
    spikes, x = spikes_with_history()
    carried, other = Carried(spikes, reads=2), torch.randn(SHAPE, requires_grad=True)
    first = carried.dense()
    current = 1 * other
    expected = current.detach() + spikes.detach()
    del spikes, first
    tracker = Tracker()
    with tracker:
        total = add_over(current, carried)
    assert tracker.peak == 0
    assert total is current
    assert torch.equal(total, expected)
    upstream = torch.randn(SHAPE)
    total.backward(upstream)
    assert torch.equal(other.grad, upstream)
    assert x.grad.any()


@pytest.mark.parametrize("held", ["dense", "in another order", "in another dtype"])
def test_other_maps_are_added_dense(held):
    spikes, _ = spikes_with_history()
    carried, current = Carried(spikes, reads=2), torch.randn(SHAPE)
    if held != "dense":
        carried.dense()
    if held == "in another order":
        current = current.contiguous(memory_format=torch.channels_last)
    if held == "in another dtype":
        current = current.double()
    expected = current + spikes.detach()
    total = add_over(current, carried)
    assert (total.dtype, total.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(total, expected)


def test_a_sum_has_no_bits():
    spikes, _ = spikes_with_history()
    carried = Carried(spikes, reads=2)
    current = 1 * carried.dense()
    assert bits_of(add_over(current, carried)) is None
