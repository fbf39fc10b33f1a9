"""Spikes kept small come back bit for bit, and what is no longer what its bits say is kept whole."""

import pytest
import torch
from torch._prims_common import suggest_memory_format
from torch.nn.functional import conv2d

from stdl_engine import FusedLIF
from stdl_engine.memory.spikes import (
    Bits,
    Counts,
    is_spikes,
    keep,
    mark_counts,
    pack_saved,
    restore,
    saving,
    small_tensor,
    unpack_saved,
)
from stdl_engine.memory.tracker import Tracker, identity
from stdl_engine.units import SEWBlock

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYOUTS = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(1, 3).contiguous().transpose(1, 3),
}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def fired(shape=(3, 5, 7, 7), dtype=torch.float32, layout="contiguous", online=True):
    """Spikes as a neuron layer gives them in training, in numbers of elements that fill no byte at the end."""
    neuron = FusedLIF(online=online)
    neuron.memory_form = "lean"
    return neuron(LAYOUTS[layout](2 * torch.randn(shape)).to(dtype))


def assert_identical(a, b):
    assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    assert torch.equal(a, b)


class TestBits:
    @pytest.mark.parametrize("online", [True, False], ids=["online", "exact"])
    @every_layout
    @every_dtype
    def test_there_and_back(self, dtype, layout, online):
        spikes = fired(dtype=dtype, layout=layout, online=online)
        kept = keep(spikes)
        assert isinstance(kept, Bits)
        assert small_tensor(kept).nbytes == (spikes.numel() + 7) // 8
        assert_identical(restore(kept), spikes)
        assert 0 < spikes.sum() < spikes.numel()

    @every_layout
    @pytest.mark.parametrize("shape", [(3, 8, 7, 5), (1, 16, 1, 1), (2, 24, 4, 1)], ids=str)
    def test_every_nth_pixel(self, shape, layout):
        spikes = fired(shape, layout=layout)
        chosen = keep(spikes).pixels(2, 3)
        if chosen is None:  # where a pixel's channels are not beside each other
            assert layout != "channels_last"
            assert shape[2:] != (1, 1)
            return
        expected = spikes[:, :, ::2, ::3].contiguous(memory_format=torch.channels_last)
        assert torch.equal(restore(chosen), expected)
        assert small_tensor(chosen).nbytes == expected.numel() // 8
        assert suggest_memory_format(restore(chosen)) == suggest_memory_format(spikes)  # what convolutions go by

    def test_pixels_that_share_a_byte(self):
        assert keep(fired((3, 4, 8, 8), layout="channels_last")).pixels(2, 2) is None

    def test_restored_is_kept_again_by_the_same_bits(self):
        kept = keep(fired())
        again = keep(restore(kept))
        assert identity(small_tensor(again)) == identity(small_tensor(kept))

    def test_detached_and_other_dense_views(self):
        spikes = fired()
        for view in (spikes.detach(), spikes.transpose(0, 1), spikes.flatten(1), spikes[None]):
            kept = keep(view)
            assert isinstance(kept, Bits)
            assert_identical(restore(kept), view)

    def test_part_of_them_is_kept_whole(self):
        for part in (fired()[1:], fired()[..., ::2], fired()[:, :1].expand(-1, 5, -1, -1)):
            assert keep(part) is part

    def test_copies_and_results_are_kept_whole(self):
        for other in (fired().clone(), fired() * 1, fired().double(), torch.ones(8)):
            assert keep(other) is other
            assert restore(other) is other
            assert not is_spikes(other)

    @pytest.mark.parametrize(
        "change",
        [
            lambda t: t.mul_(0.5),
            lambda t: t[0, 0].zero_(),
            lambda t: t.detach().add_(1),
            lambda t: t.view(-1).copy_(torch.rand(t.numel())),
        ],
        ids=["mul", "part", "detached", "view"],
    )
    def test_changed_in_place_they_are_kept_whole(self, change):
        spikes = fired()
        change(spikes)
        assert not is_spikes(spikes)
        assert keep(spikes) is spikes

    def test_changed_after_they_were_kept(self):
        """The bits are of that moment."""
        spikes = fired()
        before, kept = spikes.clone(), keep(spikes)
        spikes.mul_(0.5)
        assert_identical(restore(kept), before)

    def test_without_lean_memory_there_are_none(self):
        spikes = FusedLIF()(2 * torch.randn(10))
        assert keep(spikes) is spikes

    def test_inference_tensors_are_kept_whole(self):
        with torch.inference_mode():
            spikes = fired()
            assert not is_spikes(spikes)
            assert keep(spikes) is spikes

    def test_empty(self):
        spikes = fired((0, 3, 4, 4))
        assert_identical(restore(keep(spikes)), spikes)


class TestCounts:
    @every_layout
    @every_dtype
    def test_there_and_back(self, dtype, layout):
        counts = LAYOUTS[layout](torch.arange(3 * 5 * 4 * 4).view(3, 5, 4, 4) % 256).to(dtype)
        kept = keep(mark_counts(counts))
        assert isinstance(kept, Counts)
        assert (small_tensor(kept).dtype, small_tensor(kept).nbytes) == (torch.uint8, counts.numel())
        assert_identical(restore(kept), counts)
        assert isinstance(keep(restore(kept)), Counts)

    def test_changed_in_place_they_are_kept_whole(self):
        counts = mark_counts(torch.arange(8.0))
        counts.mul_(0.5)
        assert keep(counts) is counts

    def test_spikes_added_up_are_counts_and_no_longer_bits(self):
        spikes = fired()
        total = mark_counts(spikes.add_(fired()))
        kept = keep(total)
        assert isinstance(kept, Counts)
        assert_identical(restore(kept), total)
        assert total.max() == 2

    @pytest.mark.parametrize("stride", [1, 2])
    def test_sew_blocks_give_them(self, stride):
        block = SEWBlock(4, 4, stride=stride)
        for module in block.modules():
            if hasattr(module, "memory_form"):
                module.memory_form = "lean"
        x = fired((2, 4, 8, 8))
        total = block(x)
        assert isinstance(keep(total), Counts)
        assert_identical(restore(keep(total)), total)
        assert isinstance(keep(block(restore(keep(total))) if stride == 1 else total), Counts)

    def test_sew_blocks_on_other_input_do_not(self):
        """An average is no whole number."""
        block = SEWBlock(4, 4)
        for module in block.modules():
            if hasattr(module, "memory_form"):
                module.memory_form = "lean"
        total = block(torch.rand(2, 4, 8, 8))
        assert keep(total) is total


def gradient(weight, x, upstream, memory):
    with saving(memory):
        y = conv2d(x, weight, padding=1)
    y.backward(upstream)
    found, weight.grad = weight.grad, None
    return found


class TestSaving:
    def test_any_layer_that_consumes_spikes_saves_their_bits(self):
        weight, upstream = torch.randn(4, 5, 3, 3, requires_grad=True), torch.randn(3, 4, 7, 7)
        with Tracker() as tracker:
            spikes = fired()
            bits = keep(spikes)
            dense = spikes.clone()
            with saving("lean"):
                y = conv2d(spikes, weight, padding=1)
            before = tracker.current
            del spikes
            assert tracker.current == before - dense.nbytes  # autograd does not hold them
            y.backward(upstream)
        assert identity(small_tensor(bits)) in tracker.saved()
        assert torch.equal(weight.grad, gradient(weight.detach().requires_grad_(), dense, upstream, "paper"))

    def test_spikes_changed_before_the_layer(self):
        """Stale bits would give the gradient of the old spikes."""
        weight, upstream = torch.randn(4, 5, 3, 3, requires_grad=True), torch.randn(3, 4, 7, 7)
        spikes = fired()
        spikes.mul_(0.5)
        expected = gradient(weight, spikes.clone(), upstream, "paper")
        assert torch.equal(gradient(weight, spikes, upstream, "lean"), expected)

    def test_spikes_changed_after_the_layer(self):
        """Autograd alone would raise; from the bits the gradient is right."""
        weight, upstream = torch.randn(4, 5, 3, 3, requires_grad=True), torch.randn(3, 4, 7, 7)
        spikes = fired()
        expected = gradient(weight, spikes.clone(), upstream, "paper")
        with saving("lean"):
            y = conv2d(spikes, weight, padding=1)
        spikes.zero_()
        y.backward(upstream)
        assert torch.equal(weight.grad, expected)

    @pytest.mark.parametrize("memory", ["lean", "paper"])
    @pytest.mark.parametrize("tracked", [False, True], ids=["alone", "tracked"])
    def test_other_tensors_changed_after_the_layer(self, memory, tracked):
        """As without hooks: backward raises, and does not go on with the wrong numbers."""
        weight, x = torch.randn(4, 5, 3, 3, requires_grad=True), torch.randn(3, 5, 7, 7)
        with Tracker() if tracked else torch.enable_grad():
            with saving(memory):
                y = conv2d(x, weight, padding=1)
            x.mul_(2)
            with pytest.raises(RuntimeError, match=r"modified by an inplace|changed in place after it was saved"):
                y.sum().backward()

    def test_paper_memory_saves_as_pytorch_does(self):
        weight, spikes = torch.randn(4, 5, 3, 3, requires_grad=True), fired()
        with Tracker() as tracker:
            tracker.follow([spikes])
            with saving("paper"):
                y = conv2d(spikes, weight, padding=1)
            held = spikes.nbytes
            del spikes
            assert identity(y) in tracker.alive()
            assert tracker.current >= held + y.nbytes

    def test_saved_whole_and_unchanged(self):
        t = torch.randn(4)
        assert unpack_saved(pack_saved(t)) is t
