"""Units: what they compute, and that `rebuild` gives a fresh one of the same kind for another input."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d

from stdl_engine import FusedLIF, reset_states
from stdl_engine.memory.layers import SpikeAvgPool2d
from stdl_engine.units import (
    ConvUnit,
    Head,
    PooledHead,
    ResidualBlock,
    SEWBlock,
    Unit,
    copy_of_shapes,
    label_of,
    output_shape,
)

make_neuron = functools.partial(FusedLIF, decay=0.3, threshold=0.6)
blocks = pytest.mark.parametrize("block", [ResidualBlock, SEWBlock])


def spikes(*shape: int) -> torch.Tensor:
    return (torch.rand(shape) < 0.4).float()


def is_fresh(new: nn.Module, old: nn.Module) -> bool:
    """Whether a module shares no tensor with another, and its weights are drawn anew."""
    theirs = {p.data_ptr() for p in [*old.parameters(), *old.buffers()]}
    apart = all(p.data_ptr() not in theirs for p in [*new.parameters(), *new.buffers()])
    olds = {p.shape: p for p in old.parameters() if p.ndim > 1}
    return apart and not any(torch.equal(p, olds[p.shape]) for p in new.parameters() if p.shape in olds)


def neurons(module: nn.Module) -> list[FusedLIF]:
    return [m for m in module.modules() if isinstance(m, FusedLIF)]


@pytest.mark.parametrize(("in_channels", "stride"), [(3, 1), (5, 1), (8, 1), (5, 2)])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_rebuilt_conv_unit(kernel, in_channels, stride):
    unit = ConvUnit(5, 8, make_neuron, kernel=kernel, pool=SpikeAvgPool2d(2))
    new = unit.rebuild(in_channels, stride)
    assert type(new) is ConvUnit
    assert (new.in_channels, new.out_channels, new.stride, new.kernel) == (in_channels, 8, stride, kernel)
    assert new.pool is None  # the auxiliary network pools in front
    assert is_fresh(new, unit)
    assert [(n.decay, n.threshold) for n in neurons(new)] == [(0.3, 0.6)]
    assert new(spikes(2, in_channels, 8, 8)).shape == (2, 8, 8 // stride, 8 // stride)


@blocks
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("in_channels", [4, 8])
def test_rebuilt_block(block, in_channels, stride):
    unit = block(6, 8, make_neuron, stride=2)
    new = unit.rebuild(in_channels, stride)
    assert type(new) is block
    assert (new.in_channels, new.out_channels, new.stride, new.max_stride) == (in_channels, 8, stride, 2)
    assert is_fresh(new, unit)
    assert {(n.decay, n.threshold) for n in neurons(new)} == {(0.3, 0.6)}
    assert new(spikes(2, in_channels, 8, 8)).shape == (2, 8, 8 // stride, 8 // stride)


@blocks
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("in_channels", [4, 8])
def test_shortcut_exactly_where_channels_or_stride_change(block, in_channels, stride):
    unit = block(in_channels, 8, stride=stride)
    assert (unit.shortcut is None) == (in_channels == 8 and stride == 1)
    if unit.shortcut:
        conv = unit.shortcut[0]
        assert (conv.kernel_size, conv.stride, conv.bias) == ((1, 1), (stride, stride), None)
        assert isinstance(unit.shortcut[1], nn.BatchNorm2d)
        assert len(unit.shortcut) == (3 if block is SEWBlock else 2)  # only SEW's has a neuron of its own


def test_rebuilding_draws_new_weights_each_time():
    unit = ResidualBlock(4, 8)
    assert is_fresh(unit.rebuild(4, 1), unit.rebuild(4, 1))


@pytest.mark.parametrize(
    ("unit", "label"),
    [
        (ConvUnit(3, 64), "64C3"),
        (ConvUnit(3, 64, kernel=1, conv_stride=2), "64C1(s2)"),
        (ConvUnit(3, 64, pool=SpikeAvgPool2d(3, 2, 1)), "64C3-AP(k3s2p1)"),
        (ResidualBlock(3, 64), "64R"),
        (ResidualBlock(3, 64, stride=2), "64R(s2)"),
        (SEWBlock(3, 64, stride=2), "64SEWR(s2)"),
        (SpikeAvgPool2d(4), "AP(k4s4)"),
        (Head(8, 100), "100FC"),
        (PooledHead((8, 4, 4), 100), "100FC"),
        (nn.Flatten(), "Flatten"),
    ],
    ids=str,
)
def test_labels(unit, label):
    assert label_of(unit) == label


def test_conv_unit_is_conv_norm_neuron_pool():
    unit, x = ConvUnit(3, 4, make_neuron, pool=SpikeAvgPool2d(2)), torch.randn(5, 3, 8, 8)
    current = nn.functional.batch_norm(nn.functional.conv2d(x, unit.conv.weight, padding=1), None, None, training=True)
    torch.testing.assert_close(unit(x), avg_pool2d((current >= 0.6).float(), 2))
    assert unit.stride == 2
    assert unit.conv.bias is None


def test_stride_of_a_pool_with_two_numbers():
    unit = ConvUnit(3, 4, make_neuron, pool=nn.AvgPool2d((2, 2)), conv_stride=2)
    assert unit.stride == 4
    assert unit(torch.randn(5, 3, 8, 8)).shape == (5, 4, 2, 2)


@pytest.mark.parametrize("stride", [1, 2])
def test_residual_block_fires_after_the_add(stride):
    block, x = ResidualBlock(4, 4, make_neuron, stride=stride), spikes(5, 4, 8, 8)

    def normed(x, conv):
        current = nn.functional.conv2d(x, conv.weight, stride=conv.stride, padding=conv.padding)
        return nn.functional.batch_norm(current, None, None, training=True)

    shortcut = normed(x, block.shortcut[0]) if stride == 2 else x
    hidden = (normed(x, block.conv1) >= 0.6).float()
    assert torch.equal(block(x), (normed(hidden, block.conv2) + shortcut >= 0.6).float())


@pytest.mark.parametrize("stride", [1, 2])
def test_sew_block_adds_after_firing(stride):
    block, x = SEWBlock(4, 4, make_neuron, stride=stride), spikes(5, 4, 8, 8)

    def fired(x, conv):
        current = nn.functional.conv2d(x, conv.weight, stride=conv.stride, padding=conv.padding)
        return (nn.functional.batch_norm(current, None, None, training=True) >= 0.6).float()

    shortcut = fired(x, block.shortcut[0]) if stride == 2 else x
    assert torch.equal(block(x), fired(fired(x, block.conv1), block.conv2) + shortcut)


def test_sew_outputs_are_small_integers():
    x = spikes(4, 6, 8, 8)
    for number in range(1, 5):
        x = SEWBlock(6, 6, make_neuron)(x)
        assert torch.equal(x, x.round())
        assert x.min() >= 0
        assert 1 < x.max() <= 1 + number


def test_own_unit_without_rebuild_says_what_is_missing():
    class Plain(Unit):
        out_channels, stride = 3, 2

    assert Plain().label == "3Plain(s2)"
    with pytest.raises(NotImplementedError, match=r"Plain needs a method rebuild\(in_channels, stride\)"):
        Plain().rebuild(3, 1)


def test_head_is_global_average_pool_and_linear():
    head, x = Head(6, 4), torch.randn(3, 6, 5, 7)
    torch.testing.assert_close(head(x), adaptive_avg_pool2d(x, 1).flatten(1) @ head.linear.weight.T + head.linear.bias)
    vector = torch.randn(3, 6)
    assert torch.equal(head(vector), head.linear(vector))


@pytest.mark.parametrize(
    ("in_shape", "size"),
    [
        ((64, 32, 32), (4, 4)),
        ((128, 16, 16), (2, 4)),  # height goes first
        ((512, 4, 4), (1, 2)),
        ((1024, 2, 2), (1, 1)),
        ((2048, 2, 2), (1, 1)),  # nothing is left to pool
        ((4, 16, 16), (16, 16)),  # exactly 1024 features need no pool
        ((16, 8, 64), (2, 32)),
        ((512, 1, 8), (1, 2)),
    ],
)
def test_local_head_pools_to_1024_features(in_shape, size):
    head, x = PooledHead(in_shape, 10), spikes(2, *in_shape)
    assert head.size == size
    assert head.linear.in_features == in_shape[0] * size[0] * size[1]
    pooled = avg_pool2d(x, (in_shape[1] // size[0], in_shape[2] // size[1]))
    torch.testing.assert_close(head(x), head.linear(pooled.flatten(1)))


def test_local_head_of_vectors():
    head = PooledHead((5000,), 10)
    assert head.linear.in_features == 5000
    assert head(torch.randn(2, 5000)).shape == (2, 10)


def test_copy_of_shapes_holds_no_numbers_and_changes_nothing():
    model = nn.Sequential(ConvUnit(3, 4), ResidualBlock(4, 8, stride=2), Head(8, 10))
    model[0].conv.weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copy = copy_of_shapes(model)
    assert all(t.is_meta for t in [*copy.parameters(), *copy.buffers()])
    assert [p.requires_grad for p in copy.parameters()] == [p.requires_grad for p in model.parameters()]
    assert [p.shape for p in copy.parameters()] == [p.shape for p in model.parameters()]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_shapes_of_a_model_that_is_in_use():
    """The states it holds belong to other input; they stay as they are."""
    model = nn.Sequential(ConvUnit(3, 4), Head(4, 10))
    model(torch.randn(5, 3, 6, 6))
    membrane = model[0].neuron.membrane.clone()
    assert output_shape(copy_of_shapes(model), (3, 8, 8)) == (10,)
    assert torch.equal(model[0].neuron.membrane, membrane)
    reset_states(model)
