"""Rounding: the error against float64 is at most twice that of the plain version in the same dtype."""

import torch

from .every_neuron import on_choices, random, run

ROUNDING = 4 * torch.finfo(torch.float32).eps
"""What float32 arithmetic may move a membrane of about 1 by; closer to the threshold a spike may flip."""


@on_choices(lambda target, dtype: dtype != torch.float64 and not target.cuts_off(dtype))
def test_error_against_float64(target, neuron, choice):
    options = choice.options(neuron)
    given = random(neuron, (2003,), choice.dtype, target.device)
    given.states[0][::7] += 0.1  # from the threshold, which float32 and float64 round to two sides of it
    exact = run(neuron, given.map(torch.Tensor.double), None, **options)
    plain, found = (run(neuron, given, on, **options) for on in (None, target))

    def near_threshold(m, *others):
        return (m - neuron.level(neuron.options, *others)).abs() < ROUNDING

    at_threshold = near_threshold(*exact.states) | near_threshold(*given.states)
    flips = found.spikes.double() != exact.spikes
    assert not (flips & ~at_threshold).any()
    assert flips.sum() <= 2  # of 2003
    for mine, theirs, right in zip(found.tensors(), plain.tensors(), exact.tensors(), strict=True):
        error, allowed = (((t.double() - right)[~at_threshold]).abs().max() for t in (mine, theirs))
        assert error <= 2 * allowed
