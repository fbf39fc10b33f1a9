"""All time steps in one kernel against the same steps one by one: spikes, states and gradients to the last bit."""

import gc
import importlib
import inspect

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stdl_engine import FusedALIF, FusedLIF, FusedPLIF, kernels
from stdl_engine.kernels import bits_of, cpu_loop
from stdl_engine.kernels.bits.reference import pack as pack_bits
from stdl_engine.kernels.cpu_threads import CHUNK

from .compare import CPU, assert_equal
from .every_neuron import (
    NEURONS,
    assert_identical,
    assert_same,
    check_sequence,
    every_neuron,
    on_choices,
    one_by_one,
    random,
    run,
)


@on_choices()
def test_sequence_equals_single_steps_and_reference(target, neuron, choice):
    given = random(neuron, (37,), choice.dtype, target.device, steps=3)
    check_sequence(neuron, given, target, choice.ways, **choice.options(neuron))


@on_choices(lambda target, dtype: dtype == torch.float32)
def test_sequence_equals_reference_in_float64(target, neuron, choice):
    """No spike is near enough to its threshold to flip."""
    given, options = random(neuron, (29,), device=target.device, steps=4), choice.options(neuron)
    given.states[0][::7] += 0.1  # from the threshold, which float32 and float64 round to two sides of it
    right = run(neuron, given.map(torch.Tensor.double), None, **options)
    for by_step in (False, True):
        found = run(neuron, given, target, by_step=by_step, **options)
        for mine, exact in zip(found.tensors(), right.tensors(), strict=True):
            torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)
        if neuron.learned:
            torch.testing.assert_close(found.grad_w.double(), right.grad_w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", ["samples", "channels_last", "pixels first"])
@pytest.mark.parametrize("way", ["sequence", "online", "over"])
@every_neuron
def test_time_steps_in_one_batch(target, neuron, way, order):
    """[T·B, ...] is [T, B, ...]: the same spikes, bits, states and gradients."""
    given = random(neuron, (2, 3, 2, 4), device=target.device, steps=3)
    options = {"backend": target.backend} | ({"online": True} if way == "online" else {})

    def laid_out(t):
        if order == "channels_last":
            return t.contiguous(memory_format=torch.channels_last)
        return t.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2) if order == "pixels first" else t

    def results(flat):
        batch = laid_out(given.x.flatten(0, 1))
        x = (batch if flat else batch.unflatten(0, (3, 2))).detach().clone().requires_grad_()
        states = [laid_out(state.clone()) for state in given.states]
        call = neuron.sequence_ if way == "over" else neuron.sequence
        found = call(x, *states, *given.learned, **neuron.options | options)
        spikes, *after = found if isinstance(found, tuple) else (found, *states)
        assert spikes.shape == x.shape
        spikes.backward(given.grad_spikes.view(spikes.shape))
        if (bits := bits_of(spikes)) is not None:
            assert_equal(bits, pack_bits(spikes.detach()))
        return *(t if flat else t.flatten(0, 1) for t in (spikes, x.grad)), *after

    for one, other in zip(results(flat=True), results(flat=False), strict=True):
        assert_equal(one, other)


@every_neuron
def test_reference_of_a_sequence_is_its_steps(neuron):
    given = random(neuron, (3, 5), steps=3)
    right = run(neuron, given, "reference", "online", by_step=True)
    for way in ("online", "over"):
        assert_same(run(neuron, given, "reference", way), right)
        assert_same(run(neuron, given, None, way), right)
    assert_same(run(neuron, given, "reference"), run(neuron, given, None))


@every_neuron
@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (1025,), (2056,)], ids=str)
def test_any_shape_and_length(target, neuron, shape):
    for steps in (1, 2) if len(shape) == 1 else (1, 2, 5):
        check_sequence(neuron, random(neuron, shape, device=target.device, steps=steps), target)


@every_neuron
def test_no_neurons(target, neuron):
    check_sequence(neuron, random(neuron, (4, 0), device=target.device, steps=3), target)


@every_neuron
def test_more_than_a_chunk(neuron):
    """On two threads and on one the same to the last bit, the sum for the decay too."""
    given, before = random(neuron, (2 * CHUNK + 77,), steps=2), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_sequence(neuron, given, CPU)
        found = run(neuron, given, CPU)
        torch.set_num_threads(1)
        again = run(neuron, given, CPU)
    finally:
        torch.set_num_threads(before)
    assert_identical(found, again)


@every_neuron
@pytest.mark.parametrize("used", ["spikes", "state"])
def test_part_of_the_gradients(target, neuron, used):
    """Only one output is used, and the states before the sequence are constants."""
    given = random(neuron, (37,), device=target.device, steps=3).leaves(past=False)
    found = []
    for sequence in (neuron.sequence, one_by_one(neuron.step)):
        options = neuron.options | {"backend": target.backend}
        spikes, *states = sequence(given.x, *given.states, *given.learned, **options)
        output, upstream = (spikes, given.grad_spikes) if used == "spikes" else (states[-1], given.grad_states[-1])
        found.append(torch.autograd.grad(output, given.x, upstream)[0])
    assert_equal(*found)


@every_neuron
def test_a_new_length_compiles_nothing(target, neuron):
    if target.backend == "cpu":
        run(neuron, random(neuron, (37,), steps=3), CPU)
        compiled = (cpu_loop._forward_kernel, cpu_loop._backward_kernel)
        before = [kernel.cache_info().misses for kernel in compiled]
        for steps in (1, 2, 5, 16, 17):
            run(neuron, random(neuron, (37,), steps=steps), CPU)
        assert [kernel.cache_info().misses for kernel in compiled] == before
    else:
        kernel = importlib.import_module(f"{neuron.operators._package}.triton")
        source = inspect.getsource(kernel)  # in the interpreter there is no compiler to ask
        assert source.count('@triton.jit(do_not_specialize=["steps"])') == 2
        assert "steps: tl.constexpr" not in source


@every_neuron
@pytest.mark.parametrize("n", [1, 8, 13, 2056])
def test_bits(target, neuron, n):
    """Of the whole sequence in memory order, also where a step does not fill its last byte."""
    given = random(neuron, (n,), device=target.device, steps=3)
    operands, options = (given.x, *given.states, *given.learned), neuron.options | {"backend": target.backend}
    assert bits_of(neuron.sequence(*operands, **options)[0]) is None
    packed = neuron.sequence(*operands, pack=True, **options)[0]
    over = neuron.sequence_(*operands, **options)
    for spikes in (packed, over):
        assert_equal(bits_of(spikes), pack_bits(spikes))


@every_neuron
def test_spikes_over_the_input(target, neuron):
    given = random(neuron, (40,), device=target.device, steps=3)
    found, right = (run(neuron, given, target, "over", overwrite=overwrite) for overwrite in (True, False))
    assert_identical(found, right)


@every_neuron
def test_layouts(target, neuron):
    """Steps in channels_last stay so; a sequence that is no run of steps in memory is copied."""
    given = random(neuron, (2, 6, 5, 4), device=target.device, steps=3)
    x, right = given.x, {way: run(neuron, given, target, way) for way in ("exact", "over")}
    last = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert last[0].is_contiguous(memory_format=torch.channels_last)
    for other in (last, x.transpose(0, 1).contiguous().transpose(0, 1), torch.stack([x, x], dim=-1)[..., 0]):
        for way, expected in right.items():
            assert_same(run(neuron, given._replace(x=other), target, way), expected)
    found = run(neuron, given._replace(x=last), target)
    assert found.spikes.stride() == last.stride()
    assert all(state.is_contiguous(memory_format=torch.channels_last) for state in found.states)


@every_neuron
def test_keeps_one_map_a_step_and_state(target, neuron):
    """The states, the last of which are the new ones; neither input nor spikes; nothing if no gradient is wanted."""
    steps, n, kept = 5, 1000, {}

    def note(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    leaf = torch.randn(steps, n, device=target.device, requires_grad=True)
    x, states = leaf + 1, [torch.zeros(n, device=target.device) for _ in range(neuron.states)]
    learned = (torch.zeros(1, device=target.device),) if neuron.learned else ()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        spikes, *last = neuron.sequence(x, *states, *learned, backend=target.backend)
    maps = sorted(size for size in kept.values() if size > 4)  # but for the decay
    assert maps == sorted([4 * n, 4 * n * (steps - 1)] * neuron.states)
    for state in last:
        assert state.untyped_storage().data_ptr() in kept
        assert state.untyped_storage().nbytes() == 4 * n
    consumed = spikes + 1
    dead = [StorageWeakRef(t.untyped_storage()) for t in (x, spikes, *states)]
    del x, spikes, states
    gc.collect()
    assert all(ref.expired() for ref in dead)
    consumed.backward(torch.randn_like(consumed))
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), torch.no_grad():
        neuron.sequence(leaf, *(state.detach() for state in last), *learned, backend=target.backend)
    assert not kept


@every_neuron
def test_a_state_advanced_before_its_backward_is_noticed(target, neuron):
    given = random(neuron, (16,), device=target.device, steps=2).leaves(past=False)
    spikes = neuron.sequence_(given.x, *given.states, *given.learned, backend=target.backend)
    with torch.no_grad():
        neuron.sequence_(given.x, *given.states, *given.learned, backend=target.backend)
    with pytest.raises(RuntimeError, match="was advanced or changed before that step's backward"):
        spikes.backward(given.grad_spikes)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("shape", [(), (0, 4)], ids=str)
@every_neuron
def test_sequence_without_steps_is_refused(neuron, backend, shape):
    given = random(neuron, (4,))
    for sequence in (neuron.sequence, neuron.sequence_):
        with pytest.raises(
            ValueError, match=r"^the sequence has shape .*: pass \[T, \.\.\.\] with at least one time step\.$"
        ):
            sequence(torch.zeros(shape), *given.states, *given.learned, backend=backend)


LAYERS = {"lif": FusedLIF, "plif": FusedPLIF, "alif": FusedALIF}
every_layer = pytest.mark.parametrize("name", LAYERS)


class Calls:
    """What a layer's module calls, by name."""

    def __init__(self, neuron: str, monkeypatch) -> None:
        from stdl_engine import neurons

        self.names, module = [], getattr(neurons, neuron)
        for name in (f"{neuron}_sequence", f"{neuron}_sequence_", f"{neuron}_step", f"{neuron}_step_"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, self.noting(name, getattr(module, name)))

    def noting(self, name, function):
        def noted(*args, **options):
            self.names.append(name)
            return function(*args, **options)

        return noted


@every_layer
def test_the_layer_calls_one_kernel(name, monkeypatch):
    """Not in the paper's form, whose steps stay apart."""
    calls, xs, layer = Calls(name, monkeypatch), torch.randn(4, 3, 5), LAYERS[name]
    layer(0.5, step_mode="m")(xs)
    layer(0.5, online=True, step_mode="m")(xs.clone().requires_grad_())
    assert calls.names == [f"{name}_sequence"] * 2
    calls.names.clear()
    with torch.no_grad():
        layer(0.5, online=True, step_mode="m")(xs)
    assert calls.names == [f"{name}_sequence_"]
    calls.names.clear()
    plain = layer(0.5, step_mode="m")
    plain.memory_form = "paper"
    plain(xs)
    assert calls.names == [f"{name}_step"] * 4


@every_layer
@pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
def test_the_layer_goes_on_from_its_state_and_back_through_two_calls(name, online):
    """A layer that takes sequences against one that takes steps; online the steps go back one by one."""
    xs, upstream = torch.randn(6, 3, 8) + 0.5, torch.randn(6, 3, 8)
    many, one = (LAYERS[name](0.5, online=online, step_mode=mode) for mode in ("m", "s"))
    leaf = xs.clone().requires_grad_()
    spikes = torch.cat([many(leaf[:2]), many(leaf[2:])])
    spikes.backward(upstream)
    steps, grads = [], []
    for x, grad in zip(xs, upstream, strict=True):
        x.requires_grad_()
        steps.append(one(x))
        grads.append(x)
        if online:
            steps[-1].backward(grad)
    if not online:
        torch.autograd.backward(steps, [*upstream])
    assert_equal(spikes.detach(), torch.stack(steps).detach())
    assert_equal(leaf.grad, torch.stack([x.grad for x in grads]))
    for mine, theirs in zip(many.states(), one.states(), strict=True):
        assert_equal(mine.detach(), theirs.detach())
    for mine, theirs in zip(many.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5)


@every_layer
@pytest.mark.parametrize("online", [False, True], ids=["exact", "online"])
def test_lean_memory_writes_bits(name, online):
    layer = LAYERS[name](step_mode="m", online=online)
    layer.memory_form = "lean"
    assert bits_of(layer(torch.full((2, 8), 5.0, requires_grad=True))).tolist() == [255, 255]
    with torch.no_grad():
        assert bits_of(layer(torch.full((2, 8), -5.0))).tolist() == [0, 0]


def test_every_neuron_has_the_four_functions():
    """A function for a step and one for a sequence, each with a form that writes over the state."""
    for neuron in NEURONS:
        for form in ("step", "step_", "sequence", "sequence_"):
            assert getattr(kernels, f"{neuron.name}_{form}") is getattr(neuron, form)
