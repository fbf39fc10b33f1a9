"""FusedALIF as a layer: the two states it carries, and training with it under every memory form."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from stdl_engine import FusedALIF, FusedLIF, reset_states
from stdl_engine.kernels import bits_of
from stdl_engine.kernels.alif import reference
from stdl_engine.neurons import NEURONS

from .rules.nets import assert_same, assert_same_results, batches, make, numbers, small, train

onlines = pytest.mark.parametrize("online", [False, True], ids=["bptt", "online"])
FAST = {"beta": 0.9, "rho": 0.6}
"""Adaptation that shows in a few steps."""


def sequence(steps: int = 4) -> torch.Tensor:
    return torch.randn(steps, 4, 5) + 0.8


def run(layer: nn.Module, xs: torch.Tensor) -> torch.Tensor:
    """One call a time step, from a state of nothing."""
    reset_states(layer)
    return torch.stack([layer(x) for x in xs])


def test_is_found_by_name():
    assert NEURONS["alif"] is FusedALIF


def test_defaults():
    alif = FusedALIF()
    assert (alif.threshold, alif.beta, alif.rho) == (1.0, 0.184, math.exp(-1 / 100))
    assert not list(alif.parameters())
    alif(torch.ones(3))
    assert not alif.state_dict()


@pytest.mark.parametrize("detach_reset", [False, True], ids=["attached", "detached"])
def test_gradient_through_time_is_the_references(detach_reset):
    options = FAST | {"scale": 0.8, "detach_reset": detach_reset}
    xs, upstream = sequence().requires_grad_(), torch.randn(4, 4, 5)
    alif = FusedALIF(0.4, 0.9, **options)
    found = run(alif, xs)
    m, adaptation, spikes = torch.zeros(4, 5), torch.zeros(4, 5), []
    for x in xs:
        s, m, adaptation = reference.alif_step(x, m, adaptation, 0.4, 0.9, **options)
        spikes.append(s)
    right = torch.stack(spikes)
    assert torch.equal(found, right)
    assert torch.equal(alif.membrane, m)
    assert torch.equal(alif.adaptation, adaptation)
    mine, theirs = (torch.autograd.grad(out, xs, upstream)[0] for out in (found, right))
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_without_adaptation_it_is_lif():
    xs, upstream = sequence().requires_grad_(), torch.randn(4, 4, 5)
    found, right = run(FusedALIF(0.5, beta=0.0), xs), run(FusedLIF(0.5), xs)
    assert torch.equal(found, right)
    mine, theirs = (torch.autograd.grad(out, xs, upstream)[0] for out in (found, right))
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_fires_less_and_less():
    spikes = run(FusedALIF(0.5, beta=2.0, rho=0.9), torch.full((40, 1), 1.1))
    assert spikes[:10].sum() > spikes[-10:].sum() > 0


def test_online_gradient_is_of_each_step_alone():
    alif, m, adaptation = FusedALIF(0.5, online=True, **FAST), torch.zeros(4, 5), torch.zeros(4, 5)
    for x in sequence():
        mine, theirs, upstream = x.clone().requires_grad_(), x.clone().requires_grad_(), torch.randn(4, 5)
        alif(mine).backward(upstream)
        reference.alif_step_(theirs, m, adaptation, 0.5, **FAST).backward(upstream)
        assert torch.equal(mine.grad, theirs.grad)
        assert torch.equal(alif.membrane, m)
        assert torch.equal(alif.adaptation, adaptation)


@onlines
@pytest.mark.parametrize("gradient", [False, True])
def test_step_modes_agree(gradient, online):
    xs = sequence().requires_grad_(gradient)
    single, multi = (FusedALIF(0.5, online=online, step_mode=mode, **FAST) for mode in ("s", "m"))
    assert torch.equal(run(single, xs), multi(xs))
    for mine, theirs in zip(single.states(), multi.states(), strict=True):
        assert torch.equal(mine, theirs)


def test_step_before_the_last_ones_backward_is_refused():
    alif, xs = FusedALIF(online=True), sequence(2).requires_grad_()
    first = alif(xs[0])
    alif(xs[1])
    with pytest.raises(RuntimeError, match="or use online=False"):
        first.backward(torch.randn(4, 5))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@onlines
def test_copies_go_on_from_the_same_states(online, duplicate):
    xs = sequence().requires_grad_()
    alif = FusedALIF(0.5, online=online, **FAST)
    alif(xs[0])
    other = duplicate(alif)
    assert not any(state.requires_grad for state in other.states())
    assert torch.equal(other(xs[1]), alif(xs[1]))
    assert torch.equal(other.adaptation, alif.adaptation)
    assert repr(other) == repr(alif)


def test_states_follow_the_module():
    alif, x = FusedALIF(0.5), torch.ones(2, 3)
    alif(x.requires_grad_())
    alif.detach_state()
    assert not any(state.requires_grad for state in alif.states())
    assert {state.dtype for state in alif.half().states()} == {torch.float32}
    assert {state.dtype for state in alif.double().states()} == {torch.float64}
    assert {state.device.type for state in alif.to("meta").states()} == {"meta"}
    assert alif._replicate_for_data_parallel().states() == []
    assert len(alif.states()) == 2
    with pytest.raises(ValueError, match=r"^FusedALIF holds the state of input \(2, 3\) and got \(3, 3\): call reset"):
        alif(torch.ones(3, 3))
    reset_states(alif)
    assert alif.membrane is None
    assert alif.adaptation is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": -1.0}, "beta is -1.0: it must be 0 (no adaptation) or positive and finite, for example 0.184."),
        ({"rho": 1.1}, "rho is 1.1: it must be between 0 and 1 (the adaptation never moves), for example 0.99."),
        ({"threshold": 0.0}, "threshold is 0.0: it must be positive and finite, for example 1.0."),
        ({"decay": 2.0}, "decay is 2.0: it must be between 0 (no memory) and 1 (no leak), for example 0.1."),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_bad_parameters_are_refused_when_built(options, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole message is compared
        FusedALIF(**options)
    assert str(raised.value) == message


def test_repr():
    assert repr(FusedALIF(0.5, rho=0.9, scale=0.5)) == (
        "FusedALIF(decay=0.5, threshold=1.0, beta=0.184, rho=0.9, surrogate=Triangle(gamma=1.0), scale=0.5, "
        "online=False, step_mode='s', backend='auto')"
    )


def test_lean_memory_writes_bits_and_over_the_input():
    alif, x = FusedALIF(online=True), torch.ones(8)
    alif.overwrite = True
    assert alif(x) is not x
    alif.memory_form = "lean"
    assert alif(x) is x
    exact = FusedALIF()
    assert bits_of(exact(torch.ones(8))) is None
    exact.reset()
    exact.memory_form = "lean"
    assert bits_of(exact(torch.ones(8))).tolist() == [255]


def test_paper_memory_keeps_the_membrane_after_reset():
    alif = FusedALIF(rho=0.5)
    alif.memory_form = "paper"
    alif(torch.tensor([1.5, 0.5]))
    assert alif.membrane.tolist() == [0.5, 0.5]
    assert alif.adaptation.tolist() == [0.5, 0.0]


def test_reference_backend_and_inference_mode():
    xs = sequence()
    expected = run(FusedALIF(0.5, **FAST), xs)
    assert torch.equal(run(FusedALIF(0.5, backend="reference", **FAST), xs), expected)
    with torch.inference_mode():
        assert torch.equal(run(FusedALIF(0.5, online=True, **FAST), xs), expected)


@pytest.mark.usefixtures("norms_by_pytorch")
@pytest.mark.parametrize("rule", ["sltt", "bptt", "stdl"])
def test_lean_equals_paper(rule):
    """After two steps of training every weight and every statistic, to the last bit."""
    found = []
    for memory in ("lean", "paper"):
        data = batches(2)
        made = make(rule, small(neuron=FusedALIF, **FAST), data[0][0], memory=memory)
        found.append((train(made, data, T=3), numbers(made)))
    assert_same(found[0][1], found[1][1])
    assert_same_results(found[0][0], found[1][0])
