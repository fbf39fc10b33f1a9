"""All time steps in one kernel against the same steps one by one: spikes, state and gradients to the last bit."""

import gc
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine import FusedLIF
from stdl_engine.kernels import bits_of
from stdl_engine.kernels.bits.reference import pack as pack_bits
from stdl_engine.kernels.cpu_threads import CHUNK
from stdl_engine.kernels.lif import lif_sequence, lif_step, multistep_cpu, reference

from .compare import RESETS, TARGETS, Target, assert_equal, assert_near, on_targets_and_dtypes

# No number is exact in binary: what a backend rounds differently shows.
OPTIONS = {"decay": 0.3, "threshold": 0.6, "scale": 0.8}

resets = pytest.mark.parametrize("reset", RESETS[:2], ids=lambda r: r["reset"])


def inputs(steps: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu"):
    """A sequence, the state before it, and gradients of spikes and final state."""
    x = (torch.randn(steps, *shape) * 0.7 + 0.5).to(dtype)
    m = (torch.randn(shape) * 0.7 + 0.7).to(torch.float64 if dtype == torch.float64 else torch.float32)
    m.view(-1)[::7] = OPTIONS["threshold"]
    return tuple(t.to(device) for t in (x, m, torch.randn(x.shape).to(dtype), torch.randn(shape).to(m.dtype)))


def in_one(x, m, target: Target, **options):
    return lif_sequence(x, m, backend=target.backend, **OPTIONS | options)


def one_by_one(x, m, target: Target, **options):
    spikes = []
    for x_t in x:
        s, m = lif_step(x_t, m, backend=target.backend, **OPTIONS | options)
        spikes.append(s)
    return torch.stack(spikes), m


def run(sequence, x, m, grad_spikes, grad_m, *args, **options):
    """Spikes, final state and the gradients of the input and of the state before it."""
    x, m = x.detach().requires_grad_(), m.detach().requires_grad_()
    outputs = sequence(x, m, *args, **options)
    grads = torch.autograd.grad(outputs, [x, m], [grad_spikes, grad_m])
    return *(t.detach() for t in outputs), *grads


def check(given, target: Target, exact: bool = True, **options) -> None:
    found, steps = (run(sequence, *given, target, **options) for sequence in (in_one, one_by_one))
    for mine, theirs in zip(found, steps, strict=True):
        (assert_equal if exact else assert_near)(mine, theirs)
    right = run(lambda *a: reference.lif_sequence(*a, **OPTIONS | options), *given)
    for place, (mine, theirs) in enumerate(zip(found, right, strict=True)):
        (assert_equal if place < 2 else assert_near)(mine, theirs)


@resets
def test_resets(target, reset):
    check(inputs(4, (37,), device=target.device), target, **reset)


def test_reset_detached(target):
    check(inputs(4, (37,), device=target.device), target, detach_reset=True)


@on_targets_and_dtypes(lambda target, dtype: dtype == torch.bfloat16)
def test_low_precision(target, dtype):
    check(inputs(3, (37,), dtype, target.device), target)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("shape", [(), (1,), (8,), (3, 5, 7), (1025,), (2049,)], ids=str)
def test_any_shape_and_length(target, shape, steps):
    given = inputs(steps, shape, device=target.device)
    for mine, theirs in zip(run(in_one, *given, target), run(one_by_one, *given, target), strict=True):
        assert_equal(mine, theirs)


def test_no_neurons(target):
    check(inputs(3, (4, 0), device=target.device), target)


@pytest.mark.parametrize("threads", [1, 2])
def test_more_than_a_chunk(threads):
    given, before = inputs(2, (2 * CHUNK + 77,)), torch.get_num_threads()
    torch.set_num_threads(threads)
    found = run(in_one, *given, TARGETS[0])
    torch.set_num_threads(before)
    for mine, theirs in zip(found, run(one_by_one, *given, TARGETS[0]), strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("used", ["spikes", "m"])
def test_part_of_the_gradients(target, used):
    """Only one output is used, and the state before the sequence is a constant."""
    x, m, grad_spikes, grad_m = inputs(3, (37,), device=target.device)
    found = []
    for sequence in (in_one, one_by_one):
        leaf = x.detach().requires_grad_()
        spikes, last = sequence(leaf, m, target)
        output, upstream = (spikes, grad_spikes) if used == "spikes" else (last, grad_m)
        found.append(torch.autograd.grad(output, leaf, upstream)[0])
    assert_equal(*found)


def test_a_new_length_compiles_nothing(target):
    if target.backend == "cpu":
        run(in_one, *inputs(3, (37,)), target)
        kernels = (multistep_cpu._forward_kernel, multistep_cpu._backward_kernel)
        before = [kernel.cache_info().misses for kernel in kernels]
        for steps in (1, 2, 5, 16, 17):
            run(in_one, *inputs(steps, (37,)), target)
        assert [kernel.cache_info().misses for kernel in kernels] == before
    else:
        from stdl_engine.kernels.lif import multistep_triton

        source = Path(multistep_triton.__file__).read_text()  # in the interpreter there is no compiler to ask
        assert source.count('@triton.jit(do_not_specialize=["steps"])') == 2
        assert "steps: tl.constexpr" not in source


@pytest.mark.parametrize("n", [1, 8, 13, 2048, 2056])
def test_bits(target, n):
    """Of the whole sequence in memory order, also where a step does not fill its last byte."""
    x, m, *_ = inputs(3, (n,), device=target.device)
    spikes, _ = in_one(x, m, target, pack=True)
    assert_equal(bits_of(spikes), pack_bits(spikes))
    assert bits_of(in_one(x, m, target)[0]) is None


def test_layouts(target):
    """Steps in channels_last stay so; a sequence that is no run of steps in memory is copied."""
    given = inputs(3, (2, 6, 5, 4), device=target.device)
    right = run(in_one, *given, target)
    x, m, grad_spikes, grad_m = given
    last = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert last[0].is_contiguous(memory_format=torch.channels_last)
    others = [last, x.transpose(0, 1).contiguous().transpose(0, 1), torch.stack([x, x], dim=-1)[..., 0]]
    for other in others:
        found = run(in_one, other, m, grad_spikes, grad_m, target)
        for mine, theirs in zip(found, right, strict=True):
            assert_equal(mine, theirs)
    spikes, m_last = in_one(last, m, target)
    assert spikes.stride() == last.stride()
    assert m_last.is_contiguous(memory_format=torch.channels_last)


def test_keeps_one_map_a_step(target):
    """The membranes, the last of which is the new state; neither input nor spikes; nothing if no gradient is wanted."""
    steps, n, kept = 5, 1000, {}

    def note(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    leaf = torch.randn(steps, n, device=target.device, requires_grad=True)
    x, m = leaf + 1, torch.zeros(n, device=target.device)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        spikes, last = in_one(x, m, target)
    assert sorted(kept.values()) == [4 * n, 4 * n * (steps - 1)]
    assert last.untyped_storage().data_ptr() in kept
    assert last.untyped_storage().nbytes() == 4 * n
    consumed = spikes + 1
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes, m)]
    del x, spikes, m
    gc.collect()
    assert all(ref.expired() for ref in dead)
    consumed.backward(torch.randn_like(consumed))


def test_opcheck(target):
    x, m, grad_spikes, grad_m = inputs(3, (2, 4), device=target.device)
    scalars = (0.3, 0.6, "soft", 0.0, 0.8, False, "triangle", 1.0, 1.0, target.backend)
    ops = torch.ops.stdl_engine
    step = opcheck(ops.lif_sequence.default, (x.requires_grad_(), m.requires_grad_(), *scalars, True, True))
    given = m.detach(), torch.randn(2, 2, 4, device=target.device), grad_spikes, grad_m, m.detach().clone()
    back = opcheck(ops.lif_sequence_backward.default, (*given, torch.float32, *scalars))
    assert {*step.values(), *back.values()} == {"SUCCESS"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors(device):
    with FakeTensorMode():
        x = torch.empty(3, 2, 4, dtype=torch.bfloat16, device=device, requires_grad=device == "cpu")
        spikes, m = lif_sequence(x, torch.empty(2, 4, device=device))
        assert (spikes.shape, spikes.dtype, spikes.device.type) == (x.shape, x.dtype, device)
        assert (m.shape, m.dtype) == ((2, 4), torch.float32)
        if device == "cpu":
            spikes.backward(torch.empty_like(spikes))
            assert x.grad.shape == x.shape


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("shape", [(), (0, 4)], ids=str)
def test_sequence_without_steps_is_refused(backend, shape):
    with pytest.raises(
        ValueError, match=r"^the sequence has shape .*: pass \[T, \.\.\.\] with at least one time step\.$"
    ):
        lif_sequence(torch.zeros(shape), torch.zeros(4), backend=backend)


def test_second_derivative_is_refused(target):
    x, m, grad_spikes, _ = inputs(2, (5,), device=target.device)
    spikes, _ = in_one(x.requires_grad_(), m, target)
    (first,) = torch.autograd.grad(spikes, x, grad_spikes.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match='no second derivative: pass backend="reference" to differentiate twice'):
        first.sum().backward()


class Calls:
    """What a layer's module calls, by name."""

    def __init__(self, monkeypatch) -> None:
        from stdl_engine.neurons import lif

        self.names = []
        for name in ("lif_sequence", "lif_step", "lif_step_"):
            monkeypatch.setattr(lif, name, self.noting(name, getattr(lif, name)))

    def noting(self, name, function):
        def noted(*args, **options):
            self.names.append(name)
            return function(*args, **options)

        return noted


def test_the_layer_calls_one_kernel(monkeypatch):
    """Not online and not in the paper's form, whose steps stay apart."""
    calls, xs = Calls(monkeypatch), torch.randn(4, 3, 5)
    FusedLIF(0.5, step_mode="m")(xs)
    assert calls.names == ["lif_sequence"]
    calls.names.clear()
    FusedLIF(0.5, online=True, step_mode="m")(xs)
    assert calls.names == ["lif_step_"] * 4
    calls.names.clear()
    plain = FusedLIF(0.5, step_mode="m")
    plain.memory_form = "paper"
    plain(xs)
    assert calls.names == ["lif_step"] * 4


def test_the_layer_goes_on_from_its_state_and_back_through_two_calls():
    xs, upstream = torch.randn(6, 3, 5) + 0.5, torch.randn(6, 3, 5)
    results = []
    for step_mode in ("m", "s"):
        lif, leaf = FusedLIF(0.5, step_mode=step_mode), xs.clone().requires_grad_()
        calls = [leaf[:2], leaf[2:]] if step_mode == "m" else leaf.unbind()
        spikes = [lif(x) for x in calls]
        spikes = torch.cat(spikes) if step_mode == "m" else torch.stack(spikes)
        (grad,) = torch.autograd.grad(spikes, leaf, upstream)
        results.append((spikes.detach(), lif.membrane.detach(), grad))
    for mine, theirs in zip(*results, strict=True):
        assert_equal(mine, theirs)


def test_lean_memory_writes_bits():
    lif = FusedLIF(step_mode="m")
    lif.memory_form = "lean"
    assert bits_of(lif(torch.ones(2, 8, requires_grad=True))).tolist() == [255, 255]
