"""The online step that writes its spikes over the input."""

import pytest
import torch

from stdl_engine.kernels import bits_of
from stdl_engine.kernels.bits.reference import pack

from .compare import TARGETS, assert_equal
from .every_neuron import NEURONS, assert_identical, choices, every_neuron, random, run

# Every reset with float32, and every dtype: a kernel that writes over its input differs only in where it reads.
CASES = [
    (target, neuron, choice)
    for target in TARGETS
    for neuron in NEURONS
    for choice in choices(neuron)
    if "over" in choice.ways and target.takes(choice.dtype)
    if choice.dtype != torch.float32 or "detach_reset" not in neuron.variants[choice.variant]
]


@pytest.mark.parametrize(("target", "neuron", "choice"), CASES, ids=str)
def test_same_as_in_memory_of_its_own(target, neuron, choice):
    given, options = random(neuron, (1037,), choice.dtype, target.device), choice.options(neuron)
    found, right = (run(neuron, given, target, "over", overwrite=over, **options) for over in (True, False))
    assert_identical(found, right)
    assert_equal(found.bits, right.bits)


@every_neuron
def test_channels_last(target, neuron):
    given = random(neuron, (2, 3, 4, 5), device=target.device)
    given = given.map_neurons(lambda t: t.contiguous(memory_format=torch.channels_last))
    found, right = (run(neuron, given, target, "over", overwrite=over) for over in (True, False))
    assert_identical(found, right)
    assert_equal(found.bits, right.bits)


@every_neuron
def test_other_order_than_the_state(target, neuron):
    """Bits follow the state's memory, so the spikes must, too, and cannot be where the input is."""
    given = random(neuron, (2, 3, 4, 5), device=target.device)
    right = run(neuron, given, None, "over")
    x = given.x.contiguous(memory_format=torch.channels_last)
    spikes = neuron.step_(x, *given.states, *given.learned, backend=target.backend, overwrite=True, **neuron.options)
    assert_equal(spikes, right.spikes)
    for state, expected in zip(given.states, right.states, strict=True):
        assert_equal(state, expected)
    assert_equal(bits_of(spikes), pack(spikes))


@every_neuron
def test_what_needs_the_input_notices(target, neuron):
    """The square saves its input, which is then written over."""
    given = random(neuron, (5,), device=target.device).leaves(past=False)
    x = given.x * 1
    square = x**2
    neuron.step_(x, *given.states, *given.learned, backend=target.backend, overwrite=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward(given.grad_spikes)


@every_neuron
def test_leaf_is_refused(target, neuron):
    given = random(neuron, (5,), device=target.device).leaves(past=False)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        neuron.step_(*given.operands, backend=target.backend, overwrite=True)
