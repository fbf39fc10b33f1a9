"""What goes from one piece of a unit to the next."""

import pytest
import torch
from torch import nn

from stdl_engine import FusedLIF, FusedPLIF
from stdl_engine.kernels import bits_of
from stdl_engine.kernels.norm_lif import Pending
from stdl_engine.memory.norms import lean_norms
from stdl_engine.memory.pieces import Carried, add_over, fire_dense, normed
from stdl_engine.memory.recompute import Gradients
from stdl_engine.memory.spikes import keep
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


class TestGradientsOnTheirWay:
    def add_up(self, **parts):
        gradients = Gradients()
        for key, given in parts.items():
            for part in given:
                gradients.receiver(key)(part)
        gradients.settle()
        return [gradients.take(key) for key in parts]

    def test_parts_add_up_in_place(self):
        one, other = torch.randn(2, 3), torch.randn(2, 3)
        expected = one + other
        (total,) = self.add_up(a=[one, other])
        assert torch.equal(total, expected)
        assert total is one

    @pytest.mark.parametrize("first", [True, False])
    def test_a_gradient_of_two_maps_stays_as_it_is(self, first):
        """What was added up from two maps gives both the same tensor."""
        shared, other, third = (torch.randn(2, 3) for _ in range(3))
        before, expected = shared.clone(), shared + other + third
        parts = [shared, other, third] if first else [other, third, shared]
        a, b = self.add_up(a=parts, b=[shared])
        torch.testing.assert_close(a, expected)
        assert torch.equal(b, before)

    def test_a_part_that_cannot_be_written_over(self):
        """The gradient of a mean is one number, expanded."""
        a, b = self.add_up(a=[torch.ones(()).expand(2, 3), torch.ones(()).expand(2, 3)], b=[torch.zeros(2)])
        assert torch.equal(a, torch.full((2, 3), 2.0))
        assert torch.equal(b, torch.zeros(2))


def test_bits_are_like_no_map_of_other_dimensions():
    spikes, _ = spikes_with_history()
    kept = keep(spikes)
    assert kept.is_like(torch.empty(SHAPE))
    assert not kept.is_like(torch.empty(SHAPE[1:]))
    assert not kept.is_like(torch.empty(SHAPE, dtype=torch.float64))
    assert not kept.is_like(torch.empty(SHAPE).contiguous(memory_format=torch.channels_last))


class TestNormed:
    """What batch norm gives to a neuron, not yet computed."""

    X = torch.randn(4, 16, 3, 3, generator=torch.Generator().manual_seed(0)).contiguous(
        memory_format=torch.channels_last
    )

    def test_a_decay_in_low_precision(self):
        """Is read as the neuron reads it when its input is a map: the sigmoid is taken in float32."""
        membranes = []
        for pends in (True, False):
            norm, neuron = nn.BatchNorm2d(16), FusedPLIF(decay=0.3).bfloat16()
            neuron.memory_form = "lean"
            with lean_norms([norm], None):
                for _ in range(2):
                    current = normed(norm, neuron, self.X.bfloat16())
                    assert isinstance(current, Pending)
                    fire_dense(neuron, current if pends else current.dense())
            membranes.append(neuron.membrane)
        assert torch.equal(*membranes)

    def test_a_batch_norm_of_other_channels(self):
        norm, neuron = nn.BatchNorm2d(8), FusedLIF()
        neuron.memory_form = "lean"
        with lean_norms([norm], None), pytest.raises(RuntimeError, match="should contain 16 elements not 8"):
            normed(norm, neuron, self.X)
