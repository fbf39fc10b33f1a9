"""Any shape, memory order and parameters: the kernels equal the reference."""

import pytest
import torch
from hypothesis import given as drawing
from hypothesis import settings
from hypothesis import strategies as st

from stdl_engine.kernels.surrogate import SURROGATES

from .compare import CPU, TARGETS, Target
from .every_neuron import NEURONS, check, choices, random

positive, share = st.floats(0.05, 4.0), st.floats(0.0, 1.0)
shapes = st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple)
NUMBERS = {
    "decay": share, "threshold": positive, "scale": st.floats(-2.0, 2.0), "reset_value": st.floats(-2.0, 2.0),
    "beta": share, "rho": share,
}  # fmt: skip
# Kernels that other tests compile too: what is drawn here, numbers, shapes and strides, needs no kernel of its own.
CHOICES = [
    (neuron, choice)
    for neuron in NEURONS
    for choice in choices(neuron)
    if choice.surrogate in ("triangle", "rectangle") and choice.dtype != torch.float64
]


def any_order(t: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The same values, with dimensions laid out in memory in this order."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return t.permute(order).contiguous().permute(back)


def check_any(target: Target, data: st.DataObject) -> None:
    neuron, choice = data.draw(st.sampled_from(CHOICES))
    shape, options = data.draw(shapes), choice.options(neuron)
    names = {*neuron.options, *options} & NUMBERS.keys()
    options |= {name: data.draw(NUMBERS[name], label=name) for name in sorted(names)}
    options["surrogate"] = SURROGATES[choice.surrogate](data.draw(positive))
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    given = random(neuron, shape, choice.dtype, target.device, **options)
    given = given.map_neurons(lambda t: any_order(t, data.draw(st.permutations(range(len(shape))))))
    if len({t.stride() for t in given.states}) > 1:  # states that are written over have one order
        given = given._replace(states=tuple(torch.empty_like(given.states[0]).copy_(t) for t in given.states))
    check(neuron, given, target, choice.ways, **options)


@settings(deadline=None, max_examples=60)
@drawing(st.data())
def test_cpu(data):
    check_any(CPU, data)


@pytest.mark.gpu
@pytest.mark.skipif(len(TARGETS) < 2, reason="Triton is for Linux only")
@settings(deadline=None, max_examples=25)
@drawing(st.data())
def test_triton(data):
    check_any(TARGETS[1], data)
