"""What is PLIF's own: the decay that is learned. All else is tested with every neuron."""

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine.kernels import bits_of
from stdl_engine.kernels.plif import plif_step

from .compare import assert_equal
from .every_neuron import PLIF, assert_same, check, choices, random, run


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_decay_of_any_dimension(target, shape):
    """Its gradient has the same; that of a (1,) is tested with every neuron."""
    given = random(PLIF, (37,), device=target.device)
    check(PLIF, given._replace(learned=(given.learned[0].reshape(shape),)), target)


def test_decay_that_rounds_to_one_has_a_finite_gradient(target):
    """sigmoid(40) is 1 in float32: with `scale_by_decay` the input has no part any more, and w stays where it is."""
    given = random(PLIF, (37,), device=target.device, threshold=1.0)
    given = given._replace(learned=(torch.tensor(40.0, device=target.device),))
    choice = next(choice for choice in choices(PLIF) if choice.variant == "soft-detached-scaled")
    found = run(PLIF, given, target, threshold=1.0, **choice.options(PLIF))
    assert not found.grads[0].any()
    assert found.grad_w.isfinite()
    (m_prev,) = given.states
    assert_equal(found.states[0], torch.where(m_prev >= 1, m_prev - 1, m_prev))


# Two steps, λ = ½, Vth = 1, soft reset: m1 = 1.25 fires and leaves u1 = 0.25, m2 = 1.125. Upstream: 2 on the first
# spike, -4 on the second, 1 on the final membrane; the triangle gives dm2 = -2.5 and dm1 = 1.1875 (test_golden.py).
# dλ = dm2·u1 + dm1·0 = -0.625, and dw = λ(1-λ)·dλ = -0.15625.
# Online dm2 = -4·0.875 = -3.5: dλ = -0.875 and dw = -0.21875.
# With the input scaled by 1-λ = ½ inputs of 2.5 and 2 give the same membranes, and
# dλ = dm2·(u1 - 2) + dm1·(0 - 2.5) = 4.375 - 2.96875 = 1.40625: dw = 0.3515625.
# Online dm1 = 2·0.75: dλ = -3.5·(0.25 - 2) + 1.5·-2.5 = 2.375: dw = 0.59375.
GOLDEN = {(False, False): -0.15625, (False, True): -0.21875, (True, False): 0.3515625, (True, True): 0.59375}


@pytest.mark.parametrize(("scale_by_decay", "online"), GOLDEN)
def test_golden_gradient(backend, scale_by_decay, online):
    w, m, outputs = torch.zeros((), requires_grad=True), torch.zeros(1), []
    for x in (2.5, 2.0) if scale_by_decay else (1.25, 1.0):
        spikes, m = plif_step(torch.tensor([x]), m, w, scale_by_decay=scale_by_decay, online=online, backend=backend)
        outputs.append(spikes)
    upstream = [torch.tensor([g]) for g in (2.0, -4.0, 1.0)]
    if online:
        assert not m.requires_grad
        torch.autograd.backward(outputs, upstream[:2])
    else:
        torch.autograd.backward([*outputs, m], upstream)
    assert w.grad.item() == GOLDEN[scale_by_decay, online]


def test_spikes_over_the_input_and_a_new_state(target):
    """The form of `overwrite` that only a neuron has whose online step keeps its past."""
    given = random(PLIF, (1037,), device=target.device)
    results = []
    for overwrite in (False, True):
        leaves = given.leaves(past=False)
        x = leaves.x * 1
        options = {"online": True, "pack": True, "overwrite": overwrite, "backend": target.backend, **PLIF.options}
        spikes, m = plif_step(x, *leaves.states, *leaves.learned, **options)
        assert (spikes.data_ptr() == x.data_ptr()) == overwrite
        assert not m.requires_grad
        packed = bits_of(spikes)
        grads = torch.autograd.grad(spikes, [leaves.x, *leaves.learned], given.grad_spikes)
        results.append((spikes.detach(), m, packed, *grads))
    for mine, over in zip(*results, strict=True):
        assert_equal(mine, over)
    assert_equal(results[0][2], run(PLIF, given, target, "over").bits)


@pytest.mark.parametrize("order", ["channels_last", "sliced"])
def test_an_input_with_gaps_is_not_written_over(target, order):
    (x, (m,), *_), w = random(PLIF, (2, 3, 4, 5), device=target.device), torch.zeros((), device=target.device)
    if order == "channels_last":
        x, m = (t.contiguous(memory_format=torch.channels_last) for t in (x, m))
    else:
        x, m = (torch.stack([t, t + 1], dim=-1)[..., 0] for t in (x, m))
    spikes, _ = plif_step(x, m, w, online=True, overwrite=True, backend=target.backend)
    assert (spikes.data_ptr() == x.data_ptr()) == (order == "channels_last")


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_online_keeps_the_past_only_for_w(target, frozen):
    """Neither input nor spikes; and the old membrane only where w wants a gradient."""
    leaf = torch.randn(1000, device=target.device, requires_grad=True)
    w = torch.zeros((), device=target.device, requires_grad=not frozen)
    x, m_prev = leaf + 1, torch.randn(1000, device=target.device)
    spikes, m = plif_step(x, m_prev, w, online=True, backend=target.backend)
    consumed = spikes + 1
    gone, past = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes)], StorageWeakRef(m_prev.untyped_storage())
    del x, spikes, m_prev
    gc.collect()
    assert all(ref.expired() for ref in gone)
    assert past.expired() == frozen
    consumed.backward(torch.randn_like(m))
    gc.collect()
    assert past.expired()


def test_changed_membrane_is_noticed(target):
    x, w = torch.randn(9, device=target.device), torch.zeros((), device=target.device, requires_grad=True)
    spikes, m = plif_step(x, torch.zeros_like(x), w, online=True, backend=target.backend)
    m.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        spikes.backward(torch.randn_like(m))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("ill", ["x", "m_prev", "grad_spikes"])
def test_not_finite_reaches_the_decay_as_in_the_reference(target, ill):
    """Not by an input, for which the triangle is 0."""
    given = random(PLIF, (40,), device=target.device)
    operand = {"x": given.x, "m_prev": given.states[0], "grad_spikes": given.grad_spikes}[ill]
    operand[3:6] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    found, right = run(PLIF, given, target), run(PLIF, given, None)
    assert_same(found, right)
    assert found.grad_w.isnan() == right.grad_w.isnan() == (ill != "x")


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("w has shape (2,) and dtype torch.float32: it must be one floating", {"w": torch.zeros(2)}),
        ("w has shape () and dtype torch.int64: it must be one floating", {"w": torch.tensor(1)}),
        ("w is on meta, the input on cpu: move one", {"w": torch.zeros((), device="meta")}),
        ("overwrite=True is for the online step: pass online=True", {"overwrite": True}),
    ],
    ids=["shape", "dtype", "device", "overwrite"],
)
def test_errors_are_one_sentence(message, change):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is compared below
        plif_step(torch.zeros(3), torch.zeros(3), **{"w": torch.zeros(())} | change)
    assert str(raised.value).startswith(message)
    assert str(raised.value).count(". ") == 0
