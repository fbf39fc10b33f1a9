"""The smooth part of a step, states to states, against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from stdl_engine.kernels.lif import lif_step
from stdl_engine.kernels.surrogate import Triangle

from .every_neuron import ALIF, NEURONS, random

# ALIF's reset takes away a level that depends on the adaptation, so it is smooth only with the reset attached.
SMOOTH = [
    (neuron, variant)
    for neuron in NEURONS
    for variant, options in neuron.variants.items()
    if options.get("detach_reset", False) != (neuron is ALIF)
]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("neuron", "variant"), SMOOTH, ids=str)
def test_gradient_of_the_states(backend, neuron, variant):
    """But for what goes by way of spikes, they are smooth in input, past and decay on each side of the threshold."""
    given = random(neuron, (3, 5), torch.float64)
    level = neuron.level(neuron.options, *given.states[1:])
    away = (torch.rand(3, 5, dtype=torch.float64) + 0.5) * torch.randn(3, 5).sign()
    assert (away > 0).any()
    assert (away < 0).any()
    given = given._replace(states=(level + away, *given.states[1:])).leaves()
    options = neuron.options | neuron.variants[variant] | {"backend": backend}
    options["surrogate"] = Triangle(0.1)  # 0 where the membranes are
    assert gradcheck(lambda *operands: neuron.step(*operands, **options)[1:], given.operands)


@pytest.mark.parametrize("scale_by_decay", [False, True])
def test_gradient_of_the_reference_of_a_learned_decay(scale_by_decay):
    for neuron in NEURONS:
        if neuron.learned:
            given = random(neuron, (7,), torch.float64)
            given.states[0].add_(0.1 * (given.states[0] >= neuron.options["threshold"]))  # not at the kink
            options = neuron.options | {"scale_by_decay": scale_by_decay, "detach_reset": True, "backend": "reference"}
            assert gradcheck(lambda *a, n=neuron, o=options: n.step(*a, **o)[1], given.leaves().operands)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_membrane_gradient_over_steps(backend):
    x = torch.rand(4, 6, dtype=torch.float64) * 0.2  # never reaches the threshold: no kink
    m_prev = torch.rand(6, dtype=torch.float64) * 0.2

    def final(x, m):
        for x_t in x:
            _, m = lif_step(x_t, m, decay=0.7, detach_reset=True, backend=backend)
        return m

    assert gradcheck(final, (x.requires_grad_(), m_prev.requires_grad_()))
