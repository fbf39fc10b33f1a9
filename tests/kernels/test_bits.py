"""Spikes as bits: what the kernels write, and when `bits_of` may hand it out."""

import gc

import numpy as np
import pytest
import torch
from torch.library import opcheck
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine.kernels import bits, bits_of
from stdl_engine.kernels.bits import reference
from stdl_engine.kernels.lif import lif_step, lif_step_

from .compare import CPU, Target, assert_equal, assert_near, on_targets_and_dtypes
from .every_neuron import LIF, choices, every_neuron, random

SIZES = [1, 7, 8, 9, 100, 1023, 1024, 2047, 2049, 5000]


def fire(n: int, target: Target = CPU) -> torch.Tensor:
    given = random(LIF, (n,), device=target.device)
    return lif_step_(*given.operands, backend=target.backend)


def numpy_bits(spikes: torch.Tensor) -> torch.Tensor:
    """The bits of a contiguous tensor."""
    return torch.from_numpy(np.packbits(spikes.flatten().cpu().bool().numpy(), bitorder="little")).to(spikes.device)


def assert_writes_what_numpy_packs(target, neuron, n, dtype, variant) -> None:
    given = random(neuron, (n,), dtype, target.device)
    options = neuron.options | neuron.variants[variant] | {"backend": target.backend}
    plain, *_ = neuron.step(*given.operands, **options)
    assert bits_of(plain) is None
    packed, *_ = neuron.step(*given.leaves().operands, pack=True, **options)
    options.pop("detach_reset", None)
    over = neuron.step_(*given.operands, **options)
    assert 0 < over.sum() < n or n < 10
    for spikes in (packed.detach(), over):
        assert_equal(bits_of(spikes), numpy_bits(spikes))


@every_neuron
@pytest.mark.parametrize("n", SIZES)
def test_kernels_write_what_numpy_packs(target, neuron, n):
    """Online, and where the step is differentiable only when asked."""
    assert_writes_what_numpy_packs(target, neuron, n, torch.float32, neuron.default)


@on_targets_and_dtypes(lambda target, dtype: target.takes(dtype) and dtype != torch.float32)
@every_neuron
def test_of_any_dtype(target, neuron, dtype):
    tried = [one.variant for one in choices(neuron) if one.dtype == dtype and "over" in one.ways]
    variant = next(iter(tried), neuron.default)
    for n in (1, 8, 9, 1023, 2049):
        assert_writes_what_numpy_packs(target, neuron, n, dtype, variant)


@every_neuron
def test_bits_follow_memory(target, neuron):
    """In channels_last, neighbours in memory are neighbours in channels."""
    given = random(neuron, (2, 3, 5, 7), device=target.device)
    given = given.map_neurons(lambda t: t.contiguous(memory_format=torch.channels_last))
    spikes = neuron.step_(*given.operands, backend=target.backend)
    assert_equal(bits_of(spikes), numpy_bits(spikes.permute(0, 2, 3, 1)))


def test_not_finite_bits(target):
    """NaN does not fire, inf does."""
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 2.0, 1.0], device=target.device)
    spikes = lif_step_(x, torch.zeros_like(x), backend=target.backend)
    assert bits_of(spikes).tolist() == [0b11010]


def test_no_spikes_no_bits(target):
    assert bits_of(fire(0, target)).shape == (0,)


@pytest.mark.parametrize("n", [*SIZES, 32768 + 13])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_binary_digits_of_small_sums(n, most):
    counts = torch.randint(0, most + 1, (n,)).float()
    counts[-1] = most
    planes = bits.planes_of(counts)
    assert len(planes) == (1 if most == 1 else 2)
    for digit, plane in enumerate(planes):
        assert_equal(plane, numpy_bits(counts.int() >> digit & 1))


def test_binary_digits_follow_memory():
    counts = torch.randint(0, 4, (2, 3, 5, 7)).float().contiguous(memory_format=torch.channels_last)
    assert_equal(bits.planes_of(counts)[0], numpy_bits(counts.permute(0, 2, 3, 1).int() & 1))


@pytest.mark.parametrize("other", [0.5, -1.0, 4.0, 255.0, float("nan"), float("inf"), 1e30, 1 + 2**-23])
@pytest.mark.parametrize("place", [0, 13, 70_000])
def test_other_numbers_have_no_digits(other, place):
    counts = torch.ones(70_001)
    counts[place] = other
    assert bits.planes_of(counts) is None


def test_other_tensors_have_no_digits():
    ones = torch.ones(4, 6)
    for t in (ones.double(), ones.bfloat16(), ones[:, ::2], ones[:0], ones.to("meta"), torch.nn.Parameter(ones)):
        assert bits.planes_of(t) is None


@pytest.mark.parametrize("n", SIZES)
def test_pack_is_numpys(n):
    spikes = fire(n)
    assert_equal(reference.pack(spikes), numpy_bits(spikes))
    assert len(reference.pack(spikes)) == bits.packed_size(n)


@on_targets_and_dtypes()
@pytest.mark.parametrize("shape", [(0,), (1,), (8,), (13,), (2, 3, 5, 7), (1025,), (32768 + 13,)], ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
def test_unpack_undoes_pack(target, dtype, shape, order):
    spikes = (torch.rand(shape, device=target.device) < 0.4).to(dtype)
    if order is torch.channels_last:
        spikes = spikes.view(*shape, *[1] * (4 - len(shape))).contiguous(memory_format=order)
    packed, description = reference.pack(spikes), (spikes.shape, spikes.stride(), spikes.dtype)
    if str(target) == "interpreter":  # spikes on the CPU are unpacked by the CPU's kernel, so ask for Triton's
        from stdl_engine.kernels.bits import triton

        again = torch.empty_strided(spikes.shape, spikes.stride(), dtype=dtype)
        if spikes.numel():
            triton.unpack(packed, again)
    else:
        again = bits.unpack(packed, *description)
    assert_equal(again, spikes)
    assert again.stride() == spikes.stride()
    assert_equal(reference.unpack(packed, *description), spikes)


@on_targets_and_dtypes()
@pytest.mark.parametrize("shape", [(0,), (1,), (8,), (13,), (2, 3, 5, 7), (1025,), (32768 + 13,)], ids=str)
def test_bits_are_added_as_spikes_would_be(target, dtype, shape):
    spikes = (torch.rand(shape, device=target.device) < 0.4).to(dtype)
    before = torch.randn(shape, device=target.device).to(dtype)
    before[..., :1] = -0.0
    found, packed = before.clone(), reference.pack(spikes)
    if str(target) == "interpreter":
        from stdl_engine.kernels.bits import triton

        if spikes.numel():
            triton.add(packed, found)
    else:
        bits.add_bits_(found, packed)
    (assert_near if target.cuts_off(dtype) else assert_equal)(found, before + spikes)


def test_opcheck_of_adding():
    spikes = (torch.rand(3, 5) < 0.4).float()
    outcome = opcheck(torch.ops.stdl_engine.add_bits_.default, (torch.randn(3, 5), reference.pack(spikes)))
    assert set(outcome.values()) == {"SUCCESS"}


def test_opcheck_of_unpack():
    spikes = (torch.rand(3, 5) < 0.4).float()
    outcome = opcheck(
        torch.ops.stdl_engine.unpack_bits.default, (reference.pack(spikes), [3, 5], [5, 1], torch.float32)
    )
    assert set(outcome.values()) == {"SUCCESS"}


def test_pack_refuses_gaps():
    with pytest.raises(ValueError, match=r"gaps or overlaps in it: pass its \.contiguous\(\)\."):
        reference.pack(torch.ones(4, 4)[:, ::2])


def test_views_find_the_bits():
    spikes = fire(24)
    packed = bits_of(spikes)
    for view in (spikes.view(4, 6), spikes.view(4, 6).t(), spikes[None], spikes.detach()):
        assert bits_of(view) is packed


def test_bits_survive_the_autograd_function_that_made_them():
    x = torch.randn(24, requires_grad=True)
    spikes = lif_step_(x, torch.zeros(24))
    assert_equal(bits_of(spikes), numpy_bits(spikes.detach()))
    assert bits_of(spikes.detach()) is bits_of(spikes)


@pytest.mark.parametrize(
    "view",
    [lambda s: s[1:], lambda s: s[:1].expand(24), lambda s: s[::2], lambda s: s.clone(), lambda s: s * 1],
    ids=["part", "expanded", "strided", "clone", "result"],
)
def test_other_tensors_have_none(view):
    assert bits_of(view(fire(24))) is None


@pytest.mark.parametrize(
    "change",
    [lambda s: s.zero_(), lambda s: s.add_(1), lambda s: s.view(4, 6)[0].fill_(1), lambda s: s.detach().neg_()],
    ids=["zero_", "add_", "view", "detached"],
)
def test_none_after_a_change_in_place(change):
    spikes = fire(24)
    change(spikes)
    assert bits_of(spikes) is None


def test_none_without_a_kernel():
    assert bits_of(torch.ones(8)) is None
    assert bits_of(lif_step(torch.ones(8), torch.zeros(8))[0]) is None


def test_none_in_inference_mode():
    """Inference tensors do not count changes in place, so the bits could go out of date unseen."""
    with torch.inference_mode():
        spikes = fire(24)
        assert bits_of(spikes) is None
        spikes.zero_()
    assert bits_of(spikes) is None


def test_bits_die_with_the_spikes():
    spikes = fire(24)
    packed = StorageWeakRef(bits_of(spikes).untyped_storage())
    view = spikes.view(4, 6)
    del spikes
    gc.collect()
    assert not packed.expired()
    assert bits_of(view) is not None
    del view
    gc.collect()
    assert packed.expired()
